"""Writer of /v1/chat/completions."""

import pytest

from tests.protocol.build import (
    DONE,
    ENVELOPE,
    call,
    call_start,
    choice,
    chunk,
    count,
    delta_chunk,
    entry,
    frame,
    pack,
    piece,
    role,
)
from tests.table import table
from welldone.core.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.core.envelope import Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    FieldLocation,
    Finish,
    Json,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat, tool_call_object

OPEN = ChoiceStart(0)

LEGACY_FACTS = RequestFacts(uses_legacy_functions=True)


def write(*events: Event, functions: bool = False, reasoning: tuple[str, ...] = ("reasoning_content",)) -> list[bytes]:
    writer = ChunkFormat(RequestFacts(uses_legacy_functions=functions), reasoning=reasoning).make_writer(ENVELOPE)
    return [*(writer.send(event) for event in events), writer.end()]


@table(
    ("event", "delta"),
    [
        (Text(0, "a"), {"content": "a"}),
        (Reasoning(0, "a"), {"reasoning_content": "a"}),
        (Refusal(0, "a"), {"refusal": "a"}),
        (ToolCall(0, 0, "call_a", "get"), call_start()),
        (ToolCall(0, 0, "call_a", "get", {"x": 1}), call_start(x=1)),
    ],
)
def test_each_event_has_its_delta(event: Event, delta: Json) -> None:
    assert write(OPEN, event, Finish(0, "stop"))[:2] == [frame(role()), frame(delta_chunk(delta))]


NAMES: list[tuple[str, ...]] = [("reasoning",), ("reasoning_content", "reasoning"), ()]


@pytest.mark.parametrize("names", NAMES)
def test_reasoning_is_sent_in_the_configured_fields_or_not_at_all(names: tuple[str, ...]) -> None:
    written = write(OPEN, Reasoning(0, "a"), Text(0, "b"), Finish(0, "stop"), reasoning=names)
    reasoning_frame = frame(delta_chunk(dict.fromkeys(names, "a"))) if names else b""
    assert written[1:3] == [reasoning_frame, frame(delta_chunk({"content": "b"}))]


def test_fields_pending_for_dropped_reasoning_are_sent_with_the_next_chunk() -> None:
    field = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
    written = write(OPEN, field, Reasoning(0, "a"), Text(0, "b"), Finish(0, "stop"), reasoning=())
    assert written[1:4] == [b"", b"", frame(delta_chunk({"content": "b"}, x=1))]


def test_a_tool_call_has_its_name_once_before_its_arguments() -> None:
    written = write(
        OPEN,
        ToolCall(0, 0, "call_a", "get"),
        ToolArguments(0, 0, "{}", {"x": 1}),
        ToolCall(0, 1, "call_b", "put"),
        ToolArguments(0, 1, "[]"),
        Finish(0, "tool_calls"),
    )
    assert written[1:] == [
        frame(delta_chunk(call_start())),
        frame(delta_chunk(call(0, function={"arguments": "{}"}, x=1))),
        frame(delta_chunk(call_start(1, "call_b", "put"))),
        frame(delta_chunk(piece("[]", 1))),
        frame(chunk(choice({}, "tool_calls"))),
        DONE,
    ]


def test_a_request_with_functions_gets_a_function_call() -> None:
    events: list[Event] = [OPEN, ToolCall(0, 0, "a", "get"), ToolArguments(0, 0, "{}"), Finish(0, "tool_calls")]
    assert write(*events, functions=True)[1:4] == [
        frame(delta_chunk({"function_call": {"name": "get", "arguments": ""}})),
        frame(delta_chunk({"function_call": {"arguments": "{}"}})),
        frame(chunk(choice({}, "function_call"))),
    ]


def test_a_request_with_functions_gets_only_one_call() -> None:
    events: list[Event] = [OPEN, ToolCall(0, 0, "a", "get"), ToolCall(0, 1, "call_b", "put"), ToolArguments(0, 1, "{}")]
    written = write(*events, Finish(0, "tool_calls"), functions=True)
    assert written[2:4] == [b"", b""]


def test_the_finish_reason_of_a_request_with_functions_is_function_call() -> None:
    assert ChunkFormat(LEGACY_FACTS).finish_reason("tool_calls") == "function_call"
    assert ChunkFormat(RequestFacts()).finish_reason("tool_calls") == "tool_calls"
    assert ChunkFormat(LEGACY_FACTS).finish_reason("stop") == "stop"


def test_a_tool_call_is_written_in_openai_s_format() -> None:
    assert tool_call_object(CollectedToolCall("a", "get", "{}", {"x": 1})) == {
        "id": "a",
        "type": "function",
        "function": {"name": "get", "arguments": "{}"},
        "x": 1,
    }


def body(*choices: Json, **members: object) -> bytes:
    return pack(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m", "choices": choices}
        | members
    )


def answered(message: Json, reason: str = "stop", **members: object) -> Json:
    common = {"role": "assistant", "content": None, "refusal": None}
    return {"index": 0, "message": common | message, "logprobs": None, "finish_reason": reason} | members


@table(
    ("answer", "expected"),
    [
        (CollectedChoice("Hello", finish_reason="stop"), answered({"content": "Hello"})),
        (CollectedChoice(finish_reason="length"), answered({"content": ""}, "length")),
        (CollectedChoice(refusal="no", finish_reason="stop"), answered({"refusal": "no"})),
        (CollectedChoice("a", "why", finish_reason="stop"), answered({"content": "a", "reasoning_content": "why"})),
        (
            CollectedChoice(tool_calls=[CollectedToolCall("a", "get", "{}")], finish_reason="tool_calls"),
            answered({"tool_calls": [tool_call_object(CollectedToolCall("a", "get", "{}"))]}, "tool_calls"),
        ),
        (
            CollectedChoice(
                "a", tool_calls=[CollectedToolCall("a", "get", "{}", {"x": 1})], finish_reason="tool_calls"
            ),
            answered(
                {"content": "a", "tool_calls": [tool_call_object(CollectedToolCall("a", "get", "{}", {"x": 1}))]},
                "tool_calls",
            ),
        ),
        (
            CollectedChoice(
                "a",
                finish_reason="stop",
                logprobs={"content": [entry("a")]},
                choice_fields={"x": 1},
                delta_fields={"y": 2},
            ),
            answered({"content": "a", "y": 2}, logprobs={"content": [entry("a")]}, x=1),
        ),
    ],
)
def test_a_chat_reply_has_messages(answer: CollectedChoice, expected: Json) -> None:
    assert ChunkFormat(RequestFacts()).encode_reply(ENVELOPE, CollectedReply({0: answer})) == body(expected)


def test_a_reply_to_a_request_with_functions_has_a_function_call() -> None:
    reply = CollectedReply(
        {
            0: CollectedChoice(
                tool_calls=[CollectedToolCall("a", "get", "{}"), CollectedToolCall("b", "put", "[]")],
                finish_reason="tool_calls",
            )
        }
    )
    message = {"function_call": {"name": "get", "arguments": "{}"}}
    assert ChunkFormat(LEGACY_FACTS).encode_reply(ENVELOPE, reply) == body(answered(message, "function_call"))


@pytest.mark.parametrize("names", NAMES)
def test_reasoning_of_a_reply_is_sent_in_the_configured_fields_or_not_at_all(names: tuple[str, ...]) -> None:
    reply = CollectedReply({0: CollectedChoice("a", "why", finish_reason="stop")})
    assert ChunkFormat(RequestFacts(), reasoning=names).encode_reply(ENVELOPE, reply) == body(
        answered({"content": "a"} | dict.fromkeys(names, "why"))
    )


def test_a_reply_has_ordered_choices_usage_and_unknown_fields() -> None:
    answers = {1: CollectedChoice("b", finish_reason="stop"), 0: CollectedChoice("\u2028", finish_reason="stop")}
    reply = CollectedReply(answers, Usage(5, 3, 8, {"cost": 1}), unknown_fields={"x": 1})
    expected = body(
        answered({"content": "@"}),
        answered({"content": "b"}) | {"index": 1},
        usage=count(5, 3, cost=1),
        system_fingerprint="fp",
        x=1,
    )
    written = ChunkFormat(RequestFacts()).encode_reply(Envelope("chatcmpl-1", 1700000000, "m", "fp"), reply)
    assert written == expected.replace(b'"@"', b'"\\u2028"')
