"""Anthropic's paths through the whole server: answers, counts, lists and errors in its shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import DONE, HELLO, ROLE, STOP, USAGE, Heard, refusal
from tests.server.test_passthrough import get
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply
from welldone.protocol.events import Json
from welldone.server.server import Server

ASKED: Json = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
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


async def show(serving: Gateway, path: str, **headers: str) -> Heard:
    return await get(serving, "GET", path, b"", "application/json", **headers)


async def post(serving: Gateway, body: Json, path: str = PATH, **headers: str) -> Heard:
    return await get(serving, "POST", path, json.dumps(body).encode(), "application/json", **headers)


def ask(
    folder: Path,
    *replies: MockReply,
    body: Json | None = None,
    path: str = PATH,
    kind: str = "",
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[Heard, Json]:
    """A reply, and what the upstream was asked for it."""

    async def work() -> tuple[Heard, Json]:
        async with gateway(folder, replies or [ANSWER], **settings) as serving:
            serving.server.upstreams.all[0].kind = kind
            heard = await post(serving, ASKED if body is None else body, path)
            seen = [one for one in serving.upstreams[0].requests if one.method == "POST"]
            return heard, {"path": seen[0].path, "headers": seen[0].headers, **json.loads(seen[0].body)} if seen else {}

    return run(work())


def events(heard: Heard) -> list[Json]:
    return [json.loads(line[6:]) for line in heard.body.decode().splitlines() if line.startswith("data: ")]


def error(heard: Heard, status: int) -> Json:
    """The error of a reply, which must be whole in Anthropic's shape."""
    assert heard.status == status, heard.body
    told: Json = heard.json
    assert (set(told), told["type"], set(told["error"])) == (
        {"type", "error", "request_id"},
        "error",
        {"type", "message"},
    )
    assert f"request-id: {told['request_id']}" in heard.head
    found: Json = told["error"]
    return found


def test_an_answer_is_a_message(tmp_path: Path) -> None:
    heard, asked = ask(tmp_path)
    told = heard.json
    assert (heard.status, told["type"], told["role"], told["id"][:4]) == (200, "message", "assistant", "msg_")
    assert told["content"] == [{"type": "text", "text": "Hello"}]
    assert (told["stop_reason"], told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == ("end_turn", 3, 1)
    assert (asked["path"], asked["messages"], asked["max_tokens"]) == ("/v1/chat/completions", ASKED["messages"], 9)


def test_an_answer_is_streamed_as_events(tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, body={**ASKED, "stream": True}, path=f"{PATH}?beta=true")
    said = [event["type"] for event in events(heard) if event["type"] != "ping"]
    assert said == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert b"[DONE]" not in heard.body
    assert "\r\nrequest-id: req_" in heard.head


def test_a_call_is_a_block(tmp_path: Path) -> None:
    heard, asked = ask(tmp_path, CALLS, body={**ASKED, "tools": [WEATHER], "tool_choice": {"type": "any"}})
    (block,) = heard.json["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "Rom"})
    assert heard.json["stop_reason"] == "tool_use"
    assert (asked["tool_choice"], asked["tools"][0]["function"]["name"]) == ("required", "weather")


def test_unknown_tools_are_refused_or_ignored_as_set(tmp_path: Path) -> None:
    body = {**ASKED, "tools": [SEARCH, WEATHER]}
    heard, asked = ask(tmp_path, body=body)
    assert "tools[0]" in error(heard, 400)["message"]
    assert asked == {}
    heard, asked = ask(tmp_path, body=body, unknown_tools="ignore")
    assert heard.status == 200
    assert len(asked["tools"]) == 1


# An upstream that speaks it.


def test_an_upstream_that_speaks_the_dialect_hears_the_clients_own_words(tmp_path: Path) -> None:
    told: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    told |= {"content": [{"type": "text", "text": "Hi", "citations": None}], "stop_sequence": None}
    told |= {"usage": {"input_tokens": 3, "output_tokens": 1}}
    body = {**ASKED, "tools": [SEARCH], "container": {"id": "c"}, "api_key": "secret"}

    async def work() -> None:
        async with gateway(tmp_path, [json_reply(told)], each={"speaks": ("messages",), "key": "sk-theirs"}) as serving:
            heard = await post(serving, body, anthropic_beta="a-1,b-2", x_api_key="ours")
            assert heard.json["content"][0]["text"] == "Hi"
            (seen,) = (one for one in serving.upstreams[0].requests if one.method == "POST")
            passed = json.loads(seen.body)
            assert seen.path == "/v1/messages"
            assert (passed["tools"], passed["container"], "api_key" in passed) == ([SEARCH], {"id": "c"}, False)
            assert seen.headers["anthropic-version"] == "2023-06-01"
            assert seen.headers["anthropic-beta"] == "a-1,b-2"
            assert seen.headers["x-api-key"] == "sk-theirs"

    run(work())


def test_a_header_that_cannot_go_on_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], each={"speaks": ("messages",)}) as serving:
            assert "anthropic-beta" in error(await post(serving, ASKED, anthropic_beta="b" * 2049), 400)["message"]
            assert serving.asked == [0]

    run(work())


# Counting.


@pytest.mark.parametrize(
    ("kind", "reply", "path"),
    [
        ("vllm", {"count": 21, "tokens": [1], "max_model_len": 9}, "/tokenize"),
        ("llamacpp", {"input_tokens": 21}, "/v1/chat/completions/input_tokens"),
    ],
)
def test_upstreams_count_as_they_can(tmp_path: Path, kind: str, reply: Json, path: str) -> None:
    body = {"model": "m", "system": "Be.", "messages": ASKED["messages"], "tools": [WEATHER]}
    heard, asked = ask(tmp_path, json_reply(reply), body=body, path=COUNT, kind=kind)
    assert (heard.status, heard.json) == (200, {"input_tokens": 21})
    assert asked["path"] == path
    assert [one["role"] for one in asked["messages"]] == ["system", "user"]
    assert asked["tools"][0]["function"]["name"] == "weather"
    assert asked["model"] == "m"


def test_an_upstream_that_speaks_the_dialect_counts_itself(tmp_path: Path) -> None:
    told = {"input_tokens": 7, "context_management": {"original_input_tokens": 9}}
    body, native = {**ASKED, "api_key": "secret"}, {"speaks": ("messages",), "key": "sk-theirs"}
    heard, asked = ask(tmp_path, json_reply(told), body=body, path=COUNT, each=native)
    assert heard.json == told
    assert "api_key" not in asked
    assert (asked["path"], asked["messages"]) == ("/v1/messages/count_tokens", ASKED["messages"])
    assert asked["headers"]["x-api-key"] == "sk-theirs"
    assert asked["headers"]["anthropic-version"] == "2023-06-01"


def test_what_nobody_can_count_is_not_guessed(tmp_path: Path) -> None:
    heard, asked = ask(tmp_path, body=ASKED, path=COUNT)
    assert error(heard, 404)["type"] == "not_found_error"
    assert asked == {}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
    body = {**ASKED, "messages": [{"role": "user", "content": [picture]}]}
    heard, asked = ask(tmp_path, body=body, path=COUNT, kind="vllm")
    assert "pictures" in error(heard, 400)["message"]
    assert asked == {}


@table(
    ("reply", "status", "kind"),
    [
        (json_reply({"tokens": []}), 502, "api_error"),
        (json_reply({"count": True}), 502, "api_error"),
        (MockReply((MockChunk("<html>"),)), 502, "api_error"),
        (MockReply((), end="cut"), 502, "api_error"),
        (refusal(400, {"error": {"message": "no"}}), 400, "invalid_request_error"),
        (refusal(404, {"detail": "Not Found"}), 404, "not_found_error"),
        (refusal(503, {}), 503, "overloaded_error"),
    ],
)
def test_an_upstream_that_does_not_count_is_an_error(tmp_path: Path, reply: MockReply, status: int, kind: str) -> None:
    heard, _ = ask(tmp_path, reply, path=COUNT, kind="vllm")
    assert error(heard, status)["type"] == kind


def test_another_upstream_counts_where_the_first_fails(tmp_path: Path) -> None:
    async def work() -> None:
        both = {"speaks": ("messages",)}
        bad, good = [refusal(500, {})], [json_reply({"input_tokens": 5})]
        async with gateway(tmp_path, bad, good, each=both, first={**both, "weight": 1000.0}) as serving:
            heard = [await post(serving, ASKED, COUNT) for _ in range(3)]
            assert [one.json for one in heard] == [{"input_tokens": 5}] * 3
            assert serving.asked[0] >= 1

    run(work())


CONVERSATION: list[Json] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rom"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
]


def test_a_local_model_counts_what_usage_says(tiny_model: Path, tmp_path: Path) -> None:
    bodies: list[Json] = [
        ASKED,
        {**ASKED, "system": "Be brief.", "stop_sequences": ["zz"]},
        {**ASKED, "messages": [*ASKED["messages"], {"role": "assistant", "content": "Well,"}]},
        {**ASKED, "messages": CONVERSATION, "tools": [WEATHER]},
        {**ASKED, "tools": [WEATHER], "tool_choice": {"type": "any"}},
        {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 1024}},
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
            long = {**ASKED, "messages": [{"role": "user", "content": "x" * 200_000}]}
            assert "prompt is too long" in error(await post(serving, long), 400)["message"]
            assert "prompt is too long" in error(await post(serving, long, COUNT), 400)["message"]
        finally:
            await server.stop()

    run(work())


# Errors, also those of which no route hears.


def test_errors_have_anthropics_shape_from_the_first_check_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], keys=["k-123456789"], body_limit_bytes=1024) as serving:
            key = {"x_api_key": "k-123456789"}
            assert error(await post(serving, ASKED), 401)["type"] == "authentication_error"
            assert error(await post(serving, ASKED, x_api_key="wrong"), 401)["type"] == "authentication_error"
            assert (
                error(await post(serving, ASKED, Origin="https://x.example", **key), 403)["type"] == "permission_error"
            )
            assert error(await show(serving, PATH, **key), 405)["type"] == "invalid_request_error"
            assert (
                error(await get(serving, "POST", PATH, b"{", "application/json", **key), 400)["type"]
                == "invalid_request_error"
            )
            long = {**ASKED, "system": "x" * 2000}
            assert error(await post(serving, long, **key), 413)["type"] == "request_too_large"
            assert "max_tokens" in error(await post(serving, {**ASKED, "max_tokens": None}, **key), 400)["message"]
            lost = await show(serving, "/v1/nowhere", **key, **VERSION)
            assert error(lost, 404)["type"] == "not_found_error"
            assert (await show(serving, "/v1/nowhere", **key)).error["code"] == "not_found"
            assert serving.asked == [0]

    run(work())


def test_a_model_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, body={**ASKED, "model": "x"}, each={"models": ("m",)})
    assert error(heard, 404)["type"] == "not_found_error"


@table(
    ("status", "told", "kind"),
    [
        (429, 429, "rate_limit_error"),
        (500, 502, "api_error"),
        (503, 503, "overloaded_error"),
        (504, 504, "timeout_error"),
    ],
)
def test_what_an_upstream_refuses_keeps_its_status(tmp_path: Path, status: int, told: int, kind: str) -> None:
    heard, _ = ask(tmp_path, refusal(status, {"error": {"message": "no"}}), body={**ASKED, "stream": True})
    assert error(heard, told)["type"] == kind


def test_a_server_that_ends_is_overloaded(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER]) as serving:
            serving.server._app.is_draining = True
            assert error(await post(serving, ASKED), 503)["type"] == "overloaded_error"

    run(work())


# Models.


def test_models_are_listed_in_the_shape_that_the_client_knows(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], each={"models": ("m", "n")}) as serving:
            openai = (await show(serving, "/v1/models")).json
            assert openai["object"] == "list"
            heard = await show(serving, "/v1/models?limit=1000", **VERSION)
            told = heard.json
            assert (told["has_more"], told["first_id"], told["last_id"]) == (False, "m", "n")
            assert set(told["data"][0]) >= {"type", "id", "display_name", "created_at"}
            assert told["data"][0]["created_at"].endswith("Z")
            assert (await show(serving, "/v1/models/n", **VERSION)).json == told["data"][1]
            assert (await show(serving, "/v1/models/n")).json["object"] == "model"

    run(work())


def test_no_models_are_an_empty_list(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER]) as serving:
            told = (await show(serving, "/v1/models", **VERSION)).json
            assert told == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    run(work())
