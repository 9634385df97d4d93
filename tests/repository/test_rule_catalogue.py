"""Each rule has a catalogue entry, a page, a repair or a reason for none, and a check if one reply shows it."""

import re
from pathlib import Path

from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.protocol import sse
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Detection, Repairability, Rule
from welldone.protocol.envelope import Endpoint
from welldone.protocol.pipeline import StreamPipeline, make_pipeline
from welldone.protocol.repair_log import RepairLog
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.judge import judge
from welldone.rules.rule_pages import RuleExample
from welldone.rules.trace import Trace
from welldone.rules.view.view import ReplyKind, TraceView

ROOT = Path(__file__).parents[2]
EXAMPLES = [example for path in sorted(PAGES.glob("*-*.md")) for example in read_page(path)]
WRONG_EXAMPLES = [example for example in EXAMPLES if not example.is_correct]

HTTP_RULES = {
    *("http-content-type", "http-charset-utf8", "http-no-proxy-buffering", "http-cache-control"),
    *("http-no-buffering-compression", "http-chunked-terminated", "http-body-ends-after-done"),
    *("sse-whole-event-writes", "err-status-before-stream", "ns-content-type-json", "ns-error-status"),
}
"""Rules about the HTTP response: the sending server follows them (`sse.HEADERS`), not the repairer of the body."""
USAGE_RULES = {"use-final-chunk", "cmpl-usage-chunk", "resp-usage"}
"""Their repair needs a count from the server: usage is not invented."""


def _repair(example: RuleExample) -> tuple[bytes, RepairLog]:
    trace, kind = example.trace, TraceView(example.trace).reply_kind
    is_stream = kind not in (ReplyKind.WHOLE, ReplyKind.HTTP_ERROR)
    pipe = make_pipeline(Endpoint(trace.endpoint), trace.request, id_stem="1", created=1700000000, is_stream=is_stream)
    is_fed = isinstance(pipe, StreamPipeline) or kind is ReplyKind.STREAM
    sent = (pipe.feed(trace.body) if is_fed else pipe.feed_reply(trace.body)) or b""
    sent += pipe.close() or b""
    return sent if isinstance(pipe, StreamPipeline) or is_stream else pipe.body(), pipe.repair_log


def test_every_reply_rule_has_one_check() -> None:
    reply_rules = sorted(rule.id for rule in ALL_RULES if rule.detection is Detection.REPLY)
    assert sorted(check.rule.id for check in ALL_CHECKS) == reply_rules


@table("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_summary_a_repair_and_well_formed_effects(rule: Rule) -> None:
    assert rule.summary
    assert rule.summary[-1] == "."
    assert rule.repair
    assert all(re.match(r"[^:]+: .", effect) for effect in rule.affects)


@table("example", WRONG_EXAMPLES, ids=lambda example: example.name)
def test_the_wrong_example_of_every_page_is_repaired(example: RuleExample) -> None:
    repaired, log = _repair(example)
    judgement = judge(Trace(body=repaired, endpoint=example.trace.endpoint, request=example.trace.request))
    broken = {rule for rule in judgement.counts if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY}
    assert broken <= (USAGE_RULES if example.rule in USAGE_RULES else set())
    assert (
        example.rule in {entry.rule for entry in log.entries()}
        or example.rule in HTTP_RULES
        or RULES_BY_ID[example.rule].repairability is Repairability.REPORT_ONLY
    )


@table("example", [example for example in EXAMPLES if example.is_correct], ids=lambda example: example.name)
def test_no_repair_is_recorded_for_a_right_example(example: RuleExample) -> None:
    _, log = _repair(example)
    assert log.entries() == []


def test_the_sent_headers_break_no_rule() -> None:
    body = b"".join(
        example.trace.body for example in EXAMPLES if example.rule == "delta-role-once" and example.is_correct
    )
    judgement = judge(Trace(body=body, headers=sse.HEADERS, status=200, complete=True))
    assert judgement.findings == ()
