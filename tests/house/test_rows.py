"""Each rule has a row, a page, and a mend or a stated reason why there is none; and a check, if a reply shows it."""

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
BLOCKS = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]
WRONG = [block for block in BLOCKS if not block.is_correct]

OF_THE_REPLY = {
    *("http-content-type", "http-charset-utf8", "http-no-proxy-buffering", "http-cache-control"),
    *("http-no-buffering-compression", "http-chunked-terminated", "http-body-ends-after-done"),
    *("sse-whole-event-writes", "err-status-before-stream", "ns-content-type-json", "ns-error-status"),
}
"""Rules of the HTTP reply around a body: who sends it keeps them (`sse.HEADERS`), not who repairs the body."""
NEVER_SAID = {"use-final-chunk", "cmpl-usage-chunk", "resp-usage"}
"""Their mend needs a count that the server gave somewhere; it is not invented."""


def _fix(block: RuleExample) -> tuple[bytes, RepairLog]:
    trace, form = block.trace, TraceView(block.trace).reply_kind
    is_stream = form not in (ReplyKind.WHOLE, ReplyKind.HTTP_ERROR)
    pipe = make_pipeline(Endpoint(trace.endpoint), trace.request, id_stem="1", created=1700000000, is_stream=is_stream)
    is_fed = isinstance(pipe, StreamPipeline) or form is ReplyKind.STREAM
    said = (pipe.feed(trace.body) if is_fed else pipe.feed_reply(trace.body)) or b""
    said += pipe.close() or b""
    return said if isinstance(pipe, StreamPipeline) or is_stream else pipe.body(), pipe.repair_log


def test_every_rule_that_a_reply_shows_has_one_check() -> None:
    assert sorted(rule.rule.id for rule in ALL_CHECKS) == sorted(
        fault.id for fault in ALL_RULES if fault.detection is Detection.REPLY
    )


@table("fault", ALL_RULES, ids=lambda fault: fault.id)
def test_every_row_says_what_is_right_whom_it_hurts_and_what_repair_does(fault: Rule) -> None:
    assert fault.summary
    assert fault.summary[-1] == "."
    assert fault.repair
    assert all(re.match(r"[^:]+: .", who) for who in fault.affects)


@table("block", WRONG, ids=lambda block: block.name)
def test_repair_mends_the_wrong_example_of_every_page(block: RuleExample) -> None:
    fixed, notes = _fix(block)
    judgement = judge(Trace(body=fixed, endpoint=block.trace.endpoint, request=block.trace.request))
    left = {rule for rule in judgement.counts if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY}
    assert left <= (NEVER_SAID if block.rule in NEVER_SAID else set())
    noted = {note.rule for note in notes.entries()}
    assert (
        block.rule in noted
        or block.rule in OF_THE_REPLY
        or RULES_BY_ID[block.rule].repairability is Repairability.REPORT_ONLY
    )


@table("block", [block for block in BLOCKS if block.is_correct], ids=lambda block: block.name)
def test_repair_notes_nothing_on_a_right_example(block: RuleExample) -> None:
    _, notes = _fix(block)
    assert notes.entries() == []


def test_the_headers_that_we_send_are_right() -> None:
    body = b"".join(block.trace.body for block in BLOCKS if block.rule == "delta-role-once" and block.is_correct)
    judgement = judge(Trace(body=body, headers=sse.HEADERS, status=200, complete=True))
    assert judgement.findings == ()
