"""Upstreams whose streamed tool calls break off while the same calls are right unstreamed: the settings of `stream`."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE
from tests.server.test_reasoning_input import TOOL, delta, whole
from tests.table import table
from welldone.cli.service import UpstreamLog
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import REMEMBERED_MODELS, Upstream
from welldone.mock.script import MockChunk, MockReply, cut_at, json_reply
from welldone.server.observe.log import LineFormatter, LogHandler, Redactor

Json = dict[str, Any]

TOOLS: Json = {**CHAT, "stream": True, "tools": [TOOL]}
FUNCTION: Json = {"name": "f", "parameters": {"type": "object", "properties": {}}}
FUNCTIONS: Json = {**CHAT, "stream": True, "functions": [FUNCTION]}
PATHS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", TOOLS),
    "functions": ("/v1/chat/completions", FUNCTIONS),
    "responses": (
        "/v1/responses",
        {"model": "m", "input": "Hi", "stream": True, "tools": [{"type": "function", **FUNCTION}]},
    ),
    "messages": (
        "/v1/messages",
        {**CHAT, "max_tokens": 9, "stream": True, "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    ),
    "gemini": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
        },
    ),
    "ollama": ("/api/chat", {**CHAT, "tools": [TOOL]}),
}
WHOLE = whole()
TEXT = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "P'}}
CALLED = delta({"tool_calls": [CALL]})
CUT = MockReply((ROLE, CALLED), end="cut")
CUT_ARGUMENTS = MockReply((ROLE, CALLED, delta({}, "tool_calls"), USAGE, DONE))
UNFINISHED = MockReply((ROLE, CALLED))
"""What a client gets of a right server whose connection broke, if a proxy ends a broken reply like a whole one."""
RIGHT = MockReply(
    (
        ROLE,
        delta({"tool_calls": [CALL | {"function": {"name": "f", "arguments": "{}"}}]}),
        delta({}, "tool_calls"),
        USAGE,
        DONE,
    )
)
NO_TOOLS: Any = {"each": {"stream": "no-tools"}}
AUTO: Any = {"each": {"stream": "auto"}}


def sent(serving: Gateway, name: str = "stream") -> list[Any]:
    """The values of a field in the requests of the first upstream."""
    return [json.loads(one.body).get(name) for one in serving.upstreams[0].requests if one.method == "POST"]


@table("client", PATHS)
def test_a_request_with_tools_goes_up_unstreamed_and_its_answer_is_a_right_stream(tmp_path: Path, client: str) -> None:
    path, body = PATHS[client]

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], **NO_TOOLS) as serving:
            received = await serving.post(body, path)
            assert sent(serving) == [False]
            assert sent(serving, "stream_options") == [None]
        assert (received.status, b"data: " in received.body) == (200, client != "ollama")
        assert b'"f"' in received.body
        if client in ("chat", "responses", "messages", "gemini"):
            assert received.findings(client) == []

    run(work())


@table("stream", ["no-tools", "auto"])
def test_other_requests_stream(tmp_path: Path, stream: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [TEXT], each={"stream": stream}) as serving:
            for body in ({**CHAT, "stream": True}, CHAT, {**CHAT, "stream": True, "tools": []}):
                assert (await serving.post(body)).status == 200
            assert sent(serving) == [True, True, True]

    run(work())


@table("dialect", ["responses", "messages", "gemini"])
def test_an_upstream_with_the_dialect_of_the_client_gets_no_stream_either(tmp_path: Path, dialect: str) -> None:
    path, body = PATHS[dialect]

    async def work() -> None:
        each = {"stream": "no-tools", "speaks": (dialect,)}
        async with gateway(tmp_path, [json_reply({})], each=each) as serving:
            await serving.post(body, path)
            (request,) = [one for one in serving.upstreams[0].requests if one.method == "POST"]
        assert json.loads(request.body).get("stream", False) is False
        assert "stream" not in request.path

    run(work())


def test_each_of_several_choices_is_requested_unstreamed(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], **NO_TOOLS) as serving:
            received = await serving.post({**TOOLS, "n": 2})
            assert sent(serving) == [False, False]
            assert received.findings() == []
            assert received.body.count(b'"finish_reason":"tool_calls"') == 2

    run(work())


def test_the_form_depends_on_the_upstream_of_the_attempt(tmp_path: Path) -> None:
    failing = MockReply(status=503)

    async def work() -> None:
        async with gateway(tmp_path, [failing], [WHOLE], first={"weight": 1000.0}, **NO_TOOLS) as serving:
            assert b'"f"' in (await serving.post(TOOLS)).body
        settings: Json = {"each": {"stream": "true", "weight": 0.01}, "first": {"stream": "no-tools", "weight": 1000.0}}
        async with gateway(tmp_path, [failing], [RIGHT], **settings) as serving:
            assert b'"f"' in (await serving.post(TOOLS)).body
            assert sent(serving) == [False]
            assert json.loads(serving.upstreams[1].requests[-1].body)["stream"] is True

    run(work())


def test_a_waiting_client_gets_keep_alives_and_its_leaving_cancels(tmp_path: Path) -> None:
    silent = MockReply(headers={"Content-Type": "application/json"}, end="hang")

    async def work() -> None:
        async with gateway(tmp_path, [silent], early_s=0.0, keep_alive_s=0.02, **NO_TOOLS) as serving:
            reader, writer = await serving.send(TOOLS)
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(2):
                await reader.readuntil(b": keep-alive")
            writer.close()
            upstream = serving.upstreams[0]
            await upstream.wait_until(
                lambda: [one.end for one in upstream.requests if one.method == "POST"] == ["left"]
            )

    run(work())


@table(
    "broken",
    [CUT_ARGUMENTS, CUT, UNFINISHED, cut_at(RIGHT, 60, "whole")],
    ids=["arguments", "cut", "unfinished", "unreadable"],
)
def test_after_a_tool_call_that_broke_off_later_ones_are_not_streamed(tmp_path: Path, broken: MockReply) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [broken, WHOLE, WHOLE, TEXT, RIGHT], **AUTO) as serving:
            await serving.post(TOOLS)
            while len(sent(serving)) < 2:  # else the first request was retried
                await serving.post(TOOLS)
            received = await serving.post(TOOLS)
            assert (received.status, received.findings()) == (200, [])
            assert b"hello" in (await serving.post({**CHAT, "stream": True})).body.lower()
            await serving.post({**TOOLS, "model": "other"})
            assert sent(serving) == [True, False, False, True, True]
            (upstream,) = (await serving.get("/page/api/state")).json["upstreams"]
            assert upstream["trouble"].endswith('set stream = "no-tools" for it')

    run(work())


@table("client", ["responses", "messages", "ollama"])
def test_the_client_may_speak_another_dialect_than_the_upstream_that_breaks_calls(tmp_path: Path, client: str) -> None:
    path, body = PATHS[client]

    async def work() -> None:
        async with gateway(tmp_path, [CUT_ARGUMENTS, WHOLE], **AUTO) as serving:
            await serving.post(body, path)
            assert b'"f"' in (await serving.post(body, path)).body
            # Ollama's calls have objects as arguments: nothing is sent of a broken one, so its request is retried.
            assert sent(serving) == [True, False] + [False] * (client == "ollama")

    run(work())


def test_an_upstream_with_the_dialect_of_the_client_may_break_calls(tmp_path: Path) -> None:
    path, body = PATHS["messages"]
    events: list[Json] = [
        {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    broken = MockReply(tuple(MockChunk(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n") for one in events))

    async def work() -> None:
        async with gateway(
            tmp_path, [broken, json_reply({})], each={"stream": "auto", "speaks": ("messages",)}
        ) as serving:
            for _ in range(2):
                await serving.post(body, path)
            assert sent(serving) == [True, False]

    run(work())


@table(
    "broken", [cut_at(CUT, 0), cut_at(CUT, 60), MockReply((ROLE,), end="cut")], ids=["nothing", "half a chunk", "role"]
)
def test_a_client_that_has_nothing_of_the_call_gets_the_retry(tmp_path: Path, broken: MockReply) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [broken, WHOLE], **AUTO) as serving:
            received = await serving.post(TOOLS)
            assert (received.status, received.findings()) == (200, [])
            assert b'"tool_calls"' in received.body
            assert sent(serving) == [True, False]

    run(work())


def test_a_call_of_which_the_client_has_a_part_is_completed_where_answers_repeat(tmp_path: Path) -> None:
    async def work() -> None:
        begun = delta({"tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]})
        async with gateway(tmp_path, [MockReply((ROLE, begun), end="cut"), WHOLE], **AUTO) as serving:
            received = await serving.post({**TOOLS, "temperature": 0})
            assert (received.status, received.findings()) == (200, [])
            assert received.body.count(b'"name":"f"') == 1
            assert sent(serving) == [True, False]

    run(work())


def test_a_right_server_behind_a_proxy_that_hides_its_cut_loses_its_tool_streams(tmp_path: Path) -> None:
    """The reason why `auto` is not the default: decision 26."""

    async def work() -> None:
        async with gateway(tmp_path, [RIGHT, UNFINISHED, RIGHT], **AUTO) as serving:
            for _ in range(3):
                await serving.post(TOOLS)
            assert sent(serving) == [True, True, False, False]
        async with gateway(tmp_path, [RIGHT, UNFINISHED, RIGHT]) as serving:
            replies = [await serving.post(TOOLS) for _ in range(3)]
            assert sent(serving) == [True, True, True]
            assert [b'"error"' in reply.body for reply in replies] == [False, True, False]

    run(work())


@table("setting", ["true", "no-tools"])
def test_only_auto_learns(tmp_path: Path, setting: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [CUT_ARGUMENTS], each={"stream": setting}) as serving:
            for _ in range(2):
                await serving.post(TOOLS)
            assert len(set(sent(serving))) == 1

    run(work())


def test_text_that_breaks_off_and_truncated_arguments_are_no_evidence(tmp_path: Path) -> None:
    async def work() -> None:
        truncated = MockReply((ROLE, CALLED, delta({}, "length"), USAGE, DONE))
        async with gateway(tmp_path, [MockReply((ROLE, HELLO), end="cut"), truncated, RIGHT], **AUTO) as serving:
            await serving.post({**CHAT, "stream": True})
            for _ in range(2):
                await serving.post(TOOLS)
            assert sent(serving) == [True, True, True]

    run(work())


def make_upstream() -> Upstream:
    return Upstream(
        UpstreamSettings(name="lab", url="http://lab/v1", stream="auto"), clock=lambda: 0.0, on_change=lambda _: None
    )


def test_the_log_names_the_setting_once_for_each_model() -> None:
    upstream, stream = make_upstream(), io.StringIO()
    with LogHandler(LineFormatter("text", Redactor()), stream=stream):
        log = UpstreamLog()
        for model in ("small", "small", "large"):
            upstream.stop_tool_streams(model)
            log.update(upstream)
    lines = stream.getvalue().splitlines()
    assert [line.count('set stream = "no-tools"') for line in lines] == [1, 1]
    assert "(small, large)" in lines[1]


def test_models_behind_a_pattern_are_bounded() -> None:
    upstream = make_upstream()
    for number in range(REMEMBERED_MODELS + 1):
        upstream.stop_tool_streams(f"m{number}")
    assert upstream.choose_form("m0", TOOLS) == (TOOLS, True)
    assert upstream.choose_form("m1", TOOLS)[0]["stream"] is False


def test_a_reload_of_the_written_setting_removes_the_hint() -> None:
    upstream = make_upstream()
    upstream.stop_tool_streams("m")
    assert upstream.hint is not None
    upstream.settings = dataclasses.replace(upstream.settings, stream="no-tools")
    assert upstream.hint is None
    assert upstream.choose_form("another", TOOLS)[0]["stream"] is False
