"""The forms of a report: each says what the report says, and nothing in them moves."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.check.reports import HOSTILE, finding, hostile, right, wrong
from tests.table import table
from welldone import reporting
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine, renderers
from welldone.check.reports.text import MAX_REPORT_TEXT_CHARS, render_markdown, render_terminal

VOID = ("meta", "br")


class Tags(HTMLParser):
    """The elements of a page, and whether each is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.met.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(machine)


def tags(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def shown(report: Report, *, is_verbose: bool = False) -> list[str]:
    return render_terminal(report, lambda text, _: text, is_verbose=is_verbose)


def late() -> Report:
    """A server that breaks no rule, and once did not answer."""
    first, *rest = right().probes
    given_up = msgspec.structs.replace(
        first, verdict=Verdict.NOT_APPLICABLE, reason="no reply within 60 s", is_incomplete=True
    )
    return right(passed=False, probes=(given_up, *rest))


# ---- the terminal


def test_a_right_server_takes_a_few_lines() -> None:
    assert shown(right()) == [
        "qwen3-0.6b at http://127.0.0.1:8000/v1 (llama.cpp)",
        "right  plain, tools",
        "stop  not offered  400: stop is not supported",
        "",
        "3 probes, 3 rules, 63 requests, about 3,100 tokens, 31 s: right",
        "  1 not offered and 1 not heard of 5 rules; --verbose says why",
    ]


def test_a_broken_rule_is_shown_once_with_all_that_helps() -> None:
    lines = shown(wrong())
    begin = lines.index("x delta-role-once  breaks  tools, frame 7, byte 1804, and 2 more in tools, n")
    assert lines[begin + 1 : begin + 10] == [
        "  what delta-role-once wants",
        '  heard   {"role":"assistant","content":"b"}',
        '  wanted  {"content":"b"}',
        "  hurts   langchain: joins the roles",
        "          zed: shows a second message",
        "  again   welldone check http://127.0.0.1:8000/v1 --only tools --rule delta-role-once",
        "  curl    curl -sN http://127.0.0.1:8000/v1/chat/completions -d '{}'",
        "  more    welldone rules delta-role-once",
        "",
    ]
    assert [line for line in lines if line.startswith("x ")][1:] == [
        "x use-final-chunk  tolerated  tools",
        "x env-fingerprint  style  headers, frame 7, byte 1804",
    ]
    assert "tools    wrong        2 of 17 rules: delta-role-once, use-final-chunk" in lines
    assert lines[-2].endswith("31 s: wrong, 3 rules broken (1 breaks, 1 tolerated, 1 style)")


def test_verbose_shows_every_probe_and_every_rule_that_had_no_say() -> None:
    lines = shown(right(), is_verbose=True)
    assert "plain  right        17 rules" in lines
    assert "n-index-int  not offered  n is 1 only" in lines
    assert "ext-audio    not heard    no audio was heard" in lines
    assert lines[-1] == "  1 not offered and 1 not heard of 5 rules"


@table(
    ("findings", "place"),
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
def test_the_place_says_where_and_how_often(findings: list[object], place: str) -> None:
    assert f"x delta-role-once  breaks  {place}" in shown(wrong(findings=tuple(findings)))


@pytest.mark.parametrize(
    ("report", "last"),
    [
        (
            wrong(passed=True, findings=(finding(is_new=False),)),
            "  passed: nothing is broken that was not broken before",
        ),
        (wrong(verdict=Verdict.WARN, is_strict=True), "  not passed: with --strict every broken rule counts"),
        (late(), "  not passed: no whole reply to plain"),
    ],
)
def test_a_verdict_that_the_exit_code_does_not_follow_is_explained(report: Report, last: str) -> None:
    assert shown(report)[-1] == last


def test_a_probe_that_heard_no_end_says_so_beside_what_it_heard_broken() -> None:
    plain, tools, *rest = wrong().probes
    given_up = msgspec.structs.replace(tools, reason="the reply was not whole within 60 s", is_incomplete=True)
    row = next(line for line in shown(wrong(probes=(plain, given_up, *rest))) if line.startswith("tools"))
    assert row.endswith("2 of 17 rules: delta-role-once, use-final-chunk; the reply was not whole within 60 s")


def test_many_names_are_wrapped_between_words() -> None:
    probe = right().probes[0]
    probes = tuple(msgspec.structs.replace(probe, name=f"probe{number}-alone") for number in range(30))
    lines = shown(right(probes=probes))
    rows = lines[1 : lines.index("")]
    assert len(rows) > 1
    assert all(len(row) <= 100 for row in rows)
    assert " ".join(row.strip() for row in rows) == f"right  {', '.join(probe.name for probe in probes)}"


def test_a_group_of_probes_that_is_right_as_a_whole_is_one_word() -> None:
    good, bad = right().probes[0], wrong().probes[1]
    names = ("text", "text-whole", "stops-empty", "usage-same", "usage-asked")
    probes = (*(msgspec.structs.replace(good, name=name) for name in names), msgspec.structs.replace(bad, name="usage"))
    assert shown(wrong(probes=probes))[1] == "right  text (2), stops-empty, usage-same, usage-asked"


def test_colours_are_for_our_own_words_only() -> None:
    painted: set[tuple[str, str]] = set()

    def paint(text: str, kind: str) -> str:
        painted.add((text.strip(), kind))
        return text

    render_terminal(wrong(), paint, is_verbose=True)
    assert painted == {
        *((word, word) for word in ("right", "lax", "wrong", "breaks", "tolerated", "style")),
        ("not offered", "dim"),
        ("not heard", "dim"),
    }


def test_who_was_judged_and_how_is_said() -> None:
    assert shown(right(profile="zed", is_strict=True, server=""))[0] == (
        "qwen3-0.6b at http://127.0.0.1:8000/v1, judged for zed alone, strict"
    )


# ---- the other forms


@pytest.mark.parametrize("report", [right(), wrong(), wrong(profile="zed", is_strict=True)])
def test_json_holds_the_whole_report(report: Report) -> None:
    assert msgspec.json.decode(machine.render_json(report), type=Report) == report


@table(
    ("report", "failures"),
    [
        (right(), []),
        (wrong(), ["probe tools", "probe n", "rule delta-role-once"]),
        (
            wrong(is_strict=True),
            [
                *("probe tools", "probe n", "probe headers"),
                *("rule delta-role-once", "rule use-final-chunk", "rule env-fingerprint"),
            ],
        ),
        (wrong(findings=tuple(msgspec.structs.replace(one, is_new=False) for one in wrong().findings)), []),
    ],
)
def test_junit_has_a_case_for_each_probe_and_rule_and_fails_those_that_count(
    report: Report, failures: list[str]
) -> None:
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        *(probe.name for probe in report.probes),
        *(rule.id for rule in report.rules),
    ]
    failed = [case for case in cases if case.find("failure") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    assert [f"{case.get('classname', '').removeprefix('welldone.')} {case.get('name')}" for case in failed] == failures
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == [str(len(cases)), str(len(failed)), "0", str(len(skipped))]
    assert [case.get("name") for case in skipped] == ["stop", "n-index-int", "ext-audio"]
    assert skipped[0][0].get("message") == "not offered: 400: stop is not supported"


def test_a_reply_that_did_not_come_fails_in_every_form() -> None:
    root = ElementTree.fromstring(machine.render_junit(late()))
    (failure,) = root.findall(".//failure")
    assert failure.get("message") == "no reply within 60 s"
    for draw in (render_markdown, html.render_html):
        assert "not passed: no whole reply to plain" in draw(late())


def test_junit_tells_what_was_heard_also_where_it_does_not_count() -> None:
    root = ElementTree.fromstring(machine.render_junit(wrong()))
    failure = root.findtext(".//testcase[@name='tools']/failure") or ""
    assert "heard   {" in failure
    assert "use-final-chunk" in failure
    assert "welldone rules" in (root.findtext(".//testcase[@name='headers']/system-out") or "")


def test_markdown_begins_with_the_verdict_and_lists_what_is_broken() -> None:
    text = render_markdown(wrong())
    assert text.startswith("<h3>welldone check: wrong, 3 rules broken")
    rows = [line for line in text.splitlines() if line.startswith("<tr><td><code>delta-role-once")]
    assert len(rows) == 1
    assert "and 2 more in tools, n" in rows[0]
    assert "<li>langchain: joins the roles</li>" in rows[0]
    assert text.count("<pre>") == len(wrong().findings_by_rule)
    assert "<pre>x delta-role-once  breaks  tools, frame 7, byte 1804, and 2 more in tools, n\n" in text


def test_markdown_of_a_right_server_has_no_table_of_findings() -> None:
    text = render_markdown(right())
    assert text.startswith("<h3>welldone check: right</h3>")
    assert "<pre>" not in text
    assert text.count("<details>") == 1


def test_markdown_fits_into_a_comment_and_says_what_did_not() -> None:
    many = tuple(finding(rule=f"rule-{number}", heard="x" * 200, curl="c" * 3_000) for number in range(200))
    text = render_markdown(wrong(findings=many))
    assert len(text) < 65_536
    assert len(re.findall("more did not fit in here", text)) == 2
    tags(text)


def test_html_needs_nothing_and_runs_nothing() -> None:
    page = html.render_html(wrong())
    met = tags(page)
    assert met.met.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form", "a"})
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    assert "@import" not in page
    for said in ("delta-role-once", "langchain: joins the roles", "no audio was heard", "qwen3-0.6b", "not passed"):
        assert any(said in text for text in met.text)
    assert met.text.count("hurts") == sum(bool(findings[0].affects) for findings in wrong().findings_by_rule.values())
    assert "traces/headers-1.json" in met.text


def test_sarif_has_a_result_for_each_finding_with_its_rule_and_probe() -> None:
    report = wrong()
    run = json.loads(machine.render_sarif(report))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.id for rule in report.rules]
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning", "note"]
    for result, heard in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == heard.rule
        assert result["locations"][0]["logicalLocations"][0]["name"] == heard.probe
    reporting = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    assert [file["uri"] for file in reporting] == ["tools", "n", "tools", "traces/headers-1.json"]
    assert ["description" in file for file in reporting] == [True, True, True, False]


def test_sarif_says_what_was_known_before() -> None:
    known = wrong(findings=(finding(is_new=False), finding(probe="n")))
    results = json.loads(machine.render_sarif(known))["runs"][0]["results"]
    assert [result.get("baselineState") for result in results] == ["unchanged", None]


@table(
    ("report", "said"),
    [
        (right(), "right"),
        (wrong(), "3 rules broken"),
        (wrong(verdict=Verdict.WARN), "lax"),
        (late(), "no whole reply"),
    ],
)
def test_the_badge_says_the_verdict_and_is_as_wide_as_its_text(report: Report, said: str) -> None:
    drawing = ElementTree.fromstring(machine.render_badge(report))
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert drawing.findtext("svg:title", namespaces=space) == f"welldone: {said}"
    assert [text.text for text in drawing.findall(".//svg:text", space)] == ["welldone", said]
    boxes = drawing.findall("svg:g/svg:rect", space)
    assert sum(int(box.get("width", "")) for box in boxes) == int(drawing.get("width", ""))
    assert len({box.get("fill") for box in boxes}) == 2


@table("suffix", renderers.RENDERERS)
def test_the_name_of_a_file_says_its_form(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix.upper()}"
    reporting.write_report(wrong(), path, renderers.RENDERERS)
    assert path.read_text("utf-8") == renderers.RENDERERS[suffix](wrong()) + "\n"


def test_a_file_of_no_known_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json, \.xml"):
        reporting.write_report(right(), tmp_path / "report.pdf", renderers.RENDERERS)
    assert list(tmp_path.iterdir()) == []


# ---- a server that wants to be shown


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
class TestHostile:
    """Whatever stands in a report, it stays where it is."""

    def test_on_the_terminal(self, text: str) -> None:
        for line in shown(hostile(text), is_verbose=True):
            assert line.isprintable()
            assert len(line) < 10 * MAX_REPORT_TEXT_CHARS

    def test_in_json_and_sarif(self, text: str) -> None:
        for draw in (machine.render_json, machine.render_sarif):
            drawn = draw(hostile(text))
            json.loads(drawn.encode())
            assert all(line.isprintable() for line in drawn.splitlines())
        results = json.loads(machine.render_sarif(hostile(text)))["runs"][0]["results"]
        assert all("](" not in result["message"]["text"] for result in results)

    def test_in_xml(self, text: str) -> None:
        for draw in (machine.render_junit, machine.render_badge):
            root = ElementTree.fromstring(draw(hostile(text)).encode())
            plain = ElementTree.fromstring(draw(hostile("plain")))
            assert {one.tag for one in root.iter()} <= {one.tag for one in plain.iter()}

    def test_in_html_and_markdown(self, text: str) -> None:
        for draw in (html.render_html, render_markdown):
            drawn = draw(hostile(text))
            assert all(line.isprintable() for line in drawn.split("\n"))
            met, plain = tags(drawn), tags(draw(hostile("plain")))
            assert met.met <= plain.met
            assert met.attributes <= plain.attributes

    def test_in_markdown_no_empty_line_ends_the_html(self, text: str) -> None:
        drawn = render_markdown(hostile(text))
        assert len(drawn) < 65_536
        blocks = drawn.split("\n\n")
        assert len(blocks) == 4
        for block in blocks:
            assert re.match("<(h3|table|details)>", block)
            assert all(line.strip() for line in block.splitlines())
            tags(block)


def test_what_is_wrong_in_every_stream_is_one_line_on_the_terminal() -> None:
    report = wrong()
    model = next(probe for probe in report.probes if probe.broken)
    names = ["one", "two", "three", "four"]
    alike = [msgspec.structs.replace(model, name=name, broken=("delta-role-once",)) for name in names]
    late = msgspec.structs.replace(alike[0], name="late", broken=("sse-no-bom",), is_incomplete=True)
    drawn = render_terminal(msgspec.structs.replace(report, probes=(*alike, late)), lambda text, _: text)
    assert "wrong  delta-role-once: in one, two, three, four" in drawn
    assert [line for line in drawn if line.startswith("late ")]
    few = render_terminal(msgspec.structs.replace(report, probes=tuple(alike[:3])), lambda text, _: text)
    assert sum(line.startswith(("one ", "two ", "three ")) for line in few) == 3
    whole = render_terminal(msgspec.structs.replace(report, probes=tuple(alike)), lambda text, _: text, is_verbose=True)
    assert sum(line.startswith(tuple(f"{name} " for name in names)) for line in whole) == 4
