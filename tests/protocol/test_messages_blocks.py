"""Repair of the Messages API: content blocks and tool calls."""

import pytest

from tests.protocol.messages_streams import (
    DELTA,
    END,
    MESSAGE,
    START,
    TEXT,
    TOOL_USE,
    USAGE,
    RepairedStream,
    block_delta,
    block_start,
    block_stop,
    check_blocks,
    citation_delta,
    input_delta,
    message_delta,
    signature_delta,
    thinking_delta,
)
from tests.table import table
from welldone.core.events import Json
from welldone.dialects.messages import blocks

THINKING = [block_start(0, "thinking"), thinking_delta(0, "hm"), block_stop(0)]
HELLO = [block_start(1), block_delta(1, "Hi"), block_stop(1)]


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
            [block_start(0, citations=[{"type": "x"}]), block_stop(0)],
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
            [*TEXT[:2], {"type": "content_block_delta", "index": 0, "delta": {"x": None}}, block_stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        ([*TEXT[:2], {"type": "content_block_delta", "index": 0}, block_stop(0)], TEXT, ["msg-delta-type"]),
        ([*TEXT[:2], block_delta(0, None), citation_delta(0, ""), block_stop(0)], TEXT, ["msg-delta-type"]),
        (
            [*TEXT[:2], block_delta(0, "", "new_delta", "x"), signature_delta(0, ""), block_stop(0)],
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


WORDS = "Good catch! Let me check."


def repeating_start(*deltas: Json, kind: str = "text", **members: object) -> list[Json]:
    """Return a block whose start holds text, with its deltas."""
    return [block_start(0, kind, **(members or {"text": WORDS})), *deltas, block_stop(0)]


def text_block(*texts: str) -> list[Json]:
    return [block_start(0), *(block_delta(0, text) for text in texts), block_stop(0)]


@table(
    ("parts", "expected"),
    [
        # MiniMax sends the whole text in the start and in one delta (cline/cline#9215).
        (repeating_start(block_delta(0, WORDS)), text_block(WORDS, "")),
        (repeating_start(*(block_delta(0, letter) for letter in WORDS)), text_block(WORDS, *[""] * len(WORDS))),
        (repeating_start(block_delta(0, "Good"), block_delta(0, WORDS[4:] + "!")), text_block(WORDS, "", "!")),
        (repeating_start(block_delta(0, WORDS), block_delta(0, WORDS)), text_block(WORDS, "", WORDS)),
        (repeating_start(block_delta(0, "Good"), block_delta(0, " catch")), text_block(WORDS, "", "", "Good catch")),
        (repeating_start(block_delta(0, "Good "), block_delta(0, "idea")), text_block(WORDS, "", "Good idea")),
        (repeating_start(block_delta(0, "So"), block_delta(0, WORDS)), text_block(WORDS, "So", WORDS)),
        # The same digit twice is more likely two tokens.
        (repeating_start(block_delta(0, "1"), text="1"), text_block("1", "1")),
        (
            repeating_start({**block_delta(0, WORDS), "x": 1}),
            [*text_block(WORDS)[:2], {**block_delta(0, ""), "x": 1}, block_stop(0)],
        ),
        (
            repeating_start(block_delta(0, "Good"), citation_delta(0, {"type": "x"})),
            [*text_block(WORDS, "")[:-1], citation_delta(0, {"type": "x"}), block_delta(0, "Good"), block_stop(0)],
        ),
        # LiteLLM sends the first part of the thinking in the start and in a delta (BerriAI/litellm#34433).
        (
            repeating_start(
                *(thinking_delta(0, "Let me"), thinking_delta(0, " see."), signature_delta(0)),
                kind="thinking",
                thinking="Let me",
                signature="s",
            ),
            [
                *(block_start(0, "thinking"), thinking_delta(0, "Let me"), signature_delta(0)),
                *(thinking_delta(0, ""), thinking_delta(0, " see."), block_stop(0)),
            ],
        ),
        # The text of a block that waits for a tool call.
        (
            [
                *(block_start(7, "tool_use", id="toolu_0"), block_start(0, text=WORDS), block_delta(0, WORDS)),
                *(block_stop(7), block_stop(0)),
            ],
            [
                *(block_start(0, "tool_use"), block_stop(0)),
                *(block_start(1), block_delta(1, WORDS), block_delta(1, ""), block_stop(1)),
            ],
        ),
    ],
)
def test_text_of_a_start_that_deltas_repeat_is_sent_once(parts: list[Json], expected: list[Json]) -> None:
    repaired = RepairedStream(START, *parts, DELTA, END)
    assert [value for value in repaired.values if value["type"].startswith("content_block")] == expected
    assert "msg-block-start-empty" in repaired.rules


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


@table(
    ("parts", "expected"),
    [
        ([*THINKING[:2], block_stop(0), signature_delta(0), *HELLO], [*THINKING[:2], block_stop(0), *HELLO]),
        ([*THINKING[:2], *HELLO[:1], signature_delta(0), *HELLO[1:]], [*THINKING[:2], block_stop(0), *HELLO]),
        (
            [*THINKING[:2], block_stop(0), *HELLO[:2], signature_delta(1), HELLO[2]],
            [*THINKING[:2], block_stop(0), *HELLO],
        ),
        ([*TEXT[:2], block_delta(0, "abc", "vendor_delta", "x"), block_stop(0)], TEXT),
        (
            [block_start(0, "redacted_thinking", data="x"), signature_delta(0), block_stop(0)],
            [block_start(0, "redacted_thinking", data="x"), block_stop(0)],
        ),
    ],
)
def test_a_signature_without_its_thought_is_left_out(parts: list[Json], expected: list[Json]) -> None:
    assert RepairedStream(START, *parts, DELTA, END).values == [START, *expected, DELTA, END]


def test_content_in_an_unknown_delta_of_a_text_is_an_error() -> None:
    parts = [*TEXT[:2], block_delta(0, "abc", "vendor_delta", "text"), block_stop(0), DELTA, END]
    assert RepairedStream(START, *parts).repairer.failure is not None


def test_the_pieces_of_a_signature_may_be_equal() -> None:
    signed = [*THINKING[:2], signature_delta(0, "AB"), signature_delta(0, "AB"), block_stop(0)]
    check_blocks([*signed, *HELLO], [*signed, *HELLO])
    without = [*THINKING[:2], signature_delta(0, ""), block_stop(0)]
    check_blocks(without, without)


@table(
    ("start", "deltas"),
    [
        ([{"id": 42}, {"id": 43}], []),
        ({"id": 42}, ["{}"]),
        ({"id": {"type": 42}}, ['{"id":', "{}}"]),
        ("abc", ["{}"]),
    ],
)
def test_a_name_is_content_in_tool_input(start: object, deltas: list[str]) -> None:
    parts = [block_start(0, "tool_use", input=start), *(input_delta(0, text) for text in deltas), block_stop(0)]
    assert RepairedStream(START, *parts, TOOL_USE, END).repairer.failure is not None
    assert RepairedStream(START, *parts[:-1], TOOL_USE, END).repairer.failure is not None  # without content_block_stop


@table(
    ("start", "sent"),
    [
        ([{"id": 42}], '{"id":42}'),
        ([{}], '{"a":1}'),
        ([], '{"a":1}'),
        (False, '{"a":1}'),
        ("null", '{"a":1}'),
        ({"id": None, "a": [0, "", " "]}, '{"a":1}'),
    ],
)
def test_input_without_content_is_replaced(start: object, sent: str) -> None:
    parts = [block_start(0, "tool_use", input=start), input_delta(0, sent), block_stop(0)]
    repaired = RepairedStream(START, *parts, TOOL_USE, END)
    assert repaired.values == [START, block_start(0, "tool_use"), input_delta(0, sent), block_stop(0), TOOL_USE, END]


def test_input_that_replaces_that_of_the_start_may_be_broken() -> None:
    parts = [block_start(0, "tool_use", input={"a": None}), input_delta(0, '{"a":'), block_stop(0)]
    repaired = RepairedStream(START, *parts, TOOL_USE, END)
    assert (repaired.repairer.invalid_arguments_count, "msg-tool-input-json" in repaired.rules) == (1, True)
