"""Each rule has a row, a page, and a mend or a stated reason why there is none; and a check, if a reply shows it."""

import re
from pathlib import Path

from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.rules.checks import RULES
from welldone.rules.examples import Example
from welldone.rules.heard import Form, Heard
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wire import sse
from welldone.wire.faults import Fault, Hearing, Mend
from welldone.wire.faults.catalogue import ALL, BY_ID
from welldone.wire.fixing import pipe_for
from welldone.wire.head import Endpoint
from welldone.wire.notes import Notes
from welldone.wire.pipe import Pipe

ROOT = Path(__file__).parents[2]
BLOCKS = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]
WRONG = [block for block in BLOCKS if not block.is_right]

OF_THE_REPLY = {
    *("http-content-type", "http-charset-utf8", "http-no-proxy-buffering", "http-cache-control"),
    *("http-no-buffering-compression", "http-chunked-terminated", "http-body-ends-after-done"),
    *("sse-whole-event-writes", "err-status-before-stream", "ns-content-type-json", "ns-error-status"),
}
"""Rules of the HTTP reply around a body: who sends it keeps them (`sse.HEADERS`), not who repairs the body."""
NEVER_SAID = {"use-final-chunk", "cmpl-usage-chunk", "resp-usage"}
"""Their mend needs a count that the server gave somewhere; it is not invented."""


def _fix(block: Example) -> tuple[bytes, Notes]:
    trace, form = block.trace, Heard(block.trace).form
    is_stream = form not in (Form.WHOLE, Form.FAILURE)
    pipe = pipe_for(Endpoint(trace.endpoint), trace.request, stem="1", created=1700000000, is_stream=is_stream)
    is_fed = isinstance(pipe, Pipe) or form is Form.STREAM
    said = (pipe.feed(trace.body) if is_fed else pipe.whole(trace.body)) or b""
    said += pipe.close() or b""
    return said if isinstance(pipe, Pipe) or is_stream else pipe.body(), pipe.notes


def test_every_rule_that_a_reply_shows_has_one_check() -> None:
    assert sorted(rule.fault.id for rule in RULES) == sorted(fault.id for fault in ALL if fault.by is Hearing.REPLY)


@table("fault", ALL, ids=lambda fault: fault.id)
def test_every_row_says_what_is_right_whom_it_hurts_and_what_repair_does(fault: Fault) -> None:
    assert fault.rule
    assert fault.rule[-1] == "."
    assert fault.how
    assert all(re.match(r"[^:]+: .", who) for who in fault.hurts)


@table("block", WRONG, ids=lambda block: block.name)
def test_repair_mends_the_wrong_example_of_every_page(block: Example) -> None:
    fixed, notes = _fix(block)
    judgement = judge(Trace(body=fixed, endpoint=block.trace.endpoint, request=block.trace.request))
    left = {rule for rule in judgement.counts if BY_ID[rule].mend is not Mend.REPORT}
    assert left <= (NEVER_SAID if block.rule in NEVER_SAID else set())
    noted = {note.rule for note in notes.all()}
    assert block.rule in noted or block.rule in OF_THE_REPLY or BY_ID[block.rule].mend is Mend.REPORT


@table("block", [block for block in BLOCKS if block.is_right], ids=lambda block: block.name)
def test_repair_notes_nothing_on_a_right_example(block: Example) -> None:
    _, notes = _fix(block)
    assert notes.all() == []


def test_the_headers_that_we_send_are_right() -> None:
    body = b"".join(block.trace.body for block in BLOCKS if block.rule == "delta-role-once" and block.is_right)
    judgement = judge(Trace(body=body, headers=sse.HEADERS, status=200, complete=True))
    assert judgement.findings == ()
