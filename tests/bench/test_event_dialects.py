"""Ground truth for streams of named events: what arrives at known times is recorded with these times.

Right streams are made by the writers of the dialects. The short way of events that are alike must hear what the long
way hears.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import run
from tests.table import table
from welldone.bench.client import BenchReceiver
from welldone.bench.dialects import DIALECTS
from welldone.bench.dialects.events import EventStreamTimer
from welldone.bench.report import BenchRecord, RequestOutcome
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    Finish,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.core.sse import FRAME_LIMIT_BYTES, FRAME_LINES_LIMIT
from welldone.dialects import same_dialect
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.http.connect import HttpClientError

TimedPiece = tuple[float, bytes]
STREAM = {"content-type": "text/event-stream"}
ENDPOINTS = ("responses", "messages")
RECORDED = {
    f"{path.parent.name}/{path.stem}": (name, path.read_bytes())
    for name in ENDPOINTS
    for path in (Path(__file__).parent.parent / "recorded_dialects").glob(f"*/*{name}_stream.body")
}
COUNTED = Usage(7, 3, 10, {})
CUT = {
    "responses": "the server's stream ended before the response was complete",
    "messages": "the server's stream ended before the message was complete",
}


def written(endpoint: str, events: Sequence[Event], *, is_ended: bool = True) -> list[bytes]:
    """Return the bytes of each event, and those of the end."""
    dialect: AnswerFormat = ResponsesFormat({}) if endpoint == "responses" else MessagesFormat()
    writer = dialect.make_writer(Envelope("resp_1" if endpoint == "responses" else "msg_1", 1, "m"), lambda: None)
    return [*(writer.send(event) for event in events), writer.end() if is_ended else b""]


def hear(
    endpoint: str,
    pieces: Sequence[TimedPiece],
    *,
    end_s: float = 1.0,
    status: int = 200,
    error: HttpClientError | None = None,
) -> tuple[BenchRecord, str, str]:
    """Return the record of pieces that arrive at these times, and the visible and the other texts."""

    async def work() -> tuple[BenchRecord, str, str]:
        now = 0.0
        record = BenchRecord(0, 0.0, 0.0)
        listener = BenchReceiver(record, lambda: now, DIALECTS[endpoint].stream_timer(record, {}))
        listener.head(status, STREAM if status < 400 else {"content-type": "application/json"})
        for at, data in pieces:
            now = at
            listener.data(data)
        now = end_s
        listener.end(error)
        text = listener.timer.answer
        return record, text, listener.timer.all_text.removesuffix(text)

    return run(work())


def at_once(endpoint: str, events: Sequence[Event], *, is_ended: bool = True) -> BenchRecord:
    return hear(endpoint, [(0.1, b"".join(written(endpoint, events, is_ended=is_ended)))])[0]


@pytest.mark.parametrize(
    ("endpoint", "role_s", "finish"), [("responses", 0.1, "completed"), ("messages", 0.2, "tool_use")]
)
def test_each_part_has_its_time(endpoint: str, role_s: float, finish: str) -> None:
    said: list[Event] = [
        *(ChoiceStart(0), Reasoning(0, "hm"), Text(0, "Hello"), Text(0, " world")),
        *(ToolCall(0, 0, "call_1", "get"), ToolArguments(0, 0, "{}"), Finish(0, "tool_calls"), COUNTED),
    ]
    times = [number / 10 for number in range(1, 10)]
    record, text, unseen = hear(endpoint, list(zip(times, written(endpoint, said), strict=True)))
    tool_s = 0.6 if endpoint == "messages" else 0.5  # a block starts with its first arguments
    assert (record.role_s, record.reasoning_s, record.content_s, record.tool_s) == (role_s, 0.2, 0.3, tool_s)
    assert list(record.times) == [0.2, 0.3, 0.4, 0.6]
    assert (record.outcome, record.ended_s, record.finish_reason, record.rules) == (RequestOutcome.OK, 0.9, finish, ())
    assert (record.prompt_tokens, record.tokens) == (7, 3)
    assert (text, unseen) == ("Hello world", "hm{}")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@given(tokens=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1), st.integers(0, 300)), min_size=1, max_size=30))
def test_an_event_has_the_time_of_its_last_byte(endpoint: str, tokens: list[tuple[float, float, int]]) -> None:
    """Each arrives after a gap, in two pieces: the first at some share of the gap."""
    words = [f"word{number} " for number in range(len(tokens))]
    begun, *said, ended, counted, end = written(
        endpoint, [ChoiceStart(0), *(Text(0, word) for word in words), Finish(0, "stop"), COUNTED]
    )
    at = 0.0
    pieces: list[TimedPiece] = [(0.0, begun)]
    truth = []
    for data, (gap, share, cut) in zip(said, tokens, strict=True):
        cut = min(cut, len(data) - 1)
        pieces += [(at + gap * share, data[:cut]), (at + gap, data[cut:])]
        at += gap
        truth.append(at)
    record, text, _ = hear(endpoint, [*pieces, (at, ended + counted + end)], end_s=at)
    assert list(record.times) == truth
    assert (record.outcome, record.content_s, text, record.rules) == (RequestOutcome.OK, truth[0], "".join(words), ())


@table("endpoint", ENDPOINTS)
@table(
    ("events", "end", "why"),
    [
        ([ChoiceStart(0), Text(0, "Hi"), Failure("out of\nmemory")], RequestOutcome.FAILED, "out of memory"),
        ([ChoiceStart(0), Finish(0, "stop"), COUNTED], RequestOutcome.BROKEN, "the answer is empty"),
        ([ChoiceStart(0), Refusal(0, "No."), Finish(0, "stop"), COUNTED], RequestOutcome.OK, ""),
        ([ChoiceStart(0), ToolCall(0, 0, "call_1", "get"), Finish(0, "tool_calls"), COUNTED], RequestOutcome.OK, ""),
    ],
    ids=["failed", "empty", "refusal", "call"],
)
def test_every_outcome_is_distinguished(endpoint: str, events: list[Event], end: RequestOutcome, why: str) -> None:
    record = at_once(endpoint, events)
    assert (record.outcome, record.error, record.rules) == (end, why, ())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream_that_ends_within_the_answer_is_cut_and_has_no_token_count(endpoint: str) -> None:
    said = written(endpoint, [ChoiceStart(0), *(Text(0, f"{number}") for number in range(9))], is_ended=False)
    record = hear(endpoint, [(0.1, data) for data in said])[0]
    assert (record.outcome, record.error, record.tokens) == (RequestOutcome.CUT, CUT[endpoint], None)
    assert len(record.times) == 9
    lost = hear(endpoint, [(0.1, data) for data in said], error=HttpClientError("the connection was lost"))[0]
    assert (lost.outcome, lost.error) == (RequestOutcome.CUT, "the connection was lost")


@pytest.mark.parametrize(
    ("endpoint", "finish"), [("responses", "max_output_tokens"), ("messages", "max_tokens")], ids=ENDPOINTS
)
def test_an_answer_that_reached_its_limit_is_complete(endpoint: str, finish: str) -> None:
    record = at_once(endpoint, [ChoiceStart(0), Text(0, "Hi"), Finish(0, "length"), COUNTED])
    assert (record.outcome, record.finish_reason, record.tokens) == (RequestOutcome.OK, finish, 3)


@table("endpoint", ENDPOINTS)
@table(
    "body",
    [
        {"error": {"message": "too many", "type": "rate_limit", "param": None, "code": None}},
        {"type": "error", "error": {"type": "rate_limit_error", "message": "too many"}, "request_id": "req_1"},
    ],
    ids=["openai", "anthropic"],
)
def test_an_error_has_its_message_in_both_formats(endpoint: str, body: dict[str, Any]) -> None:
    record = hear(endpoint, [(0.1, json.dumps(body).encode())], status=429)[0]
    assert (record.outcome, record.error) == (RequestOutcome.REFUSED, "429: too many")


def event(kind: str, **members: Any) -> bytes:  # noqa: ANN401 - JSON
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


@table(
    ("endpoint", "spoil", "rule"),
    [
        (
            "responses",
            lambda body: body.replace(b'"sequence_number":5,', b'"sequence_number":9,'),
            "resp-sequence-number",
        ),
        ("responses", lambda body: body + b"data: [DONE]\n\n", "resp-terminal-once"),
        ("messages", lambda body: body.replace(b"event: content_block_delta\n", b""), "msg-event-name"),
        ("messages", lambda body: body + b"data: [DONE]\n\n", "msg-no-done"),
    ],
    ids=["number", "responses-done", "name", "messages-done"],
)
def test_broken_rules_are_recorded(endpoint: str, spoil: Callable[[bytes], bytes], rule: str) -> None:
    events: list[Event] = [ChoiceStart(0), *(Text(0, f"{number}") for number in range(9)), Finish(0, "stop"), COUNTED]
    body = b"".join(written(endpoint, events))
    assert hear(endpoint, [(0.1, body)])[0].rules == ()
    record = hear(endpoint, [(0.1, frame + b"\n\n") for frame in spoil(body).split(b"\n\n") if frame])[0]
    assert (record.outcome, record.rules) == (RequestOutcome.OK, (rule,))


def test_a_text_without_deltas_has_the_time_of_its_final_event() -> None:
    frames = written("responses", [ChoiceStart(0), Text(0, "All of it."), Finish(0, "stop"), COUNTED])
    body = b"".join(frames)
    without = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame and b"output_text.delta" not in frame]
    record, text, _ = hear("responses", [(float(number), frame) for number, frame in enumerate(without)])
    done = next(number for number, frame in enumerate(without) if b"output_text.done" in frame)
    assert (text, list(record.times), record.outcome) == ("All of it.", [done], RequestOutcome.OK)
    assert "resp-deltas" in record.rules


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_split_character_is_complete_in_the_answer(endpoint: str) -> None:
    frames = written(endpoint, [ChoiceStart(0), Text(0, "first"), Text(0, "second"), Finish(0, "stop"), COUNTED])
    frames = [
        frame.replace(b'"first"', b'"\\ud83d"').replace(b'"second"', b'"\\ude00"') if number < 3 else frame
        for number, frame in enumerate(frames)
    ]
    assert hear(endpoint, [(0.1, frame) for frame in frames])[1] == "\U0001f600"


@pytest.mark.parametrize(("member", "is_seen"), [("text", True), ("thinking", False)])
def test_a_block_that_starts_with_text_has_that_time(member: str, is_seen: bool) -> None:
    block = {"type": member, member: "All of it."}
    usage = {"input_tokens": 7, "output_tokens": 0}
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    frames = [
        event("message_start", message=begun | {"stop_reason": None, "stop_sequence": None}),
        event("content_block_start", index=0, content_block=block),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 3}),
        event("message_stop"),
    ]
    record, text, unseen = hear("messages", [(float(number), frame) for number, frame in enumerate(frames)])
    assert (text, unseen)[not is_seen] == "All of it."
    assert (list(record.times), record.outcome) == ([1.0], RequestOutcome.OK)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_events_after_the_end_do_not_count(endpoint: str) -> None:
    said = written(endpoint, [ChoiceStart(0), *(Text(0, f"{n}") for n in range(9)), Finish(0, "stop"), COUNTED])
    record = hear(endpoint, [*((0.1, data) for data in said), (0.2, said[5]), (0.3, said[1])])[0]
    assert (record.outcome, record.ended_s, list(record.times)) == (RequestOutcome.OK, 0.1, [0.1] * 9)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_all_line_ends_are_accepted(endpoint: str) -> None:
    said = written(endpoint, [ChoiceStart(0), *(Text(0, f"{n}") for n in range(9)), Finish(0, "stop"), COUNTED])
    pieces = [(float(number), data.replace(b"\n", b"\r\n")) for number, data in enumerate(said)]
    record, text, _ = hear(endpoint, pieces)
    assert (record.outcome, text, list(record.times)) == (
        RequestOutcome.OK,
        "012345678",
        [float(n) for n in range(1, 10)],
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_last_event_needs_no_empty_line(endpoint: str) -> None:
    body = b"".join(written(endpoint, [ChoiceStart(0), Text(0, "Hi"), Finish(0, "stop"), COUNTED]))
    record = hear(endpoint, [(0.1, body.removesuffix(b"\n\n"))])[0]
    assert (record.outcome, record.tokens, record.rules) == (RequestOutcome.OK, 3, ("end-last-event-terminated",))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endless_event_is_abandoned(endpoint: str) -> None:
    said = written(endpoint, [ChoiceStart(0), *(Text(0, f"{n}") for n in range(9))], is_ended=False)
    endless = b'data: {"type": "' + b"x" * 2**20
    record = hear(endpoint, [*((0.1, data) for data in said), *((0.2, endless) for _ in range(20))])[0]
    error = f"the server sent a frame of more than {FRAME_LIMIT_BYTES} bytes or {FRAME_LINES_LIMIT} lines"
    assert (record.outcome, record.error) == (RequestOutcome.FAILED, error)


# The fast path.


def both(endpoint: str, pieces: Sequence[bytes]) -> None:
    """Check that the record is the same with and without the fast path, for a piece per second."""
    timed = [(float(number), piece) for number, piece in enumerate(pieces)]
    short = hear(endpoint, timed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(same_dialect, "_LEARNING_ATTEMPTS", 0)
        assert short == hear(endpoint, timed)


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    """Split the body at these offsets; the rest is dropped."""
    edges = [0, *sorted(place % (len(body) + 1) for place in places)]
    return [body[start:end] for start, end in pairwise(edges)]


@table(("endpoint", "body"), RECORDED.values(), ids=RECORDED.keys())
def test_a_recorded_stream_gives_the_same_record_on_both_paths(endpoint: str, body: bytes) -> None:
    both(endpoint, [frame + b"\n\n" for frame in body.split(b"\n\n") if frame])


WORDS = st.sampled_from(["a", " the", "\n", '"', "\\", "é", "漢", "\u2028", "\x7f", "  ", "long" * 20, "}\n\n{"])
SAID = st.lists(st.tuples(st.sampled_from([Text, Text, Text, Reasoning]), WORDS), min_size=1, max_size=30)
ODD = [
    b": a comment\n\n",
    b"data: [DONE]\n\n",
    b"event: ping\ndata: {}\n\n",
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n',
    b'event: response.output_text.delta\ndata: {"delta":"y"}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"z"}}\n\n',
    b"\r\n",
    b"data: 5\n\n",
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@given(
    said=SAID,
    odd=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(ODD)), max_size=3),
    places=st.lists(st.integers(0, 20_000), max_size=40),
)
def test_any_stream_gives_the_same_record_however_it_is_split(
    endpoint: str, said: list[tuple[type[Text] | type[Reasoning], str]], odd: list[tuple[int, bytes]], places: list[int]
) -> None:
    events = [ChoiceStart(0), *(kind(0, text) for kind, text in said), Finish(0, "stop"), COUNTED]
    frames = written(endpoint, events)
    for place, spoilt in odd:
        frames.insert(place, spoilt)
    both(endpoint, frames)
    both(endpoint, cut(b"".join(frames), places))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The events that were parsed."""
    values: list[object] = []
    on_event = EventStreamTimer._on_event

    def recorded(self: EventStreamTimer, value: dict[str, Any], name: str) -> None:
        values.append(value)
        on_event(self, value, name)

    monkeypatch.setattr(EventStreamTimer, "_on_event", recorded)
    return values


def long_answer(endpoint: str) -> list[bytes]:
    thoughts = [Reasoning(0, f" t{number}") for number in range(1000)]
    words = [Text(0, f" w{number}") for number in range(2000)]
    return written(endpoint, [ChoiceStart(0), *thoughts, *words, Finish(0, "stop"), COUNTED])


@pytest.mark.parametrize("is_number_last", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_most_of_an_answer_takes_the_fast_path(endpoint: str, is_number_last: bool, parsed: list[object]) -> None:
    frames = long_answer(endpoint)
    if is_number_last:
        frames = [_with_number_last(frame) for frame in frames]
    record, text, unseen = hear(endpoint, [(float(number), frame) for number, frame in enumerate(frames) if frame])
    assert text == "".join(f" w{number}" for number in range(2000))
    assert unseen == "".join(f" t{number}" for number in range(1000))
    assert (record.outcome, record.rules, len(record.times)) == (RequestOutcome.OK, (), 3000)
    assert len(parsed) < 20


@pytest.mark.parametrize("size", [50, 20_000])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_split_events_do_not_end_the_fast_path(endpoint: str, size: int, parsed: list[object]) -> None:
    body = b"".join(long_answer(endpoint))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    record, _, _ = hear(endpoint, [(float(number), piece) for number, piece in enumerate(pieces)])
    assert (record.outcome, record.rules, len(record.times)) == (RequestOutcome.OK, (), 3000)
    assert len(parsed) < 20


def _with_number_last(frames: bytes) -> bytes:
    """As sent by servers that sort the fields of an event."""
    sorted_ = []
    for frame in frames.split(b"\n\n")[:-1]:
        name, _, data = frame.partition(b"\ndata: ")
        value = json.loads(data)
        sorted_.append(name + b"\ndata: " + json.dumps(dict(sorted(value.items()))).encode() + b"\n\n")
    return b"".join(sorted_)


def test_events_that_differ_in_more_than_their_text_are_parsed() -> None:
    """As with OpenAI's obfuscation padding, which differs between events."""
    frames = written("responses", [ChoiceStart(0), *(Text(0, f" w{n}") for n in range(50)), Finish(0, "stop"), COUNTED])
    padded = [
        frame.replace(b'"logprobs":[]}\n', b'"logprobs":[],"obfuscation":"%b"}\n' % (b"x" * (number % 7)))
        if b"output_text.delta" in frame
        else frame
        for number, frame in enumerate(frames)
    ]
    record, text, _ = hear("responses", [(float(number), frame) for number, frame in enumerate(padded)])
    assert (record.outcome, text, len(record.times)) == (RequestOutcome.OK, "".join(f" w{n}" for n in range(50)), 50)
    both("responses", padded)


def test_an_event_without_text_does_not_count() -> None:
    frames = written("messages", [ChoiceStart(0), *(Text(0, f" w{n}") for n in range(9)), Finish(0, "stop"), COUNTED])
    frames = [frame.replace(b'" w5"', b'""') for frame in frames]
    record, _, _ = hear("messages", [(float(number), frame) for number, frame in enumerate(frames)])
    assert (record.outcome, len(record.times)) == (RequestOutcome.OK, 8)
    both("messages", frames)


def test_the_text_is_found_at_its_path_and_not_by_its_name() -> None:
    frames = [
        *written("messages", [ChoiceStart(0), Text(0, "x")], is_ended=False),
        *(
            event("content_block_delta", index=0, note={"text": f"{n}"}, delta={"type": "text_delta", "text": "x"})
            for n in range(9)
        ),
    ]
    assert hear("messages", [(float(number), frame) for number, frame in enumerate(frames)])[1] == "x" * 10


def test_token_counts_before_the_end_are_ignored() -> None:
    usage = {"input_tokens": 7, "output_tokens": 1}
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    started = event("message_start", message=begun | {"stop_reason": None, "stop_sequence": None})
    words = written("messages", [ChoiceStart(0), *(Text(0, f" w{n}") for n in range(9))], is_ended=False)
    body = started + b"".join(words).partition(b"\n\n")[2]
    record = hear("messages", [(0.1, body)])[0]
    assert (record.outcome, record.tokens, len(record.times)) == (RequestOutcome.CUT, None, 9)
