"""A Messages stream that is mended within its dialect."""

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


def begin(index: object, kind: str = "text", **members: object) -> Json:
    """The start of a block."""
    own: Json = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(kind, {})
    if kind.endswith("tool_use"):
        own = {"id": f"toolu_{index}", "name": "get", "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **own, **members}}


def more(index: object, text: object, kind: str = "text_delta", member: str = "text") -> Json:
    """More of a block."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, member: text}}


def think(index: object, text: str) -> Json:
    """More of a block of thoughts."""
    return more(index, text, "thinking_delta", "thinking")


def put(index: object, text: object) -> Json:
    """More of a tool's input."""
    return more(index, text, "input_json_delta", "partial_json")


def sign(index: object, text: str = "s") -> Json:
    """A signature."""
    return more(index, text, "signature_delta", "signature")


def cite(index: object, cited: object) -> Json:
    """A citation."""
    return more(index, cited, "citations_delta", "citation")


def stop(index: object) -> Json:
    """The end of a block."""
    return {"type": "content_block_stop", "index": index}


def stopped(reason: object, **members: object) -> Json:
    """Why the message stopped."""
    return {**DELTA, "delta": {"stop_reason": reason, "stop_sequence": None, **members}}


TOOL_USE = stopped("tool_use")
TEXT = [begin(0), more(0, "a"), stop(0)]


def named(value: Json, name: str | None = None) -> bytes:
    """One event, named by its type, or otherwise."""
    name = value["type"] if name is None else name
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def stream(*parts: Json | bytes) -> bytes:
    """A stream of events; bytes stand in it as they are."""
    return b"".join(part if isinstance(part, bytes) else named(part) for part in parts)


class Mended:
    """What is made of a stream."""

    def __init__(self, *parts: Json | bytes, model: str | None = None, strict: frozenset[str] = frozenset()) -> None:
        self.native = MessagesRepairer(fallback=OURS, model=model)
        self.native.configure(0, strict=strict)
        self.body = self.native.feed(stream(*parts)) + self.native.close()
        self.values = [json.loads(part.split("data: ")[1]) for part in self.body.decode().split("\n\n")[:-1]]
        self.rules = rules(self.native.repair_log)


def check(parts: list[Json], expected: list[Json], *noted: str) -> None:
    """That between a right start and end of a message these events become those."""
    called = any(value.get("content_block", {}).get("type") == "tool_use" for value in expected)
    end = TOOL_USE if called else DELTA
    mended = Mended(START, *parts, end, END)
    assert mended.values == [START, *expected, end, END]
    assert mended.rules == sorted(noted)


@pytest.mark.parametrize("body", [*RECORDED.glob("llamacpp/*messages_stream.body")], ids=lambda path: path.stem)
def test_a_right_stream_passes_byte_for_byte(body: Path) -> None:
    native = MessagesRepairer(fallback=OURS)
    data = body.read_bytes()
    assert native.feed(data) + native.close() == data
    assert rules(native.repair_log) == []


def test_blocks_whose_ends_all_come_last_end_where_the_next_begins() -> None:
    mended = Mended((RECORDED / "ik" / "toolcall_clean_messages_stream.body").read_bytes())
    kinds = [(value["type"].removeprefix("content_block_"), value.get("index")) for value in mended.values]
    assert [kind for kind in kinds if kind[0] != "delta"] == [
        *[("message_start", None), ("start", 0), ("stop", 0), ("start", 1), ("stop", 1)],
        *[("message_delta", None), ("message_stop", None)],
    ]
    assert mended.rules == ["msg-block-sequential", "msg-block-start-full"]


OTHERS: list[list[Json]] = [
    [begin(0, "thinking"), think(0, "hm"), sign(0), stop(0)],
    [begin(0, "redacted_thinking", data="x"), stop(0)],
    [begin(0, citations=[]), more(0, "a"), cite(0, {"type": "x"}), stop(0)],
    [
        begin(0, "server_tool_use"),
        put(0, ""),
        put(0, '{"q":1}'),
        stop(0),
        begin(1, "x_tool_result", content=[]),
        stop(1),
    ],
    [begin(0, "tool_use", caller={"type": "direct"}), stop(0)],
    [begin(0, "compaction", content=None), more(0, "all", "compaction_delta", "content"), stop(0)],
    [{**begin(0), "x": 1}, {**more(0, "a"), "y": 2}, {**stop(0), "z": 3}],
]


@table("parts", OTHERS)
def test_what_only_this_dialect_can_say_is_carried_on(parts: list[Json]) -> None:
    check(parts, parts)


@table(
    ("parts", "expected", "noted"),
    [
        ([more(0, "a"), stop(0)], TEXT, ["msg-block-start-first"]),
        ([think(0, "a"), stop(0)], [begin(0, "thinking"), think(0, "a"), stop(0)], ["msg-block-start-first"]),
        ([begin(0), more(0, "a")], TEXT, ["msg-block-stop"]),
        ([*TEXT, stop(0), stop(7)], TEXT, ["msg-block-start-first"]),
        ([begin(1), more(1, "a"), stop(1)], TEXT, ["msg-block-index"]),
        ([begin("0"), more(None, "a"), stop(None)], TEXT, ["msg-block-index"]),
        ([*TEXT, begin(0), more(0, "b"), stop(0)], [*TEXT, begin(1), more(1, "b"), stop(1)], ["msg-block-index"]),
        ([*TEXT, begin(1), more(0, "b"), stop(1)], [*TEXT, begin(1), more(1, "b"), stop(1)], ["msg-block-start-first"]),
        ([*TEXT, more(0, "b"), stop(0)], [*TEXT, begin(1), more(1, "b"), stop(1)], ["msg-block-start-first"]),
        ([begin(0), begin(0), *TEXT[1:]], TEXT, ["msg-block-sequential"]),
        (
            [begin(0), more(0, "a"), begin(0), more(0, "b"), stop(0)],
            [*TEXT[:2], more(0, "b"), stop(0)],
            ["msg-block-sequential"],
        ),
        ([begin(0, text="a"), stop(0)], TEXT, ["msg-block-start-empty"]),
        (
            [begin(0, "thinking", thinking="a", signature="s"), stop(0)],
            [begin(0, "thinking"), think(0, "a"), sign(0), stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [begin(0, citations=[{"type": "x"}, 3]), stop(0)],
            [begin(0, citations=[]), cite(0, {"type": "x"}), stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [begin(0, "tool_use", input={"a": 1}), stop(0)],
            [begin(0, "tool_use"), put(0, '{"a":1}'), stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [begin(0, "tool_use", input={"a": 1}), put(0, '{"a":1}'), stop(0)],
            [begin(0, "tool_use"), put(0, '{"a":1}'), stop(0)],
            ["msg-block-start-empty"],
        ),
        (
            [begin(0, "tool_use", input='{"a":1}'), stop(0)],
            [begin(0, "tool_use"), put(0, '{"a":1}'), stop(0)],
            ["msg-block-start-empty", "msg-block-start-full"],
        ),
        ([begin(0, "tool_use", input=None), stop(0)], [begin(0, "tool_use"), stop(0)], ["msg-block-start-full"]),
        ([begin(0, text=None), *TEXT[1:]], TEXT, ["msg-block-start-full"]),
        (
            [begin(0, "redacted_thinking"), stop(0)],
            [begin(0, "redacted_thinking", data=""), stop(0)],
            ["msg-block-start-full"],
        ),
        ([{**begin(0), "content_block": {"text": ""}}, *TEXT[1:]], TEXT, ["msg-block-start-full"]),
        ([{**begin(0), "content_block": None}, *TEXT[1:]], TEXT, ["msg-block-start-first", "msg-block-start-full"]),
        (
            [
                begin(0, "tool_use", id=None),
                stop(0),
                begin(1, "tool_use", id="x"),
                stop(1),
                begin(2, "tool_use", id="x"),
                stop(2),
            ],
            [
                *[begin(0, "tool_use", id="toolu_ours1"), stop(0), begin(1, "tool_use", id="x"), stop(1)],
                *[begin(2, "tool_use", id="toolu_ours2"), stop(2)],
            ],
            ["msg-tool-ids"],
        ),
        (
            [begin(0), {"type": "content_block_delta", "index": 0, "delta": {"text": "a"}}, stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        (
            [*TEXT[:2], {"type": "content_block_delta", "index": 0, "delta": {"x": 1}}, stop(0)],
            TEXT,
            ["msg-delta-type"],
        ),
        ([*TEXT[:2], {"type": "content_block_delta", "index": 0}, stop(0)], TEXT, ["msg-delta-type"]),
        ([*TEXT[:2], more(0, None), cite(0, "x"), stop(0)], TEXT, ["msg-delta-type"]),
        ([*TEXT[:2], more(0, "x", "new_delta", "x"), sign(0), stop(0)], TEXT, ["msg-delta-type"]),
        (
            [begin(0, "tool_use"), put(0, {"a": 1}), stop(0)],
            [begin(0, "tool_use"), put(0, '{"a":1}'), stop(0)],
            ["msg-delta-type"],
        ),
        (
            [begin(0), think(0, "a"), more(0, "b"), stop(0)],
            [begin(0), stop(0), begin(1, "thinking"), think(1, "a"), stop(1), begin(2), more(2, "b"), stop(2)],
            ["msg-block-sequential", "msg-delta-type"],
        ),
        (
            [begin(0, "new_thing"), more(0, "a"), stop(0)],
            [begin(0, "new_thing"), stop(0), begin(1), more(1, "a"), stop(1)],
            ["msg-block-sequential", "msg-delta-type"],
        ),
    ],
)
def test_what_is_wrong_with_one_block_is_mended(parts: list[Json], expected: list[Json], noted: list[str]) -> None:
    check(parts, expected, *noted)


@table(
    ("parts", "expected"),
    [
        # A text goes on in a block of its own; its end, said late, is passed over.
        (
            [begin(0), more(0, "a"), begin(1), more(1, "b"), more(0, "c"), stop(0), stop(1)],
            [*TEXT, begin(1), more(1, "b"), stop(1), begin(2), more(2, "c"), stop(2)],
        ),
        # What begins while a tool's input is not whole waits for it.
        (
            [begin(0, "tool_use"), begin(1), put(0, "{"), more(1, "a"), put(0, "}"), stop(1), stop(0)],
            [begin(0, "tool_use"), put(0, "{"), put(0, "}"), stop(0), begin(1), more(1, "a"), stop(1)],
        ),
        (
            [begin(0, "tool_use"), begin(1), more(1, "a"), stop(0), more(1, "b"), stop(1)],
            [begin(0, "tool_use"), stop(0), begin(1), more(1, "a"), more(1, "b"), stop(1)],
        ),
        (
            [
                begin(0, "tool_use"),
                begin(1, "tool_use"),
                begin(2),
                put(1, "{"),
                put(0, "{}"),
                stop(0),
                put(1, "}"),
                stop(1),
                stop(2),
            ],
            [
                begin(0, "tool_use"),
                put(0, "{}"),
                stop(0),
                begin(1, "tool_use"),
                put(1, "{"),
                put(1, "}"),
                stop(1),
                begin(2),
                stop(2),
            ],
        ),
        (
            [begin(0, "tool_use"), begin(1), begin(2), stop(0), more(2, "a"), stop(1), stop(2)],
            [begin(0, "tool_use"), stop(0), begin(1), stop(1), begin(2), more(2, "a"), stop(2)],
        ),
        # Input that is whole needs no end to be said.
        (
            [begin(0, "tool_use"), put(0, "{}"), begin(1), more(1, "a"), stop(0), stop(1)],
            [begin(0, "tool_use"), put(0, "{}"), stop(0), begin(1), more(1, "a"), stop(1)],
        ),
    ],
)
def test_blocks_that_are_mixed_come_one_after_the_other(parts: list[Json], expected: list[Json]) -> None:
    check(parts, expected, "msg-block-sequential")


@pytest.mark.parametrize("waiting", [[more(1, "a")] * 9, [begin(index) for index in range(2, 9)]])
def test_blocks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, waiting: list[Json]) -> None:
    monkeypatch.setattr(blocks, "_HELD_BYTES", 2500)
    monkeypatch.setattr(blocks, "_WAITING", 4)
    mended = Mended(START, begin(0, "tool_use"), begin(1), *waiting, stop(0), DELTA, END)
    assert mended.values[-1]["error"]["message"] == "the server sent blocks that are mixed beyond what can be kept"


@table(
    ("parts", "what"),
    [
        ([put(0, "{")], "the input of a tool that has no name, or has ended"),
        ([*TEXT, put(1, "{}")], "the input of a tool that has no name, or has ended"),
        ([begin(0, "tool_use"), stop(0), put(0, "{}")], "the input of a tool that has no name, or has ended"),
        ([begin(0, "tool_use", name="")], "a tool without a name"),
        ([begin(0, "tool_use", name=None)], "a tool without a name"),
    ],
)
def test_a_call_that_cannot_be_known_ends_the_answer(parts: list[Json], what: str) -> None:
    mended = Mended(START, *parts, TOOL_USE, END)
    error = {"type": "api_error", "message": f"the server sent {what}"}
    assert mended.values[-1] == {"type": "error", "error": error}


def test_a_tools_input_that_says_nothing_is_passed_over() -> None:
    check([begin(0, "tool_use"), stop(0), put(0, " ")], [begin(0, "tool_use"), stop(0)], "msg-block-start-first")


BROKEN = [begin(0, "tool_use"), put(0, "{"), stop(0)]


def test_a_tools_input_that_is_no_json_is_reported_unless_it_was_cut_short() -> None:
    assert Mended(START, *BROKEN, TOOL_USE, END).rules == ["msg-tool-input-json"]
    assert Mended(START, *BROKEN, TOOL_USE, END).native.invalid_arguments_count == 1
    assert Mended(START, *BROKEN, stopped("max_tokens"), END).rules == []


@table(
    ("message", "noted"),
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
def test_the_start_of_a_message_is_made_full(message: Json | None, noted: list[str]) -> None:
    mended = Mended({"type": "message_start", "message": message}, *TEXT, DELTA, END)
    start = mended.values[0]["message"]
    told = message or {}
    expected = {
        **told,
        "id": told.get("id") or "msg_ours",
        "model": told.get("model") or "ours",
        "usage": start["usage"],
    }
    expected |= {"type": "message", "role": "assistant", "content": [], "stop_reason": None, "stop_sequence": None}
    assert start == expected
    assert {"input_tokens", "output_tokens"} <= start["usage"].keys()
    assert mended.rules == noted


def test_blocks_that_the_start_holds_already_are_said() -> None:
    call = begin(0, "tool_use", input={"a": 1})["content_block"]
    mended = Mended({**START, "message": {**MESSAGE, "content": [call]}}, TOOL_USE, END)
    assert mended.values == [START, begin(0, "tool_use"), put(0, '{"a":1}'), stop(0), TOOL_USE, END]


def test_the_model_is_the_one_that_the_client_knows() -> None:
    assert Mended(START, DELTA, END, model="mine").values[0]["message"]["model"] == "mine"


@pytest.mark.parametrize(
    ("parts", "noted"),
    [
        ([*TEXT, DELTA, END], ["msg-start-first"]),
        ([DELTA, *TEXT, END], ["msg-delta-sent", "msg-start-first"]),
        ([stop(0), DELTA, *TEXT, END], ["msg-block-start-first", "msg-delta-sent", "msg-start-first"]),
    ],
)
def test_a_start_that_is_missing_is_made(parts: list[Json], noted: list[str]) -> None:
    mended = Mended(*parts)
    message = {**MESSAGE, "id": "msg_ours", "model": "ours", "usage": {"input_tokens": 0, "output_tokens": 0}}
    assert mended.values == [{"type": "message_start", "message": message}, *TEXT, DELTA, END]
    assert mended.rules == noted


def test_an_empty_message_may_lack_its_start_too() -> None:
    assert [value["type"] for value in Mended(END).values] == ["message_start", "message_delta", "message_stop"]


def test_a_reason_that_was_told_is_not_taken_back() -> None:
    again = {"type": "message_delta", "delta": {"stop_reason": None, "x": 1}, "usage": {"output_tokens": 3}}
    mended = Mended(START, *TEXT, stopped("max_tokens"), again, END)
    assert mended.values[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None, "x": 1}
    assert mended.rules == ["msg-delta-sent"]


def test_an_id_that_is_made_is_not_that_of_another() -> None:
    ids = ["toolu_ours1", None, "toolu_ours2"]
    blocks = [event for n, id in enumerate(ids) for event in (begin(n, "tool_use", id=id), stop(n))]
    mended = Mended(START, *blocks, TOOL_USE, END)
    told = [value["content_block"]["id"] for value in mended.values if value["type"] == "content_block_start"]
    assert told == ["toolu_ours1", "toolu_ours2", "toolu_ours3"]


def test_a_second_start_is_dropped() -> None:
    mended = Mended(START, START, *TEXT, DELTA, END)
    assert (mended.values, mended.rules) == ([START, *TEXT, DELTA, END], ["msg-start-once"])


@table(
    ("text", "noted"),
    [
        (named(START, "") + stream(*TEXT), ["msg-event-name"]),
        (named(START, "x") + stream(*TEXT), ["msg-event-name"]),
        (named(START).replace(b'"type": "message_start", ', b"") + stream(*TEXT), ["msg-event-name"]),
        (named(START).replace(b'"type": "message_start"', b'"type": "x"') + stream(*TEXT), ["msg-event-name"]),
        (stream(START, *TEXT).replace(b"\n\n", b"\n", 1), ["sse-one-object-per-event"]),
        (stream(START) + named({"type": "x"}, "") + stream(*TEXT), ["msg-no-unknown-events"]),
        (stream(START, {"type": "response.x"}, *TEXT), ["msg-no-unknown-events"]),
        (stream(START, {"type": "x", "choices": []}, *TEXT), ["msg-no-unknown-events"]),
        (stream(START, *TEXT) + b'data: {"object": "chat.completion.chunk"}\n\n', ["msg-no-unknown-events"]),
    ],
)
def test_events_are_known_by_their_name_or_their_type(text: bytes, noted: list[str]) -> None:
    mended = Mended(text, DELTA, END)
    assert mended.values == [START, *TEXT, DELTA, END]
    assert [rule for rule in mended.rules if rule in noted] == noted


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
    mended = Mended(*given, DELTA, END)
    assert "msg-no-unknown-events" in mended.rules
    if expected is None:
        assert mended.values[1:] == [NEW, *TEXT, DELTA, END]
    else:
        assert mended.values == [*expected, DELTA, END]
    whole = MessagesRepairer(fallback=OURS, is_stream=False)
    whole.feed(stream(*given, DELTA, END))
    whole.close()
    assert whole.failure is None
    assert b"a_new_event" not in whole.body()


@table(
    ("ends", "expected", "noted"),
    [
        ([DELTA], DELTA, ["msg-no-early-eof"]),
        ([END], {**DELTA, "usage": {"output_tokens": 1}}, ["msg-delta-sent"]),
        ([DELTA, b"data: [DONE]\n\n"], DELTA, ["msg-no-done"]),
        ([DELTA, END, b"data: [DONE]\n\n"], DELTA, ["msg-no-done"]),
        ([DELTA, END, END], DELTA, ["msg-stop-last"]),
        ([DELTA, END, *TEXT, b": x\n\n"], DELTA, ["msg-stop-last"]),
        ([stopped(None), END], DELTA, ["msg-delta-sent"]),
        ([{**DELTA, "delta": None}, END], DELTA, ["msg-delta-sent"]),
        ([{**DELTA, "usage": None}, END], {**DELTA, "usage": {"output_tokens": 1}}, ["msg-usage-delta"]),
        ([stopped("stop"), END], DELTA, ["msg-stop-reason"]),
        ([stopped("whatever"), END], stopped("whatever"), ["msg-stop-reason"]),
        ([stopped("length"), END], stopped("max_tokens"), ["msg-stop-reason"]),
        ([stopped("tool_use"), END], DELTA, ["msg-stop-reason-tool-use"]),
        ([stopped("stop_sequence"), END], stopped("stop_sequence"), ["msg-stop-sequence"]),
        ([stopped("stop_sequence", stop_sequence="X"), END], stopped("stop_sequence", stop_sequence="X"), []),
        ([stopped("pause_turn", container={"id": "c"}), END], stopped("pause_turn", container={"id": "c"}), []),
        ([{**DELTA, "context_management": {}}, END], {**DELTA, "context_management": {}}, []),
        ([{**DELTA, "usage": {"output_tokens": 2}}, DELTA, END], DELTA, []),
        ([DELTA, {**stopped(None), "x": 1}, END], {**DELTA, "x": 1}, ["msg-delta-sent"]),
        ([DELTA, {**DELTA, "delta": {}}, END], DELTA, []),
        (
            [{"type": "message_delta", "stop_reason": "max_tokens", "usage": {"output_tokens": 3}}, END],
            stopped("max_tokens"),
            ["msg-delta-sent"],
        ),
    ],
)
def test_every_message_ends_and_says_why(ends: list[Json | bytes], expected: Json, noted: list[str]) -> None:
    mended = Mended(START, *TEXT, *ends)
    assert mended.values == [START, *TEXT, expected, END]
    assert mended.rules == noted


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_a_message_that_calls_a_tool_says_so_at_its_end(reason: str) -> None:
    mended = Mended(START, begin(0, "tool_use"), stop(0), stopped(reason), END)
    assert (mended.values[-2], mended.rules) == (TOOL_USE, ["msg-stop-reason-tool-use"])
    assert Mended(START, begin(0, "tool_use"), stop(0), END).values[-2]["delta"]["stop_reason"] == "tool_use"
    early = {**START, "message": {**MESSAGE, "stop_reason": "max_tokens"}}
    assert Mended(early, *TEXT, END).values[-2]["delta"]["stop_reason"] == "max_tokens"


@table(
    "parts",
    [[], [START], [START, *TEXT], [*TEXT], [b"data: [DONE]\n\n"], [{"type": "x"}, b"data: [DONE]\n\n"]],
)
def test_an_answer_that_is_cut_off_ends_with_an_error(parts: list[Json | bytes]) -> None:
    mended = Mended(*parts)
    assert mended.values[-1]["error"]["message"] == "the server's stream ended before the message was whole"
    assert "msg-no-early-eof" in mended.rules


def test_a_reason_that_means_no_whole_answer_is_a_failure() -> None:
    mended = Mended(START, *TEXT, stopped("abort"), END)
    assert mended.values[-1]["error"] == {
        "type": "api_error",
        "message": "the server ended the answer with stop_reason 'abort'",
    }


def error(kind: str, message: str = "no", **more: object) -> Json:
    """An error event."""
    return {"type": "error", "error": {"type": kind, "message": message}, **more}


@table(
    ("text", "expected", "noted"),
    [
        (named(error("overloaded_error")), error("overloaded_error"), []),
        (named(error("overloaded_error", request_id="r")), error("overloaded_error", request_id="r"), []),
        (named(error("overloaded_error"), ""), error("overloaded_error"), ["msg-error-event"]),
        (named(error("server_error")), error("api_error"), ["msg-error-type"]),
        (
            named({"error": {"message": "no", "type": "server_error", "code": 429}, "type": "x"}, ""),
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
            named({**more(0, "a"), "error": {"message": "no"}}),
            error("api_error"),
            ["msg-error-event", "msg-error-type"],
        ),
    ],
)
def test_an_error_of_any_shape_becomes_anthropics_and_ends_the_stream(
    text: bytes, expected: Json, noted: list[str]
) -> None:
    mended = Mended(START, text, *TEXT, DELTA, END)
    assert mended.values == [START, expected]
    assert [rule for rule in mended.rules if rule != "enc-strict-json"] == sorted([*noted, "msg-error-last"])
    assert mended.native.is_done
    assert "msg-error-last" not in Mended(START, text, b": x\n\n", b"data: [DONE]\n\n").rules


@table(
    ("sign_of_life", "noted"),
    [
        (b": x\n\n", []),
        (b'event: ping\ndata: {"type": "ping"}\n\n', []),
        (b'data: {"type": "ping"}\n\n', ["msg-event-name"]),
        (b"event: ping\ndata: {}\n\n", ["msg-ping-form"]),
        (b"event: ping\ndata: ping\n\n", ["msg-ping-form"]),
        (b"event: ping\ndata:\n\n", ["msg-ping-form"]),
    ],
)
def test_a_sign_of_life_is_a_comment_before_the_message_and_a_ping_in_it(sign_of_life: bytes, noted: list[str]) -> None:
    native = MessagesRepairer(fallback=OURS)
    native.feed(b": \n\n")
    assert native.feed(sign_of_life) == native.keep_alive() == KEEP_ALIVE
    native.feed(named(START))
    assert native.feed(sign_of_life) == native.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert rules(native.repair_log) == noted
    native.feed(stream(DELTA, END))
    assert native.keep_alive() == b""


def test_what_the_server_counted_is_known() -> None:
    cached = {"cache_creation_input_tokens": 2, "cache_read_input_tokens": 4}
    mended = Mended({**START, "message": {**MESSAGE, "usage": {**USAGE, **cached}}}, *TEXT, DELTA, END)
    assert mended.native.usage == Usage(11, 3, 14, {"prompt_tokens_details": {"cached_tokens": 4}})
    assert Mended(*TEXT, DELTA, END).native.usage is None


def test_who_is_strict_ends_the_answer_at_the_first_fault() -> None:
    mended = Mended(START, begin(1), *TEXT[1:], DELTA, END, strict=frozenset({"msg-block-index"}))
    assert [value["type"] for value in mended.values] == ["message_start", "content_block_start", "error"]


def test_a_failure_of_our_own_ends_the_answer_once() -> None:
    native = MessagesRepairer(fallback=OURS)
    assert not native.has_part_started(0)
    native.feed(stream(START))
    assert native.has_part_started(0)
    assert native.fail(Failure("no")).startswith(b"event: error")
    assert native.fail(Failure("no")) + native.close() + native.feed(stream(END)) == b""


def test_nesting_beyond_reason_is_cut() -> None:
    deep = b'{"type":"message_start","x":1,"message":{"y":' + b"[" * 300 + b"]" * 300 + b"}}"
    assert Mended(b"event: message_start\ndata: " + deep + b"\n\n", DELTA, END).values[-1] == END


HALVES = [b"\\ud83d", b"\\ude00"], [b"\xf0\x9f", b"\x98\x80"]


@pytest.mark.parametrize("halves", HALVES)
def test_characters_that_come_in_halves_are_joined(halves: list[bytes]) -> None:
    frames = [named(more(0, "?")).replace(b"?", half) for half in halves]
    mended = Mended(START, begin(0), *frames, stop(0), DELTA, END)
    said = "".join(value["delta"]["text"] for value in mended.values if "index" in value and "delta" in value)
    assert said == "😀"
    assert mended.rules == ["enc-no-lone-surrogate" if frames[0].isascii() else "enc-valid-utf8"]
    half = Mended(START, begin(0), frames[0], stop(0), DELTA, END)
    assert "".join(value["delta"]["text"] for value in half.values if "index" in value and "delta" in value) == "\ufffd"


class Whole:
    """What is made of a reply that was not streamed."""

    def __init__(self, value: object) -> None:
        self.native = MessagesRepairer(fallback=OURS, is_stream=False)
        assert self.native.feed_reply(json.dumps(value).encode()) + self.native.close() == b""
        self.rules = rules(self.native.repair_log)
        self.message: Json = {} if self.native.failure is not None else json.loads(self.native.body())


REPLY: Json = {**MESSAGE, "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}
CALLED: Json = {"type": "tool_use", "id": "t", "name": "get", "input": {"a": 1}}


@table(
    ("reply", "changed", "noted"),
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
def test_a_whole_reply_is_mended(reply: Json, changed: Json, noted: list[str]) -> None:
    whole = Whole(reply)
    assert whole.message == reply | changed
    assert whole.rules == noted


@table(
    ("reply", "message"),
    [
        ({"type": "error", "error": {"type": "api_error", "message": "no"}}, "no"),
        ({"detail": "no"}, "no"),
        ({**REPLY, "message": "no"}, "no"),
        ({**REPLY, "error": {"message": "no"}}, "no"),
        ({**REPLY, "content": None}, "the server sent a reply that is no message"),
        ({"choices": []}, "the server sent a reply that is no message"),
        ([], "the server sent a reply that is no JSON object"),
        ({**REPLY, "stop_reason": "error"}, "the server ended the answer with stop_reason 'error'"),
        ({**REPLY, "content": [{**CALLED, "name": None}]}, "the server sent a tool without a name"),
    ],
)
def test_a_reply_that_is_no_message_is_a_failure(reply: object, message: str) -> None:
    failure = Whole(reply).native.failure
    assert failure is not None
    assert failure.message == message
    streamed = MessagesRepairer(fallback=OURS)
    assert streamed.feed_reply(json.dumps(reply).encode()).startswith(b"event: error")


def test_a_whole_reply_can_be_told_as_a_stream() -> None:
    native = MessagesRepairer(fallback=OURS)
    reply = {**REPLY, "content": [*REPLY["content"], CALLED], "stop_reason": "tool_use"}
    told = native.feed_reply(json.dumps(reply).encode()) + native.close()
    called = [begin(1, "tool_use", id="t"), put(1, '{"a":1}'), stop(1)]
    end = {**TOOL_USE, "usage": {"output_tokens": 1}}
    assert told.replace(b" ", b"") == stream(START, *TEXT, *called, end, END).replace(b" ", b"")
    assert rules(native.repair_log) == []


@table("parts", [*OTHERS, [begin(0, "tool_use"), {**put(0, '{"a":1}'), "x": 1}, stop(0)]])
def test_a_stream_can_be_told_whole(parts: list[Json]) -> None:
    native = MessagesRepairer(fallback=OURS, is_stream=False)
    assert native.feed(stream(START, *parts, stopped("refusal"), END)) + native.close() == b""
    message = json.loads(native.body())
    assert (message["stop_reason"], message["usage"]) == ("refusal", USAGE | {"output_tokens": 3})
    assert [block["type"] for block in message["content"]] == [
        part["content_block"]["type"] for part in parts if "content_block" in part
    ]


def told(content: list[Json], reason: str, *, is_whole: bool) -> tuple[MessagesRepairer, Json]:
    """What comes of these blocks for a client that asked for no stream."""
    native = MessagesRepairer(fallback=OURS, is_stream=False)
    if is_whole:
        native.feed_reply(json.dumps({**REPLY, "content": content, "stop_reason": reason}).encode())
    else:
        starts = [{"type": "content_block_start", "index": i, "content_block": b} for i, b in enumerate(content)]
        parts = [part for i, start in enumerate(starts) for part in (start, stop(i))]
        native.feed(stream(START, *parts, stopped(reason), END))
    native.close()
    return native, json.loads(native.body())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_call_that_was_cut_is_not_in_the_whole(is_whole: bool) -> None:
    content = [{"type": "text", "text": "a"}, {**CALLED, "input": '{"a":'}]
    native, message = told(content, "max_tokens", is_whole=is_whole)
    assert native.failure is None
    assert ([block["type"] for block in message["content"]], message["stop_reason"]) == (["text"], "max_tokens")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_call_without_an_object_cannot_be_told_whole(is_whole: bool) -> None:
    native, message = told([{**CALLED, "input": "no"}], "tool_use", is_whole=is_whole)
    assert native.failure is not None
    assert message["error"]["message"] == "the server sent a tool call whose input is not a JSON object"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [(['{"a":1e400,"b":2}'], {"a": math.inf, "b": 2}), (['{"a":"\\ud800"', ',"b":2}'], {"a": "\ufffd", "b": 2})],
)
def test_odd_values_of_a_tools_input_are_kept_in_the_whole(pieces: list[str], expected: Json) -> None:
    native = MessagesRepairer(fallback=OURS, is_stream=False)
    parts = [begin(0, "tool_use"), *(put(0, piece) for piece in pieces), stop(0)]
    native.feed(stream(START, *parts, TOOL_USE, END))
    native.close()
    assert native.invalid_arguments_count == 0
    assert json.loads(native.body())["content"][0]["input"] == expected


def test_a_server_tool_that_is_no_text_has_an_object() -> None:
    block = {"type": "mcp_tool_use", "id": "t", "name": "get", "input": "no"}
    native, message = told([block], "end_turn", is_whole=True)
    assert message["content"] == [{**block, "input": {}}]
    assert rules(native.repair_log) == ["msg-whole-content"]


def test_what_was_streamed_is_all_in_the_whole() -> None:
    parts = [
        *OTHERS[0],
        begin(1, citations=None),
        more(1, "a"),
        {**more(1, "b"), "x": 1},
        cite(1, {"type": "x"}),
        stop(1),
    ]
    native = MessagesRepairer(fallback=OURS, is_stream=False)
    native.feed(stream(START, *parts, begin(2, "tool_use"), put(2, '{"a":1}'), TOOL_USE, END))
    assert json.loads(native.body())["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ab", "citations": [{"type": "x"}]},
        {"type": "tool_use", "id": "toolu_2", "name": "get", "input": {"a": 1}},
    ]


@table(
    ("status", "kind"),
    [(400, "invalid_request_error"), (418, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")],
)
def test_a_status_has_a_word_of_this_dialect(status: int, kind: str) -> None:
    assert error_type_for_status(status) == kind
