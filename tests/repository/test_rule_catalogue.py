"""Each rule has a catalogue entry, and a repair or a reason for none.

Code names rules by plain strings, so a misspelt id is found here.
"""

import ast
import datetime
import re
from collections.abc import Iterator
from pathlib import Path

from tests.rules.pages import PAGES, read_page
from tests.rules.streams import DONE, completion, envelope, frame
from tests.table import table
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.core import sse
from welldone.core.catalog import FAMILIES, RULES, Detection, Kind, Repairability, Rule
from welldone.core.envelope import Endpoint
from welldone.core.repair_log import RepairLog
from welldone.rules.judge import judge
from welldone.rules.rule_pages import RuleExample
from welldone.rules.trace import Trace
from welldone.rules.view.view import ReplyKind, TraceView
from welldone.stream.pipeline import StreamPipeline, make_pipeline

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "welldone"
PAGE_EXAMPLES = [example for path in sorted(PAGES.glob("*-*.md")) for example in read_page(path)]
EXAMPLES = [example for example in PAGE_EXAMPLES if TraceView(example.trace).reply_kind is not ReplyKind.ARRAY]
"""A stream as a JSON array is judged, and not repaired."""
WRONG_EXAMPLES = [example for example in EXAMPLES if not example.is_correct]

HTTP_RULES = {
    *("http-content-type", "http-charset-utf8", "http-no-proxy-buffering", "http-cache-control"),
    *("http-no-buffering-compression", "http-chunked-terminated", "http-body-ends-after-done"),
    *("sse-whole-event-writes", "err-status-before-stream", "ns-content-type-json", "ns-error-status"),
}
"""Rules about the HTTP response: the sending server follows them (`sse.HEADERS`), not the repairer of the body."""
USAGE_RULES = {"use-final-chunk", "cmpl-usage-chunk", "resp-usage"}
"""Their repair needs a count from the server: usage is not invented."""

RULE_ID = re.compile(rf"({'|'.join(FAMILIES)})(-[a-z0-9]+)+")
OTHER_NAMES = {
    *(probe.name for probes in PROBES_BY_DIALECT.values() for probe in probes),
    *("http-referer", "cmpl-1"),  # a header of OpenRouter's clients; the id of a completion
}
"""Strings of the source that look like rule ids."""


def _strings(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def _misspelt_rules(source: str) -> Iterator[str]:
    """Strings that look like ids of rules, or that are used as such, and are none."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and RULE_ID.fullmatch(node.value):
            names = {node.value} - OTHER_NAMES
        elif (
            isinstance(node, ast.Call)
            and node.args
            and re.search(r"(\brecord|CHECKS\.(rule|each|member))$", ast.unparse(node.func))
        ):
            argument = node.args[0]
            choices = (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,)
            names = {name for choice in choices if isinstance(choice, ast.Constant) for name in _strings(choice)}
        else:
            continue
        yield from names - RULES.keys()


def _repair(example: RuleExample) -> tuple[bytes, RepairLog]:
    trace, kind = example.trace, TraceView(example.trace).reply_kind
    is_stream = kind not in (ReplyKind.WHOLE, ReplyKind.HTTP_ERROR)
    pipe = make_pipeline(Endpoint(trace.endpoint), trace.request, id_stem="1", created=1700000000, is_stream=is_stream)
    is_fed = isinstance(pipe, StreamPipeline) or kind is ReplyKind.STREAM
    sent = (pipe.feed(trace.body) if is_fed else pipe.feed_reply(trace.body)) or b""
    sent += pipe.close() or b""
    return sent if isinstance(pipe, StreamPipeline) or is_stream else pipe.body(), pipe.repair_log


@table("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(ROOT))
def test_every_rule_that_the_source_names_exists(path: Path) -> None:
    assert list(_misspelt_rules(path.read_text("utf-8"))) == []


@table(
    ("source", "found"),
    [
        ('RULES = ("fin-lenght", "fin-length")', ["fin-lenght"]),
        ('log.record("fn-length", value)', ["fn-length"]),
        ('record("fin-length" if x == "y" else "length")', ["length"]),
        ('CHECKS.rule("use_ints")', ["use_ints"]),
        ('self.record(rule); record(); print("end-to-end tests", "http-referer")', []),
    ],
)
def test_a_misspelt_rule_is_found(source: str, found: list[str]) -> None:
    assert list(_misspelt_rules(source)) == found


def test_every_rule_with_a_repair_is_recorded_by_a_repair() -> None:
    paths = [path for package in ("core", "dialects", "stream") for path in (SOURCE / package).rglob("*.py")]
    named = {name for path in paths for name in _strings(ast.parse(path.read_bytes()))}
    repaired = {
        rule.id
        for rule in RULES.values()
        if rule.detection is Detection.REPLY and rule.repairability is not Repairability.REPORT_ONLY
    }
    assert repaired - named == HTTP_RULES


@table("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_has_a_summary_a_repair_and_well_formed_effects(rule: Rule) -> None:
    assert rule.summary
    assert rule.summary[-1] == "."
    assert rule.repair
    assert all(re.match(r"[^:]+: .", effect) for effect in rule.affects)


@table("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_names_what_it_rests_on_and_when_that_was_read(rule: Rule) -> None:
    assert rule.source
    assert rule.section
    assert datetime.date.fromisoformat(rule.date) >= datetime.date(2026, 11, 15)  # the first day of the catalogue
    assert (rule.kind is Kind.ADVICE) == (rule.source == "welldone")
    assert (rule.kind is Kind.BREAKS) == (rule.source == "real clients")


@table("example", WRONG_EXAMPLES, ids=lambda example: example.name)
def test_the_wrong_example_of_every_page_is_repaired(example: RuleExample) -> None:
    repaired, log = _repair(example)
    report = judge(Trace(body=repaired, endpoint=example.trace.endpoint, request=example.trace.request))
    broken = {rule for rule in report.counts if RULES[rule].repairability is not Repairability.REPORT_ONLY}
    assert broken <= (USAGE_RULES if example.rule in USAGE_RULES else set())
    assert (
        example.rule in {entry.rule for entry in log.entries()}
        or example.rule in HTTP_RULES
        or RULES[example.rule].repairability is Repairability.REPORT_ONLY
    )


@table("example", [example for example in EXAMPLES if example.is_correct], ids=lambda example: example.name)
def test_no_repair_is_recorded_for_a_right_example(example: RuleExample) -> None:
    _, log = _repair(example)
    assert log.entries() == []


def test_a_repair_of_a_completions_chunk_is_recorded_under_a_rule_of_both_endpoints() -> None:
    end = frame(envelope(None, id="cmpl-1", object="text_completion")) + DONE
    trace = Trace(body=completion("Hi", end=end), endpoint="completions")
    _, log = _repair(RuleExample("env-choices-array", 1, is_correct=False, trace=trace))
    assert [entry.rule for entry in log.entries()] == ["env-choices-array"]


def test_the_sent_headers_break_no_rule() -> None:
    body = b"".join(
        example.trace.body for example in EXAMPLES if example.rule == "delta-role-once" and example.is_correct
    )
    report = judge(Trace(body=body, headers=sse.HEADERS, status=200, complete=True))
    assert report.findings == ()
