"""Clients of every dialect with an upstream that has only the Messages or only the Responses API."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import RecordedReply, json_error
from tests.server.test_same_dialect import VALID, WHOLE, frames
from tests.table import table
from welldone.mock.script import MockChunk, MockReply, MockScript, cut_at, json_reply

Json = dict[str, Any]

USER = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, Json] = {
    "/v1/chat/completions": {"model": "m", "messages": USER},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": USER},
    "/api/chat": {"model": "m", "messages": USER},
    "/api/generate": {"model": "m", "prompt": "Hi"},
}
UPSTREAM_PATHS = {"messages": "/v1/messages", "responses": "/v1/responses"}
CHAT = "/v1/chat/completions"
ENDPOINTS = {CHAT: "chat", "/v1/completions": "completions", "/v1/responses": "responses", "/v1/messages": "messages"}
EACH_DIALECT = table("dialect", ["messages", "responses"])
EACH_PATH = table("path", [*REQUESTS])
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])


def only(dialect: str, **more: Any) -> Json:  # noqa: ANN401 - settings of an upstream
    """Return the settings of an upstream with one dialect."""
    return {"chat": False, "speaks": (dialect,), **more}


def posts(serving: Gateway, number: int = 0) -> list[Any]:
    return [one for one in serving.upstreams[number].requests if one.method == "POST"]


class Exchanged(NamedTuple):
    """A response, and the requests that the upstream got for it."""

    reply: RecordedReply
    requests: list[Json]
    posts: list[Any]


def exchange(
    folder: Path,
    dialect: str,
    *replies: MockReply,
    path: str = CHAT,
    each: Json | None = None,
    headers: str = "",
    settings: Json | None = None,
    **more: Any,  # noqa: ANN401 - fields of the request
) -> Exchanged:
    """Send a request to a gateway whose upstream has only `dialect`."""

    async def work() -> Exchanged:
        async with gateway(folder, list(replies), each=only(dialect, **(each or {})), **(settings or {})) as serving:
            reply = await serving.post({**REQUESTS[path], **more}, path, headers)
            sent = posts(serving)
            assert all(one.path == UPSTREAM_PATHS[dialect] for one in sent)
            return Exchanged(reply, [json.loads(one.body) for one in sent], sent)

    return run(work())


def text_of(path: str, reply: RecordedReply) -> str:
    """Return the text of a stream or a whole reply, in any dialect."""
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines()]
    values = [json.loads(line) for line in lines if line.startswith("{")]
    if path.startswith("/api"):
        return "".join(one.get("response") or one.get("message", {}).get("content", "") for one in values)
    return "".join(_text(value, is_whole=len(values) == 1) for value in values)


def _text(value: Json, *, is_whole: bool) -> str:
    match value:
        case {"choices": choices}:
            return "".join((one.get("delta") or one.get("message") or one).get("content") or one.get("text", "") for one in choices)
        case {"type": "response.output_text.delta", "delta": text} | {"delta": {"type": "text_delta", "text": text}}:
            return str(text)
        case {"output": items} if is_whole:
            return "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        case {"content": blocks} if is_whole:
            return "".join(block["text"] for block in blocks if block["type"] == "text")
        case _:
            return ""


@EACH_DIALECT
@EACH_PATH
@BOTH
def test_a_client_of_any_dialect_gets_the_answer(tmp_path: Path, dialect: str, path: str, is_stream: bool) -> None:
    reply, (request,), _ = exchange(tmp_path, dialect, MockReply(VALID[dialect]), path=path, stream=is_stream)
    assert reply.status == 200
    assert text_of(path, reply) == "Hello"
    if path in ENDPOINTS:
        assert reply.findings(ENDPOINTS[path]) == []
    assert request["stream"] is (is_stream or UPSTREAM_PATHS[dialect] != path)
