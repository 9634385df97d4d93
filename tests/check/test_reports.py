"""Report formats: each renders the whole report, and hostile text from a server stays inert."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.check.reports import HOSTILE, failing_report, finding, hostile_report, passing_report
from tests.http.aio import LIMIT_S
from tests.table import table
from welldone import reporting
from welldone.check import reports
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine
from welldone.check.reports.text import MAX_REPORT_TEXT_CHARS, render_markdown, render_terminal, rules_by_client

ROOT = Path(__file__).parents[2]
VOID_ELEMENTS = ("meta", "br")


class Tags(HTMLParser):
    """Collects tags, attributes and text of a page; fails where elements are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse_html(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def terminal_lines(report: Report, *, is_verbose: bool = False) -> list[str]:
    return render_terminal(report, lambda text, _: text, is_verbose=is_verbose)


def incomplete_report() -> Report:
    """Report on a server that breaks no rule, with one missing reply."""
    first, *rest = passing_report().probes
    incomplete = msgspec.structs.replace(
        first, verdict=Verdict.NOT_APPLICABLE, reason="no reply within 60 s", is_incomplete=True
    )
    return passing_report(passed=False, probes=(incomplete, *rest))


# ---- the terminal


def test_a_passing_report_takes_a_few_lines() -> None:
    assert terminal_lines(passing_report()) == [
        "passed: no rule broken",
        "qwen3-0.6b at http://127.0.0.1:8000/v1 (llama.cpp)",
        "",
        "pass  plain, tools",
        "stop  unsupported  400: stop is not supported",
        "",
        "3 probes, 3 rules, 63 requests, about 3,100 tokens, 31 s",
        "  1 unsupported and 1 not applicable of 5 rules; --verbose shows the reasons",
        "passed: no rule broken",
    ]


def test_a_broken_rule_is_printed_once_with_every_field_of_its_finding() -> None:
    lines = terminal_lines(failing_report())
    begin = lines.index("x delta-role-once  breaks  tools, frame 7, byte 1804, and 2 more in tools, n")
    assert lines[begin + 1 : begin + 10] == [
        "  summary of delta-role-once",
        '  observed   {"role":"assistant","content":"b"}',
        '  expected   {"content":"b"}',
        "  affects    langchain: joins the roles",
        "             zed: shows a second message",
        "  reproduce  welldone check http://127.0.0.1:8000/v1 --only tools --rule delta-role-once",
        "  curl       curl -sN http://127.0.0.1:8000/v1/chat/completions -d '{}'",
        "  more       welldone rules delta-role-once",
        "",
    ]
    assert [line for line in lines if line.startswith("x ")][1:] == [
        "x use-final-chunk  advice  tools",
        "x env-fingerprint  advice  headers, frame 7, byte 1804",
    ]
    assert "tools    fail         2 of 17 rules: delta-role-once, use-final-chunk" in lines
    assert lines[0] == lines[-1] == "failed: 3 rules broken (1 breaks, 2 advice)"


def test_verbose_lists_every_probe_and_every_rule_that_was_not_judged() -> None:
    lines = terminal_lines(passing_report(), is_verbose=True)
    assert "plain  pass         17 rules" in lines
    assert "n-index-int  unsupported     n is 1 only" in lines
    assert "ext-audio    not applicable  no reply had audio" in lines
    assert lines[-2] == "  1 unsupported and 1 not applicable of 5 rules"


@table(
    ("findings", "position"),
    [
        ([finding()], "tools, frame 7, byte 1804"),
        ([finding(request=2, frame=None, byte=None)], "tools, request 2"),
        ([finding(count=1_500)], "tools, frame 7, byte 1804, and 1,499 more"),
        ([finding(), finding(probe="n")], "tools, frame 7, byte 1804, and 1 more in n"),
        (
            [finding(count=2), *(finding(probe=name) for name in ("n", "stop", "usage"))],
            "tools, frame 7, byte 1804, and 4 more in tools, n, stop, …",
        ),
        ([finding(is_new=False)], "tools, frame 7, byte 1804, known"),
    ],
)
def test_the_heading_of_a_finding_has_its_position_and_count(findings: list[object], position: str) -> None:
    assert f"x delta-role-once  breaks  {position}" in terminal_lines(failing_report(findings=tuple(findings)))


@pytest.mark.parametrize(
    ("report", "last"),
    [
        (
            failing_report(passed=True, findings=(finding(is_new=False),)),
            "passed: 1 rule broken (1 breaks; 1 known); every broken rule is in the baseline",
        ),
        (
            failing_report(
                verdict=Verdict.WARN,
                is_strict=True,
                findings=(finding(rule="use-last", severity="tolerated", kind="advice"),),
            ),
            "failed: 1 rule broken (1 advice); with --strict every broken rule counts",
        ),
        (incomplete_report(), "not passed: no complete reply to plain"),
        (
            passing_report(passed=False, answers=3, failed_answers=2, failures=("a", "b", "c")),
            "failed: 2 of 3 answers ended in an error: a; b; …",
        ),
    ],
)
def test_an_exit_code_that_differs_from_the_verdict_is_explained(report: Report, last: str) -> None:
    assert terminal_lines(report)[-1] == last


def test_the_row_of_an_incomplete_probe_has_its_broken_rules_and_the_reason() -> None:
    plain, tools, *rest = failing_report().probes
    incomplete = msgspec.structs.replace(tools, reason="the reply was not complete within 60 s", is_incomplete=True)
    lines = terminal_lines(failing_report(probes=(plain, incomplete, *rest)))
    row = next(line for line in lines if line.startswith("tools"))
    assert row.endswith("2 of 17 rules: delta-role-once, use-final-chunk; the reply was not complete within 60 s")


def test_many_probe_names_are_wrapped_between_words() -> None:
    probe = passing_report().probes[0]
    probes = tuple(msgspec.structs.replace(probe, name=f"probe{number}-alone") for number in range(30))
    lines = terminal_lines(passing_report(probes=probes))
    rows = lines[3 : lines.index("", 3)]
    assert len(rows) > 1
    assert all(len(row) <= 100 for row in rows)
    assert " ".join(row.strip() for row in rows) == f"pass  {', '.join(probe.name for probe in probes)}"


def test_a_group_of_probes_that_all_pass_is_printed_as_its_name_and_size() -> None:
    passed, failed = passing_report().probes[0], failing_report().probes[1]
    names = ("text", "text-whole", "stops-empty", "usage-same", "usage-asked")
    probes = (
        *(msgspec.structs.replace(passed, name=name) for name in names),
        msgspec.structs.replace(failed, name="usage"),
    )
    assert terminal_lines(failing_report(probes=probes))[3] == "pass  text (2), stops-empty, usage-same, usage-asked"


def test_only_verdicts_and_severities_are_coloured() -> None:
    painted: set[tuple[str, str]] = set()

    def paint(text: str, style: str) -> str:
        painted.add((text.strip(), style))
        return text

    render_terminal(failing_report(), paint, is_verbose=True)
    assert painted == {
        ("failed", "fail"),
        *((word, word) for word in ("pass", "warn", "fail", "breaks")),
        *(("advice", word) for word in ("tolerated", "style")),
        ("unsupported", "dim"),
        ("not applicable", "dim"),
    }


def test_the_second_line_names_the_server_the_profile_and_strict() -> None:
    assert terminal_lines(passing_report(profile="zed", is_strict=True, server=""))[1] == (
        "qwen3-0.6b at http://127.0.0.1:8000/v1, only rules that affect zed, strict"
    )


# ---- the other formats


@pytest.mark.parametrize("report", [passing_report(), failing_report(), failing_report(profile="zed", is_strict=True)])
def test_json_contains_the_whole_report(report: Report) -> None:
    assert msgspec.json.decode(machine.render_json(report), type=Report) == report


@table(
    ("report", "failures"),
    [
        (passing_report(), []),
        (failing_report(), ["welldone result", "probe tools", "probe n", "rule delta-role-once"]),
        (
            failing_report(is_strict=True),
            [
                *("welldone result", "probe tools", "probe n", "probe headers"),
                *("rule delta-role-once", "rule use-final-chunk", "rule env-fingerprint"),
            ],
        ),
        (
            failing_report(
                passed=True,
                findings=tuple(msgspec.structs.replace(one, is_new=False) for one in failing_report().findings),
            ),
            [],
        ),
    ],
)
def test_junit_has_a_case_for_each_probe_and_rule_with_the_failures_of_the_check(
    report: Report, failures: list[str]
) -> None:
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "result",
        *(probe.name for probe in report.probes),
        *(rule.id for rule in report.rules),
    ]
    failed = [case for case in cases if case.find("failure") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    assert [f"{case.get('classname', '').removeprefix('welldone.')} {case.get('name')}" for case in failed] == failures
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == [str(len(cases)), str(len(failed)), "0", str(len(skipped))]
    assert [case.get("name") for case in skipped] == ["stop", "n-index-int", "ext-audio"]
    assert skipped[0][0].get("message") == "unsupported: 400: stop is not supported"


def test_a_missing_reply_is_a_failure_in_every_format() -> None:
    root = ElementTree.fromstring(machine.render_junit(incomplete_report()))
    (failure,) = root.findall(".//testcase[@name='plain']/failure")
    assert failure.get("message") == "no reply within 60 s"
    for render in (render_markdown, html.render_html):
        assert "not passed: no complete reply to plain" in render(incomplete_report())


def test_junit_contains_findings_that_do_not_fail_the_check() -> None:
    root = ElementTree.fromstring(machine.render_junit(failing_report()))
    failure = root.findtext(".//testcase[@name='tools']/failure") or ""
    assert "observed   {" in failure
    assert "use-final-chunk" in failure
    assert "welldone rules" in (root.findtext(".//testcase[@name='headers']/system-out") or "")


def test_markdown_begins_with_the_verdict_and_lists_the_broken_rules() -> None:
    text = render_markdown(failing_report())
    assert text.startswith("<h3>welldone check failed: 3 rules broken")
    rows = [line for line in text.splitlines() if line.startswith("<tr><td><code>delta-role-once")]
    assert len(rows) == 1
    assert "and 2 more in tools, n" in rows[0]
    assert "<li>langchain: joins the roles</li>" in rows[0]
    assert text.count("<pre>") == len(failing_report().findings_by_rule)
    assert "<pre>x delta-role-once  breaks  tools, frame 7, byte 1804, and 2 more in tools, n\n" in text


def test_markdown_of_a_passing_report_has_no_findings() -> None:
    text = render_markdown(passing_report())
    assert text.startswith("<h3>welldone check passed: no rule broken</h3>")
    assert "<pre>" not in text
    assert text.count("<details>") == 1


def test_markdown_fits_into_a_comment_and_counts_what_is_omitted() -> None:
    many = tuple(finding(rule=f"rule-{number}", observed="x" * 200, curl="c" * 3_000) for number in range(200))
    text = render_markdown(failing_report(findings=many))
    assert len(text) < 65_536
    assert len(re.findall("more omitted for length", text)) == 2
    parse_html(text)


def test_html_is_self_contained_and_has_no_scripts() -> None:
    page = html.render_html(failing_report())
    parsed = parse_html(page)
    assert parsed.names.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form", "a"})
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    assert "@import" not in page
    for words in ("delta-role-once", "langchain: joins the roles", "no reply had audio", "qwen3-0.6b", "failed: 3"):
        assert any(words in text for text in parsed.text)
    by_rule = failing_report().findings_by_rule
    assert parsed.text.count("affects") == sum(bool(findings[0].affects) for findings in by_rule.values())
    assert "traces/headers-1.json" in parsed.text


def test_rules_link_to_the_documentation_site_where_its_address_is_known() -> None:
    known = msgspec.structs.replace(failing_report(), docs_url="https://docs.example/welldone/")
    address = "https://docs.example/welldone/rules/delta-role-once/"
    assert f'<a href="{address}"><code>delta-role-once</code></a>' in html.render_html(known)
    for report, expected in ((known, True), (failing_report(), False)):
        rules = json.loads(machine.render_sarif(report))["runs"][0]["tool"]["driver"]["rules"]
        assert any(rule.get("helpUri") == address for rule in rules) is expected


def test_a_table_has_the_affected_clients_and_the_broken_rules() -> None:
    report = failing_report()
    clients = rules_by_client(report)
    assert clients["langchain"] == ["delta-role-once", "env-fingerprint"]
    lines = terminal_lines(report)
    assert any(line.split() == ["affected", "client", "rules"] for line in lines)
    assert any(line.split() == ["langchain", "delta-role-once,", "env-fingerprint"] for line in lines)
    parsed = parse_html(html.render_html(report))
    assert f"{len(clients)} clients affected" in parsed.text
    assert parsed.text.count("affected") == sum(map(len, clients.values()))
    assert rules_by_client(passing_report()) == {}


def test_sarif_has_a_result_for_each_finding_with_its_rule_and_probe() -> None:
    report = failing_report()
    run = json.loads(machine.render_sarif(report))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.id for rule in report.rules]
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning", "note"]
    for result, one in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == one.rule
        assert result["locations"][0]["logicalLocations"][0]["name"] == one.probe
    files = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    assert [file["uri"] for file in files] == ["tools", "n", "tools", "traces/headers-1.json"]
    assert ["description" in file for file in files] == [True, True, True, False]


def test_sarif_marks_known_findings_as_unchanged() -> None:
    known = failing_report(findings=(finding(is_new=False), finding(probe="n")))
    results = json.loads(machine.render_sarif(known))["runs"][0]["results"]
    assert [result.get("baselineState") for result in results] == ["unchanged", None]


@table(
    ("report", "text"),
    [
        (passing_report(), "pass"),
        (failing_report(), "3 rules broken"),
        (failing_report(verdict=Verdict.WARN), "warn"),
        (incomplete_report(), "no complete reply"),
    ],
)
def test_the_badge_shows_the_verdict_and_is_as_wide_as_its_text(report: Report, text: str) -> None:
    drawing = ElementTree.fromstring(machine.render_badge(report))
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert drawing.findtext("svg:title", namespaces=space) == f"welldone: {text}"
    assert [label.text for label in drawing.findall(".//svg:text", space)] == ["welldone", text]
    boxes = drawing.findall("svg:g/svg:rect", space)
    assert sum(int(box.get("width", "")) for box in boxes) == int(drawing.get("width", ""))
    assert len({box.get("fill") for box in boxes}) == 2


@table("suffix", reports.RENDERERS)
def test_the_suffix_of_a_file_selects_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix.upper()}"
    reporting.write_report(failing_report(), path, reports.RENDERERS)
    assert path.read_text("utf-8") == reports.RENDERERS[suffix](failing_report()) + "\n"


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("earlier")
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from tests.check.reports import failing_report\n"
        "from welldone import reporting; from welldone.check import reports\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "reporting.write_report(failing_report(), Path(sys.argv[1]), reports.RENDERERS)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, check=False)
    assert b"OSError: [Errno 27]" in ended.stderr
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.json", "earlier")]


def test_a_report_is_written_into_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(path.read_text, "utf-8")
        reporting.write_report(failing_report(), path, reports.RENDERERS)
        assert received.result(LIMIT_S) == machine.render_json(failing_report()) + "\n"


def test_a_file_with_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json, \.xml"):
        reporting.write_report(passing_report(), tmp_path / "report.pdf", reports.RENDERERS)
    assert list(tmp_path.iterdir()) == []


# ---- hostile text from a server


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
class TestHostile:
    """Hostile text in any field stays inert."""

    def test_on_the_terminal(self, text: str) -> None:
        for line in terminal_lines(hostile_report(text), is_verbose=True):
            assert line.isprintable()
            assert len(line) < 10 * MAX_REPORT_TEXT_CHARS

    def test_in_json_and_sarif(self, text: str) -> None:
        for render in (machine.render_json, machine.render_sarif):
            rendered = render(hostile_report(text))
            json.loads(rendered.encode())
            assert all(line.isprintable() for line in rendered.splitlines())
        results = json.loads(machine.render_sarif(hostile_report(text)))["runs"][0]["results"]
        assert all("](" not in result["message"]["text"] for result in results)

    def test_in_xml(self, text: str) -> None:
        for render in (machine.render_junit, machine.render_badge):
            root = ElementTree.fromstring(render(hostile_report(text)).encode())
            plain = ElementTree.fromstring(render(hostile_report("plain")))
            assert {one.tag for one in root.iter()} <= {one.tag for one in plain.iter()}

    def test_in_html_and_markdown(self, text: str) -> None:
        for render in (html.render_html, render_markdown):
            rendered = render(hostile_report(text))
            assert all(line.isprintable() for line in rendered.split("\n"))
            parsed, plain = parse_html(rendered), parse_html(render(hostile_report("plain")))
            assert parsed.names <= plain.names
            assert parsed.attributes <= plain.attributes

    def test_in_markdown_no_empty_line_ends_the_html(self, text: str) -> None:
        rendered = render_markdown(hostile_report(text))
        assert len(rendered) < 65_536
        blocks = rendered.split("\n\n")
        assert len(blocks) == 4
        for block in blocks:
            assert re.match("<(h3|table|details)>", block)
            assert all(line.strip() for line in block.splitlines())
            parse_html(block)


def test_many_probes_with_the_same_broken_rules_take_one_line() -> None:
    report = failing_report()
    broken = next(probe for probe in report.probes if probe.broken)
    names = ["one", "two", "three", "four"]
    alike = tuple(msgspec.structs.replace(broken, name=name, broken=("delta-role-once",)) for name in names)
    late = msgspec.structs.replace(alike[0], name="late", broken=("sse-no-bom",), is_incomplete=True)
    lines = terminal_lines(msgspec.structs.replace(report, probes=(*alike, late)))
    assert "fail  4 probes (one, two, three, four): delta-role-once" in lines
    assert [line for line in lines if line.startswith("late ")]
    few = terminal_lines(msgspec.structs.replace(report, probes=alike[:3]))
    assert sum(line.startswith(("one ", "two ", "three ")) for line in few) == 3
    verbose = terminal_lines(msgspec.structs.replace(report, probes=alike), is_verbose=True)
    assert sum(line.startswith(tuple(f"{name} " for name in names)) for line in verbose) == 4
