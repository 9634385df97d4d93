"""Repair of the Messages API: correct streams, the start of a message, and its events."""

from pathlib import Path

import pytest

from tests.protocol.build import rules
from tests.protocol.messages_streams import (
    DELTA,
    END,
    MESSAGE,
    OTHERS,
    OURS,
    RECORDED,
    START,
    TEXT,
    TOOL_USE,
    RepairedStream,
    block_start,
    block_stop,
    check_blocks,
    frame,
    input_delta,
    message_delta,
    stream,
)
from tests.table import table
from welldone.core.events import Json
from welldone.dialects.messages.repair import MessagesRepairer


@pytest.mark.parametrize("body", [*RECORDED.glob("llamacpp/*messages_stream.body")], ids=lambda path: path.stem)
def test_a_correct_stream_is_unchanged(body: Path) -> None:
    repairer = MessagesRepairer(fallback=OURS)
    data = body.read_bytes()
    assert repairer.feed(data) + repairer.close() == data
    assert rules(repairer.repair_log) == []


def test_blocks_stopped_only_at_the_end_are_stopped_before_the_next_block() -> None:
    repaired = RepairedStream((RECORDED / "ik" / "toolcall_clean_messages_stream.body").read_bytes())
    kinds = [(value["type"].removeprefix("content_block_"), value.get("index")) for value in repaired.values]
    assert [kind for kind in kinds if kind[0] != "delta"] == [
        *[("message_start", None), ("start", 0), ("stop", 0), ("start", 1), ("stop", 1)],
        *[("message_delta", None), ("message_stop", None)],
    ]
    assert repaired.rules == ["msg-block-sequential", "msg-block-start-full"]


@table("parts", OTHERS)
def test_features_of_this_dialect_are_kept(parts: list[Json]) -> None:
    check_blocks(parts, parts)


def test_blocks_in_message_start_are_sent() -> None:
    call = block_start(0, "tool_use", input={"a": 1})["content_block"]
    repaired = RepairedStream({**START, "message": {**MESSAGE, "content": [call]}}, TOOL_USE, END)
    assert repaired.values == [
        START,
        block_start(0, "tool_use"),
        input_delta(0, '{"a":1}'),
        block_stop(0),
        TOOL_USE,
        END,
    ]


def test_the_model_name_of_the_client_is_used() -> None:
    assert RepairedStream(START, DELTA, END, model="mine").values[0]["message"]["model"] == "mine"


@pytest.mark.parametrize(
    ("parts", "logged"),
    [
        ([*TEXT, DELTA, END], ["msg-start-first"]),
        ([DELTA, *TEXT, END], ["msg-delta-sent", "msg-start-first"]),
        ([block_stop(0), DELTA, *TEXT, END], ["msg-block-start-first", "msg-delta-sent", "msg-start-first"]),
    ],
)
def test_a_missing_message_start_is_added(parts: list[Json], logged: list[str]) -> None:
    repaired = RepairedStream(*parts)
    message = {**MESSAGE, "id": "msg_ours", "model": "ours", "usage": {"input_tokens": 0, "output_tokens": 0}}
    assert repaired.values == [{"type": "message_start", "message": message}, *TEXT, DELTA, END]
    assert repaired.rules == logged


def test_an_empty_message_may_lack_its_start_too() -> None:
    assert [value["type"] for value in RepairedStream(END).values] == ["message_start", "message_delta", "message_stop"]


def test_a_later_null_does_not_replace_the_stop_reason() -> None:
    again = {"type": "message_delta", "delta": {"stop_reason": None, "x": 1}, "usage": {"output_tokens": 3}}
    repaired = RepairedStream(START, *TEXT, message_delta("max_tokens"), again, END)
    assert repaired.values[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None, "x": 1}
    assert repaired.rules == ["msg-delta-sent"]


def test_generated_ids_are_unique() -> None:
    ids = ["toolu_ours1", None, "toolu_ours2"]
    blocks = [event for n, id in enumerate(ids) for event in (block_start(n, "tool_use", id=id), block_stop(n))]
    repaired = RepairedStream(START, *blocks, TOOL_USE, END)
    ids = [value["content_block"]["id"] for value in repaired.values if value["type"] == "content_block_start"]
    assert ids == ["toolu_ours1", "toolu_ours2", "toolu_ours3"]


def test_a_second_message_start_is_dropped() -> None:
    repaired = RepairedStream(START, START, *TEXT, DELTA, END)
    assert (repaired.values, repaired.rules) == ([START, *TEXT, DELTA, END], ["msg-start-once"])


@table(
    ("text", "logged"),
    [
        (frame(START, "") + stream(*TEXT), ["msg-event-name"]),
        (frame(START, "x") + stream(*TEXT), ["msg-event-name"]),
        (frame(START).replace(b'"type": "message_start", ', b"") + stream(*TEXT), ["msg-event-name"]),
        (frame(START).replace(b'"type": "message_start"', b'"type": "x"') + stream(*TEXT), ["msg-event-name"]),
        (stream(START, *TEXT).replace(b"\n\n", b"\n", 1), ["sse-one-object-per-event"]),
        (stream(START) + frame({"type": "x"}, "") + stream(*TEXT), ["msg-no-unknown-events"]),
        (stream(START, {"type": "response.x"}, *TEXT), ["msg-no-unknown-events"]),
        (stream(START, {"type": "x", "choices": []}, *TEXT), ["msg-no-unknown-events"]),
        (stream(START, *TEXT) + b'data: {"choices": []}\n\n', ["msg-no-unknown-events"]),
    ],
)
def test_events_are_identified_by_name_or_type(text: bytes, logged: list[str]) -> None:
    repaired = RepairedStream(text, DELTA, END)
    assert repaired.values == [START, *TEXT, DELTA, END]
    assert [rule for rule in repaired.rules if rule in logged] == logged


NEW: Json = {"type": "a_new_event", "x": [1]}


@table(
    ("given", "expected"),
    [
        ([START, NEW, *TEXT, NEW], [START, NEW, *TEXT, NEW]),
        ([NEW, START, *TEXT], [START, NEW, *TEXT]),
        ([NEW, *TEXT], None),
        ([*[NEW] * 100, START, *TEXT], [START, *[NEW] * 64, *TEXT]),
    ],
)
def test_an_event_of_a_newer_api_is_forwarded(given: list[Json], expected: list[Json] | None) -> None:
    repaired = RepairedStream(*given, DELTA, END)
    assert "msg-no-unknown-events" in repaired.rules
    if expected is None:
        assert repaired.values[1:] == [NEW, *TEXT, DELTA, END]
    else:
        assert repaired.values == [*expected, DELTA, END]
    whole = MessagesRepairer(fallback=OURS, is_stream=False)
    whole.feed(stream(*given, DELTA, END))
    whole.close()
    assert whole.failure is None
    assert b"a_new_event" not in whole.body()


HEARTBEATS = [
    b'event: heartbeat\ndata: {"time":"2025-01-01"}\n\n',
    b'data: {"ts":17}\n\n',
    b'event: message\ndata: {"type":"vendor","ts":17}\n\n',
    b'event: usage\ndata: {"input":17,"cost":0.5}\n\n',
    b'data: {"type":"amazon-bedrock-invocationMetrics","x":17}\n\n',
    b'data: "ping"\n\n',
    b'data: ["keepalive",1712345,true]\n\n',
]


@table("heartbeat", HEARTBEATS)
def test_a_heartbeat_is_no_part_of_the_answer(heartbeat: bytes) -> None:
    repaired = RepairedStream(START, heartbeat, *TEXT[:2], heartbeat, TEXT[2], DELTA, END)
    assert (repaired.values, repaired.rules) == ([START, *TEXT, DELTA, END], ["msg-no-unknown-events"])
    assert repaired.repairer.failure is None


@table(
    "foreign",
    [
        b'event: x\ndata: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
        b'event: x\ndata: {"type":"vendor","x":{"text":"Hi"}}\n\n',
        b'data: "{\\"delta\\":{\\"text\\":\\"Hi\\"}}"\n\n',
    ],
)
def test_content_in_a_foreign_event_is_an_error(foreign: bytes) -> None:
    assert RepairedStream(START, foreign, *TEXT, DELTA, END).repairer.failure is not None
    after = RepairedStream(START, *TEXT, DELTA, END, foreign)
    assert (after.values, after.repairer.repair_log.lost) == ([START, *TEXT, DELTA, END], None)


def test_content_in_an_event_of_a_newer_api_without_a_name_is_forwarded() -> None:
    new: Json = {"type": "x", "text": "Hi"}
    assert RepairedStream(START, frame(new, ""), *TEXT, DELTA, END).values == [START, new, *TEXT, DELTA, END]
