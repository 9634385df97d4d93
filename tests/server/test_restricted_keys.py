"""Keys restricted to some models, and requests without a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP
from tests.table import table
from welldone.config.server import KeySettings
from welldone.mock.script import MockReply, MockScript, json_reply

Json = dict[str, Any]
SECRET = "qwen-key-0123456789"
BEARER = f"Authorization: Bearer {SECRET}\r\n"
ADMIN = "Authorization: Bearer admin-key-0123456789\r\n"
ANSWER = MockReply((ROLE, HELLO, STOP, DONE))

REQUESTS: dict[str, Json] = {
    "/v1/chat/completions": {"messages": CHAT["messages"]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 5},
    "/api/chat": {"messages": CHAT["messages"], "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "Hi", "documents": ["a"]},
    "/v1/moderations": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/v1/chat/completions/input_tokens": {"messages": CHAT["messages"]},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
}
GENERATED = tuple(REQUESTS)[:6]


def restricted(*models: str, **more: Any) -> Json:  # noqa: ANN401 - each its own
    return {"keys": (KeySettings(name="qwen", key=SECRET, models=models or ("qwen-*",), **more),)}


def script(*listed: str) -> MockScript:
    """An upstream that lists these models (or has no list) and answers requests for any model."""
    models = {"object": "list", "data": [{"id": name, "object": "model"} for name in listed]}
    no_list = {} if listed else {"/v1/models": json_reply({"error": {"message": "no"}}, 500)}
    return MockScript(posts=(ANSWER,), models=models, paths=no_list)


async def settled(serving: Gateway) -> None:
    """Wait until every upstream was probed."""
    await serving.server.upstreams.wait_until_probed(30)


# Restricted keys and the resolution of names.


@table(
    ("each", "routes", "listed", "name", "is_reached"),
    [
        pytest.param({"models": ("gpt",)}, {"*": ("gpt@a",)}, (), "qwen-nonsense", False, id="catch-all route"),
        pytest.param({"models": ("gpt",)}, {"q*": ("gpt@a",)}, (), "qwen-nonsense", False, id="wider route"),
        pytest.param({"models": ("gpt",)}, {"qwen-*": ("gpt@a",)}, (), "qwen-x", True, id="the key's own route"),
        pytest.param({"models": ("gpt",)}, {"qwen-x": ("gpt@a",)}, (), "qwen-x", True, id="a route of this name"),
        pytest.param({"models": ("qwen-7b",)}, {"*": ("qwen-7b@a",)}, (), "qwen-x", True, id="an allowed target"),
        pytest.param({}, {"*": ("@a",)}, ("gpt",), "qwen-nonsense", False, id="same name, not listed"),
        pytest.param({}, {"*": ("@a",)}, ("gpt", "qwen-7b"), "qwen-7b", True, id="same name, listed"),
        pytest.param({"models": ("*",)}, {}, ("gpt",), "qwen-nonsense", False, id="declared for all, not listed"),
        pytest.param({"models": ("*",)}, {}, ("qwen-7b",), "qwen-7b", True, id="declared for all, listed"),
        pytest.param({"models": ("*",)}, {}, (), "qwen-nonsense", False, id="declared for all, no list"),
        pytest.param({"models": ("qwen-*",)}, {}, (), "qwen-x", True, id="declared as the key is"),
        pytest.param({"models": ()}, {}, (), "qwen-nonsense", False, id="nothing declared, no list"),
    ],
)
def test_a_restricted_key_reaches_no_other_model_by_an_invented_name(
    tmp_path: Path, each: Json, routes: Json, listed: tuple[str, ...], name: str, is_reached: bool
) -> None:
    async def work() -> None:
        config = {**restricted(), "routes": routes}
        async with gateway(tmp_path, script(*listed), each=each, config=config) as serving:
            await settled(serving)
            reply = await serving.post({**CHAT, "model": name}, headers=BEARER)
            assert reply.status == (200 if is_reached else 404), reply.body
            assert serving.post_counts == [int(is_reached)]
            if not is_reached:
                assert reply.error["code"] == "model_not_found"
                assert "gpt" not in reply.error["message"]

    run(work())


@table("path", REQUESTS)
def test_the_target_is_checked_on_every_path(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        config = {**restricted(), "routes": {"*": ("gpt@a",)}}
        async with gateway(tmp_path, script(), each={"models": ("gpt",)}, config=config) as serving:
            request = {**REQUESTS[path], "model": "qwen-nonsense"}
            assert (await serving.post(request, path, headers=BEARER)).status == 404
            assert (await serving.get("/v1/models/qwen-nonsense", headers=BEARER)).status == 404
            assert serving.post_counts == [0]

    run(work())


def test_only_the_allowed_targets_of_a_route_are_used(tmp_path: Path) -> None:
    async def work() -> None:
        broken = MockScript(posts=(json_reply({"error": {"message": "no"}}, 500),))
        config = {**restricted(), "routes": {"*": ("qwen-7b@a", "gpt@b")}}
        each = {"models": ("gpt", "qwen-7b")}
        async with gateway(tmp_path, broken, script(), each=each, first={"weight": 1000.0}, config=config) as serving:
            reply = await serving.post({**CHAT, "model": "qwen-x"}, headers=BEARER)
            assert reply.status == 502
            assert serving.post_counts == [1, 0]

    run(work())


# Visibility of other models for a restricted key.


def test_a_restricted_key_sees_only_its_models(tmp_path: Path) -> None:
    async def work() -> None:
        config = {**restricted("qwen-*"), "routes": {"secret-route": ("secret-model@a",)}}
        each = {"models": ("qwen-7b", "secret-model")}
        async with gateway(tmp_path, script(), each=each, config=config, keys=["admin-key-0123456789"]) as serving:
            shown = [
                await serving.post({**CHAT, "model": "qwen-8b"}, headers=BEARER),
                await serving.post({"messages": CHAT["messages"]}, headers=BEARER),
                await serving.get("/v1/models", headers=BEARER),
                await serving.get("/api/tags", headers=BEARER),
                await serving.get("/page/api/state", headers=BEARER),
                await serving.get("/metrics", headers=BEARER),
            ]
            assert [reply.status for reply in shown] == [404, 400, 200, 200, 200, 403]
            assert [reply.body for reply in shown if b"secret" in reply.body] == []
            # Existing and unknown models get the same error.
            refused = [
                await serving.post({**CHAT, "model": name}, headers=BEARER)
                for name in ("secret-model", "secret-nobody")
            ]
            assert [reply.status for reply in refused] == [403, 403]
            assert (await serving.get("/metrics", headers=ADMIN)).status == 200

    run(work())


@pytest.mark.parametrize("right", ["admin", "metrics"])
def test_a_restricted_key_may_read_metrics_with_metrics_true(tmp_path: Path, right: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), config=restricted(**{right: True})) as serving:
            assert (await serving.get("/metrics", headers=BEARER)).status == 200

    run(work())


# Requests without a model.


@table("path", REQUESTS)
@table("model_field", [{}, {"model": ""}, {"model": None}], ids=["absent", "empty", "null"])
def test_a_request_without_a_model_needs_a_single_model(tmp_path: Path, path: str, model_field: Json) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), each={"models": ("m", "n")}) as serving:
            reply = await serving.post({**REQUESTS[path], **model_field}, path)
            assert reply.status == 400, reply.body
            assert "model" in str(reply.json["error"])
            if path.startswith("/v1/chat"):
                assert (reply.error["param"], reply.error["code"]) == ("model", "missing_model")
                assert "`m`, `n`" in reply.error["message"]
            assert serving.post_counts == [0]
        async with gateway(tmp_path, script(), each={"models": ("m",)}) as serving:
            assert (await serving.post({**REQUESTS[path], **model_field}, path)).status != 400
            if path in GENERATED:
                assert json.loads(serving.upstreams[0].requests[-1].body)["model"] == "m"

    run(work())


@table("path", REQUESTS)
@table("model", [["m"] * 10_000, {"m": 1}, 5], ids=["list", "object", "number"])
def test_a_model_that_is_not_a_string_is_a_400(tmp_path: Path, path: str, model: object) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), each={"models": ("m",)}) as serving:
            reply = await serving.post({**REQUESTS[path], "model": model}, path)
            assert reply.status == 400, reply.body
            assert "model" in str(reply.json["error"])
            assert serving.post_counts == [0]

    run(work())


@pytest.mark.parametrize(
    ("scripts", "each", "routes"),
    [
        pytest.param((script("m"), script()), {"models": ()}, {}, id="one has not listed its models"),
        pytest.param((script("m"),), {"models": ()}, {"*": ("n@a",)}, id="a route for all other names"),
        pytest.param((script("m"), script("n")), {"models": ()}, {}, id="two upstreams"),
    ],
)
def test_models_behind_patterns_and_unlisted_models_count(
    tmp_path: Path, scripts: tuple[MockScript, ...], each: Json, routes: Json
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, *scripts, each=each, config={"routes": routes}) as serving:
            await settled(serving)
            assert (await serving.post({"messages": CHAT["messages"]})).status == 400
            assert sum(serving.post_counts) == 0

    run(work())
