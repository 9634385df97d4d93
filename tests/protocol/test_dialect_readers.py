"""Readers of Messages and Responses streams: events for clients of other dialects."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.laws import real_messages, real_responses
from tests.laws.real_responses import frames
from tests.protocol.build import content_chunks, finish, role, stream
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
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
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.sse import FRAME_LIMIT_BYTES
from welldone.core.state import PartState
from welldone.stream.dialect_reader import DialectReader, dialect_reader_for
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

Json = dict[str, Any]
CHAT, MESSAGES, RESPONSES = Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES
OURS = Envelope("chatcmpl-ours", 1600000000, "ours")
RECORDED = Path(__file__).parent.parent / "recorded_dialects"
EACH = table("dialect", [MESSAGES, RESPONSES])
REAL = {MESSAGES: real_messages.STREAMS, RESPONSES: real_responses.STREAMS}


def make_reader(dialect: Endpoint, endpoint: Endpoint = CHAT) -> tuple[DialectReader, RepairLog]:
    log = RepairLog(dialect)
    return dialect_reader_for(dialect, endpoint, fallback=OURS, facts=RequestFacts(), repair_log=log), log


def read(dialect: Endpoint, *events: Json, endpoint: Endpoint = CHAT) -> list[Event]:
    """Read the events of a stream, one frame at a time."""
    reader, _ = make_reader(dialect, endpoint)
    found = [one for event in events for one in reader.feed(frames([event]))]
    return found + reader.close()


def read_reply(dialect: Endpoint, reply: Json) -> list[Event]:
    reader, _ = make_reader(dialect)
    return [event for step in reader.read_reply_in_steps(json.dumps(reply).encode()) for event in step]


def pipeline(dialect: Endpoint, kind: Any = StreamPipeline, **options: Any) -> Any:  # noqa: ANN401 - either pipeline
    facts = RequestFacts(include_usage=True, choice_count=1)
    return kind(CHAT, fallback=OURS, facts=facts, options=RepairOptions(upstream_dialect=dialect, **options))


# Messages.

USAGE = {"input_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 1, "output_tokens": 1}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}
START = {"type": "message_start", "message": MESSAGE}
STOP = {"type": "message_stop"}
DETAILS = {"cached_tokens": 1, "cache_write_tokens": 2}


def block(index: int, start: Json, *deltas: Json) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def end(reason: str = "end_turn", stop: str | None = None, **usage: object) -> list[Json]:
    delta = {"stop_reason": reason, "stop_sequence": stop}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5, **usage}}, STOP]


def text(*pieces: str) -> list[Json]:
    return block(0, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def test_a_message_is_read_as_events() -> None:
    thought = {"type": "thinking_delta", "thinking": "hm"}
    sealed = {"type": "signature_delta", "signature": "s"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "caller": {"type": "direct"}}
    found = read(
        MESSAGES,
        START,
        {"type": "ping"},
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, thought, sealed),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"}),
        *block(2, {"type": "redacted_thinking", "data": "d"}),
        *block(3, call, *({"type": "input_json_delta", "partial_json": one} for one in ('{"a":', "1}", ""))),
        *end("tool_use", output_tokens_details={"thinking_tokens": 4}),
    )
    fields = {"format": "anthropic-claude-v1"}
    signed = {"type": "reasoning.text", "text": "hm", "signature": "s", **fields, "index": 0}
    hidden = {"type": "reasoning.encrypted", "data": "d", **fields, "index": 1}
    assert found == [
        Usage(6, 1, 7, {"prompt_tokens_details": DETAILS}),
        KeepAlive(),
        ChoiceStart(0),
        Reasoning(0, "hm"),
        UnknownFields(0, FieldLocation.DELTA, {"reasoning_details": [signed]}, in_own_chunk=True),
        Text(0, "Hi"),
        UnknownFields(0, FieldLocation.DELTA, {"reasoning_details": [hidden]}, in_own_chunk=True),
        ToolCall(0, 0, "toolu_1", "f", {"caller": {"type": "direct"}}),
        ToolArguments(0, 0, '{"a":'),
        ToolArguments(0, 0, "1}"),
        Usage(6, 5, 11, {"prompt_tokens_details": DETAILS, "completion_tokens_details": {"reasoning_tokens": 4}}),
        Finish(0, "tool_calls"),
    ]


def test_thinking_in_a_start_that_deltas_repeat_is_read_once() -> None:
    start = {"type": "thinking", "thinking": "Let me", "signature": "s"}
    deltas = [{"type": "thinking_delta", "thinking": "Let me"}, {"type": "signature_delta", "signature": "s"}]
    found = read(MESSAGES, START, *block(0, start, *deltas), *end())
    detail = {"type": "reasoning.text", "text": "Let me", "signature": "s", "format": "anthropic-claude-v1", "index": 0}
    assert found[2:4] == [
        Reasoning(0, "Let me"),
        UnknownFields(0, FieldLocation.DELTA, {"reasoning_details": [detail]}, in_own_chunk=True),
    ]


@table(
    "reason, stop, finish",
    [
        ("end_turn", None, Finish(0, "stop")),
        ("stop_sequence", "END", Finish(0, "stop", "END")),
        ("max_tokens", None, Finish(0, "length")),
        ("pause_turn", None, Finish(0, "length")),
        ("refusal", None, Finish(0, "content_filter")),
    ],
)
def test_stop_reasons_are_finish_reasons(reason: str, stop: str | None, finish: Finish) -> None:
    assert finish in read(MESSAGES, START, *text("Hi"), *end(reason, stop))


def test_an_unknown_stop_reason_is_an_interrupted_answer() -> None:
    failure = read(MESSAGES, START, *text("Hi"), *end("tired"))[-1]
    assert isinstance(failure, Failure)
    assert "unknown stop_reason 'tired'" in failure.message


def test_completions_have_no_tool_calls() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    found = read(MESSAGES, START, *block(0, call), *end("tool_use"), endpoint=Endpoint.COMPLETIONS)
    assert isinstance(found[-1], Failure)


def test_blocks_and_deltas_without_an_equivalent_are_left_out() -> None:
    cited = {"type": "citations_delta", "citation": {"type": "char_location"}}
    found = read(
        MESSAGES,
        {"type": "new_event", "x": 1},
        START,
        {"type": "new_event", "x": 1},
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi", "x": 1}, cited),
        *block(
            1,
            {"type": "server_tool_use", "id": "s", "name": "web", "input": {}},
            {"type": "input_json_delta", "partial_json": "{}"},
        ),
        *block(2, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}),
        *end(),
    )
    assert [one for one in found if not isinstance(one, Usage)] == [ChoiceStart(0), Text(0, "Hi"), Finish(0, "stop")]


def test_a_whole_message_is_read_as_events() -> None:
    content = [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]
    found = read_reply(MESSAGES, {**MESSAGE, "content": content, "stop_reason": "tool_use"})
    assert [one for one in found if not isinstance(one, Usage)] == [
        ChoiceStart(0),
        Text(0, "Hi"),
        ToolCall(0, 0, "t", "f"),
        ToolArguments(0, 0, '{"a":1}'),
        Finish(0, "tool_calls"),
    ]


# Responses.


def response(status: str, *output: Json, **more: object) -> Json:
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    details = {"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 1}}
    begun = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt",
        "status": status,
        "output": [*output],
    }
    return {**begun, "error": None, "usage": {**usage, **details}, **more}


def numbered(*events: Json) -> list[Json]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


CREATED = {"type": "response.created", "response": response("in_progress", usage=None)}


def item_events(index: int, item: Json, *events: Json) -> list[Json]:
    empty = {**item, "status": "in_progress"} | ({"content": []} if "content" in item else {})
    empty |= {"summary": []} if "summary" in item else {}
    added = {"type": "response.output_item.added", "output_index": index, "item": empty}
    return [added, *events, {"type": "response.output_item.done", "output_index": index, "item": item}]


def message_item(id: str, value: str) -> Json:
    part = {"type": "output_text", "text": value, "annotations": [], "logprobs": []}
    return {"id": id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def delta(kind: str, item: str, index: int, value: str, **more: object) -> Json:
    return {"type": f"response.{kind}.delta", "item_id": item, "output_index": index, "delta": value, **more}


def done(*output: Json, status: str = "completed", **more: object) -> Json:
    return {"type": f"response.{status}", "response": response(status, *output, **more)}


COUNTS = Usage(
    3,
    2,
    5,
    {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 1}},
)


def content(events: list[Event]) -> list[Event]:
    return [one for one in events if not isinstance(one, Usage)]


def test_a_response_is_read_as_events() -> None:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "ab"}]}
    thought |= {"encrypted_content": "e"}
    call = {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
    }
    custom = {
        "id": "ctc_1",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "d",
        "name": "g",
        "input": "x",
    }
    logprobs = [{"token": "H", "logprob": -0.1, "bytes": [72], "top_logprobs": []}]
    found = read(
        RESPONSES,
        *numbered(
            CREATED,
            {"type": "keepalive"},
            *item_events(0, thought, delta("reasoning_summary_text", "rs_1", 0, "ab", summary_index=0)),
            *item_events(
                1,
                message_item("msg_1", "Hi"),
                delta("output_text", "msg_1", 1, "H", content_index=0, logprobs=logprobs),
                delta("output_text", "msg_1", 1, "i", content_index=0, logprobs=[]),
            ),
            *item_events(2, call, delta("function_call_arguments", "fc_1", 2, "{}")),
            *item_events(3, custom, delta("custom_tool_call_input", "ctc_1", 3, "x")),
            *item_events(4, {"id": "ws", "type": "web_search_call", "status": "completed"}),
            *item_events(
                5,
                {
                    "id": "mcp",
                    "type": "mcp_call",
                    "status": "completed",
                    "name": "m",
                    "server_label": "s",
                    "arguments": "{}",
                },
                delta("mcp_call_arguments", "mcp", 5, "{}"),
            ),
            done(),
        ),
    )
    encrypted = {"type": "reasoning.encrypted", "data": "e", "id": "rs_1", "format": "openai-responses-v1", "index": 0}
    assert content(found) == [
        KeepAlive(),
        ChoiceStart(0),
        Reasoning(0, "ab"),
        UnknownFields(0, FieldLocation.DELTA, {"reasoning_details": [encrypted]}, in_own_chunk=True),
        Logprobs(0, {"content": logprobs, "refusal": None}),
        Text(0, "H"),
        Text(0, "i"),
        ToolCall(0, 0, "c", "f"),
        ToolArguments(0, 0, "{}"),
        ToolCall(0, 1, "d", "g", {}, True),
        ToolArguments(0, 1, "x", {}, True),
        Finish(0, "tool_calls"),
    ]
    assert [one for one in found if isinstance(one, Usage)] == [COUNTS]


TOKEN = {"token": "H", "logprob": -0.1}
COMPLETE: Json = {**TOKEN, "bytes": [72], "top_logprobs": []}


@table(
    ("logprobs", "expected"),
    [
        ([TOKEN], [[COMPLETE]]),
        ([{"logprob": -0.1}, 7, TOKEN | {"bytes": "H", "top_logprobs": 1}], [[COMPLETE]]),
        ({"H": -0.1}, []),
    ],
    ids=["short", "wrong", "object"],
)
def test_log_probabilities_of_another_form_do_no_harm(logprobs: object, expected: object) -> None:
    events = numbered(
        CREATED,
        *item_events(
            0,
            message_item("msg_1", "H"),
            delta("output_text", "msg_1", 0, "H", content_index=0, logprobs=logprobs),
        ),
        done(),
    )
    found = read(RESPONSES, *events)
    assert [one.value["content"] for one in found if isinstance(one, Logprobs)] == expected


def test_texts_of_items_that_are_open_at_once_follow_each_other() -> None:
    one, two, three = (message_item(id, value) for id, value in (("a", "1x"), ("b", "2y"), ("c", "3")))
    found = read(
        RESPONSES,
        *numbered(
            CREATED,
            *(item_events(index, item)[0] for index, item in enumerate((one, two, three))),
            delta("output_text", "a", 0, "1", content_index=0),
            delta("output_text", "b", 1, "2", content_index=0, logprobs=[{"token": "2"}]),
            delta("output_text", "b", 1, "y", content_index=0),
            delta("output_text", "c", 2, "3", content_index=0),
            delta("output_text", "a", 0, "x", content_index=0),
            *(item_events(index, item)[1] for index, item in enumerate((one, two, three))),
            done(one, two, three),
        ),
    )
    assert content(found) == [
        ChoiceStart(0),
        Text(0, "1"),
        Text(0, "x"),
        Text(0, "2y"),
        Text(0, "3"),
        Finish(0, "stop"),
    ]


def test_parts_of_the_reasoning_are_separated_and_its_summary_is_not_repeated() -> None:
    parts = [{"type": "reasoning_text", "text": value} for value in ("ab", "cd")]
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": parts}
    second = {"id": "rs_2", "type": "reasoning", "summary": [], "content": parts[:1]}
    found = read(
        RESPONSES,
        *numbered(
            CREATED,
            *item_events(
                0,
                thought,
                delta("reasoning_text", "rs_1", 0, "a", content_index=0),
                delta("reasoning_text", "rs_1", 0, "b", content_index=0),
                {
                    "type": "response.reasoning_text.done",
                    "item_id": "rs_1",
                    "output_index": 0,
                    "content_index": 0,
                    "text": "ab",
                },
                {
                    "type": "response.content_part.done",
                    "item_id": "rs_1",
                    "output_index": 0,
                    "content_index": 0,
                    "part": parts[0],
                },
                delta("reasoning_text", "rs_1", 0, "cd", content_index=1),
            ),
            *item_events(1, second, delta("reasoning_text", "rs_2", 1, "ab", content_index=0)),
            done(thought, second),
        ),
    )
    expected = [Reasoning(0, "a"), Reasoning(0, "b"), Reasoning(0, "\n\ncd"), Reasoning(0, "\n\nab")]
    assert [one for one in found if isinstance(one, Reasoning)] == expected


@table(
    "reason, last",
    [
        ("max_output_tokens", Finish(0, "length")),
        ("content_filter", Finish(0, "content_filter")),
    ],
)
def test_the_reason_of_an_incomplete_response_is_the_finish_reason(reason: str, last: Event) -> None:
    found = read(RESPONSES, *numbered(CREATED, done(status="incomplete", incomplete_details={"reason": reason})))
    assert content(found) == [ChoiceStart(0), last]


def test_a_response_that_was_steered_is_an_interrupted_answer() -> None:
    details = {"reason": "steered"}
    failure = read(RESPONSES, *numbered(CREATED, done(status="incomplete", incomplete_details=details)))[-1]
    assert isinstance(failure, Failure)
    assert "incomplete_details.reason 'steered'" in failure.message


def test_refusals_are_read() -> None:
    part = {"type": "refusal", "refusal": "No."}
    item = {"id": "m", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    found = content(read_reply(RESPONSES, response("completed", item)))
    assert found == [ChoiceStart(0), Refusal(0, "No."), Finish(0, "stop")]


# Both.


@EACH
def test_streams_of_real_servers_have_the_same_text_in_chat(dialect: Endpoint) -> None:
    bodies = [path.read_bytes() for path in sorted(RECORDED.glob(f"*/*{dialect.value}_stream.body"))]
    assert len(bodies) >= 3
    for body in [*map(frames, REAL[dialect].values()), *bodies]:
        texts = [_text(value) for value in _values(body)]
        for kind in (StreamPipeline, BufferedPipeline):
            reading = pipeline(dialect, kind)
            sent = b"".join([reading.feed(body[:999]), reading.feed(body[999:]), reading.close()])
            if kind is BufferedPipeline and reading.failure is None:
                assert (json.loads(reading.body())["choices"][0]["message"]["content"] or "") == "".join(texts)
            elif kind is StreamPipeline:
                found = [
                    one["delta"].get("content") or "" for value in _values(sent) for one in value.get("choices", ())
                ]
                assert "".join(found) == "".join(texts)


def _values(body: bytes) -> list[Json]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def _text(value: Json) -> str:
    match value:
        case {"delta": {"type": "text_delta", "text": str(text)}} | {
            "type": "response.output_text.delta",
            "delta": text,
        }:
            return str(text)
        case _:
            return ""


@EACH
def test_right_text_deltas_are_recognised_by_their_bytes(dialect: Endpoint) -> None:
    pieces = [f"word{number} " for number in range(9)]
    if dialect is MESSAGES:
        events = [START, *text(*pieces), *end()]
    else:
        deltas = (delta("output_text", "msg_1", 0, piece, content_index=0, logprobs=[]) for piece in pieces)
        item = message_item("msg_1", "".join(pieces))
        added = {"type": "response.content_part.added", "item_id": "msg_1", "output_index": 0, "content_index": 0}
        added["part"] = {**item["content"][0], "text": ""}
        events = numbered(CREATED, *item_events(0, item, added, *deltas), done(item))
    reader, log = make_reader(dialect)
    found = [(log.frame, log.byte, one) for event in events for one in reader.feed(frames([event]))]
    assert [one.text for _, _, one in found if isinstance(one, Text)] == pieces
    texts = [(frame, byte) for frame, byte, one in found if isinstance(one, Text)]
    sizes = [len(frames([event])) for event in events]
    assert texts == [(frame, sum(sizes[: frame - 1])) for frame, _ in texts]
    assert reader.is_done
    assert not reader.is_idle


@EACH
def test_a_stream_that_breaks_off_is_an_error(dialect: Endpoint) -> None:
    body = frames([START, *text("Hi")]) if dialect is MESSAGES else frames(numbered(CREATED))
    reading = pipeline(dialect)
    sent = reading.feed(body) + reading.close()
    assert reading.failure is not None
    assert " ended " in reading.failure.message
    assert sent.endswith(b"data: [DONE]\n\n")
    assert reading.retains_output
    assert reading.part_state(0) is PartState.FAILED


@EACH
def test_an_error_of_the_server_is_mapped_and_later_events_are_skipped(dialect: Endpoint) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "secret", "code": None}}
    reading = pipeline(dialect, map_failure=lambda failure: Failure("hidden", failure.type))
    failed = done(status="failed", error={"code": "server_error", "message": "secret"})
    events = [error, START] if dialect is MESSAGES else numbered(CREATED, failed, CREATED)
    sent = reading.feed(frames(events)) + reading.close()
    assert reading.failure is not None
    assert reading.failure.message == "hidden"
    assert b"secret" not in sent
    assert b'"role"' not in sent


@EACH
def test_strict_rules_apply_to_the_dialect_of_the_upstream(dialect: Endpoint) -> None:
    rule = {MESSAGES: "msg-event-name", RESPONSES: "resp-event-name"}[dialect]
    event = START if dialect is MESSAGES else numbered(CREATED)[0]
    reading = pipeline(dialect, strict=frozenset({rule}))
    reading.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    reading.close()
    assert reading.failure is not None
    assert rule in reading.failure.message
    assert rule in [entry.rule for entry in reading.result.repairs]


@EACH
def test_frames_that_are_too_long_and_replies_that_cannot_be_read_are_errors(dialect: Endpoint) -> None:
    reading = pipeline(dialect)
    for _ in range(FRAME_LIMIT_BYTES // 2**20 + 2):
        reading.feed(b"data: " + b"x" * 2**20)
    assert reading.failure is not None
    reader, _ = make_reader(dialect)
    events: list[Event] = []
    for _ in range(FRAME_LIMIT_BYTES // 2**20 + 2):
        events = reader.feed(b"data: " + b"x" * 2**20)
        if events:
            break
    assert isinstance(events[-1], Failure)
    assert reader.feed(b"x") == []
    whole = pipeline(dialect)
    whole.feed_reply(b"[1]")
    whole.close()
    assert whole.failure is not None


def test_the_next_upstream_may_have_another_dialect() -> None:
    reading = pipeline(MESSAGES)
    reading.configure(0, RepairOptions(upstream_dialect=RESPONSES))
    reading.configure(0, RepairOptions())
    sent = reading.feed(stream(role(), *content_chunks("Hi"), finish())) + reading.close()
    assert b'"content":"Hi"' in sent
    assert reading.failure is None
    assert reading.parts[0].repair_log.endpoint == "chat"


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES])
def test_chat_has_no_state_of_another_dialect(dialect: Endpoint) -> None:
    chat = StreamPipeline(CHAT, fallback=OURS)
    assert not chat.retains_output
    assert pipeline(dialect).retains_output


@EACH
def test_a_byte_order_mark_is_recorded(dialect: Endpoint) -> None:
    reader, log = make_reader(dialect)
    data = frames(next(iter(REAL[dialect].values())))
    plain, _ = make_reader(dialect)
    assert reader.feed(b"\xef\xbb\xbf" + data) + reader.close() == plain.feed(data) + plain.close()
    assert "sse-no-bom" in {entry.rule for entry in log.entries()}
