"""Formulas of answers: MathML that fits a phone; everything outside of the subset is text."""

import pytest
from playwright.sync_api import expect

from tests.web.browser import PHONE, Visit
from tests.web.conftest import Visiting
from tests.web.stage import ROLE, Stage, delta, saying
from tests.web.test_access import overflow, violations, with_axe
from tests.web.test_hostile import OWNED, STRANGE
from welldone.mock.script import MockReply

pytestmark = pytest.mark.tier3

LONG = " + ".join(rf"\frac{{x_{{{n}}}}}{{{n}}}" for n in range(1, 41))
PARTS = (
    "Inline $x^2$ and \\(y_",
    "1\\), not `$z$`.\n\nIt costs $5 and $10.\n\n\\[\na\n",
    f"+ b\n\\]\n\n$${LONG}$$\n\n\\({LONG}\\)\n\n",
    r"$$\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \nosuch$$",
    "\n\nThe end.",
)
OPEN = "$$\n- *a* + \\sqrt{b"
HOSTILE = (
    rf"$$\href{{javascript:{OWNED}}}{{a}}$$",
    rf"\(\text{{<img src=x onerror='{OWNED}'>}}\)",
    rf"$\operatorname{{<script>{OWNED}</script>}}$",
    rf"$$x</annotation></semantics></math><img src=x onerror={OWNED}>$$",
    r"\[\style{position:fixed}{x} \class{quiet}{y}\]",
    "$" + "{" * 1_000 + "x" + "}" * 900 + "$",
)


def test_formulas_are_mathml_and_scroll_in_their_own_box(visit: Visiting, stage: Stage) -> None:
    page = with_axe(visit(stage.server.root, size=PHONE))
    stage.set_replies(saying(*PARTS))
    page.send("Hello")
    expect(page.answer).to_contain_text("The end.")
    page.settle()
    expect(page.answer.locator("math")).to_have_count(5)
    expect(page.answer.locator("math msup")).to_have_text("x2")
    expect(page.answer.locator("code")).to_have_text("$z$")
    expect(page.answer).to_contain_text("It costs $5 and $10.")
    expect(page.answer).to_contain_text(PARTS[3])
    boxes = page.answer.get_by_role("group", name="Formula")
    assert boxes.evaluate_all("all => all.map((one) => one.scrollWidth > one.clientWidth)") == [False, True, True]
    assert overflow(page) == 0
    assert violations(page) == []
    page.answer.get_by_role("button", name="Copy", exact=True).first.click()
    page.page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg="".join(PARTS))


def test_an_open_formula_is_shown_as_its_source(page: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply((ROLE, delta({"content": f"$x$\n\n{OPEN}"})), end="hang"))
    page.send("Hello")
    expect(page.answer).to_contain_text(OPEN)
    expect(page.answer.locator("math")).to_have_count(1)
    page.chat.get_by_role("button", name="Stop", exact=True).click()
    page.settle()
    expect(page.answer).to_contain_text(OPEN)


def test_hostile_formulas_are_text(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(*[f"{text}\n\n" for text in HOSTILE], "That was all."))
    page.send("Hello")
    expect(page.answer).to_contain_text("That was all.")
    page.settle()
    for text in (HOSTILE[0], "<img", "<script>", HOSTILE[4]):
        expect(page.answer).to_contain_text(text)
    expect(page.answer.locator("math mtext")).to_contain_text("<img\u00a0src=x")
    assert page.page.evaluate(STRANGE) == []
