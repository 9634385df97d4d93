"""What is no stream, asked of a command that counts, embeds and cuts into tokens in vLLM's way."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.scripts import CHAT, Serving
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
async def _serving(folder: Path) -> AsyncIterator[Serving]:
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
        yield Serving(server)
    finally:
        await server.stop()


def _asked(folder: Path, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the client hears, and what the engine was asked; once, but for a path that it does not know."""

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        async with _serving(folder) as serving:
            heard = await serving.ask(body, path)
            assert heard.status == 200, heard.raw
            (seen,) = (seen for seen in await serving.seen() if seen["path"] != COUNT)
            return heard.json, json.loads(seen["body"])

    return run(main())


def test_tokens_of_a_chat_are_counted(tmp_path: Path) -> None:
    heard, asked = _asked(tmp_path, "/v1/messages/count_tokens", {"model": "m", "messages": CHAT["messages"]})
    assert heard == {"input_tokens": 7}
    assert asked == {"model": "/models/big", "messages": CHAT["messages"]}


@pytest.mark.parametrize(("flags", "is_special"), [({}, False), ({"add_special": True}, True)])
def test_a_text_is_cut_into_tokens(tmp_path: Path, flags: dict[str, Any], is_special: bool) -> None:
    heard, asked = _asked(tmp_path, "/tokenize", {"model": "m", "content": "Hello you", **flags})
    assert heard == {"tokens": [1, 2, 3], "count": 3, "max_model_len": 8}
    assert (asked["prompt"], asked["add_special_tokens"]) == ("Hello you", is_special)


def test_tokens_become_a_text(tmp_path: Path) -> None:
    assert _asked(tmp_path, "/detokenize", {"model": "m", "tokens": [1]})[0]["content"] == "Hello you"


def test_a_text_is_embedded_by_the_name_that_the_engine_knows(tmp_path: Path) -> None:
    heard, asked = _asked(tmp_path, "/v1/embeddings", {"model": "m", "input": "longer than eight bytes"})
    assert (heard["model"], heard["data"][0]["embedding"]) == ("m", [0.5, 0.5])
    assert asked["model"] == "/models/big"
