"""Writer of /v1/messages."""

import json
import math

import pytest

from tests.table import table
from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.collect import collect
from welldone.core.envelope import Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    EventOrderError,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.dialects.messages import writer
from welldone.dialects.messages.writer import MessagesFormat

HEAD = Envelope("msg_1", 1700000000, "m")
OPEN, STOP = ChoiceStart(0), Finish(0, "stop")
CALL = ToolCall(0, 0, "call_a", "get")
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
AT_END: Json = dict.fromkeys(COUNTS, 0) | {"output_tokens_details": None, "server_tool_use": None}
NOTHING: Json = AT_END | dict.fromkeys(("cache_creation", "inference_geo", "service_tier", "speed"))
REST: Json = {"container": None, "stop_details": None}
TEXT: Json = {"type": "text", "text": "", "citations": []}
DIRECT: Json = {"caller": {"type": "direct"}}


def frames(data: bytes) -> list[Json]:
    """Decode a stream; check that each event is named by its type."""
    found = []
    for frame in data.decode().split("\n\n")[:-1]:
        name, body = frame.split("\n")
        found.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def write(*events: Event, stops: tuple[str, ...] = (), counted: Usage | None = None) -> list[Json]:
    """Write events; return the decoded stream."""
    writer = MessagesFormat(stop_sequences=stops).make_writer(HEAD, lambda: counted)
    return frames(b"".join([*(writer.send(event) for event in events), writer.end()]))


def whole_reply(*events: Event, stops: tuple[str, ...] = ()) -> Json:
    """Collect events into a reply."""
    body: Json = json.loads(MessagesFormat(stop_sequences=stops).encode_reply(HEAD, collect(events)))
    return body


def summary(*events: Event) -> list[str]:
    """Summarise the block events of a stream."""
    return [summary_line(value) for value in write(OPEN, *events)[1:-2]]


def summary_line(value: Json) -> str:
    """Summarise an event: block index, and block type or text."""
    match value["type"]:
        case "content_block_start":
            return f"{value['index']} {value['content_block']['type']}"
        case "content_block_delta":
            kind, text = value["delta"].values()
            return f"{value['index']} {kind.removesuffix('_delta')}: {text}"
        case _:
            return f"{value['index']} stop"


def test_the_events_of_a_text_message() -> None:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": NOTHING, "diagnostics": None, **REST}
    assert write(OPEN, Text(0, "a"), Text(0, "é\u2028"), STOP, Usage(5, 3, 8, {})) == [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": TEXT},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é\u2028"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None, **REST},
            "usage": AT_END | {"input_tokens": 5, "output_tokens": 3},
        },
        {"type": "message_stop"},
    ]


def test_unicode_line_breaks_are_escaped() -> None:
    writer = MessagesFormat().make_writer(HEAD, lambda: None)
    writer.send(OPEN)
    assert "\u2028".encode() not in writer.send(Text(0, "\u2028")) + writer.send(Text(0, "\u2028"))


@table(
    ("events", "expected"),
    [
        ([], []),
        ([Reasoning(0, "hm"), Text(0, "a")], [*["0 thinking", "0 thinking: hm", "0 signature: ", "0 stop"], "1 text"]),
        ([Text(0, "a"), Refusal(0, "no")], ["0 text", "0 text: a", "0 stop", "1 text", "1 text: no"]),
        ([CALL], ["0 tool_use", "0 input_json: {}", "0 stop"]),
        (
            [CALL, ToolArguments(0, 0, '{"a":'), ToolArguments(0, 0, "1}"), ToolArguments(0, 0, "", {"x": 1})],
            ["0 tool_use", '0 input_json: {"a":', "0 input_json: 1}", "0 stop"],
        ),
        (
            [CALL, Text(0, "a"), ToolArguments(0, 0, "{}"), Reasoning(0, "b"), Text(0, "c")],
            [
                "0 tool_use",
                "0 input_json: {}",
                "0 stop",
                "1 text",
                "1 text: a",
                "1 stop",
                "2 thinking",
                "2 thinking: b",
                "2 signature: ",
            ],
        ),
        (
            [CALL, Text(0, "a"), ToolCall(0, 1, "call_b", "put"), ToolArguments(0, 1, "{}")],
            ["0 tool_use", "0 input_json: {}", "0 stop", "1 text", "1 text: a", "1 stop", "2 tool_use"],
        ),
    ],
)
def test_blocks_are_written_in_sequence(events: list[Event], expected: list[str]) -> None:
    assert summary(*events, STOP)[: len(expected)] == expected


def test_a_call_has_id_name_and_unknown_members() -> None:
    start = write(OPEN, ToolCall(0, 0, "call_a", "get", {"type": "x", "sign": "s"}), STOP)[1]
    call = {"type": "tool_use", "id": "call_a", "name": "get", "input": {}, "sign": "s"}
    assert start["content_block"] == call | DIRECT


def test_text_queued_behind_a_call_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MAX_QUEUED_CHARACTERS", 3)
    lines = summary(CALL, ToolArguments(0, 0, "{"), Text(0, "abc"), Text(0, "d"), ToolArguments(0, 0, "}"), STOP)
    assert lines == ["0 tool_use", "0 input_json: {", "0 stop", "1 text", "1 text: abc", "1 text: d", "1 stop"]


REFUSED = Refusal(0, "no")


@table(
    ("events", "reason", "stop"),
    [
        ([Finish(0, "stop")], "end_turn", None),
        ([Finish(0, "length")], "max_tokens", None),
        ([Finish(0, "content_filter")], "refusal", None),
        ([CALL, Finish(0, "tool_calls")], "tool_use", None),
        ([CALL, Finish(0, "stop")], "tool_use", None),
        ([CALL, Finish(0, "length")], "max_tokens", None),
        ([CALL, Finish(0, "content_filter")], "refusal", None),
        ([Finish(0, "tool_calls")], "end_turn", None),
        ([REFUSED, Finish(0, "stop")], "refusal", None),
        ([Finish(0, "stop", "X")], "stop_sequence", "X"),
        ([UnknownFields(0, FieldLocation.CHOICE, {"stop_reason": "X"}), Finish(0, "stop")], "stop_sequence", "X"),
        ([UnknownFields(0, FieldLocation.CHOICE, {"stop_reason": "Y"}), Finish(0, "stop")], "end_turn", None),
        ([UnknownFields(0, FieldLocation.CHOICE, {"stop_reason": 7}), Finish(0, "stop")], "end_turn", None),
        ([UnknownFields(0, FieldLocation.DELTA, {"stop_reason": "X"}), Finish(0, "stop")], "end_turn", None),
        ([UnknownFields(0, FieldLocation.CHOICE, {"stop_reason": "X"}), Finish(0, "length")], "max_tokens", None),
    ],
)
def test_finish_reasons_are_converted_to_stop_reasons(events: list[Event], reason: str, stop: str | None) -> None:
    delta = {"stop_reason": reason, "stop_sequence": stop, **REST}
    assert write(OPEN, *events, stops=("X",))[-2]["delta"] == delta
    body = whole_reply(OPEN, *events, stops=("X",))
    assert {name: body[name] for name in delta} == delta


TIMINGS = UnknownFields(0, FieldLocation.CHUNK, {"timings": {"prompt_n": 3, "cache_n": 4, "predicted_n": 1}})
CACHED: Json = {"prompt_tokens_details": {"cached_tokens": 4}}


def counts(fresh: int, cached: int, output: int, **more: object) -> Json:
    """Return usage in Anthropic's format."""
    counts_sent = {"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": output}
    return AT_END | counts_sent | more


@table(
    ("events", "counted", "start", "end"),
    [
        ([], None, counts(0, 0, 0), counts(0, 0, 0)),
        ([], Usage(7, 1, 8, CACHED), counts(3, 4, 0), counts(3, 4, 1)),
        ([TIMINGS], None, counts(3, 4, 0), counts(3, 4, 1)),
        ([UnknownFields(0, FieldLocation.CHUNK, {"timings": {}})], None, counts(0, 0, 0), counts(0, 0, 0)),
        ([UnknownFields(0, FieldLocation.CHUNK, {"timings": 1})], None, counts(0, 0, 0), counts(0, 0, 0)),
        ([UnknownFields(0, FieldLocation.CHOICE, TIMINGS.fields)], None, counts(0, 0, 0), counts(0, 0, 0)),
    ],
)
def test_message_start_has_the_prompt_tokens_known_so_far(
    events: list[Event], counted: Usage | None, start: Json, end: Json
) -> None:
    written = write(OPEN, *events, Text(0, "a"), STOP, counted=counted)
    assert (written[0]["message"]["usage"], written[-2]["usage"]) == (NOTHING | start, end)


DETAILS: list[tuple[Json, Json]] = [
    ({}, counts(9, 0, 5)),
    (CACHED, counts(5, 4, 5)),
    ({"prompt_tokens_details": {"cached_tokens": 99}}, counts(0, 9, 5)),
    ({"prompt_tokens_details": {"cached_tokens": -1}}, counts(9, 0, 5)),
    ({"prompt_tokens_details": None}, counts(9, 0, 5)),
    ({"cost": 0.5, "input_tokens": 7}, counts(9, 0, 5, cost=0.5)),
    (
        {"completion_tokens_details": {"reasoning_tokens": 2}},
        counts(9, 0, 5, output_tokens_details={"thinking_tokens": 2}),
    ),
]


@table(("more", "expected"), DETAILS)
def test_cached_tokens_are_counted_separately(more: Json, expected: Json) -> None:
    usage = Usage(9, 5, 14, more)
    assert write(OPEN, STOP, usage)[-2]["usage"] == expected
    assert whole_reply(OPEN, STOP, usage)["usage"] == NOTHING | expected
    assert write(OPEN, STOP, counted=usage)[0]["message"]["usage"]["output_tokens_details"] is None


REQUIRED = {
    "message": {
        *("id", "container", "content", "diagnostics", "model", "role", "stop_details", "stop_reason"),
        *("stop_sequence", "type", "usage"),
    },
    "usage": {
        *("cache_creation", "cache_creation_input_tokens", "cache_read_input_tokens", "inference_geo"),
        *("input_tokens", "output_tokens", "output_tokens_details", "server_tool_use", "service_tier", "speed"),
    },
    "delta": {"container", "stop_details", "stop_reason", "stop_sequence"},
    "usage at the end": {
        *("cache_creation_input_tokens", "cache_read_input_tokens", "input_tokens", "output_tokens"),
        *("output_tokens_details", "server_tool_use"),
    },
    "text": {"citations", "text", "type"},
    "thinking": {"signature", "thinking", "type"},
    "tool_use": {"id", "caller", "input", "name", "type"},
}
"""Members that Anthropic's schema requires, also if they are null.

They are the ones without a question mark in `resources/messages/messages.d.ts` of @anthropic-ai/sdk 1.6.0, which is
generated from Anthropic's OpenAPI document: `Message`, `Usage`, `RawMessageDeltaEvent.Delta`, `MessageDeltaUsage`,
`TextBlock`, `ThinkingBlock`, `ToolUseBlock`. `caller` is the only one of them that may not be null.
"""


@pytest.mark.parametrize("usage", [None, Usage(9, 5, 14, CACHED)])
def test_replies_have_all_members_that_the_schema_requires(usage: Usage | None) -> None:
    answer: list[Event] = [Reasoning(0, "hm"), Text(0, "a"), CALL, ToolArguments(0, 0, "{}"), Finish(0, "tool_calls")]
    events: list[Event] = [OPEN, *answer, *([usage] if usage is not None else [])]
    streamed, whole = write(*events), whole_reply(*events)
    blocks = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    for message in (streamed[0]["message"], whole):
        assert message.keys() == REQUIRED["message"]
        assert message["usage"].keys() == REQUIRED["usage"]
    assert streamed[-2]["delta"].keys() == REQUIRED["delta"]
    assert streamed[-2]["usage"].keys() == REQUIRED["usage at the end"]
    for content in (blocks, whole["content"]):
        assert [(block["type"], set(block)) for block in content] == [
            (kind, REQUIRED[kind]) for kind in ("thinking", "text", "tool_use")
        ]
        # The AI SDK (@ai-sdk/anthropic 3.0.138, anthropicMessagesResponseSchema) refuses citations that are null.
        assert content[1]["citations"] == []


@table(
    ("failure", "kind"),
    [
        (Failure("no"), "api_error"),
        (Failure("no", "rate_limit_error"), "rate_limit_error"),
        (Failure("no", "invalid_request_error"), "invalid_request_error"),
        (Failure("no", "server_error", code="model_loading"), "overloaded_error"),
        (Failure("no", "unavailable_error"), "overloaded_error"),
        (Failure("no", "server_error", code="503"), "overloaded_error"),
        (Failure("no", "api_error", code="timeout"), "timeout_error"),
    ],
)
def test_a_failure_is_the_last_event_with_an_anthropic_error_type(failure: Failure, kind: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "no"}}
    written = write(OPEN, CALL, ToolArguments(0, 0, "{"), failure)
    assert (written[-1], written[-2]["type"]) == (error, "content_block_delta")
    assert write(OPEN, failure) == [error]
    assert frames(MessagesFormat().final_error_bytes(failure)) == [error]


def test_unknown_members_of_an_error_are_kept() -> None:
    failure = Failure("no", extra_fields={"details": 1, "request_id": "r", "type": "x"})
    error = {"type": "api_error", "message": "no", "details": 1}
    assert write(failure) == [{"type": "error", "error": error, "request_id": "r"}]


def test_a_keep_alive_is_a_comment_before_the_message_and_a_ping_within_it() -> None:
    writer = MessagesFormat().make_writer(HEAD, lambda: None)
    assert [writer.send(event) for event in (OPEN, KeepAlive())] == [b"", KEEP_ALIVE]
    writer.send(Text(0, "a"))
    assert writer.send(KeepAlive(is_chunk=True)) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_text_is_accepted_while_a_text_block_is_open() -> None:
    writer = MessagesFormat().make_writer(HEAD, lambda: None)
    accepted = [writer.accepts_text(0, Text)]
    for event in (OPEN, Text(0, "a"), CALL):
        writer.send(event)
        accepted.append(writer.accepts_text(0, Text))
    assert accepted == [False, False, True, False]


def test_unsupported_events_are_omitted() -> None:
    assert summary(Logprobs(0, {}), UnknownFields(0, FieldLocation.DELTA, {"x": 1}), STOP) == []


def test_illegal_event_order_raises() -> None:
    writer = MessagesFormat().make_writer(HEAD, lambda: None)
    with pytest.raises(EventOrderError):
        writer.send(Text(0, "a"))
    with pytest.raises(EventOrderError):
        writer.end()


def test_a_reply_has_its_blocks_in_streaming_order() -> None:
    calls: list[Event] = [
        CALL,
        ToolArguments(0, 0, '{"a":1}', {"sign": "s"}),
        Text(0, "a"),
        Reasoning(0, "hm"),
        REFUSED,
    ]
    assert whole_reply(OPEN, *calls, Finish(0, "tool_calls"), Usage(5, 3, 8, {})) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            TEXT | {"text": "a"},
            TEXT | {"text": "no"},
            {"sign": "s", "type": "tool_use", "id": "call_a", "name": "get", "input": {"a": 1}, **DIRECT},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": NOTHING | {"input_tokens": 5, "output_tokens": 3},
        "diagnostics": None,
        **REST,
    }


@table(
    ("arguments", "expected"),
    [
        ("", {}),
        (" ", {}),
        ('{"a":1}', {"a": 1}),
        ("{'a': True}", {"a": True}),
        ('{"a":1}{"a":2}', {"a": 1}),
        ('{"a":1e400,"b":[1.50]}', {"a": math.inf, "b": [1.5]}),
        ('{"a":"\\ud800","b":"\\ud83d\\ude00"}', {"a": "\ufffd", "b": "\U0001f600"}),
    ],
)
def test_a_call_in_a_reply_has_an_object_as_input(arguments: str, expected: Json) -> None:
    pieces = [ToolArguments(0, 0, arguments)] if arguments else []
    assert whole_reply(OPEN, CALL, *pieces, Finish(0, "tool_calls"))["content"][0]["input"] == expected


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "[" * 100_000])
def test_a_call_with_invalid_arguments_is_omitted_from_a_reply(arguments: str) -> None:
    assert whole_reply(OPEN, CALL, ToolArguments(0, 0, arguments), Finish(0, "tool_calls"))["content"] == []


def test_a_reply_without_choices_is_an_empty_message() -> None:
    assert whole_reply()["content"] == []


def test_the_id_is_ours_and_the_model_is_that_of_the_server() -> None:
    dialect = MessagesFormat()
    assert dialect.envelope(None, HEAD) == HEAD
    assert dialect.envelope(Envelope("chatcmpl-1", 1, "other"), HEAD) == Envelope("msg_1", 1700000000, "other")


def test_unrequested_thinking_is_omitted() -> None:
    dialect = MessagesFormat(includes_thinking=False)
    events: list[Event] = [ChoiceStart(0), Reasoning(0, "hm"), Text(0, "a"), Finish(0, "stop")]
    writer = dialect.make_writer(HEAD, lambda: None)
    written = b"".join([*(writer.send(event) for event in events), writer.end()])
    assert b"thinking" not in written
    whole = json.loads(dialect.encode_reply(HEAD, collect(events)))
    assert whole["content"] == [TEXT | {"text": "a"}]
