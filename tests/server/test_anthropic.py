"""Anthropic's API through the whole server: messages, token counts, model lists and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.server.test_passthrough import get
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.core.events import Json
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply
from welldone.server.server import Server

REQUEST: Json = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic_version": "2023-06-01"}
WEATHER: Json = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
SEARCH: Json = {"type": "web_search_20250305", "name": "web_search"}
CALLS = MockReply(
    (
        ROLE,
        MockChunk(
            CHUNK_TEMPLATE
            % (
                '{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"weather",'
                '"arguments":"{\\"city\\":\\"Rom\\"}"}}]}',
                '"tool_calls"',
            )
        ),
        USAGE,
        DONE,
    )
)


async def get_path(serving: Gateway, path: str, **headers: str) -> RecordedReply:
    return await get(serving, "GET", path, b"", "application/json", **headers)


async def post(serving: Gateway, body: Json, path: str = PATH, **headers: str) -> RecordedReply:
    return await get(serving, "POST", path, json.dumps(body).encode(), "application/json", **headers)


def send(
    folder: Path,
    *replies: MockReply,
    body: Json | None = None,
    path: str = PATH,
    kind: str = "",
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[RecordedReply, Json]:
    """Return the response, and the request that the upstream received."""

    async def work() -> tuple[RecordedReply, Json]:
        async with gateway(folder, replies or [ANSWER], **settings) as serving:
            serving.server.upstreams.all[0].kind = kind
            response = await post(serving, REQUEST if body is None else body, path)
            seen = [one for one in serving.upstreams[0].requests if one.method == "POST"]
            return response, {
                "path": seen[0].path,
                "headers": seen[0].headers,
                **json.loads(seen[0].body),
            } if seen else {}

    return run(work())


def events(response: RecordedReply) -> list[Json]:
    return [json.loads(line[6:]) for line in response.body.decode().splitlines() if line.startswith("data: ")]


def error(response: RecordedReply, status: int) -> Json:
    """Return the error of a response, which must have Anthropic's format."""
    assert response.status == status, response.body
    message: Json = response.json
    assert (set(message), message["type"], set(message["error"])) == (
        {"type", "error", "request_id"},
        "error",
        {"type", "message"},
    )
    assert f"request-id: {message['request_id']}" in response.head
    found: Json = message["error"]
    return found


def test_a_response_is_an_anthropic_message(tmp_path: Path) -> None:
    response, upstream_request = send(tmp_path)
    message = response.json
    assert (response.status, message["type"], message["role"], message["id"][:4]) == (
        200,
        "message",
        "assistant",
        "msg_",
    )
    assert message["content"] == [{"type": "text", "text": "Hello", "citations": []}]
    assert (message["stop_reason"], message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (
        "end_turn",
        3,
        1,
    )
    assert (upstream_request["path"], upstream_request["messages"], upstream_request["max_tokens"]) == (
        "/v1/chat/completions",
        REQUEST["messages"],
        9,
    )


def test_a_response_is_streamed_as_events(tmp_path: Path) -> None:
    response, _ = send(tmp_path, body={**REQUEST, "stream": True}, path=f"{PATH}?beta=true")
    event_types = [event["type"] for event in events(response) if event["type"] != "ping"]
    assert event_types == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert b"[DONE]" not in response.body
    assert "\r\nrequest-id: req_" in response.head


def test_a_tool_call_becomes_a_block(tmp_path: Path) -> None:
    response, upstream_request = send(
        tmp_path, CALLS, body={**REQUEST, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    )
    (block,) = response.json["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "Rom"})
    assert response.json["stop_reason"] == "tool_use"
    assert (upstream_request["tool_choice"], upstream_request["tools"][0]["function"]["name"]) == (
        "required",
        "weather",
    )


def test_unknown_tools_are_rejected_or_ignored_as_configured(tmp_path: Path) -> None:
    body = {**REQUEST, "tools": [SEARCH, WEATHER]}
    response, upstream_request = send(tmp_path, body=body)
    assert "tools[0]" in error(response, 400)["message"]
    assert upstream_request == {}
    response, upstream_request = send(tmp_path, body=body, unknown_tools="ignore")
    assert response.status == 200
    assert len(upstream_request["tools"]) == 1


# An upstream that speaks it.


def test_an_upstream_with_the_same_dialect_gets_the_request_unchanged(tmp_path: Path) -> None:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    message |= {"content": [{"type": "text", "text": "Hi", "citations": None}], "stop_sequence": None}
    message |= {"usage": {"input_tokens": 3, "output_tokens": 1}}
    body = {**REQUEST, "tools": [SEARCH], "container": {"id": "c"}, "api_key": "secret"}

    async def work() -> None:
        async with gateway(
            tmp_path, [json_reply(message)], each={"speaks": ("messages",), "key": "sk-theirs"}
        ) as serving:
            response = await post(serving, body, anthropic_beta="a-1,b-2", x_api_key="ours")
            assert response.json["content"][0]["text"] == "Hi"
            (seen,) = (one for one in serving.upstreams[0].requests if one.method == "POST")
            passed = json.loads(seen.body)
            assert seen.path == "/v1/messages"
            assert (passed["tools"], passed["container"], "api_key" in passed) == ([SEARCH], {"id": "c"}, False)
            assert seen.headers["anthropic-version"] == "2023-06-01"
            assert seen.headers["anthropic-beta"] == "a-1,b-2"
            assert seen.headers["x-api-key"] == "sk-theirs"

    run(work())


def test_an_invalid_version_header_is_rejected(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], each={"speaks": ("messages",)}) as serving:
            assert "anthropic-beta" in error(await post(serving, REQUEST, anthropic_beta="b" * 2049), 400)["message"]
            assert serving.post_counts == [0]

    run(work())


# Counting.


@pytest.mark.parametrize(
    ("kind", "reply", "path"),
    [
        ("vllm", {"count": 21, "tokens": [1], "max_model_len": 9}, "/tokenize"),
        ("llamacpp", {"input_tokens": 21}, "/v1/chat/completions/input_tokens"),
    ],
)
def test_tokens_are_counted_with_the_endpoint_of_the_upstream(
    tmp_path: Path, kind: str, reply: Json, path: str
) -> None:
    body = {"model": "m", "system": "Be.", "messages": REQUEST["messages"], "tools": [WEATHER]}
    response, upstream_request = send(tmp_path, json_reply(reply), body=body, path=COUNT, kind=kind)
    assert (response.status, response.json) == (200, {"input_tokens": 21})
    assert upstream_request["path"] == path
    assert [one["role"] for one in upstream_request["messages"]] == ["system", "user"]
    assert upstream_request["tools"][0]["function"]["name"] == "weather"
    assert upstream_request["model"] == "m"


def test_a_count_of_vllm_includes_the_reasoning(tmp_path: Path) -> None:
    """vLLM's `/tokenize` reads `reasoning`, and its chat endpoint also `reasoning_content`."""
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]}
    body = {**REQUEST, "messages": [*REQUEST["messages"], answer, *REQUEST["messages"]]}
    _, upstream_request = send(tmp_path, json_reply({"count": 21}), body=body, path=COUNT, kind="vllm")
    assert upstream_request["messages"][1]["reasoning"] == "hm"


def test_an_upstream_with_the_same_dialect_counts_tokens(tmp_path: Path) -> None:
    message = {"input_tokens": 7, "context_management": {"original_input_tokens": 9}}
    body, native = {**REQUEST, "api_key": "secret"}, {"speaks": ("messages",), "key": "sk-theirs"}
    response, upstream_request = send(tmp_path, json_reply(message), body=body, path=COUNT, each=native)
    assert response.json == message
    assert "api_key" not in upstream_request
    assert (upstream_request["path"], upstream_request["messages"]) == (
        "/v1/messages/count_tokens",
        REQUEST["messages"],
    )
    assert upstream_request["headers"]["x-api-key"] == "sk-theirs"
    assert upstream_request["headers"]["anthropic-version"] == "2023-06-01"


def test_token_counts_are_never_estimated(tmp_path: Path) -> None:
    response, upstream_request = send(tmp_path, body=REQUEST, path=COUNT)
    assert error(response, 404)["type"] == "not_found_error"
    assert upstream_request == {}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
    body = {**REQUEST, "messages": [{"role": "user", "content": [picture]}]}
    response, upstream_request = send(tmp_path, body=body, path=COUNT, kind="vllm")
    assert "images" in error(response, 400)["message"]
    assert upstream_request == {}


@table(
    ("reply", "status", "kind"),
    [
        (json_reply({"tokens": []}), 502, "api_error"),
        (json_reply({"count": True}), 502, "api_error"),
        (MockReply((MockChunk("<html>"),)), 502, "api_error"),
        (MockReply((), end="cut"), 502, "api_error"),
        (json_error(400, {"error": {"message": "no"}}), 400, "invalid_request_error"),
        (json_error(404, {"detail": "Not Found"}), 404, "not_found_error"),
        (json_error(503, {}), 503, "overloaded_error"),
    ],
)
def test_a_failed_token_count_is_an_error(tmp_path: Path, reply: MockReply, status: int, kind: str) -> None:
    response, _ = send(tmp_path, reply, path=COUNT, kind="vllm")
    assert error(response, status)["type"] == kind


def test_a_failed_token_count_is_retried_with_another_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        both = {"speaks": ("messages",)}
        bad, good = [json_error(500, {})], [json_reply({"input_tokens": 5})]
        async with gateway(tmp_path, bad, good, each=both, first={**both, "weight": 1000.0}) as serving:
            response = [await post(serving, REQUEST, COUNT) for _ in range(3)]
            assert [one.json for one in response] == [{"input_tokens": 5}] * 3
            assert serving.post_counts[0] >= 1

    run(work())


CONVERSATION: list[Json] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rom"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
]


def test_the_token_count_of_a_local_model_equals_its_usage(tiny_model: Path, tmp_path: Path) -> None:
    bodies: list[Json] = [
        REQUEST,
        {**REQUEST, "system": "Be brief.", "stop_sequences": ["zz"]},
        {**REQUEST, "messages": [*REQUEST["messages"], {"role": "assistant", "content": "Well,"}]},
        {**REQUEST, "messages": CONVERSATION, "tools": [WEATHER]},
        {**REQUEST, "tools": [WEATHER], "tool_choice": {"type": "any"}},
        {**REQUEST, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ]

    async def work() -> None:
        config = Config(server=ServeSettings(port=0), models=(ModelSettings(name="m", file=tiny_model),))
        server = Server(config, keys=(), folder=tmp_path)
        await server.start()
        try:
            serving = Gateway(server, [])
            for body in bodies:
                counted = await post(serving, {**body, "max_tokens": None}, COUNT)
                usage = (await post(serving, body)).json["usage"]
                assert counted.json == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
            long = {**REQUEST, "messages": [{"role": "user", "content": "x" * 200_000}]}
            assert "prompt is too long" in error(await post(serving, long), 400)["message"]
            assert "prompt is too long" in error(await post(serving, long, COUNT), 400)["message"]
        finally:
            await server.stop()

    run(work())


# Errors, including those before routing.


def test_all_errors_have_the_anthropic_format(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], keys=["k-123456789"], body_limit_bytes=1024) as serving:
            key = {"x_api_key": "k-123456789"}
            assert error(await post(serving, REQUEST), 401)["type"] == "authentication_error"
            assert error(await post(serving, REQUEST, x_api_key="wrong"), 401)["type"] == "authentication_error"
            assert (
                error(await post(serving, REQUEST, Origin="https://x.example", **key), 403)["type"]
                == "permission_error"
            )
            assert error(await get_path(serving, PATH, **key), 405)["type"] == "invalid_request_error"
            assert (
                error(await get(serving, "POST", PATH, b"{", "application/json", **key), 400)["type"]
                == "invalid_request_error"
            )
            long = {**REQUEST, "system": "x" * 2000}
            assert error(await post(serving, long, **key), 413)["type"] == "request_too_large"
            assert "max_tokens" in error(await post(serving, {**REQUEST, "max_tokens": None}, **key), 400)["message"]
            lost = await get_path(serving, "/v1/nowhere", **key, **VERSION)
            assert error(lost, 404)["type"] == "not_found_error"
            assert (await get_path(serving, "/v1/nowhere", **key)).error["code"] == "not_found"
            assert serving.post_counts == [0]

    run(work())


def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    response, _ = send(tmp_path, body={**REQUEST, "model": "x"}, each={"models": ("m",)})
    assert error(response, 404)["type"] == "not_found_error"


@table(
    ("status", "message", "kind"),
    [
        (429, 429, "rate_limit_error"),
        (500, 502, "api_error"),
        (503, 503, "overloaded_error"),
        (504, 504, "timeout_error"),
    ],
)
def test_an_error_of_the_upstream_keeps_its_status(tmp_path: Path, status: int, message: int, kind: str) -> None:
    response, _ = send(tmp_path, json_error(status, {"error": {"message": "no"}}), body={**REQUEST, "stream": True})
    assert error(response, message)["type"] == kind


def test_a_server_that_shuts_down_is_overloaded(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER]) as serving:
            serving.server._app.is_draining = True
            assert error(await post(serving, REQUEST), 503)["type"] == "overloaded_error"

    run(work())


# Models.


def test_models_are_listed_in_the_format_of_the_client(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], each={"models": ("m", "n")}) as serving:
            openai = (await get_path(serving, "/v1/models")).json
            assert openai["object"] == "list"
            response = await get_path(serving, "/v1/models?limit=1000", **VERSION)
            message = response.json
            assert (message["has_more"], message["first_id"], message["last_id"]) == (False, "m", "n")
            assert set(message["data"][0]) >= {"type", "id", "display_name", "created_at"}
            assert message["data"][0]["created_at"].endswith("Z")
            assert (await get_path(serving, "/v1/models/n", **VERSION)).json == message["data"][1]
            assert (await get_path(serving, "/v1/models/n")).json["object"] == "model"

    run(work())


def test_the_list_of_models_may_be_empty(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER]) as serving:
            message = (await get_path(serving, "/v1/models", **VERSION)).json
            assert message == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    run(work())
