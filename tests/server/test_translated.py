"""Clients of other dialects in front of upstreams that speak chat: all that both can say arrives, there and back."""

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import DONE, ROLE, STOP, USAGE, Heard, refusal
from tests.table import table
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply

Json = dict[str, Any]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
DIALECTS = {RESPONSES: "responses", MESSAGES: "messages"}
ASKED: dict[str, Json] = {
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
ALL = table("path", [*ASKED])
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])


def delta(value: Json, reason: str | None = None) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(value), json.dumps(reason)))


def call(index: int, name: str, *pieces: str) -> tuple[MockChunk, ...]:
    first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return tuple(delta({"tool_calls": [one]}) for one in (first, *rest))


def answer(*pieces: MockChunk, end: MockChunk = STOP) -> MockReply:
    return MockReply((ROLE, *pieces, end, USAGE, DONE))


class Said(NamedTuple):
    """What a client was told, in words that all dialects share."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str, Json], ...] = ()
    end: str = ""
    tokens: tuple[int, int] = (3, 1)


def heard_of(path: str, heard: Heard) -> Said:
    """What a stream or a whole reply said."""
    events = [json.loads(line[6:]) for line in heard.body.decode().splitlines() if line.startswith("data: ")]
    if path == RESPONSES:
        return _response(events[-1]["response"] if events else heard.json)
    return (
        _message(events) if events else _blocks(heard.json["content"], heard.json["stop_reason"], heard.json["usage"])
    )


def _response(response: Json) -> Said:
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
    return Said(text, thoughts, tuple(calls), end, _tokens(response["usage"]))


def _tokens(usage: Json) -> tuple[int, int]:
    return usage["input_tokens"], usage["output_tokens"]


def _message(events: list[Json]) -> Said:
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


def _blocks(blocks: list[Json], reason: str, usage: Json) -> Said:
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"),
        reason,
        _tokens(usage),
    )


def asked(path: str, *, is_stream: bool = True, **more: Any) -> Json:  # noqa: ANN401 - each field its own
    return {**ASKED[path], "stream": is_stream, **more}


def seen(serving: Gateway, place: int = 0) -> Json:
    """The last chat that an upstream was asked for."""
    last = [one for one in serving.upstreams[place].requests if one.method == "POST"][-1]
    assert last.path == "/v1/chat/completions"
    found: Json = json.loads(last.body)
    return found


def ask(folder: Path, path: str, request: Json, *replies: MockReply, **settings: Any) -> tuple[Heard, Json]:  # noqa: ANN401 - each its own
    """What a client hears, and the chat that its upstream was asked for."""

    async def work() -> tuple[Heard, Json]:
        async with gateway(folder, list(replies), **settings) as serving:
            return await serving.ask(request, path), seen(serving)

    return run(work())


TEXT = (delta({"content": "Hel"}), delta({"content": "lo"}))
CALLS = (*call(0, "f", '{"a":', "1}"), *call(1, "f", "{}"))
THOUGHTS = (delta({"reasoning_content": "h"}), delta({"reasoning_content": "m"}))
THINKING: dict[str, Json] = {RESPONSES: {}, MESSAGES: {"thinking": {"type": "adaptive"}}}
CASES: dict[str, tuple[MockReply, Said, Said]] = {
    "text": (answer(*TEXT), Said("Hello", end="completed"), Said("Hello", end="end_turn")),
    "thoughts": (
        answer(*THOUGHTS, *TEXT),
        Said("Hello", "hm", end="completed"),
        Said("Hello", "hm", end="end_turn"),
    ),
    "a refusal": (
        answer(delta({"refusal": "no"})),
        Said("no", end="completed"),
        Said("no", end="refusal"),
    ),
    "calls": (
        answer(*TEXT, *CALLS, end=delta({}, "tool_calls")),
        Said("Hello", "", (("call_0", "f", {"a": 1}), ("call_1", "f", {})), "completed"),
        Said("Hello", "", (("call_0", "f", {"a": 1}), ("call_1", "f", {})), "tool_use"),
    ),
    "too long": (
        answer(*TEXT, end=delta({}, "length")),
        Said("Hello", end="max_output_tokens"),
        Said("Hello", end="max_tokens"),
    ),
    "filtered": (
        answer(*TEXT, end=delta({}, "content_filter")),
        Said("Hello", end="content_filter"),
        Said("Hello", end="refusal"),
    ),
    "nothing": (answer(), Said(end="completed"), Said(end="end_turn")),
}


@EACH
@BOTH
@table("case", CASES)
def test_what_an_upstream_says_arrives(path: str, is_stream: bool, case: str, tmp_path: Path) -> None:
    reply, response, message = CASES[case]
    request = asked(path, is_stream=is_stream, tools=TOOLS[path], **THINKING[path])
    heard, _ = ask(tmp_path, path, request, reply)
    assert (heard.status, heard.findings(DIALECTS[path])) == (200, [])
    assert heard_of(path, heard) == {RESPONSES: response, MESSAGES: message}[path]


@BOTH
def test_who_does_not_ask_for_thinking_finds_the_text_in_the_first_block(is_stream: bool, tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, MESSAGES, asked(MESSAGES, is_stream=is_stream), answer(*THOUGHTS, *TEXT))
    assert (heard.findings("messages"), heard_of(MESSAGES, heard)) == ([], Said("Hello", end="end_turn"))


@EACH
@BOTH
def test_an_upstream_that_cannot_stream_is_streamed_here(path: str, is_stream: bool, tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "Hello"}
    counts = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    reply = json_reply({"id": "x", "object": "chat.completion", "created": 1, "choices": [choice], "usage": counts})
    heard, sent = ask(tmp_path, path, asked(path, is_stream=is_stream), reply, each={"stream": False})
    assert sent["stream"] is False
    assert (heard.status, heard.findings(DIALECTS[path])) == (200, [])
    assert heard_of(path, heard).text == "Hello"


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
def test_what_a_client_says_arrives(path: str, tmp_path: Path) -> None:
    _, sent = ask(tmp_path, path, asked(path, **ROUND[path]), answer(*TEXT))
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
    (refusal(400, {"error": {"message": "because"}}), 400),
    (refusal(429, {"error": {"message": "because"}}), 429),
    (refusal(500, {"error": {"message": "because"}}), 502),
    (refusal(503, {"error": {"message": "because"}}), 503),
    (MockReply((MockChunk('data: {"error":{"message":"because","code":500}}\n\n'),)), 502),
    (MockReply(raw=True, end="cut"), 502),
]


@ALL
@BOTH
@table(("reply", "status"), FAILURES)
def test_a_refusal_has_its_status_and_the_clients_shape(
    path: str, is_stream: bool, reply: MockReply, status: int, tmp_path: Path
) -> None:
    heard, _ = ask(tmp_path, path, asked(path, is_stream=is_stream), reply)
    assert heard.status == status
    error = heard.json["error"]
    words = error if path.startswith("/api") else error["message"]
    assert isinstance(words, str)
    assert reply.raw or "because" in words
    assert (heard.json.get("type") == "error") is (path == MESSAGES)
    assert path.startswith("/api") or heard.findings(DIALECTS[path]) == []


@ALL
def test_an_answer_that_breaks_off_ends_with_an_error_of_the_dialect(path: str, tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, path, asked(path), MockReply((ROLE, *TEXT), end="cut"))
    assert heard.status == 200
    text = heard.body.decode()
    if path.startswith("/api"):
        assert list(json.loads(text.splitlines()[-1])) == ["error"]
        return
    end = {RESPONSES: "event: response.failed", MESSAGES: "event: error"}[path]
    assert (text.count(end), end in text.split("\n\n")[-2]) == (1, True)
    assert heard.findings(DIALECTS[path]) == []


@ALL
def test_a_client_that_leaves_frees_the_upstream(path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *TEXT), end="hang")]) as serving:
            reader, writer = await serving.send(asked(path), path)
            await reader.readuntil(b"Hel")
            writer.transport.abort()
            upstream = serving.upstreams[0]
            await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))
            assert serving.answers() == []
            assert 'welldone_upstream_running{upstream="a"} 0.0' in (await serving.get("/metrics")).body.decode()

    run(work())


@ALL
def test_each_path_is_counted_by_its_name(path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)]) as serving:
            await serving.ask(asked(path), path)
            shown = (await serving.get("/metrics")).body.decode()
            name = DIALECTS.get(path, "ollama")
            assert f'welldone_requests_total{{endpoint="{name}",model="m",status="200"}} 1.0' in shown

    run(work())


@ALL
@BOTH
def test_limits_count_for_all_paths(path: str, is_stream: bool, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)], requests_per_minute=1) as serving:
            assert (await serving.ask(asked(path, is_stream=is_stream), path)).status == 200
            assert (await serving.ask(asked(path, is_stream=is_stream), path)).status == 429
        async with gateway(tmp_path, [answer(*TEXT)], tokens_per_minute=4) as serving:
            assert (await serving.ask(asked(path, is_stream=is_stream), path)).status == 200
            assert (await serving.ask(asked(path, is_stream=is_stream), path)).status == 429

    run(work())


def test_a_response_in_the_background_is_made_while_nobody_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [answer(*TEXT)]) as serving:
            begun = (await serving.ask(asked(RESPONSES, is_stream=False, background=True), RESPONSES)).json
            assert (begun["status"], begun["background"]) == ("queued", True)
            kept = begun
            while kept["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0)
                kept = (await serving.get(f"{RESPONSES}/{begun['id']}")).json
            assert _response(kept) == Said("Hello", end="completed")

    run(work())


@pytest.mark.parametrize("way", ["cancel", "delete", "stop"])
def test_a_response_in_the_background_can_be_ended(way: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *TEXT), end="hang")], drain_s=0.0) as serving:
            upstream = serving.upstreams[0]
            begun = (await serving.ask(asked(RESPONSES, is_stream=False, background=True), RESPONSES)).json
            await upstream.wait_until(lambda: bool(upstream.requests))
            name = f"{RESPONSES}/{begun['id']}"
            if way == "cancel":
                assert (await serving.ask({}, f"{name}/cancel")).json["status"] == "cancelled"
                assert (await serving.get(name)).json["status"] == "cancelled"
            elif way == "delete":
                assert (await serving.get(name, method="DELETE")).json["deleted"] is True
                assert (await serving.get(name)).status == 404
            else:
                await serving.server.stop()
            await upstream.wait_until(lambda: upstream.requests[-1].end == "left")
            assert serving.answers() == []

    run(work())
