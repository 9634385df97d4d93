"""Clients of other dialects with chat upstreams: requests and responses are translated without loss."""

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.table import table
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply

Json = dict[str, Any]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
DIALECTS = {RESPONSES: "responses", MESSAGES: "messages"}
REQUEST: dict[str, Json] = {
    RESPONSES: {"model": "m", "input": "Hi"},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "m", "prompt": "Hi"},
}
TOOLS: dict[str, list[Json]] = {
    RESPONSES: [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
    MESSAGES: [{"name": "f", "input_schema": {"type": "object"}}],
}
EACH = table("path", [RESPONSES, MESSAGES])
ALL = table("path", [*REQUEST])
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])


def delta(value: Json, reason: str | None = None) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(value), json.dumps(reason)))


def call(index: int, name: str, *pieces: str) -> tuple[MockChunk, ...]:
    first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return tuple(delta({"tool_calls": [one]}) for one in (first, *rest))


def answer(*pieces: MockChunk, end: MockChunk = STOP) -> MockReply:
    return MockReply((ROLE, *pieces, end, USAGE, DONE))


class ReplySummary(NamedTuple):
    """The content of a response, independent of the dialect."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str, Json], ...] = ()
    end: str = ""
    tokens: tuple[int, int] = (3, 1)


def summary_of(path: str, received: RecordedReply) -> ReplySummary:
    """Return the content of a stream or a whole reply."""
    events = [json.loads(line[6:]) for line in received.body.decode().splitlines() if line.startswith("data: ")]
    if path == RESPONSES:
        return _response(events[-1]["response"] if events else received.json)
    return (
        _message(events)
        if events
        else _blocks(received.json["content"], received.json["stop_reason"], received.json["usage"])
    )


def _response(response: Json) -> ReplySummary:
    text = thoughts = ""
    calls = []
    for item in response["output"]:
        if item["type"] == "message":
            text += "".join(part.get("text") or part.get("refusal") for part in item["content"])
        elif item["type"] == "reasoning":
            thoughts += "".join(part["text"] for part in item.get("content") or item["summary"])
        else:
            calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
    details = response["incomplete_details"]
    end = details["reason"] if details else response["status"]
    return ReplySummary(text, thoughts, tuple(calls), end, _tokens(response["usage"]))


def _tokens(usage: Json) -> tuple[int, int]:
    return usage["input_tokens"], usage["output_tokens"]


def _message(events: list[Json]) -> ReplySummary:
    blocks: list[Json] = []
    reason, usage = "", {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                piece, block = event["delta"], blocks[event["index"]]
                name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
                field = name.get(piece["type"], "signature")
                target = "json" if field == "partial_json" else field
                block[target] = block.get(target, "") + piece[field]
            case "message_delta":
                reason, usage = event["delta"]["stop_reason"], event["usage"]
            case _:
                pass
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
    return _blocks(blocks, reason, usage)


def _blocks(blocks: list[Json], reason: str, usage: Json) -> ReplySummary:
    return ReplySummary(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"),
        reason,
        _tokens(usage),
    )


def request_for(path: str, *, is_stream: bool = True, **more: Any) -> Json:  # noqa: ANN401 - each field its own
    return {**REQUEST[path], "stream": is_stream, **more}


def seen(serving: Gateway, number: int = 0) -> Json:
    """Return the last chat request of an upstream."""
    last = [one for one in serving.upstreams[number].requests if one.method == "POST"][-1]
    assert last.path == "/v1/chat/completions"
    found: Json = json.loads(last.body)
    return found


def send_request(
    folder: Path,
    path: str,
    request: Json,
    *replies: MockReply,
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[RecordedReply, Json]:
    """Return the response, and the chat request of the upstream."""

    async def work() -> tuple[RecordedReply, Json]:
        async with gateway(folder, list(replies), **settings) as serving:
            return await serving.post(request, path), seen(serving)

    return run(work())


TEXT = (delta({"content": "Hel"}), delta({"content": "lo"}))
CALLS = (*call(0, "f", '{"a":', "1}"), *call(1, "f", "{}"))
THOUGHTS = (delta({"reasoning_content": "h"}), delta({"reasoning_content": "m"}))
THINKING: dict[str, Json] = {RESPONSES: {}, MESSAGES: {"thinking": {"type": "adaptive"}}}
CASES: dict[str, tuple[MockReply, ReplySummary, ReplySummary]] = {
    "text": (answer(*TEXT), ReplySummary("Hello", end="completed"), ReplySummary("Hello", end="end_turn")),
    "thoughts": (
        answer(*THOUGHTS, *TEXT),
        ReplySummary("Hello", "hm", end="completed"),
        ReplySummary("Hello", "hm", end="end_turn"),
    ),
    "a refusal": (
        answer(delta({"refusal": "no"})),
        ReplySummary("no", end="completed"),
        ReplySummary("no", end="refusal"),
    ),
    "calls": (
        answer(*TEXT, *CALLS, end=delta({}, "tool_calls")),
        ReplySummary("Hello", "", (("call_0", "f", {"a": 1}), ("call_1", "f", {})), "completed"),
        ReplySummary("Hello", "", (("call_0", "f", {"a": 1}), ("call_1", "f", {})), "tool_use"),
    ),
    "too long": (
        answer(*TEXT, end=delta({}, "length")),
        ReplySummary("Hello", end="max_output_tokens"),
        ReplySummary("Hello", end="max_tokens"),
    ),
    "filtered": (
        answer(*TEXT, end=delta({}, "content_filter")),
        ReplySummary("Hello", end="content_filter"),
        ReplySummary("Hello", end="refusal"),
    ),
    "nothing": (answer(), ReplySummary(end="completed"), ReplySummary(end="end_turn")),
}


@EACH
@BOTH
@table("case", CASES)
def test_the_response_of_an_upstream_is_translated(path: str, is_stream: bool, case: str, tmp_path: Path) -> None:
    reply, response, message = CASES[case]
    request = request_for(path, is_stream=is_stream, tools=TOOLS[path], **THINKING[path])
    received, _ = send_request(tmp_path, path, request, reply)
    assert (received.status, received.findings(DIALECTS[path])) == (200, [])
    assert summary_of(path, received) == {RESPONSES: response, MESSAGES: message}[path]


@BOTH
def test_text_is_the_first_block_without_thinking(is_stream: bool, tmp_path: Path) -> None:
    received, _ = send_request(tmp_path, MESSAGES, request_for(MESSAGES, is_stream=is_stream), answer(*THOUGHTS, *TEXT))
    assert (received.findings("messages"), summary_of(MESSAGES, received)) == (
        [],
        ReplySummary("Hello", end="end_turn"),
    )


@EACH
@BOTH
def test_the_whole_reply_of_an_upstream_without_streaming_is_streamed(
    path: str, is_stream: bool, tmp_path: Path
) -> None:
    message = {"role": "assistant", "content": "Hello"}
    counts = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    reply = json_reply({"id": "x", "object": "chat.completion", "created": 1, "choices": [choice], "usage": counts})
    received, sent = send_request(
        tmp_path, path, request_for(path, is_stream=is_stream), reply, each={"stream": "false"}
    )
    assert sent["stream"] is False
    assert (received.status, received.findings(DIALECTS[path])) == (200, [])
    assert summary_of(path, received).text == "Hello"


ROUND: dict[str, Json] = {
    RESPONSES: {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
        ],
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "stop": ["x"],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}},
    },
    MESSAGES: {
        "system": "be brief",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "one"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "stop_sequences": ["x"],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
}


@EACH
def test_the_request_of_a_client_is_translated(path: str, tmp_path: Path) -> None:
    _, sent = send_request(tmp_path, path, request_for(path, **ROUND[path]), answer(*TEXT))
    messages = sent.pop("messages")
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert [message["content"] or "" for message in messages] == ["be brief", "Hi", "", "one"]
    assert (messages[2]["tool_calls"], messages[2]["reasoning_content"]) == (calls, "hm")
    assert messages[3]["tool_call_id"] == "c1"
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    most = {RESPONSES: "max_completion_tokens", MESSAGES: "max_tokens"}[path]
    assert sent == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        most: 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "stop": ["x"],
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


FAILURES = [
    (json_error(400, {"error": {"message": "because"}}), 400),
    (json_error(429, {"error": {"message": "because"}}), 429),
    (json_error(500, {"error": {"message": "because"}}), 502),
    (json_error(503, {"error": {"message": "because"}}), 503),
    (MockReply((MockChunk('data: {"error":{"message":"because","code":500}}\n\n'),)), 502),
    (MockReply(raw=True, end="cut"), 502),
]


@ALL
@BOTH
@table(("reply", "status"), FAILURES)
def test_an_error_has_its_status_and_the_format_of_the_client(
    path: str, is_stream: bool, reply: MockReply, status: int, tmp_path: Path
) -> None:
    received, _ = send_request(tmp_path, path, request_for(path, is_stream=is_stream), reply)
    assert received.status == status
    error = received.json["error"]
    error_text = error if path.startswith("/api") else error["message"]
    assert isinstance(error_text, str)
    assert reply.raw or "because" in error_text
    assert (received.json.get("type") == "error") is (path == MESSAGES)
    assert path.startswith("/api") or received.findings(DIALECTS[path]) == []


@ALL
def test_a_truncated_response_ends_with_an_error_of_the_dialect(path: str, tmp_path: Path) -> None:
    received, _ = send_request(tmp_path, path, request_for(path), MockReply((ROLE, *TEXT), end="cut"))
    assert received.status == 200
    text = received.body.decode()
    if path.startswith("/api"):
        assert list(json.loads(text.splitlines()[-1])) == ["error"]
        return
    end = {RESPONSES: "event: response.failed", MESSAGES: "event: error"}[path]
    assert (text.count(end), end in text.split("\n\n")[-2]) == (1, True)
    assert received.findings(DIALECTS[path]) == []


@ALL
def test_a_disconnected_client_frees_the_upstream(path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *TEXT), end="hang")]) as serving:
            reader, writer = await serving.send(request_for(path), path)
            await reader.readuntil(b"Hel")
            writer.transport.abort()
            upstream = serving.upstreams[0]
            await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))
            assert serving.answers() == []
            assert 'welldone_upstream_running{upstream="a"} 0.0' in (await serving.get("/metrics")).body.decode()

    run(work())


@ALL
def test_each_endpoint_is_counted_by_its_name(path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)]) as serving:
            await serving.post(request_for(path), path)
            metrics = (await serving.get("/metrics")).body.decode()
            name = DIALECTS.get(path, "ollama")
            assert f'welldone_requests_total{{endpoint="{name}",model="m",status="200"}} 1.0' in metrics

    run(work())


@ALL
@BOTH
def test_rate_limits_apply_to_all_endpoints(path: str, is_stream: bool, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)], requests_per_minute=1) as serving:
            assert (await serving.post(request_for(path, is_stream=is_stream), path)).status == 200
            assert (await serving.post(request_for(path, is_stream=is_stream), path)).status == 429
        async with gateway(tmp_path, [answer(*TEXT)], tokens_per_minute=4) as serving:
            assert (await serving.post(request_for(path, is_stream=is_stream), path)).status == 200
            assert (await serving.post(request_for(path, is_stream=is_stream), path)).status == 429

    run(work())


def test_a_background_response_is_generated_without_a_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)]) as serving:
            begun = (await serving.post(request_for(RESPONSES, is_stream=False, background=True), RESPONSES)).json
            assert (begun["status"], begun["background"]) == ("queued", True)
            stored = begun
            while stored["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0)
                stored = (await serving.get(f"{RESPONSES}/{begun['id']}")).json
            assert _response(stored) == ReplySummary("Hello", end="completed")

    run(work())


@pytest.mark.parametrize("action", ["cancel", "delete", "stop"])
def test_a_background_response_can_be_cancelled_or_deleted(action: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *TEXT), end="hang")], drain_s=0.0) as serving:
            upstream = serving.upstreams[0]
            begun = (await serving.post(request_for(RESPONSES, is_stream=False, background=True), RESPONSES)).json
            await upstream.wait_until(lambda: bool(upstream.requests))
            name = f"{RESPONSES}/{begun['id']}"
            if action == "cancel":
                assert (await serving.post({}, f"{name}/cancel")).json["status"] == "cancelled"
                assert (await serving.get(name)).json["status"] == "cancelled"
            elif action == "delete":
                assert (await serving.get(name, method="DELETE")).json["deleted"] is True
                assert (await serving.get(name)).status == 404
            else:
                await serving.server.stop()
            await upstream.wait_until(lambda: upstream.requests[-1].end == "left")
            assert serving.answers() == []

    run(work())
