"""Hostile output of models: only displayed as text, and never so much that the page hangs."""

import pytest
from playwright.sync_api import expect

from tests.web.browser import LIMIT_MS, Visit
from tests.web.stage import Stage, saying

pytestmark = pytest.mark.tier3

OWNED = "window.owned = true"
MARKUP = [
    f"<script>{OWNED}</script>",
    f'<img src="x" onerror="{OWNED}">',
    f'<svg onload="{OWNED}"><animate onbegin="{OWNED}"/></svg>',
    f'<iframe srcdoc="<script>{OWNED}</script>" src="https://evil.example/"></iframe>',
    '<style>* { display: none }</style><link rel="stylesheet" href="https://evil.example/x.css">',
    '<form action="https://evil.example/"><input name="key"><button>Go on</button></form>',
    '<base href="https://evil.example/"><meta http-equiv="refresh" content="0;url=https://evil.example/">',
    f"<<a<script>>{OWNED}</script><!-- <img src=x onerror='{OWNED}'> --!> <b",
    f"```html\n<script>{OWNED}</script>\n```",
    f"| a |\n|---|\n| <img src=x onerror={OWNED!r}> |",
]
LINKS = [
    "[one](javascript:window.owned=true)",
    "[two](JaVaScRiPt:window.owned=true)",
    "[three](java\tscript:window.owned=true)",
    "[four](data:text/html,<script>window.owned=true</script>)",
    "[five](vbscript:window.owned)",
    "[six](file:///etc/passwd)",
    "[seven](blob:https://evil.example/1)",
    "[eight](&#106;avascript:window.owned=true)",
    "<javascript:window.owned=true>",
    '[nine](https://evil.example/"onmouseover="window.owned=true)',
    "[ten]: javascript:window.owned=true\n\n[ten]",
]
PICTURES = "![one](https://evil.example/1.png) [![two](//evil.example/2.png)](https://evil.example/) ![three](x.png)"
INVISIBLE = "a\x1b[31mred\x1b[0m \x00 \x07 \x08 b\u202ec\u2066d \u200e e\u200bf \u2060 \ufeff \U000e0041 end"
FORBIDDEN = "\x1b\x00\x07\x08\u202e\u2066\u200e\u200b\u2060\ufeff\U000e0041"
HUGE = {
    "no space": "x" * 65536,
    "stars": "*" * 65536,
    "brackets": "[" * 65536,
    "backticks": "`x" * 32768,
    "quotes": ">" * 65536,
    "pipes": "|a" * 32768,
    "nested lists": "".join("  " * depth + "- a\n" for depth in range(250)),
    "bidi": "\u202e" * 21845,
    "formulas": "$x^2$ " * 10922,
}
STRANGE = """() => {
  const bad = [...document.querySelectorAll("iframe, img, object, embed, base, form[action], style, meta[http-equiv]")]
    .map((element) => element.tagName);
  for (const element of document.querySelectorAll("*"))
    for (const { name, value } of element.attributes)
      if (name.startsWith("on") || name === "srcdoc") bad.push(`${element.tagName} ${name}=${value}`);
  for (const link of document.links)
    if (!["http:", "https:", "mailto:", "blob:"].includes(link.protocol)) bad.push(link.href);
  for (const script of document.scripts)
    if (!script.src.startsWith(`${location.origin}/page/assets/`)) bad.push(script.outerHTML);
  if (window.owned) bad.push("owned");
  return bad;
}"""


def page_text(page: Visit) -> str:
    """The text of all elements."""
    text: str = page.page.evaluate("document.body.textContent")
    return text


def test_html_is_shown_as_text(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(*[f"{text}\n\n" for text in MARKUP], "That was all."))
    page.send("\n".join(MARKUP))
    expect(page.answer).to_contain_text("That was all.")
    page.settle()
    expect(page.articles("You").first).to_contain_text("\n".join(MARKUP))
    for word in ("<script>", "<img", "<svg", "<iframe", "<style>", "<form", "<base", "<meta"):
        expect(page.answer).to_contain_text(word)
    assert page.page.evaluate(STRANGE) == []


def test_links_lead_only_to_http_and_mail_addresses(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(*[f"See {link} now.\n\n" for link in LINKS], "[good](https://example.com/)"))
    page.send("Hello")
    expect(page.answer.get_by_role("link", name="good")).to_have_attribute("href", "https://example.com/")
    page.settle()
    assert page.page.evaluate(STRANGE) == []
    for found in page.answer.get_by_role("link").all():
        assert (found.get_attribute("rel") or "").split() == ["noopener", "noreferrer", "nofollow"]


def test_images_are_not_loaded(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(PICTURES, " end"))
    page.send("Hello")
    expect(page.answer).to_contain_text("end")
    page.settle()
    assert page.page.evaluate(STRANGE) == []


def test_hidden_and_bidirectional_characters_are_made_visible(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(INVISIBLE))
    page.send(INVISIBLE.replace("\x00", ""))
    expect(page.answer).to_contain_text("end")
    page.settle()
    assert [character for character in FORBIDDEN if character in page_text(page)] == []
    expect(page.answer).to_contain_text("\u241b[31mred")
    expect(page.answer).to_contain_text("U+202E")


def test_joiners_in_emoji_and_scripts_are_kept(page: Visit, stage: Stage) -> None:
    text = "\U0001f469\u200d\U0001f4bb \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u4f60\u597d"
    stage.set_replies(saying(text))
    page.send("Hello")
    expect(page.answer).to_contain_text(text)


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE.keys())
def test_the_page_responds_after_five_megabytes(page: Visit, stage: Stage, text: str) -> None:
    times = 5_000_000 // len(text.encode())
    stage.set_replies(saying(*[text] * times, "\n\nthe end"))
    page.send("Hello")
    page.settle()
    page.page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(page.page.get_by_role("dialog")).to_be_visible(timeout=LIMIT_MS)
    assert page.page.evaluate("document.querySelectorAll('*').length") < 100_000


def test_model_names_of_an_upstream_are_shown_as_text(page: Visit, stage: Stage) -> None:
    evil = f'"><img src=x onerror="{OWNED}">'
    reply = saying("fine")
    stage.set_replies(type(reply)(reply.pieces, headers={**reply.headers, "X-Evil": evil}))
    page.send("Hello")
    expect(page.answer).to_contain_text("fine")
    page.settle()
    for tab in ("Frames", "Repairs", "Timeline", "Request"):
        page.tab(tab)
        assert page.page.evaluate(STRANGE) == []
