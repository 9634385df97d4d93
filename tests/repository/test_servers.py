"""docs/servers.md: the summary of a report, and the page that is generated from the stored results."""

from pathlib import Path

import msgspec
import pytest

from tests.check import reports
from tests.table import table
from tools import server_page
from tools.server_page import DIALECTS, Checked, MiddlewareRun, NotRun, Result, ServerPage, Unsupported
from tools.server_table import SERVERS
from welldone.check.prescription import KNOWLEDGE
from welldone.check.report import Prescription, Report, Verdict
from welldone.config.settings import RawSetting
from welldone.core.catalog import RULES, Repairability
from welldone.server.config import read_config

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
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | chat | pass | - | - |" in text
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: no rule is broken "
        "(3 pass, 0 warn, 0 fail, 1 unsupported, 1 not applicable)." in text
    )
    assert "serve --port 8000" in text
    assert "With its defaults." in text


def test_every_broken_rule_has_one_row_with_the_observed_value_and_the_probes() -> None:
    lines = _rendered(reports.failing_report()).splitlines()
    assert "| [Server 0](#server-0) | 1.2.3 | 2026-01-02 | chat | fail (3) | - | - |" in lines
    assert (
        "`/v1/chat/completions`, checked by welldone 0.5.0: 3 rules are broken, 1 of them with severity breaks "
        "(0 pass, 2 warn, 1 fail, 1 unsupported, 1 not applicable)." in lines
    )
    assert [line for line in lines if "](rules/" in line and line.startswith("| [")] == [
        '| [delta-role-once](rules/delta-role-once.md) | breaks | `{"role":"assistant","content":"b"}` | tools, n |',
        '| [use-final-chunk](rules/use-final-chunk.md) | tolerated | `{"role":"assistant","content":"b"}` | tools |',
        '| [env-fingerprint](rules/env-fingerprint.md) | style | `{"role":"assistant","content":"b"}` | headers |',
    ]


def test_each_endpoint_has_its_row_and_its_own_list() -> None:
    passed = server_page.summarize(reports.passing_report())
    failed = server_page.summarize(reports.failing_report())
    text = server_page.render([_page(passed, responses=failed)])
    assert "| server | version | checked | endpoint | bare | behind the gateway | with the prescription |" in text
    assert "| 1.2.3 | 2026-01-02 | chat | pass | - | - |\n|  |  |  | responses | fail (3) | - | - |\n" in text
    head, chat, responses, messages = text.split("\n`/v1/")
    # The introduction links to the list of all rules.
    assert [part.count("](rules/") for part in (head, chat, responses, messages)] == [1, 0, 3, 0]
    assert messages == "messages` is unsupported: `404: Not Found`\n"


TABLE = ("[upstreams.server]", 'url = "http://127.0.0.1:8000/v1"', 'stream = "no-tools"  # tool-no-markup-leak: broken')


def _in_three_ways(
    bare: Result,
    behind: Result,
    *,
    broken: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
    unjudged: tuple[str, ...] = (),
) -> str:
    """The page of a server that was checked by itself, behind the gateway, and with the prescription."""
    cured = server_page.Prescribed(date="2026-01-02", settings=TABLE, broken=broken, left=left, unjudged=unjudged)
    page = _page(bare)
    gateway = {**page.results, "chat": behind, "responses": behind}
    prescribed = {"chat": cured, "responses": cured}
    return server_page.render([msgspec.structs.replace(page, gateway=gateway, prescribed=prescribed)])


def test_a_server_has_three_columns() -> None:
    failed, passed = map(server_page.summarize, (reports.failing_report(), reports.passing_report()))
    text = _in_three_ways(failed, passed, broken=("fin-own-chunk",), left=("a word of its own",))
    assert "| chat | fail (3) | pass | warn (1) |" in text
    assert "| responses | unsupported | pass | warn (1) |" in text  # the gateway offers it by chat
    assert "\nBehind the gateway: no rule is broken.\n" in text
    link = "[fin-own-chunk](rules/fin-own-chunk.md)"
    assert f"\nWith the prescription: 1 rule broken: {link}. Left: a word of its own.\n" in text


def test_rules_that_are_broken_behind_the_gateway_are_named() -> None:
    failed = server_page.summarize(reports.failing_report())
    text = _in_three_ways(failed, failed, broken=("end-done-sent",))
    assert "| chat | fail (3) | fail (3) | fail (1) |" in text
    assert "\nBehind the gateway: 3 rules broken: [delta-role-once](rules/delta-role-once.md), [use-final" in text


def test_the_settings_are_shown_once_as_printed() -> None:
    failed = server_page.summarize(reports.failing_report())
    text = _in_three_ways(failed, failed)
    assert text.count("\n".join(("```toml", *TABLE, "```"))) == 1  # not below the API that only the gateway has


def test_rules_that_could_not_be_judged_through_the_gateway_are_named() -> None:
    passed = server_page.summarize(reports.passing_report())
    text = _in_three_ways(passed, passed, unjudged=("live-cancel-on-disconnect",))
    assert "Not judged through the gateway: [live-cancel-on-disconnect](rules/live-cancel-on-disconnect.md)." in text


def test_settings_that_could_not_be_tried_are_shown_with_the_reason() -> None:
    failed = server_page.summarize(reports.failing_report())
    page = msgspec.structs.replace(
        _page(failed),
        prescribed={"chat": server_page.Prescribed(date="2026-01-02", settings=TABLE, broken=(), problem="no model")},
    )
    text = server_page.render([page])
    assert "| chat | fail (3) | - | not run |" in text
    assert "The prescription could not be tried: `no model`" in text


def test_the_settings_of_a_prescription_have_no_port_of_the_run() -> None:
    prescription = Prescription(
        toml=("[upstreams.127-0-0-1-41]", 'url = "http://127.0.0.1:41/v1"'), after=("fin-length",)
    )
    stored = server_page.summarize_prescription("2026-01-02T03:04:05Z", prescription, "http://127.0.0.1:41/v1")
    assert (stored.date, stored.settings, stored.broken) == ("2026-01-02", TABLE[:2], ("fin-length",))
    assert not stored.has_settings
    assert server_page.Prescribed(date="2026-01-02", settings=TABLE, broken=()).has_settings


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
    assert "| 2026-01-02 | chat | not run | - | - |" in text
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


@table("page", [page for page in STORED_PAGES if page.gateway], ids=lambda page: page.title)
def test_what_is_broken_behind_the_gateway_is_known_to_be_left(page: ServerPage) -> None:
    for endpoint in DIALECTS:
        behind = (page.gateway or {})[endpoint]
        rules = {broken.rule for broken in behind.broken} if isinstance(behind, Checked) else set()
        cured = page.prescribed.get(endpoint)
        rules |= set(cured.broken if cured else ())
        unrepaired = {rule for rule, entry in RULES.items() if entry.repairability is Repairability.REPORT_ONLY}
        assert rules <= unrepaired | KNOWLEDGE.left.keys() | server_page.UNREPAIRED.keys(), endpoint


@table("page", [page for page in STORED_PAGES if page.prescribed], ids=lambda page: page.title)
def test_each_printed_table_is_a_configuration(page: ServerPage, tmp_path: Path) -> None:
    for prescribed in page.prescribed.values():
        (tmp_path / "welldone.toml").write_text("\n".join(prescribed.settings))
        flags = {"port": RawSetting("8080", "--port", tmp_path)}
        assert read_config(flags, {"UPSTREAM_KEY": "sk-a-key-of-the-test"}, folder=tmp_path).upstreams


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
