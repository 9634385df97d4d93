"""Tool calls and choices through the gateway: custom tools, truncated calls, missing choices, a missing end."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, run_server
from tests.table import table
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply

Json = dict[str, Any]

STREAM = {**CHAT, "stream": True}
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])


def delta(value: Json, reason: str | None = None) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(value), json.dumps(reason)))


def custom(**members: object) -> MockChunk:
    return delta({"tool_calls": [{"index": 0, **members}]})


CALLED = delta({}, "tool_calls")
CUSTOM = (
    ROLE,
    custom(id="call_1", type="custom", custom={"name": "sh", "input": ""}),
    custom(custom={"input": "ls "}),
    custom(custom={"input": "-l"}),
    CALLED,
)
CALL = {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}}
WHOLE = json_reply(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)
TOOL = {"type": "custom", "custom": {"name": "sh", "description": "runs", "format": {"type": "text"}}}
REQUEST: Json = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a b"},
    ],
    "tools": [TOOL],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "sh"}}]},
    },
}


def events(received: RecordedReply) -> list[Json]:
    return [json.loads(line[6:]) for line in received.body.decode().splitlines() if line.startswith("data: {")]


@BOTH
@table("reply", [MockReply((*CUSTOM, USAGE, DONE)), WHOLE], ids=["a stream", "a whole reply"])
def test_custom_tool_calls_are_forwarded_and_open_no_circuit_breaker(
    tmp_path: Path, reply: MockReply, is_stream: bool
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [reply], [reply]) as serving:
            for _ in range(12):
                received = await serving.post({**REQUEST, "stream": is_stream})
                assert (received.status, received.findings()) == (200, [])
                if is_stream:
                    entries = [e["choices"][0]["delta"].get("tool_calls", [{}])[0] for e in events(received)]
                    calls_sent = [entry["custom"] for entry in entries if entry]
                    assert "".join(piece["input"] for piece in calls_sent) == "ls -l"
                    assert [entry.get("type") for entry in entries if "id" in entry] == ["custom"]
                else:
                    assert received.json["choices"][0]["message"]["tool_calls"] == [CALL]
            seen = [one for upstream in serving.upstreams for one in upstream.requests if one.method == "POST"]
            assert len(seen) == 12
            for one in seen:
                body = json.loads(one.body)
                assert {name: body[name] for name in ("messages", "tools", "tool_choice")} == {
                    name: REQUEST[name] for name in ("messages", "tools", "tool_choice")
                }
            assert b'state="open"} 1' not in (await serving.get("/metrics")).body

    run(work())


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
RESPONSES: Json = {
    "model": "m",
    "input": [
        {"role": "user", "content": "list"},
        {"type": "custom_tool_call", "id": "ctc_0", "call_id": "call_1", "name": "sh", "input": "ls -l"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "a b"},
    ],
    "tools": [
        {"type": "custom", "name": "sh", "description": "runs", "format": GRAMMAR},
        {"type": "function", "name": "get", "parameters": {"type": "object"}},
    ],
    "tool_choice": {"type": "custom", "name": "sh"},
}


@BOTH
def test_custom_tool_calls_of_responses_are_translated_both_ways(tmp_path: Path, is_stream: bool) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((*CUSTOM, USAGE, DONE))]) as serving:
            received = await serving.post({**RESPONSES, "stream": is_stream}, "/v1/responses")
            assert (received.status, received.findings("responses")) == (200, [])
            response = events(received)[-1]["response"] if is_stream else received.json
            (item,) = response["output"]
            assert (item["type"], item["call_id"], item["name"], item["input"]) == (
                "custom_tool_call",
                "call_1",
                "sh",
                "ls -l",
            )
            assert response["tools"][0] == RESPONSES["tools"][0]
            follow = {**RESPONSES, "previous_response_id": response["id"], "input": "go on"}
            assert (await serving.post(follow, "/v1/responses")).status == 200
            first, second = [json.loads(one.body) for one in serving.upstreams[0].requests if one.method == "POST"]
            assert first["messages"] == [
                {"role": "user", "content": "list"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a b"},
            ]
            nested = {"type": "grammar", "grammar": {"definition": "start: /a/", "syntax": "lark"}}
            assert first["tools"][0] == {
                "type": "custom",
                "custom": {"name": "sh", "description": "runs", "format": nested},
            }
            assert first["tools"][1]["function"]["name"] == "get"
            assert first["tool_choice"] == {"type": "custom", "custom": {"name": "sh"}}
            assert second["messages"][3] == {"role": "assistant", "content": None, "tool_calls": [CALL]}

    run(work())


CUSTOM_REQUESTS: list[tuple[str, Json, str]] = [
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL]}, "tools[0].type"),
    ("/v1/chat/completions", {"model": "m", "messages": REQUEST["messages"]}, "messages[1].tool_calls[0].type"),
    ("/v1/chat/completions", {**CHAT, "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice.type"),
    ("/v1/responses", {"model": "m", "input": "a", "tools": RESPONSES["tools"]}, "tools[0].type"),
    ("/v1/responses", {"model": "m", "input": RESPONSES["input"]}, "input[1].type"),
]
"""Requests with custom tools, and the parameter that the error names."""


def test_a_local_model_rejects_custom_tools(tmp_path: Path) -> None:
    async def work() -> None:
        async with run_server(tmp_path) as serving:
            for path, request_body, param in CUSTOM_REQUESTS:
                received = await serving.post(request_body, path)
                assert (received.status, received.error["param"]) == (400, param)
                assert "'custom'" in received.error["message"]
                assert "function" in received.error["message"]

    run(work())


@BOTH
def test_too_few_choices_are_an_error(tmp_path: Path, is_stream: bool) -> None:
    """The first chunk is sent early, so that the stream has started."""

    async def work() -> None:
        one = MockReply((ROLE, HELLO, MockChunk(STOP.text, after_s=0.05), USAGE, DONE))
        async with gateway(tmp_path, [one], each={"n": "native"}) as serving:
            received = await serving.post({**CHAT, "n": 2, "stream": is_stream})
            assert received.status == (200 if is_stream else 502)
            assert "1 of 2 requested choices" in received.error["message"]
            assert received.findings() == []

    run(work())


@BOTH
@table("rest", [(), (USAGE,)], ids=["no usage", "usage"])
def test_a_complete_response_needs_no_done(tmp_path: Path, is_stream: bool, rest: tuple[MockChunk, ...]) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, STOP, *rest), end="hang")], idle_s=1.0) as serving:
            received = await serving.post({**CHAT, "stream": is_stream}, headers="x-welldone-report: 1\r\n")
            assert received.status == 200
            assert b'"error"' not in received.body
            assert b"Hello" in received.body
            if is_stream:
                assert received.findings() == []
            assert b"end-done-sent" in received.raw

    run(work())


def test_an_incomplete_response_is_awaited(tmp_path: Path) -> None:
    """A finish reason of one choice, or on each chunk, does not end the response."""
    early = MockChunk(CHUNK_TEMPLATE % ('{"content":"Hello"}', '"stop"'))
    late = MockChunk(CHUNK_TEMPLATE % ('{"content":" world"}', '"stop"'), after_s=0.1)

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, early, late, late, DONE))], idle_s=30.0) as serving:
            received = await serving.post(STREAM)
            texts = [event["choices"][0]["delta"].get("content", "") for event in events(received)]
            assert "".join(texts) == "Hello world world"
        one = MockReply((ROLE, HELLO, STOP), end="hang")
        async with gateway(tmp_path, [one], each={"n": "native"}, idle_s=0.3) as serving:
            received = await serving.post({**STREAM, "n": 2})
            assert received.error["code"] == "timeout"

    run(work())


def test_a_message_without_its_last_event_is_complete(tmp_path: Path) -> None:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    calls_sent: list[Json] = [
        {
            "type": "message_start",
            "message": message | {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    ]
    pieces = tuple(MockChunk(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n") for one in calls_sent)
    request = {"model": "m", "max_tokens": 9, "messages": CHAT["messages"]}

    async def work() -> None:
        speaks = {"speaks": ("messages",)}
        async with gateway(tmp_path, [MockReply(pieces, end="hang")], each=speaks, idle_s=1.0) as serving:
            whole, streamed = await asyncio.gather(
                *(serving.post({**request, "stream": is_stream}, "/v1/messages") for is_stream in (False, True))
            )
            assert whole.json["content"] == [{"type": "text", "text": "Hello"}]
            assert [event["type"] for event in events(streamed)][-2:] == ["message_delta", "message_stop"]

    run(work())
