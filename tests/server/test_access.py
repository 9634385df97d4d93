"""What a key for some models reaches and sees, and requests that name no model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP
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
    """An upstream that lists these models, or has no list, and answers whatever model it is asked for."""
    models = {"object": "list", "data": [{"id": name, "object": "model"} for name in listed]}
    no_list = {} if listed else {"/v1/models": json_reply({"error": {"message": "no"}}, 500)}
    return MockScript(posts=(ANSWER,), models=models, paths=no_list)


async def settled(serving: Gateway) -> None:
    """Wait until each upstream was asked for its list."""
    await serving.server.upstreams.wait_until_probed(30)


# Restricted keys and what a name leads to.


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
def test_a_key_for_some_models_reaches_no_other_by_inventing_a_name(
    tmp_path: Path, each: Json, routes: Json, listed: tuple[str, ...], name: str, is_reached: bool
) -> None:
    async def work() -> None:
        config = {**restricted(), "routes": routes}
        async with gateway(tmp_path, script(*listed), each=each, config=config) as serving:
            await settled(serving)
            heard = await serving.ask({**CHAT, "model": name}, headers=BEARER)
            assert heard.status == (200 if is_reached else 404), heard.body
            assert serving.asked == [int(is_reached)]
            if not is_reached:
                assert heard.error["code"] == "model_not_found"
                assert "gpt" not in heard.error["message"]

    run(work())


@table("path", REQUESTS)
def test_the_target_is_checked_on_every_path(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        config = {**restricted(), "routes": {"*": ("gpt@a",)}}
        async with gateway(tmp_path, script(), each={"models": ("gpt",)}, config=config) as serving:
            request = {**REQUESTS[path], "model": "qwen-nonsense"}
            assert (await serving.ask(request, path, headers=BEARER)).status == 404
            assert (await serving.get("/v1/models/qwen-nonsense", headers=BEARER)).status == 404
            assert serving.asked == [0]

    run(work())


def test_of_a_chain_of_targets_only_those_are_asked_that_the_key_is_for(tmp_path: Path) -> None:
    async def work() -> None:
        broken = MockScript(posts=(json_reply({"error": {"message": "no"}}, 500),))
        config = {**restricted(), "routes": {"*": ("qwen-7b@a", "gpt@b")}}
        each = {"models": ("gpt", "qwen-7b")}
        async with gateway(tmp_path, broken, script(), each=each, first={"weight": 1000.0}, config=config) as serving:
            heard = await serving.ask({**CHAT, "model": "qwen-x"}, headers=BEARER)
            assert heard.status == 502
            assert serving.asked == [1, 0]

    run(work())


# What a restricted key sees of other models.


def test_a_key_for_some_models_sees_the_names_of_no_others(tmp_path: Path) -> None:
    async def work() -> None:
        config = {**restricted("qwen-*"), "routes": {"secret-route": ("secret-model@a",)}}
        each = {"models": ("qwen-7b", "secret-model")}
        async with gateway(tmp_path, script(), each=each, config=config, keys=["admin-key-0123456789"]) as serving:
            shown = [
                await serving.ask({**CHAT, "model": "qwen-8b"}, headers=BEARER),
                await serving.ask({"messages": CHAT["messages"]}, headers=BEARER),
                await serving.get("/v1/models", headers=BEARER),
                await serving.get("/api/tags", headers=BEARER),
                await serving.get("/page/api/state", headers=BEARER),
                await serving.get("/metrics", headers=BEARER),
            ]
            assert [heard.status for heard in shown] == [404, 400, 200, 200, 200, 403]
            assert [heard.body for heard in shown if b"secret" in heard.body] == []
            # What exists and what does not are refused alike.
            refused = [
                await serving.ask({**CHAT, "model": name}, headers=BEARER) for name in ("secret-model", "secret-nobody")
            ]
            assert [heard.status for heard in refused] == [403, 403]
            assert (await serving.get("/metrics", headers=ADMIN)).status == 200

    run(work())


@pytest.mark.parametrize("right", ["admin", "metrics"])
def test_a_key_for_some_models_may_read_the_metrics_where_its_table_says_so(tmp_path: Path, right: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), config=restricted(**{right: True})) as serving:
            assert (await serving.get("/metrics", headers=BEARER)).status == 200

    run(work())


# No model.


@table("path", REQUESTS)
@table("given", [{}, {"model": ""}, {"model": None}], ids=["absent", "empty", "null"])
def test_without_a_model_there_must_be_only_one(tmp_path: Path, path: str, given: Json) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), each={"models": ("m", "n")}) as serving:
            heard = await serving.ask({**REQUESTS[path], **given}, path)
            assert heard.status == 400, heard.body
            assert "model" in str(heard.json["error"])
            if path.startswith("/v1/chat"):
                assert (heard.error["param"], heard.error["code"]) == ("model", "missing_model")
                assert "`m`, `n`" in heard.error["message"]
            assert serving.asked == [0]
        async with gateway(tmp_path, script(), each={"models": ("m",)}) as serving:
            assert (await serving.ask({**REQUESTS[path], **given}, path)).status != 400
            if path in GENERATED:
                assert json.loads(serving.upstreams[0].requests[-1].body)["model"] == "m"

    run(work())


@table("path", REQUESTS)
@table("model", [["m"] * 10_000, {"m": 1}, 5], ids=["list", "object", "number"])
def test_a_model_that_is_no_text_is_a_400(tmp_path: Path, path: str, model: object) -> None:
    async def work() -> None:
        async with gateway(tmp_path, script(), each={"models": ("m",)}) as serving:
            heard = await serving.ask({**REQUESTS[path], "model": model}, path)
            assert heard.status == 400, heard.body
            assert "model" in str(heard.json["error"])
            assert serving.asked == [0]

    run(work())


@pytest.mark.parametrize(
    ("scripts", "each", "routes"),
    [
        pytest.param((script("m"), script()), {"models": ()}, {}, id="one has not listed its models"),
        pytest.param((script("m"),), {"models": ()}, {"*": ("n@a",)}, id="a route for all other names"),
        pytest.param((script("m"), script("n")), {"models": ()}, {}, id="two upstreams"),
    ],
)
def test_what_may_be_served_besides_one_model_counts(
    tmp_path: Path, scripts: tuple[MockScript, ...], each: Json, routes: Json
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, *scripts, each=each, config={"routes": routes}) as serving:
            await settled(serving)
            assert (await serving.ask({"messages": CHAT["messages"]})).status == 400
            assert sum(serving.asked) == 0

    run(work())
