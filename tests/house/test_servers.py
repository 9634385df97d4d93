"""The page about real servers: what is made of a report, and that the page says what was kept."""

from pathlib import Path

import msgspec
import pytest

from tests.check import reports
from tools import server_page
from tools.server_page import Checked, NotRun, Page
from welldone.check.report import Report, Verdict
from welldone.wire.faults import Mend
from welldone.wire.faults.catalogue import BY_ID

ROOT = Path(__file__).parents[2]
KEPT = server_page.stored(ROOT / "docs" / "servers")
RULES = ROOT / "docs" / "rules"


def _page(result: Checked | NotRun, place: int = 0) -> Page:
    return Page(place=place, title=f"Server {place}", started="serve --port 8000", note="As it comes.", result=result)


def _drawn(report: Report) -> str:
    return server_page.draw([_page(server_page.trimmed(report, version="1.2.3"))])


def test_a_right_server_has_a_row_and_nothing_is_broken() -> None:
    text = _drawn(reports.right())
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | right | 3 | 0 | 0 | 1 | 1 |" in text
    assert "Checked by welldone 0.5.0: no rule is broken." in text
    assert "serve --port 8000" in text
    assert "As it comes." in text


def test_every_broken_rule_has_one_line_with_what_was_heard_and_where() -> None:
    lines = _drawn(reports.wrong()).splitlines()
    assert "Checked by welldone 0.5.0: 3 rules are broken, 1 of them so that a client breaks." in lines
    assert [line for line in lines if "](rules/" in line and line.startswith("| [")] == [
        '| [delta-role-once](rules/delta-role-once.md) | breaks | `{"role":"assistant","content":"b"}` | tools, n |',
        '| [use-final-chunk](rules/use-final-chunk.md) | tolerated | `{"role":"assistant","content":"b"}` | tools |',
        '| [env-fingerprint](rules/env-fingerprint.md) | style | `{"role":"assistant","content":"b"}` | headers |',
    ]


def test_a_rule_that_is_broken_everywhere_is_still_one_line() -> None:
    findings = tuple(reports.finding(probe=f"probe-{number}") for number in range(5))
    text = _drawn(reports.wrong(findings=findings))
    assert "| probe-0, probe-1, probe-2 and 2 more |" in text
    assert "one rule is broken, 1 of them" in text


def test_what_was_not_waited_for_is_said() -> None:
    first, *others = reports.right().probes
    text = _drawn(reports.right(probes=(msgspec.structs.replace(first, is_given_up=True), *others)))
    assert "No reply came in time to plain." in text


@pytest.mark.parametrize("heard", reports.HOSTILE)
def test_what_a_server_says_stays_in_its_cell(heard: str) -> None:
    text = _drawn(reports.wrong(findings=(reports.finding(heard=heard),)))
    (row,) = [line for line in text.splitlines() if line.startswith("| [delta-role-once]")]
    assert row.replace("\\|", "").count("|") == 5
    assert row.count("`") in (0, 2)
    assert row.isprintable()
    assert len(row) < 400


def test_a_server_that_could_not_be_run_says_why() -> None:
    text = server_page.draw([_page(NotRun(date="2026-01-02", why="no wheel for this machine"))])
    assert "| [Server 0](#server-0) |  | 2026-01-02 | not run |  |  |  |  |  |" in text
    assert "It could not be checked here:\n\n```\nno wheel for this machine\n```" in text


def test_what_is_kept_is_read_again_in_the_order_of_the_page(tmp_path: Path) -> None:
    second = _page(NotRun(date="2026-01-02", why="gone"), place=1)
    first = _page(server_page.trimmed(reports.wrong(), version="1"))
    server_page.store(second, tmp_path / "made" / "a.json")
    server_page.store(first, tmp_path / "made" / "b.json")
    assert server_page.stored(tmp_path / "made") == [first, second]


def test_the_page_is_made_of_what_was_kept() -> None:
    assert (ROOT / "docs" / "servers.md").read_text("utf-8") == server_page.draw(KEPT)


@pytest.mark.parametrize("page", KEPT, ids=[page.title for page in KEPT])
def test_what_is_kept_of_a_server_names_no_path_of_a_machine_and_only_rules_that_have_a_page(page: Page) -> None:
    text = msgspec.json.encode(page).decode()
    assert not [path for path in ("/home/", "/root", "/tmp/", "/work", "/Users/") if path in text]
    if isinstance(page.result, Checked):
        assert sum(page.result.rules.values()) > 0
        assert not [broken.rule for broken in page.result.broken if not (RULES / f"{broken.rule}.md").exists()]


def _ours(title: str) -> Checked:
    (result,) = [page.result for page in KEPT if page.title == title]
    assert isinstance(result, Checked)
    return result


def test_welldone_breaks_no_rule() -> None:
    ours = _ours("welldone")
    assert (ours.verdict, ours.broken) == (Verdict.RIGHT, ())


def test_a_gateway_leaves_only_what_no_gateway_can_mend() -> None:
    assert {BY_ID[broken.rule].mend for broken in _ours("welldone in front of llama.cpp").broken} <= {Mend.REPORT}
