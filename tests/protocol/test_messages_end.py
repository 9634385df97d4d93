"""Repair of the Messages API: the end of a message, errors and keep-alives."""

import pytest

from tests.protocol.build import rules
from tests.protocol.messages_streams import (
    DELTA,
    END,
    MESSAGE,
    OURS,
    START,
    TEXT,
    TOOL_USE,
    USAGE,
    RepairedStream,
    block_delta,
    block_start,
    block_stop,
    error,
    frame,
    message_delta,
    stream,
)
from tests.table import table
from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.events import Failure, Json, Usage
from welldone.core.state import PartState
from welldone.dialects.messages.repair import MessagesRepairer


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
    assert repaired.repairer.finish_reasons == (expected["delta"]["stop_reason"],)


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
    cut, unfinished = "stream ended before the message was complete", "answer ended without a finish_reason"
    assert repaired.values[-1]["error"]["message"] == f"the server's {unfinished if TEXT[0] in parts else cut}"
    assert "msg-no-early-eof" in repaired.rules


def test_an_interrupted_answer_is_a_failure() -> None:
    repaired = RepairedStream(START, *TEXT, message_delta("abort"), END)
    assert repaired.values[-1]["error"] == {
        "type": "api_error",
        "message": "the server ended the answer with stop_reason 'abort'",
    }


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
