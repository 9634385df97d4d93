"""Repair of the Messages API: replies that are not streamed."""

import json
import math

import pytest

from tests.protocol.build import rules
from tests.protocol.messages_streams import (
    END,
    MESSAGE,
    OTHERS,
    OURS,
    START,
    TEXT,
    TOOL_USE,
    USAGE,
    block_delta,
    block_start,
    block_stop,
    citation_delta,
    input_delta,
    message_delta,
    stream,
)
from tests.table import table
from welldone.core.error_types import error_type_for_status
from welldone.core.events import Json
from welldone.dialects.messages.repair import MessagesRepairer


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
    assert whole.repairer.finish_reasons == (whole.message["stop_reason"],)
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


def test_blank_input_of_an_mcp_tool_becomes_an_empty_object() -> None:
    block = {"type": "mcp_tool_use", "id": "t", "name": "get", "input": " "}
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
