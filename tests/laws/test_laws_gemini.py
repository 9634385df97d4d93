"""The first law for Gemini: what the writer writes from legal events, in any form, violates no rule."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import legal_events
from tests.table import table
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    Finish,
    KeepAlive,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.dialects.gemini.objects import STATUS_BY_CODE, error_object
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.rules.judge import LintReport, judge
from welldone.rules.trace import Trace

HEAD = Envelope("r1", 1, "m")
STREAM_PATH = "/v1beta/models/m:streamGenerateContent"
FORMS: dict[str, tuple[type[GeminiFormat], str]] = {
    "events": (GeminiFormat, f"{STREAM_PATH}?alt=sse"),
    "array": (GeminiArrayFormat, STREAM_PATH),
}
"""The dialect of each form of a stream, and its path."""


def request_with(*, is_open: bool) -> dict[str, Any]:
    """Return a request for two candidates, with thoughts or without."""
    return {"generationConfig": {"candidateCount": 2, "thinkingConfig": {"includeThoughts": is_open}}}


def judge_stream(events: list[Event], form: str, *, is_open: bool = True) -> LintReport:
    make_dialect, path = FORMS[form]
    dialect = make_dialect(includes_thoughts=is_open)
    writer = dialect.make_writer(HEAD, lambda: None)
    pieces = [piece for piece in (*map(writer.send, events), writer.end()) if piece]
    return judge(
        Trace(
            body=b"".join(pieces),
            endpoint="gemini",
            path=path,
            request=request_with(is_open=is_open),
            status=200,
            headers=(*dialect.HEADERS, ("Transfer-Encoding", "chunked")),
            complete=True,
            chunk_sizes=tuple(map(len, pieces)),
        )
    )


@pytest.mark.parametrize("form", FORMS)
@given(events=legal_events(Endpoint.CHAT, choices=2), is_open=st.booleans())
def test_a_stream_of_legal_events_violates_no_rule(form: str, events: list[Event], is_open: bool) -> None:
    report = judge_stream(events, form, is_open=is_open)
    # An error that is known before the first byte has a status.
    allowed = {"err-status-before-stream"} if isinstance(events[-1], Failure) else set()
    assert report.counts.keys() <= allowed


@given(events=legal_events(Endpoint.CHAT, choices=2), is_open=st.booleans())
def test_a_reply_of_legal_events_violates_no_rule(events: list[Event], is_open: bool) -> None:
    if isinstance(events[-1], Failure):
        return
    body = GeminiFormat(includes_thoughts=is_open).encode_reply(HEAD, collect(events))
    path = "/v1beta/models/m:generateContent"
    trace = Trace(body=body, endpoint="gemini", path=path, request=request_with(is_open=is_open), status=200)
    assert judge(trace).findings == ()


SIGNED = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
UNREADABLE = {"extra_content": {"google": {"thought_signature": "signed by me!"}}}


@table("form", FORMS)
@table(
    "events",
    [
        [ChoiceStart(0), Text(0, "a"), Finish(0, "stop"), Usage(3, 2, 9, {})],
        [
            ChoiceStart(0),
            Text(0, "a"),
            Finish(0, "stop"),
            Usage(3, 2, 5, {"completion_tokens_details": {"reasoning_tokens": 7}}),
        ],
        [ChoiceStart(0), KeepAlive(), Text(0, "a\u2028b"), KeepAlive(), Finish(0, "length")],
        [ChoiceStart(0), ToolCall(0, 0, "c1", "f", SIGNED), ToolArguments(0, 0, "{}"), Finish(0, "tool_calls")],
        [ChoiceStart(0), ToolCall(0, 0, "c1", "f", UNREADABLE), ToolArguments(0, 0, "{}"), Finish(0, "tool_calls")],
        [ChoiceStart(0), ToolCall(0, 0, "c1", "f"), ToolArguments(0, 0, "[1]"), Finish(0, "tool_calls")],
        [
            ChoiceStart(0),
            ToolCall(0, 0, "c1", "f", is_custom=True),
            ToolArguments(0, 0, "x", is_custom=True),
            Finish(0, "stop"),
        ],
        [ChoiceStart(0), ToolCall(0, 0, "c1", "f"), ToolArguments(0, 0, '{"a":'), Finish(0, "length")],
        [ChoiceStart(0), Text(0, "a"), Failure("gone", "rate_limit_error", "contents", "queue_full")],
    ],
)
def test_events_that_google_writes_otherwise_violate_no_rule(events: list[Event], form: str) -> None:
    assert judge_stream(events, form).findings == ()


@table("code", [*STATUS_BY_CODE, 413, 418, 507, 599])
def test_an_error_violates_no_rule(code: int) -> None:
    body = msgspec.json.encode(error_object(code, "no", param="contents", reason="because"))
    headers = (("Content-Type", "application/json"),)
    assert judge(Trace(body=body, endpoint="gemini", status=code, headers=headers)).findings == ()
