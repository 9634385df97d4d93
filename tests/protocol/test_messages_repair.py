"""Pass-through repair of /v1/messages."""

import json
import math
from pathlib import Path

import pytest

from tests.protocol.build import rules
from tests.table import table
from welldone.protocol.dialects.anthropic import blocks
from welldone.protocol.dialects.anthropic.objects import error_type_for_status
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.base import KEEP_ALIVE
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Failure, Json, Usage
from welldone.protocol.request_facts import RepairOptions
from welldone.protocol.result import PartState

OURS = Envelope("msg_ours", 1700000000, "ours")
RECORDED = Path(__file__).parent.parent / "recorded_dialects"
USAGE: Json = {"input_tokens": 5, "output_tokens": 1}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "m",
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}
START: Json = {"type": "message_start", "message": MESSAGE}
DELTA: Json = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 3},
}
END: Json = {"type": "message_stop"}
CUT = "event: error"


def block_start(index: object, kind: str = "text", **members: object) -> Json:
    """Return content_block_start."""
    own: Json = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(kind, {})
    if kind.endswith("tool_use"):
        own = {"id": f"toolu_{index}", "name": "get", "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **own, **members}}


def block_delta(index: object, text: object, kind: str = "text_delta", member: str = "text") -> Json:
    """Return content_block_delta."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, member: text}}


def thinking_delta(index: object, text: str) -> Json:
    return block_delta(index, text, "thinking_delta", "thinking")


def input_delta(index: object, text: object) -> Json:
    return block_delta(index, text, "input_json_delta", "partial_json")


def signature_delta(index: object, text: str = "s") -> Json:
    return block_delta(index, text, "signature_delta", "signature")


def citation_delta(index: object, cited: object) -> Json:
    return block_delta(index, cited, "citations_delta", "citation")


def block_stop(index: object) -> Json:
    """Return content_block_stop."""
    return {"type": "content_block_stop", "index": index}


def message_delta(reason: object, **members: object) -> Json:
    """Return message_delta."""
    return {**DELTA, "delta": {"stop_reason": reason, "stop_sequence": None, **members}}


TOOL_USE = message_delta("tool_use")
TEXT = [block_start(0), block_delta(0, "a"), block_stop(0)]


def frame(value: Json, name: str | None = None) -> bytes:
    """Encode an event; its name is its type by default."""
    name = value["type"] if name is None else name
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def stream(*parts: Json | bytes) -> bytes:
    """Encode events; bytes are kept."""
    return b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)


class RepairedStream:
    """A stream after repair."""

    def __init__(self, *parts: Json | bytes, model: str | None = None, strict: frozenset[str] = frozenset()) -> None:
        self.repairer = MessagesRepairer(fallback=OURS, model=model)
        self.repairer.configure(0, RepairOptions(strict=strict))
        self.body = self.repairer.feed(stream(*parts)) + self.repairer.close()
        self.values = [json.loads(part.split("data: ")[1]) for part in self.body.decode().split("\n\n")[:-1]]
        self.rules = rules(self.repairer.repair_log)


def check_blocks(parts: list[Json], expected: list[Json], *logged: str) -> None:
    """Check the repair of block events within a correct message."""
    called = any(value.get("content_block", {}).get("type") == "tool_use" for value in expected)
    end = TOOL_USE if called else DELTA
    repaired = RepairedStream(START, *parts, end, END)
    assert repaired.values == [START, *expected, end, END]
    assert repaired.rules == sorted(logged)


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


OTHERS: list[list[Json]] = [
    [block_start(0, "thinking"), thinking_delta(0, "hm"), signature_delta(0), block_stop(0)],
    [block_start(0, "redacted_thinking", data="x"), block_stop(0)],
    [block_start(0, citations=[]), block_delta(0, "a"), citation_delta(0, {"type": "x"}), block_stop(0)],
    [
        block_start(0, "server_tool_use"),
        input_delta(0, ""),
        input_delta(0, '{"q":1}'),
        block_stop(0),
        block_start(1, "x_tool_result", content=[]),
        block_stop(1),
    ],
    [block_start(0, "tool_use", caller={"type": "direct"}), block_stop(0)],
    [block_start(0, "compaction", content=None), block_delta(0, "all", "compaction_delta", "content"), block_stop(0)],
    [{**block_start(0), "x": 1}, {**block_delta(0, "a"), "y": 2}, {**block_stop(0), "z": 3}],
]


@table("parts", OTHERS)
def test_features_of_this_dialect_are_kept(parts: list[Json]) -> None:
    check_blocks(parts, parts)


@table(
    ("parts", "expected", "logged"),
    [
        ([block_delta(0, "a"), block_stop(0)], TEXT, ["msg-block-start-first"]),
        (
            [thinking_delta(0, "a"), block_stop(0)],
            [block_start(0, "thinking"), thinking_delta(0, "a"), block_stop(0)],
            ["msg-block-start-first"],
        ),
        ([block_start(0), block_delta(0, "a")], TEXT, ["msg-block-stop"]),
        ([*TEXT, block_stop(0), block_stop(7)], TEXT, ["msg-block-start-first"]),
        ([block_start(1), block_delta(1, "a"), block_stop(1)], TEXT, ["msg-block-index"]),
        ([block_start("0"), block_delta(None, "a"), block_stop(None)], TEXT, ["msg-block-index"]),
        (
            [*TEXT, block_start(0), block_delta(0, "b"), block_stop(0)],
            [*TEXT, block_start(1), block_delta(1, "b"), block_stop(1)],
            ["msg-block-index"],
        ),
        (
            [*TEXT, block_start(1), block_delta(0, "b"), block_stop(1)],
            [*TEXT, block_start(1), block_delta(1, "b"), block_stop(1)],
            ["msg-block-start-first"],
        ),
        (
            [*TEXT, block_delta(0, "b"), block_stop(0)],
            [*TEXT, block_start(1), block_delta(1, "b"), block_stop(1)],
            ["msg-block-start-first"],
        ),
        ([block_start(0), block_start(0), *TEXT[1:]], TEXT, ["msg-block-sequential"]),
        (
            [block_start(0), block_delta(0, "a"), block_start(0), block_delta(0, "b"), block_stop(0)],
            [*TEXT[:2], block_delta(0, "b"), block_stop(0)],
            ["msg-block-sequential"],
        ),
        ([block_start(0, text="a"), block_stop(0)], TEXT, ["msg-block-start-empty"]),
        (
            [block_start(0, "thinking", thinking="a", signature="s"), block_stop(0)],
            [block_start(0, "thinking"), thinking_delta(0, "a"), signature_delta(0), block_stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [block_start(0, citations=[{"type": "x"}, 3]), block_stop(0)],
            [block_start(0, citations=[]), citation_delta(0, {"type": "x"}), block_stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [block_start(0, "tool_use", input={"a": 1}), block_stop(0)],
            [block_start(0, "tool_use"), input_delta(0, '{"a":1}'), block_stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [block_start(0, "tool_use", input={"a": 1}), input_delta(0, '{"a":1}'), block_stop(0)],
            [block_start(0, "tool_use"), input_delta(0, '{"a":1}'), block_stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [block_start(0, "tool_use", input='{"a":1}'), block_stop(0)],
            [block_start(0, "tool_use"), input_delta(0, '{"a":1}'), block_stop(0)],
            ["msg-block-start-empty", "msg-block-start-full"],
        ),
        (
            [block_start(0, "tool_use", input=None), block_stop(0)],
            [block_start(0, "tool_use"), block_stop(0)],
            ["msg-block-start-full"],
        ),
        ([block_start(0, text=None), *TEXT[1:]], TEXT, ["msg-block-start-full"]),
        (
            [block_start(0, "redacted_thinking"), block_stop(0)],
            [block_start(0, "redacted_thinking", data=""), block_stop(0)],
            ["msg-block-start-full"],
        ),
        ([{**block_start(0), "content_block": {"text": ""}}, *TEXT[1:]], TEXT, ["msg-block-start-full"]),
        (
            [{**block_start(0), "content_block": None}, *TEXT[1:]],
            TEXT,
            ["msg-block-start-first", "msg-block-start-full"],
        ),
        (
            [
                block_start(0, "tool_use", id=None),
                block_stop(0),
                block_start(1, "tool_use", id="x"),
                block_stop(1),
                block_start(2, "tool_use", id="x"),
                block_stop(2),
            ],
            [
                *[
                    block_start(0, "tool_use", id="toolu_ours1"),
                    block_stop(0),
                    block_start(1, "tool_use", id="x"),
                    block_stop(1),
                ],
                *[block_start(2, "tool_use", id="toolu_ours2"), block_stop(2)],
            ],
            ["msg-tool-ids"],
        ),
        (
            [block_start(0), {"type": "content_block_delta", "index": 0, "delta": {"text": "a"}}, block_stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        (
            [*TEXT[:2], {"type": "content_block_delta", "index": 0, "delta": {"x": 1}}, block_stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        ([*TEXT[:2], {"type": "content_block_delta", "index": 0}, block_stop(0)], TEXT, ["msg-delta-type"]),
        ([*TEXT[:2], block_delta(0, None), citation_delta(0, "x"), block_stop(0)], TEXT, ["msg-delta-type"]),
        (
            [*TEXT[:2], block_delta(0, "x", "new_delta", "x"), signature_delta(0), block_stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        (
            [block_start(0, "tool_use"), input_delta(0, {"a": 1}), block_stop(0)],
            [block_start(0, "tool_use"), input_delta(0, '{"a":1}'), block_stop(0)],
            ["msg-delta-type"],
        ),
        (
            [block_start(0), thinking_delta(0, "a"), block_delta(0, "b"), block_stop(0)],
            [
                block_start(0),
                block_stop(0),
                block_start(1, "thinking"),
                thinking_delta(1, "a"),
                block_stop(1),
                block_start(2),
                block_delta(2, "b"),
                block_stop(2),
            ],
            ["msg-block-sequential", "msg-delta-type"],
        ),
        (
            [block_start(0, "new_thing"), block_delta(0, "a"), block_stop(0)],
            [block_start(0, "new_thing"), block_stop(0), block_start(1), block_delta(1, "a"), block_stop(1)],
            ["msg-block-sequential", "msg-delta-type"],
        ),
    ],
)
def test_a_malformed_block_is_repaired(parts: list[Json], expected: list[Json], logged: list[str]) -> None:
    check_blocks(parts, expected, *logged)


@table(
    ("parts", "expected"),
    [
        # Text continues in a new block; its late stop is ignored.
        (
            [
                block_start(0),
                block_delta(0, "a"),
                block_start(1),
                block_delta(1, "b"),
                block_delta(0, "c"),
                block_stop(0),
                block_stop(1),
            ],
            [
                *TEXT,
                block_start(1),
                block_delta(1, "b"),
                block_stop(1),
                block_start(2),
                block_delta(2, "c"),
                block_stop(2),
            ],
        ),
        # Blocks that start before tool input is complete are queued.
        (
            [
                block_start(0, "tool_use"),
                block_start(1),
                input_delta(0, "{"),
                block_delta(1, "a"),
                input_delta(0, "}"),
                block_stop(1),
                block_stop(0),
            ],
            [
                block_start(0, "tool_use"),
                input_delta(0, "{"),
                input_delta(0, "}"),
                block_stop(0),
                block_start(1),
                block_delta(1, "a"),
                block_stop(1),
            ],
        ),
        (
            [
                block_start(0, "tool_use"),
                block_start(1),
                block_delta(1, "a"),
                block_stop(0),
                block_delta(1, "b"),
                block_stop(1),
            ],
            [
                block_start(0, "tool_use"),
                block_stop(0),
                block_start(1),
                block_delta(1, "a"),
                block_delta(1, "b"),
                block_stop(1),
            ],
        ),
        (
            [
                block_start(0, "tool_use"),
                block_start(1, "tool_use"),
                block_start(2),
                input_delta(1, "{"),
                input_delta(0, "{}"),
                block_stop(0),
                input_delta(1, "}"),
                block_stop(1),
                block_stop(2),
            ],
            [
                block_start(0, "tool_use"),
                input_delta(0, "{}"),
                block_stop(0),
                block_start(1, "tool_use"),
                input_delta(1, "{"),
                input_delta(1, "}"),
                block_stop(1),
                block_start(2),
                block_stop(2),
            ],
        ),
        (
            [
                block_start(0, "tool_use"),
                block_start(1),
                block_start(2),
                block_stop(0),
                block_delta(2, "a"),
                block_stop(1),
                block_stop(2),
            ],
            [
                block_start(0, "tool_use"),
                block_stop(0),
                block_start(1),
                block_stop(1),
                block_start(2),
                block_delta(2, "a"),
                block_stop(2),
            ],
        ),
        # Complete input needs no stop.
        (
            [
                block_start(0, "tool_use"),
                input_delta(0, "{}"),
                block_start(1),
                block_delta(1, "a"),
                block_stop(0),
                block_stop(1),
            ],
            [
                block_start(0, "tool_use"),
                input_delta(0, "{}"),
                block_stop(0),
                block_start(1),
                block_delta(1, "a"),
                block_stop(1),
            ],
        ),
    ],
)
def test_interleaved_blocks_are_written_in_sequence(parts: list[Json], expected: list[Json]) -> None:
    check_blocks(parts, expected, "msg-block-sequential")


@pytest.mark.parametrize("waiting", [[block_delta(1, "a")] * 9, [block_start(index) for index in range(2, 9)]])
def test_queued_blocks_are_limited(monkeypatch: pytest.MonkeyPatch, waiting: list[Json]) -> None:
    monkeypatch.setattr(blocks, "_MAX_QUEUED_BYTES", 2500)
    monkeypatch.setattr(blocks, "_MAX_QUEUED_BLOCKS", 4)
    repaired = RepairedStream(START, block_start(0, "tool_use"), block_start(1), *waiting, block_stop(0), DELTA, END)
    assert repaired.values[-1]["error"]["message"] == "the server sent interleaved blocks that exceed the buffer limit"


@table(
    ("parts", "what"),
    [
        ([input_delta(0, "{")], "the input of a tool that has no name, or has ended"),
        ([*TEXT, input_delta(1, "{}")], "the input of a tool that has no name, or has ended"),
        (
            [block_start(0, "tool_use"), block_stop(0), input_delta(0, "{}")],
            "the input of a tool that has no name, or has ended",
        ),
        ([block_start(0, "tool_use", name="")], "a tool without a name"),
        ([block_start(0, "tool_use", name=None)], "a tool without a name"),
    ],
)
def test_a_tool_call_without_a_name_ends_the_answer(parts: list[Json], what: str) -> None:
    repaired = RepairedStream(START, *parts, TOOL_USE, END)
    error = {"type": "api_error", "message": f"the server sent {what}"}
    assert repaired.values[-1] == {"type": "error", "error": error}


def test_empty_tool_input_is_ignored() -> None:
    check_blocks(
        [block_start(0, "tool_use"), block_stop(0), input_delta(0, " ")],
        [block_start(0, "tool_use"), block_stop(0)],
        "msg-block-start-first",
    )


BROKEN = [block_start(0, "tool_use"), input_delta(0, "{"), block_stop(0)]


def test_invalid_tool_input_is_reported_unless_truncated() -> None:
    assert RepairedStream(START, *BROKEN, TOOL_USE, END).rules == ["msg-tool-input-json"]
    assert RepairedStream(START, *BROKEN, TOOL_USE, END).repairer.result.invalid_arguments_count == 1
    assert RepairedStream(START, *BROKEN, message_delta("max_tokens"), END).rules == []


@table(
    ("message", "logged"),
    [
        (None, ["msg-start-full", "msg-usage-start"]),
        ({}, ["msg-start-full", "msg-usage-start"]),
        ({**MESSAGE, "id": None}, ["msg-start-full"]),
        ({**MESSAGE, "model": ""}, ["msg-start-full"]),
        ({**MESSAGE, "role": "user"}, ["msg-start-full"]),
        ({**MESSAGE, "content": None}, ["msg-start-full"]),
        ({**MESSAGE, "stop_reason": "end_turn"}, ["msg-start-full"]),
        ({**MESSAGE, "usage": None}, ["msg-usage-start"]),
        ({**MESSAGE, "usage": {"input_tokens": "5", "output_tokens": 1}}, ["msg-usage-start"]),
        ({**MESSAGE, "usage": {**USAGE, "cache_read_input_tokens": None, "x": "y"}}, []),
        ({**MESSAGE, "usage": {**USAGE, "cache_read_input_tokens": 2**60}}, ["msg-usage-start"]),
        ({**MESSAGE, "container": {"id": "c"}}, []),
    ],
)
def test_missing_members_of_message_start_are_added(message: Json | None, logged: list[str]) -> None:
    repaired = RepairedStream({"type": "message_start", "message": message}, *TEXT, DELTA, END)
    start = repaired.values[0]["message"]
    members = message or {}
    expected = {
        **members,
        "id": members.get("id") or "msg_ours",
        "model": members.get("model") or "ours",
        "usage": start["usage"],
    }
    expected |= {"type": "message", "role": "assistant", "content": [], "stop_reason": None, "stop_sequence": None}
    assert start == expected
    assert {"input_tokens", "output_tokens"} <= start["usage"].keys()
    assert repaired.rules == logged


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
        (stream(START, *TEXT) + b'data: {"object": "chat.completion.chunk"}\n\n', ["msg-no-unknown-events"]),
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


@table(
    ("ends", "expected", "logged"),
    [
        ([DELTA], DELTA, ["msg-no-early-eof"]),
        ([END], {**DELTA, "usage": {"output_tokens": 1}}, ["msg-delta-sent"]),
        ([DELTA, b"data: [DONE]\n\n"], DELTA, ["msg-no-done"]),
        ([DELTA, END, b"data: [DONE]\n\n"], DELTA, ["msg-no-done"]),
        ([DELTA, END, END], DELTA, ["msg-stop-last"]),
        ([DELTA, END, *TEXT, b": x\n\n"], DELTA, ["msg-stop-last"]),
        ([message_delta(None), END], DELTA, ["msg-delta-sent"]),
        ([{**DELTA, "delta": None}, END], DELTA, ["msg-delta-sent"]),
        ([{**DELTA, "usage": None}, END], {**DELTA, "usage": {"output_tokens": 1}}, ["msg-usage-delta"]),
        ([message_delta("stop"), END], DELTA, ["msg-stop-reason"]),
        ([message_delta("whatever"), END], message_delta("whatever"), ["msg-stop-reason"]),
        ([message_delta("length"), END], message_delta("max_tokens"), ["msg-stop-reason"]),
        ([message_delta("tool_use"), END], DELTA, ["msg-stop-reason-tool-use"]),
        ([message_delta("stop_sequence"), END], message_delta("stop_sequence"), ["msg-stop-sequence"]),
        (
            [message_delta("stop_sequence", stop_sequence="X"), END],
            message_delta("stop_sequence", stop_sequence="X"),
            [],
        ),
        (
            [message_delta("pause_turn", container={"id": "c"}), END],
            message_delta("pause_turn", container={"id": "c"}),
            [],
        ),
        ([{**DELTA, "context_management": {}}, END], {**DELTA, "context_management": {}}, []),
        ([{**DELTA, "usage": {"output_tokens": 2}}, DELTA, END], DELTA, []),
        ([DELTA, {**message_delta(None), "x": 1}, END], {**DELTA, "x": 1}, ["msg-delta-sent"]),
        ([DELTA, {**DELTA, "delta": {}}, END], DELTA, []),
        (
            [{"type": "message_delta", "stop_reason": "max_tokens", "usage": {"output_tokens": 3}}, END],
            message_delta("max_tokens"),
            ["msg-delta-sent"],
        ),
    ],
)
def test_every_message_ends_with_a_stop_reason(ends: list[Json | bytes], expected: Json, logged: list[str]) -> None:
    repaired = RepairedStream(START, *TEXT, *ends)
    assert repaired.values == [START, *TEXT, expected, END]
    assert repaired.rules == logged


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_a_message_with_a_tool_call_stops_with_tool_use(reason: str) -> None:
    repaired = RepairedStream(START, block_start(0, "tool_use"), block_stop(0), message_delta(reason), END)
    assert (repaired.values[-2], repaired.rules) == (TOOL_USE, ["msg-stop-reason-tool-use"])
    assert (
        RepairedStream(START, block_start(0, "tool_use"), block_stop(0), END).values[-2]["delta"]["stop_reason"]
        == "tool_use"
    )
    early = {**START, "message": {**MESSAGE, "stop_reason": "max_tokens"}}
    assert RepairedStream(early, *TEXT, END).values[-2]["delta"]["stop_reason"] == "max_tokens"


@table(
    "parts",
    [[], [START], [START, *TEXT], [*TEXT], [b"data: [DONE]\n\n"], [{"type": "x"}, b"data: [DONE]\n\n"]],
)
def test_a_truncated_answer_ends_with_an_error(parts: list[Json | bytes]) -> None:
    repaired = RepairedStream(*parts)
    assert repaired.values[-1]["error"]["message"] == "the server's stream ended before the message was complete"
    assert "msg-no-early-eof" in repaired.rules


def test_an_interrupted_answer_is_a_failure() -> None:
    repaired = RepairedStream(START, *TEXT, message_delta("abort"), END)
    assert repaired.values[-1]["error"] == {
        "type": "api_error",
        "message": "the server ended the answer with stop_reason 'abort'",
    }


def error(kind: str, message: str = "no", **more: object) -> Json:
    """Return an error event."""
    return {"type": "error", "error": {"type": kind, "message": message}, **more}


@table(
    ("text", "expected", "logged"),
    [
        (frame(error("overloaded_error")), error("overloaded_error"), []),
        (frame(error("overloaded_error", request_id="r")), error("overloaded_error", request_id="r"), []),
        (frame(error("overloaded_error"), ""), error("overloaded_error"), ["msg-error-event"]),
        (frame(error("server_error")), error("api_error"), ["msg-error-type"]),
        (
            frame({"error": {"message": "no", "type": "server_error", "code": 429}, "type": "x"}, ""),
            error(
                "rate_limit_error",
            ),
            ["msg-error-event", "msg-error-type"],
        ),
        (
            b'data: {"object":"error","message":"no","type":"BadRequestError"}\n\n',
            error("invalid_request_error"),
            ["msg-error-event", "msg-error-type"],
        ),
        (
            b'event: error\ndata: {"type":"error"}\n\n',
            error("api_error", "unknown error"),
            ["msg-error-event", "msg-error-type"],
        ),
        (b"event: error\ndata: no\n\n", error("api_error"), ["msg-error-event"]),
        (b"event: error\ndata: \n\n", error("api_error", "unknown error"), ["msg-error-event"]),
        (
            b"event: error\ndata: {'error': {'message': 'no'}}\n\n",
            error("api_error"),
            ["msg-error-event", "msg-error-type"],
        ),
        (
            frame({**block_delta(0, "a"), "error": {"message": "no"}}),
            error("api_error"),
            ["msg-error-event", "msg-error-type"],
        ),
    ],
)
def test_an_error_in_any_format_is_converted_and_ends_the_stream(
    text: bytes, expected: Json, logged: list[str]
) -> None:
    repaired = RepairedStream(START, text, *TEXT, DELTA, END)
    assert repaired.values == [START, expected]
    assert [rule for rule in repaired.rules if rule != "enc-strict-json"] == sorted([*logged, "msg-error-last"])
    assert repaired.repairer.is_done
    assert "msg-error-last" not in RepairedStream(START, text, b": x\n\n", b"data: [DONE]\n\n").rules


@table(
    ("sign_of_life", "logged"),
    [
        (b": x\n\n", []),
        (b'event: ping\ndata: {"type": "ping"}\n\n', []),
        (b'data: {"type": "ping"}\n\n', ["msg-event-name"]),
        (b"event: ping\ndata: {}\n\n", ["msg-ping-form"]),
        (b"event: ping\ndata: ping\n\n", ["msg-ping-form"]),
        (b"event: ping\ndata:\n\n", ["msg-ping-form"]),
    ],
)
def test_a_keep_alive_is_a_comment_before_the_message_and_a_ping_within_it(
    sign_of_life: bytes, logged: list[str]
) -> None:
    repairer = MessagesRepairer(fallback=OURS)
    repairer.feed(b": \n\n")
    assert repairer.feed(sign_of_life) == repairer.keep_alive() == KEEP_ALIVE
    repairer.feed(frame(START))
    assert repairer.feed(sign_of_life) == repairer.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert rules(repairer.repair_log) == logged
    repairer.feed(stream(DELTA, END))
    assert repairer.keep_alive() == b""


def test_usage_of_the_server_is_read() -> None:
    cached = {"cache_creation_input_tokens": 2, "cache_read_input_tokens": 4}
    repaired = RepairedStream({**START, "message": {**MESSAGE, "usage": {**USAGE, **cached}}}, *TEXT, DELTA, END)
    details = {"cached_tokens": 4, "cache_write_tokens": 2}
    assert repaired.repairer.usage == Usage(11, 3, 14, {"prompt_tokens_details": details})
    assert RepairedStream(*TEXT, DELTA, END).repairer.usage is None


def test_strict_mode_ends_the_answer_at_the_first_violation() -> None:
    repaired = RepairedStream(START, block_start(1), *TEXT[1:], DELTA, END, strict=frozenset({"msg-block-index"}))
    assert [value["type"] for value in repaired.values] == ["message_start", "content_block_start", "error"]


def test_a_failure_of_our_own_ends_the_answer_once() -> None:
    repairer = MessagesRepairer(fallback=OURS)
    assert repairer.part_state(0) is PartState.WAITING
    repairer.feed(stream(START))
    assert repairer.part_state(0) > PartState.WAITING
    assert repairer.fail(Failure("no")).startswith(b"event: error")
    assert repairer.fail(Failure("no")) + repairer.close() + repairer.feed(stream(END)) == b""


def test_excessive_nesting_is_cut() -> None:
    deep = b'{"type":"message_start","x":1,"message":{"y":' + b"[" * 300 + b"]" * 300 + b"}}"
    assert RepairedStream(b"event: message_start\ndata: " + deep + b"\n\n", DELTA, END).values[-1] == END


HALVES = [b"\\ud83d", b"\\ude00"], [b"\xf0\x9f", b"\x98\x80"]


@pytest.mark.parametrize("halves", HALVES)
def test_split_characters_are_joined(halves: list[bytes]) -> None:
    frames = [frame(block_delta(0, "?")).replace(b"?", half) for half in halves]
    repaired = RepairedStream(START, block_start(0), *frames, block_stop(0), DELTA, END)
    text = "".join(value["delta"]["text"] for value in repaired.values if "index" in value and "delta" in value)
    assert text == "😀"
    assert repaired.rules == ["enc-no-lone-surrogate" if frames[0].isascii() else "enc-valid-utf8"]
    half = RepairedStream(START, block_start(0), frames[0], block_stop(0), DELTA, END)
    assert "".join(value["delta"]["text"] for value in half.values if "index" in value and "delta" in value) == "\ufffd"


class RepairedReply:
    """A non-streamed reply after repair."""

    def __init__(self, value: object) -> None:
        self.repairer = MessagesRepairer(fallback=OURS, is_stream=False)
        assert self.repairer.feed_reply(json.dumps(value).encode()) + self.repairer.close() == b""
        self.rules = rules(self.repairer.repair_log)
        self.message: Json = {} if self.repairer.failure is not None else json.loads(self.repairer.body())


REPLY: Json = {**MESSAGE, "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}
CALLED: Json = {"type": "tool_use", "id": "t", "name": "get", "input": {"a": 1}}


@table(
    ("reply", "changed", "logged"),
    [
        (REPLY, {}, []),
        ({**REPLY, "container": {"id": "c"}}, {}, []),
        ({**REPLY, "content": [CALLED], "stop_reason": "tool_use"}, {}, []),
        ({**REPLY, "content": [{"type": "text", "text": "a", "citations": [{"x": 1}]}]}, {}, []),
        ({**REPLY, "content": [{"type": "thinking", "thinking": "a", "signature": "s"}]}, {}, []),
        ({**REPLY, "content": [{"type": "new_thing", "x": 1}]}, {}, []),
        ({**REPLY, "content": []}, {}, []),
        ({**REPLY, "content": "a"}, {"content": REPLY["content"]}, ["msg-whole-content"]),
        ({**REPLY, "content": [*REPLY["content"], None]}, {"content": REPLY["content"]}, ["msg-whole-content"]),
        (
            {**REPLY, "content": [{**CALLED, "input": '{"a":1}'}], "stop_reason": "tool_use"},
            {"content": [CALLED]},
            ["msg-whole-content"],
        ),
        (
            {**REPLY, "content": [CALLED]},
            {"stop_reason": "tool_use"},
            ["msg-stop-reason-tool-use", "msg-whole-shape"],
        ),
        ({**REPLY, "content": [CALLED], "stop_reason": None}, {"stop_reason": "tool_use"}, ["msg-whole-shape"]),
        ({**REPLY, "id": None}, {"id": "msg_ours"}, ["msg-whole-shape"]),
        ({**REPLY, "model": None}, {"model": "ours"}, ["msg-whole-shape"]),
        ({**REPLY, "usage": None}, {"usage": {"input_tokens": 0, "output_tokens": 0}}, ["msg-whole-shape"]),
    ],
)
def test_a_reply_is_repaired(reply: Json, changed: Json, logged: list[str]) -> None:
    whole = RepairedReply(reply)
    assert whole.message == reply | changed
    assert whole.rules == logged


@table(
    ("reply", "message"),
    [
        ({"type": "error", "error": {"type": "api_error", "message": "no"}}, "no"),
        ({"detail": "no"}, "no"),
        ({**REPLY, "message": "no"}, "no"),
        ({**REPLY, "error": {"message": "no"}}, "no"),
        ({**REPLY, "content": None}, "the server sent a reply that is not a message"),
        ({"choices": []}, "the server sent a reply that is not a message"),
        ([], "the server sent a reply that is not a JSON object"),
        ({**REPLY, "stop_reason": "error"}, "the server ended the answer with stop_reason 'error'"),
        ({**REPLY, "content": [{**CALLED, "name": None}]}, "the server sent a tool without a name"),
    ],
)
def test_a_reply_that_is_not_a_message_is_a_failure(reply: object, message: str) -> None:
    failure = RepairedReply(reply).repairer.failure
    assert failure is not None
    assert failure.message == message
    streamed = MessagesRepairer(fallback=OURS)
    assert streamed.feed_reply(json.dumps(reply).encode()).startswith(b"event: error")


def test_a_reply_can_be_sent_as_a_stream() -> None:
    repairer = MessagesRepairer(fallback=OURS)
    reply = {**REPLY, "content": [*REPLY["content"], CALLED], "stop_reason": "tool_use"}
    streamed = repairer.feed_reply(json.dumps(reply).encode()) + repairer.close()
    called = [block_start(1, "tool_use", id="t"), input_delta(1, '{"a":1}'), block_stop(1)]
    end = {**TOOL_USE, "usage": {"output_tokens": 1}}
    assert streamed.replace(b" ", b"") == stream(START, *TEXT, *called, end, END).replace(b" ", b"")
    assert rules(repairer.repair_log) == []


@table("parts", [*OTHERS, [block_start(0, "tool_use"), {**input_delta(0, '{"a":1}'), "x": 1}, block_stop(0)]])
def test_a_stream_can_be_sent_as_a_reply(parts: list[Json]) -> None:
    repairer = MessagesRepairer(fallback=OURS, is_stream=False)
    assert repairer.feed(stream(START, *parts, message_delta("refusal"), END)) + repairer.close() == b""
    message = json.loads(repairer.body())
    assert (message["stop_reason"], message["usage"]) == ("refusal", USAGE | {"output_tokens": 3})
    assert [block["type"] for block in message["content"]] == [
        part["content_block"]["type"] for part in parts if "content_block" in part
    ]


def repair_to_reply(content: list[Json], reason: str, *, is_whole: bool) -> tuple[MessagesRepairer, Json]:
    """Repair blocks from a stream or reply into a reply."""
    repairer = MessagesRepairer(fallback=OURS, is_stream=False)
    if is_whole:
        repairer.feed_reply(json.dumps({**REPLY, "content": content, "stop_reason": reason}).encode())
    else:
        starts = [{"type": "content_block_start", "index": i, "content_block": b} for i, b in enumerate(content)]
        parts = [part for i, start in enumerate(starts) for part in (start, block_stop(i))]
        repairer.feed(stream(START, *parts, message_delta(reason), END))
    repairer.close()
    return repairer, json.loads(repairer.body())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_truncated_call_is_not_in_the_reply(is_whole: bool) -> None:
    content = [{"type": "text", "text": "a"}, {**CALLED, "input": '{"a":'}]
    repairer, message = repair_to_reply(content, "max_tokens", is_whole=is_whole)
    assert repairer.failure is None
    assert ([block["type"] for block in message["content"]], message["stop_reason"]) == (["text"], "max_tokens")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_call_with_invalid_input_fails_the_reply(is_whole: bool) -> None:
    repairer, message = repair_to_reply([{**CALLED, "input": "no"}], "tool_use", is_whole=is_whole)
    assert repairer.failure is not None
    assert message["error"]["message"] == "the server sent a tool call whose input is not a JSON object"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [(['{"a":1e400,"b":2}'], {"a": math.inf, "b": 2}), (['{"a":"\\ud800"', ',"b":2}'], {"a": "\ufffd", "b": 2})],
)
def test_unusual_values_in_tool_input_are_kept_in_the_reply(pieces: list[str], expected: Json) -> None:
    repairer = MessagesRepairer(fallback=OURS, is_stream=False)
    parts = [block_start(0, "tool_use"), *(input_delta(0, piece) for piece in pieces), block_stop(0)]
    repairer.feed(stream(START, *parts, TOOL_USE, END))
    repairer.close()
    assert repairer.result.invalid_arguments_count == 0
    assert json.loads(repairer.body())["content"][0]["input"] == expected


def test_invalid_input_of_an_mcp_tool_becomes_an_empty_object() -> None:
    block = {"type": "mcp_tool_use", "id": "t", "name": "get", "input": "no"}
    repairer, message = repair_to_reply([block], "end_turn", is_whole=True)
    assert message["content"] == [{**block, "input": {}}]
    assert rules(repairer.repair_log) == ["msg-whole-content"]


def test_the_reply_contains_all_streamed_content() -> None:
    parts = [
        *OTHERS[0],
        block_start(1, citations=None),
        block_delta(1, "a"),
        {**block_delta(1, "b"), "x": 1},
        citation_delta(1, {"type": "x"}),
        block_stop(1),
    ]
    repairer = MessagesRepairer(fallback=OURS, is_stream=False)
    repairer.feed(stream(START, *parts, block_start(2, "tool_use"), input_delta(2, '{"a":1}'), TOOL_USE, END))
    assert json.loads(repairer.body())["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ab", "citations": [{"type": "x"}]},
        {"type": "tool_use", "id": "toolu_2", "name": "get", "input": {"a": 1}},
    ]


@table(
    ("status", "kind"),
    [(400, "invalid_request_error"), (418, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")],
)
def test_an_http_status_has_an_anthropic_error_type(status: int, kind: str) -> None:
    assert error_type_for_status(status) == kind
