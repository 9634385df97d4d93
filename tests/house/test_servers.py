"""The page about real servers: what is made of a report, and that the page says what was kept."""

from pathlib import Path

import msgspec
import pytest

from tests.check import reports
from tests.table import table
from tools import server_page
from tools.server_page import Checked, NotOffered, NotRun, Page, Result
from welldone.check.report import Report, Verdict
from welldone.check.settings import DIALECTS
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability

ROOT = Path(__file__).parents[2]
KEPT = server_page.stored(ROOT / "docs" / "servers")
RULES = ROOT / "docs" / "rules"


def _page(chat: Result, place: int = 0, **others: Result) -> Page:
    return Page(
        place=place,
        title=f"Server {place}",
        started="serve --port 8000",
        note="As it comes.",
        version="1.2.3",
        results={
            **dict.fromkeys(DIALECTS, NotOffered(date="2026-01-01", why="404: Not Found")),
            "chat": chat,
            **others,
        },
    )


def _drawn(report: Report) -> str:
    return server_page.draw([_page(server_page.trimmed(report))])


def test_a_right_server_has_a_row_and_nothing_is_broken() -> None:
    text = _drawn(reports.right())
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | right | not offered | not offered |" in text
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: no rule is broken "
        "(3 right, 0 lax, 0 wrong, 1 not offered, 1 not heard)." in text
    )
    assert "serve --port 8000" in text
    assert "As it comes." in text


def test_every_broken_rule_has_one_line_with_what_was_heard_and_where() -> None:
    lines = _drawn(reports.wrong()).splitlines()
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | wrong (3) | not offered | not offered |" in lines
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: 3 rules are broken, 1 of them so that a client breaks "
        "(0 right, 2 lax, 1 wrong, 1 not offered, 1 not heard)." in lines
    )
    assert [line for line in lines if "](rules/" in line and line.startswith("| [")] == [
        '| [delta-role-once](rules/delta-role-once.md) | breaks | `{"role":"assistant","content":"b"}` | tools, n |',
        '| [use-final-chunk](rules/use-final-chunk.md) | tolerated | `{"role":"assistant","content":"b"}` | tools |',
        '| [env-fingerprint](rules/env-fingerprint.md) | style | `{"role":"assistant","content":"b"}` | headers |',
    ]


def test_each_endpoint_has_its_column_and_its_own_list() -> None:
    right, wrong = server_page.trimmed(reports.right()), server_page.trimmed(reports.wrong())
    text = server_page.draw([_page(right, responses=wrong)])
    assert "| server | version | checked | chat | responses | messages |" in text
    assert "| 1.2.3 | 2026-01-02 | right | wrong (3) | not offered |" in text
    head, chat, responses, messages = text.split("\n`/v1/")
    assert [part.count("](rules/") for part in (head, chat, responses, messages)] == [1, 0, 3, 0]  # one names them all
    assert messages == "messages` is not offered: `404: Not Found`\n"


def test_a_rule_that_is_broken_everywhere_is_still_one_line() -> None:
    findings = tuple(reports.finding(probe=f"probe-{number}") for number in range(5))
    text = _drawn(reports.wrong(findings=findings))
    assert "| probe-0, probe-1, probe-2 and 2 more |" in text
    assert "one rule is broken, 1 of them" in text


def test_what_was_not_waited_for_is_said() -> None:
    first, *others = reports.right().probes
    text = _drawn(reports.right(probes=(msgspec.structs.replace(first, is_incomplete=True), *others)))
    assert "No reply came in time to plain." in text


@table("heard", reports.HOSTILE)
def test_what_a_server_says_stays_in_its_cell(heard: str) -> None:
    text = _drawn(reports.wrong(findings=(reports.finding(heard=heard),)))
    (row,) = [line for line in text.splitlines() if line.startswith("| [delta-role-once]")]
    assert row.replace("\\|", "").count("|") == 5
    assert row.count("`") in (0, 2)
    assert row.isprintable()
    assert len(row) < 400


def test_a_server_that_could_not_be_run_says_why() -> None:
    text = server_page.draw([_page(NotRun(date="2026-01-02", why="no wheel for this machine"))])
    assert "| 2026-01-02 | not run | not offered | not offered |" in text
    assert "`/v1/chat/completions` could not be checked here:\n\n```\nno wheel for this machine\n```" in text


def test_what_is_kept_is_read_again_in_the_order_of_the_page(tmp_path: Path) -> None:
    second = _page(NotRun(date="2026-01-02", why="gone"), place=1)
    first = _page(server_page.trimmed(reports.wrong()))
    server_page.store(second, tmp_path / "made" / "a.json")
    server_page.store(first, tmp_path / "made" / "b.json")
    assert server_page.stored(tmp_path / "made") == [first, second]


def test_the_page_is_made_of_what_was_kept() -> None:
    assert (ROOT / "docs" / "servers.md").read_text("utf-8") == server_page.draw(KEPT)


@table("page", KEPT, ids=[page.title for page in KEPT])
def test_what_is_kept_of_a_server_names_no_path_of_a_machine_and_only_rules_that_have_a_page(page: Page) -> None:
    text = msgspec.json.encode(page).decode()
    assert not [path for path in ("/home/", "/root", "/tmp/", "/work", "/Users/") if path in text]
    assert list(page.results) == list(DIALECTS)
    for result in page.results.values():
        if isinstance(result, Checked):
            assert sum(result.rules.values()) > 0
            assert not [broken.rule for broken in result.broken if not (RULES / f"{broken.rule}.md").exists()]


def _ours(title: str, endpoint: str) -> Checked:
    (result,) = [page.results[endpoint] for page in KEPT if page.title == title]
    assert isinstance(result, Checked)
    return result


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_welldone_breaks_no_rule(endpoint: str) -> None:
    ours = _ours("welldone", endpoint)
    assert (ours.verdict, ours.broken) == (Verdict.PASS, ())


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_a_gateway_leaves_only_what_no_gateway_can_mend(endpoint: str) -> None:
    ours = _ours("welldone in front of llama.cpp", endpoint)
    assert {RULES_BY_ID[broken.rule].repairability for broken in ours.broken} <= {Repairability.REPORT_ONLY}
