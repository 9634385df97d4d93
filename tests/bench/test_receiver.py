"""Ground truth: bytes that arrive at known times are recorded with these times."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import run
from tests.table import table
from welldone.bench import client
from welldone.bench.client import BenchReceiver
from welldone.bench.dialects.chat import ChatStreamTimer
from welldone.bench.report import BenchRecord, RequestOutcome
from welldone.core.request_facts import RequestFacts
from welldone.http.connect import HttpClientError

STREAM = {"content-type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **members: Any) -> bytes:  # noqa: ANN401
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**common, "choices": choices, **members}).encode() + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
TimedPiece = tuple[float, bytes]


class ReceiverHarness:
    """A receiver with a fake clock."""

    def __init__(self, facts: RequestFacts | None = None) -> None:
        self.now = 0.0
        self.record = BenchRecord(0, 0.0, 0.0)
        self.receiver = BenchReceiver(
            self.record, lambda: self.now, ChatStreamTimer(self.record, facts or RequestFacts(include_usage=True))
        )

    def play(
        self, pieces: Sequence[TimedPiece], *, head: float = 0.0, end: float = 0.0, status: int = 200
    ) -> BenchRecord:
        self.now = head
        self.receiver.head(status, STREAM if status < 400 else {"content-type": "application/json"})
        for at, data in pieces:
            self.now = at
            self.receiver.data(data)
        self.now = end
        self.receiver.end(None)
        return self.record


def play(pieces: Sequence[TimedPiece], **more: Any) -> BenchRecord:  # noqa: ANN401 - as `ReceiverHarness.play`
    async def work() -> BenchRecord:
        return ReceiverHarness().play(pieces, **more)

    return run(work())


@pytest.mark.parametrize(("kind", "member"), [("function", "arguments"), ("custom", "input")])
def test_each_part_has_its_time(kind: str, member: str) -> None:
    record = play(
        [
            (0.2, ROLE),
            (0.3, chunk({"reasoning_content": "hm"})),
            (0.5, chunk({"content": "Hello"})),
            (0.6, chunk({"content": " world"})),
            (0.7, chunk({"tool_calls": [{"index": 0, "id": "c", "type": kind, kind: {"name": "get"}}]})),
            (0.8, chunk({"tool_calls": [{"index": 0, kind: {member: "{}"}}]})),
            (0.9, chunk({}, "tool_calls")),
            (1.0, chunk(usage=USAGE) + DONE),
        ],
        head=0.1,
        end=1.1,
    )
    assert (record.head_s, record.role_s, record.reasoning_s, record.content_s) == (0.1, 0.2, 0.3, 0.5)
    assert (record.tool_s, record.ended_s, record.outcome, record.finish_reason) == (
        0.7,
        1.0,
        RequestOutcome.OK,
        "tool_calls",
    )
    assert list(record.times) == [0.3, 0.5, 0.6, 0.8]
    assert (record.prompt_tokens, record.tokens) == (7, 3)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1), st.integers(0, 200)), min_size=1, max_size=30))
def test_a_chunk_has_the_time_of_its_last_byte(tokens: list[tuple[float, float, int]]) -> None:
    """Each arrives after a gap, in two pieces: the first at some share of the gap."""
    at = 0.0
    pieces: list[TimedPiece] = [(0.0, ROLE)]
    truth = []
    for number, (gap, share, cut) in enumerate(tokens):
        data = chunk({"content": f"word{number} "})
        cut = min(cut, len(data) - 1)
        pieces += [(at + gap * share, data[:cut]), (at + gap, data[cut:])]
        at += gap
        truth.append(at)
    record = play([*pieces, (at, STOP + DONE)], end=at)
    assert list(record.times) == truth
    assert (record.outcome, record.content_s) == (RequestOutcome.OK, truth[0])


@table(
    ("pieces", "end", "why"),
    [
        (
            [(0.1, ROLE), (0.2, chunk({"content": "Hi"}))],
            RequestOutcome.CUT,
            "the stream ended without a finish_reason",
        ),
        (
            [(0.1, ROLE), (0.2, b'data: {"error":{"message":"out of\\nmemory"}}\n\n')],
            RequestOutcome.FAILED,
            "out of memory",
        ),
        ([(0.1, ROLE), (0.2, STOP + DONE)], RequestOutcome.BROKEN, "the answer is empty"),
        ([(0.1, ROLE), (0.2, chunk({"content": "Hi"})), (0.3, STOP)], RequestOutcome.OK, ""),
        ([(0.1, ROLE), (0.2, chunk({"content": "Hi"})), (0.3, DONE)], RequestOutcome.OK, ""),
    ],
)
def test_every_outcome_is_distinguished(pieces: list[TimedPiece], end: RequestOutcome, why: str) -> None:
    record = play(pieces, end=1.0)
    assert (record.outcome, record.error) == (end, why)


def test_an_error_status_is_refused_with_its_message() -> None:
    record = play([(0.1, b'{"error":{"message":"too\\u001b many"}}')], status=429, end=0.2)
    assert (record.outcome, record.error, list(record.times)) == (RequestOutcome.REFUSED, "429: too? many", [])


def test_a_reply_that_is_not_a_stream_is_broken() -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.head(200, {"content-type": "application/json"})
        harness.receiver.data(b"{}")
        harness.receiver.end(None)
        return harness.record

    record = run(work())
    assert (record.outcome, record.error) == (RequestOutcome.BROKEN, "the reply is not a stream but application/json")


def test_a_lost_connection_is_cut() -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.head(200, STREAM)
        harness.receiver.data(ROLE + chunk({"content": "Hi"}))
        harness.receiver.end(HttpClientError("the connection was lost before the reply was complete"))
        return harness.record

    assert run(work()).outcome is RequestOutcome.CUT


def test_a_connection_lost_before_the_reply_is_cut() -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.end(HttpClientError("the connection was lost before the reply was complete"))
        return harness.record

    assert run(work()).outcome is RequestOutcome.CUT


def test_broken_rules_are_recorded() -> None:
    twice = chunk({"role": "assistant", "content": "Hi"})
    assert "delta-role-once" in play([(0.1, ROLE + twice + STOP + DONE)], end=0.2).rules
    assert play([(0.1, ROLE + chunk({"content": "Hi"}) + STOP + chunk(usage=USAGE) + DONE)], end=0.2).rules == ()


CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "get"}}


def test_a_tool_call_without_arguments_is_an_answer() -> None:
    record = play([(0.1, ROLE + chunk({"tool_calls": [CALL]}) + chunk({}, "tool_calls") + DONE)], end=0.2)
    assert (record.outcome, record.tool_s) == (RequestOutcome.OK, 0.1)


def test_usage_of_0_is_not_a_count() -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    record = play([(0.1, ROLE + chunk({"content": "Hi"}) + STOP + chunk(usage=nothing) + DONE)], end=0.2)
    assert (record.outcome, record.prompt_tokens, record.tokens) == (RequestOutcome.OK, None, None)


@pytest.mark.parametrize(
    ("last", "end"),
    [(STOP + DONE, RequestOutcome.OK), (b'data: {"error":{"message":"no"}}\n\n', RequestOutcome.FAILED)],
    ids=["done", "error"],
)
def test_a_connection_left_open_after_the_final_event_does_not_count(last: bytes, end: RequestOutcome) -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.head(200, STREAM)
        harness.now = 0.5
        harness.receiver.data(ROLE + chunk({"content": "Hi"}) + last)
        harness.now = 300.0
        await asyncio.wait_for(harness.receiver.done, 30)
        harness.receiver.data(chunk({"content": "more"}))
        return harness.record

    record = run(work())
    assert (record.outcome, record.ended_s, len(record.times)) == (end, 0.5, 1)


def test_an_answer_abandoned_after_the_final_event_is_complete() -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.head(200, STREAM)
        harness.receiver.data(ROLE + chunk({"content": "Hi"}) + STOP + DONE)
        harness.receiver.settle(RequestOutcome.UNFINISHED)
        return harness.record

    assert run(work()).outcome is RequestOutcome.OK


def test_an_endless_answer_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_CHUNKS", 100)
    record = play([(0.1, ROLE), *((0.2, chunk({"content": "a"})) for _ in range(1000))], end=1.0)
    assert (record.outcome, len(record.times)) == (RequestOutcome.BROKEN, 101)


def test_nothing_is_recorded_after_the_end() -> None:
    async def work() -> BenchRecord:
        harness = ReceiverHarness()
        harness.receiver.settle(RequestOutcome.TIMED_OUT, "too late")
        harness.now = 9.0
        harness.receiver.end(None)
        harness.receiver.settle(RequestOutcome.OK)
        return harness.record

    assert run(work()).outcome is RequestOutcome.TIMED_OUT
