"""docs/servers.md: the summary of a report, and the page that is generated from the stored results."""

from pathlib import Path

import msgspec
import pytest

from tests.check import reports
from tests.table import table
from tools import server_page
from tools.server_page import DIALECTS, Checked, MiddlewareRun, NotRun, Result, ServerPage, Unsupported
from tools.server_table import SERVERS
from welldone.check.report import Report, Verdict
from welldone.protocol.catalog import RULES, Repairability

ROOT = Path(__file__).parents[2]
STORED_PAGES = server_page.load_pages(ROOT / "docs" / "servers")
RULE_PAGES = ROOT / "docs" / "rules"


def _page(chat: Result, position: int = 0, **others: Result) -> ServerPage:
    return ServerPage(
        position=position,
        title=f"Server {position}",
        command="serve --port 8000",
        note="With its defaults.",
        version="1.2.3",
        results={
            **dict.fromkeys(DIALECTS, Unsupported(date="2026-01-01", reason="404: Not Found")),
            "chat": chat,
            **others,
        },
    )


def _rendered(report: Report) -> str:
    return server_page.render([_page(server_page.summarize(report))])


def test_the_lock_file_of_every_server_exists() -> None:
    locks = {server.lock for server in SERVERS if server.lock is not None}
    assert {lock for lock in locks if not (ROOT / "requirements" / f"{lock}.txt").is_file()} == set()


def test_a_server_that_passes_has_a_row_and_its_counts() -> None:
    text = _rendered(reports.passing_report())
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | pass | unsupported | unsupported |" in text
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: no rule is broken "
        "(3 pass, 0 warn, 0 fail, 1 unsupported, 1 not applicable)." in text
    )
    assert "serve --port 8000" in text
    assert "With its defaults." in text


def test_every_broken_rule_has_one_row_with_the_observed_value_and_the_probes() -> None:
    lines = _rendered(reports.failing_report()).splitlines()
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | fail (3) | unsupported | unsupported |" in lines
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: 3 rules are broken, 1 of them with severity breaks "
        "(0 pass, 2 warn, 1 fail, 1 unsupported, 1 not applicable)." in lines
    )
    assert [line for line in lines if "](rules/" in line and line.startswith("| [")] == [
        '| [delta-role-once](rules/delta-role-once.md) | breaks | `{"role":"assistant","content":"b"}` | tools, n |',
        '| [use-final-chunk](rules/use-final-chunk.md) | tolerated | `{"role":"assistant","content":"b"}` | tools |',
        '| [env-fingerprint](rules/env-fingerprint.md) | style | `{"role":"assistant","content":"b"}` | headers |',
    ]


def test_each_endpoint_has_its_column_and_its_own_list() -> None:
    passed = server_page.summarize(reports.passing_report())
    failed = server_page.summarize(reports.failing_report())
    text = server_page.render([_page(passed, responses=failed)])
    assert "| server | version | checked | chat | responses | messages |" in text
    assert "| 1.2.3 | 2026-01-02 | pass | fail (3) | unsupported |" in text
    head, chat, responses, messages = text.split("\n`/v1/")
    # The introduction links to the list of all rules.
    assert [part.count("](rules/") for part in (head, chat, responses, messages)] == [1, 0, 3, 0]
    assert messages == "messages` is unsupported: `404: Not Found`\n"


def test_a_rule_that_is_broken_in_every_probe_has_one_row() -> None:
    findings = tuple(reports.finding(probe=f"probe-{number}") for number in range(5))
    text = _rendered(reports.failing_report(findings=findings))
    assert "| probe-0, probe-1, probe-2 and 2 more |" in text
    assert "one rule is broken, 1 of them" in text


def test_probes_with_incomplete_replies_are_named() -> None:
    first, *others = reports.passing_report().probes
    text = _rendered(reports.passing_report(probes=(msgspec.structs.replace(first, is_incomplete=True), *others)))
    assert "Incomplete replies: plain." in text


@table("observed", reports.HOSTILE)
def test_text_from_a_server_stays_in_its_cell(observed: str) -> None:
    text = _rendered(reports.failing_report(findings=(reports.finding(observed=observed),)))
    (row,) = [line for line in text.splitlines() if line.startswith("| [delta-role-once]")]
    assert row.replace("\\|", "").count("|") == 5
    assert row.count("`") in (0, 2)
    assert row.isprintable()
    assert len(row) < 400


def test_the_reason_why_a_server_did_not_run_is_shown() -> None:
    text = server_page.render([_page(NotRun(date="2026-01-02", reason="no wheel for this machine"))])
    assert "| 2026-01-02 | not run | unsupported | unsupported |" in text
    assert "`/v1/chat/completions` could not be checked:\n\n```\nno wheel for this machine\n```" in text


def _with_middleware(before: Result, after: Result, **members: object) -> ServerPage:
    page = _page(before)
    run = MiddlewareRun(command="serve --middleware X", results={**page.results, "chat": after})
    return msgspec.structs.replace(page, middleware=run, **members)


def test_the_table_of_the_middleware_has_the_broken_rules_before_and_after() -> None:
    before, after = map(server_page.summarize, (reports.failing_report(), reports.passing_report()))
    text = server_page.render([_with_middleware(before, after)])
    _, table_text = text.split("## With the middleware")
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | 3 → 0 | unsupported | unsupported |" in table_text
    assert "serve --middleware X" in table_text
    assert "still broken" not in table_text


def test_rules_that_the_middleware_leaves_broken_have_a_reason() -> None:
    findings = (reports.finding(rule="http-cors-preflight", severity="breaks"),)
    left = server_page.summarize(reports.failing_report(findings=findings))
    text = server_page.render([_with_middleware(left, left)])
    reason = server_page.UNREPAIRED["http-cors-preflight"]
    (row,) = [line for line in text.splitlines() if reason in line]
    assert row.startswith("| Server 0 | chat | [http-cors-preflight](rules/http-cors-preflight.md) | breaks | `")


def test_a_check_with_the_middleware_that_failed_is_shown() -> None:
    before = server_page.summarize(reports.failing_report())
    text = server_page.render([_with_middleware(before, NotRun(date="2026-01-02", reason="no wheel for this machine"))])
    assert "| 3 → not run | unsupported | unsupported |" in text
    assert "no wheel for this machine" in text


def test_an_imitation_is_only_in_the_table_of_the_middleware() -> None:
    result = server_page.summarize(reports.passing_report())
    text = server_page.render([_with_middleware(result, result, is_imitation=True)])
    assert text.count("| [Server 0](#server-0) |") == 1


def test_stored_pages_are_loaded_in_the_order_of_the_page(tmp_path: Path) -> None:
    second = _page(NotRun(date="2026-01-02", reason="gone"), position=1)
    first = _page(server_page.summarize(reports.failing_report()))
    server_page.store_page(second, tmp_path / "servers" / "a.json")
    server_page.store_page(first, tmp_path / "servers" / "b.json")
    assert server_page.load_pages(tmp_path / "servers") == [first, second]


def test_the_page_is_generated_from_the_stored_results() -> None:
    assert (ROOT / "docs" / "servers.md").read_text("utf-8") == server_page.render(STORED_PAGES)


@table("page", STORED_PAGES, ids=[page.title for page in STORED_PAGES])
def test_stored_results_have_no_local_paths_and_only_rules_with_a_page(page: ServerPage) -> None:
    text = msgspec.json.encode(page).decode()
    assert not [path for path in ("/home/", "/root", "/tmp/", "/work", "/Users/") if path in text]
    runs = [page.results, page.middleware.results] if page.middleware else [page.results]
    assert [list(results) for results in runs] == [list(DIALECTS)] * len(runs)
    for result in (result for results in runs for result in results.values()):
        if isinstance(result, Checked):
            assert sum(result.rules.values()) > 0
            assert not [broken.rule for broken in result.broken if not (RULE_PAGES / f"{broken.rule}.md").exists()]


def _stored_result(title: str, endpoint: str) -> Checked:
    (result,) = [page.results[endpoint] for page in STORED_PAGES if page.title == title]
    assert isinstance(result, Checked)
    return result


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_welldone_breaks_no_rule(endpoint: str) -> None:
    result = _stored_result("welldone", endpoint)
    assert (result.verdict, result.broken) == (Verdict.PASS, ())


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_behind_the_gateway_only_rules_that_cannot_be_repaired_are_broken(endpoint: str) -> None:
    result = _stored_result("welldone in front of llama.cpp", endpoint)
    assert {RULES[broken.rule].repairability for broken in result.broken} <= {Repairability.REPORT_ONLY}


@table(
    "page",
    [page for page in STORED_PAGES if page.middleware],
    ids=[page.title for page in STORED_PAGES if page.middleware],
)
def test_the_middleware_breaks_no_rule_and_leaves_only_rules_with_a_reason(page: ServerPage) -> None:
    assert page.middleware is not None
    for endpoint, after in page.middleware.results.items():
        before = page.results[endpoint]
        if isinstance(before, Checked) and isinstance(after, Checked):
            assert len(after.broken) <= len(before.broken)
            assert {broken.rule for broken in after.broken} <= server_page.UNREPAIRED.keys()
