"""The seam between a stream and the one that continues it."""

from tests.protocol.continuations import HELLO, LOST, REPLAY, delivered_of, prefill
from tests.table import table
from welldone.core.continuation import Continuation, Delivered, Seam
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
)


def after_seam(delivered: Delivered, continuation: Continuation, *events: Event) -> list[Event]:
    return Seam(delivered, continuation).feed(list(events))


CALLED = delivered_of(ChoiceStart(0), ToolCall(0, 0, "c", "get"), ToolArguments(0, 0, '{"a"'))
ENTRY = {"content": [{"token": "a"}]}
SCORED = delivered_of(ChoiceStart(0), Logprobs(0, ENTRY), Text(0, "a"))
NOTE = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
TIMINGS = UnknownFields(0, FieldLocation.CHUNK, {"timings": {}})
SEAMS: dict[str, tuple[Delivered, Continuation, list[Event], list[Event]]] = {
    "fields of delivered chunks": (
        HELLO,
        REPLAY,
        [ChoiceStart(0), TIMINGS, NOTE, Text(0, "Hello you"), TIMINGS, NOTE, Text(0, "!"), KeepAlive(), ChoiceStart(1)],
        [TIMINGS, NOTE, Text(0, "!"), KeepAlive(), ChoiceStart(1)],
    ),
    "unknown content": (HELLO, REPLAY, [UnknownFields(0, FieldLocation.DELTA, {"images": ["x"]})], [LOST]),
    "a call": (
        CALLED,
        REPLAY,
        [ToolCall(0, 0, "d", "get"), ToolArguments(0, 0, ""), ToolArguments(0, 0, '{"a":1}'), ToolCall(0, 1, "e", "f")],
        [ToolArguments(0, 0, ":1}"), ToolCall(0, 1, "e", "f")],
    ),
    "a longer name": (CALLED, REPLAY, [ToolCall(0, 0, "d", "get_it")], [LOST]),
    "a shorter name": (CALLED, REPLAY, [ToolCall(0, 0, "d", "ge")], [LOST]),
    "text for a call": (CALLED, REPLAY, [Text(0, "get")], [LOST]),
    "an early end": (HELLO, REPLAY, [Text(0, "Hello"), Finish(0, "stop")], [LOST]),
    "another failure": (HELLO, REPLAY, [Text(0, "Hello"), Failure("no")], [Failure("no")]),
    "log probabilities": (
        SCORED,
        REPLAY,
        [Logprobs(0, ENTRY), Text(0, "a"), Logprobs(0, ENTRY), Text(0, "b"), Finish(0, "stop")],
        [Logprobs(0, ENTRY), Text(0, "b"), Finish(0, "stop")],
    ),
    "log probabilities across the seam": (SCORED, REPLAY, [Logprobs(0, {"content": [{}, {}]})], [LOST]),
    "missing log probabilities": (SCORED, REPLAY, [Text(0, "ab")], [LOST]),
    "missing log probabilities at the end": (SCORED, REPLAY, [Text(0, "a"), Finish(0, "stop")], [LOST]),
    "reasoning after a prefill": (HELLO, prefill("Hello you"), [Reasoning(0, "Hm")], [LOST]),
    "reasoning later": (
        HELLO,
        prefill("Hello you"),
        [Text(0, "!"), Reasoning(0, "Hm")],
        [Text(0, "!"), Reasoning(0, "Hm")],
    ),
    "the rest of a prefill": (HELLO, prefill("Hello"), [Text(0, " y"), Text(0, "ou!")], [Text(0, "!")]),
    "another rest": (HELLO, prefill("Hello"), [Text(0, " me")], [LOST]),
    "the start again": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [NOTE, Text(0, "Hell"), Text(0, "o you")],
        [LOST],
    ),
    "nearly the start again": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [NOTE, Text(0, "Hell"), Text(0, "ip"), Text(0, "Hello you")],
        [NOTE, Text(0, "Hell"), Text(0, "ip"), Text(0, "Hello you")],
    ),
    "a short end": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [Text(0, "Hell"), Finish(0, "stop")],
        [Text(0, "Hell"), Finish(0, "stop")],
    ),
    "a call after a guarded prefill": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [ToolCall(0, 0, "c", "f")],
        [ToolCall(0, 0, "c", "f")],
    ),
}


@table("delivered, continuation, events, expected", SEAMS.values(), ids=SEAMS.keys())
def test_what_passes_the_seam(
    delivered: Delivered, continuation: Continuation, events: list[Event], expected: list[Event]
) -> None:
    assert after_seam(delivered, continuation, *events) == expected


def test_several_choices_are_compared_one_by_one() -> None:
    delivered = delivered_of(ChoiceStart(0), ChoiceStart(1), Text(0, "a"), Text(1, "b"), Text(0, "c"))
    seam = Seam(delivered, REPLAY)
    assert seam.feed([Text(1, "bd"), Text(0, "a")]) == [Text(1, "d")]
    assert not seam.is_passed
    assert seam.feed([Text(0, "ce")]) == [Text(0, "e")]
    assert seam.is_passed
