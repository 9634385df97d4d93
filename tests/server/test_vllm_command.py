"""Token counts, tokenize and embeddings with a command that has vLLM's endpoints."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_server import CHAT, RunningServer
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.mock.script import MockScript, json_reply
from welldone.server.server import Server

COUNT = "/v1/chat/completions/input_tokens"
REPLIES = {
    "/tokenize": {"count": 7, "max_model_len": 8, "tokens": [1, 2, 3]},
    "/detokenize": {"prompt": "Hello you"},
    "/v1/embeddings": {"data": [{"index": 0, "embedding": [0.5, 0.5]}], "usage": {"prompt_tokens": 2}},
}
LISTED = {"object": "list", "data": [{"id": "/models/big", "owned_by": "vllm", "max_model_len": 8}]}


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[RunningServer]:
    paths = {path: json_reply(reply) for path, reply in REPLIES.items()}
    script = MockScript(paths={COUNT: json_reply({"detail": "Not Found"}, 404), **paths}, models=LISTED)
    file = folder / "script.json"
    file.write_bytes(msgspec.json.encode(script))
    command = (sys.executable, "-m", "welldone.mock.server", "--port", "{port}", "--script", str(file))
    server = Server(
        Config(server=ServeSettings(port=0), models=(ModelSettings(name="m", command=command),)), keys=(), folder=folder
    )
    await server.start()
    try:
        yield RunningServer(server)
    finally:
        await server.stop()


def _send(folder: Path, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the reply, and the only request that the engine received on a known path."""

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        async with _serving(folder) as serving:
            response = await serving.post(body, path)
            assert response.status == 200, response.raw
            (seen,) = (seen for seen in await serving.engine_requests() if seen["path"] != COUNT)
            return response.json, json.loads(seen["body"])

    return run(main())


def test_tokens_of_a_chat_are_counted(tmp_path: Path) -> None:
    response, engine_request = _send(
        tmp_path, "/v1/messages/count_tokens", {"model": "m", "messages": CHAT["messages"]}
    )
    assert response == {"input_tokens": 7}
    assert engine_request == {"model": "/models/big", "messages": CHAT["messages"]}


@pytest.mark.parametrize(("flags", "is_special"), [({}, False), ({"add_special": True}, True)])
def test_text_is_tokenised(tmp_path: Path, flags: dict[str, Any], is_special: bool) -> None:
    response, engine_request = _send(tmp_path, "/tokenize", {"model": "m", "content": "Hello you", **flags})
    assert response == {"tokens": [1, 2, 3], "count": 3, "max_model_len": 8}
    assert (engine_request["prompt"], engine_request["add_special_tokens"]) == ("Hello you", is_special)


def test_tokens_are_detokenised(tmp_path: Path) -> None:
    assert _send(tmp_path, "/detokenize", {"model": "m", "tokens": [1]})[0]["content"] == "Hello you"


def test_embeddings_use_the_model_name_of_the_engine(tmp_path: Path) -> None:
    response, engine_request = _send(tmp_path, "/v1/embeddings", {"model": "m", "input": "longer than eight bytes"})
    assert (response["model"], response["data"][0]["embedding"]) == ("m", [0.5, 0.5])
    assert engine_request["model"] == "/models/big"
