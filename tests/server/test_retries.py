"""The retry loop: the same rules for generation, passthrough endpoints and token counts."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, json_error, run_server
from tests.table import table
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, json_reply

VECTOR = json_reply({"object": "list", "data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}})
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": {"model": "m", "input": "hello"},
    "/v1/chat/completions/input_tokens": CHAT,
}
REPLIES = {
    "/v1/chat/completions": HELLO_REPLY,
    "/v1/embeddings": VECTOR,
    "/v1/chat/completions/input_tokens": json_reply({"object": "response.input_tokens", "input_tokens": 7}),
}
FAILED = json_error(500, {"error": {"message": "oops"}})
SILENT = MockReply((), after_s=60.0)
FIRST = {"weight": 1000.0}
"""The first upstream is chosen first."""


@asynccontextmanager
async def counting_gateway(folder: Path, *scripts: Sequence[MockReply], **settings: Any) -> AsyncIterator[Gateway]:  # noqa: ANN401 - each its own
    """A gateway whose upstreams count tokens."""
    async with gateway(folder, *scripts, **settings) as serving:
        for upstream in serving.server.upstreams.all:
            upstream.kind = "welldone"
            upstream.assign(upstream.address)  # of dynamic upstreams, which begin without a replica
        yield serving


@table("path", BODIES)
def test_the_log_has_the_upstream_and_the_failed_attempts(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with counting_gateway(tmp_path, [FAILED], [REPLIES[path]], first=FIRST) as serving:
            assert (await serving.post(BODIES[path], path)).status == 200
            (row,) = (await serving.get("/page/api/state")).json["recent"]
            assert (row["upstream"], row["failed"]) == ("b", ["a:500"])

    run(work())


@table("path", BODIES)
def test_the_failure_is_reported_if_there_is_no_slot_for_a_retry(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        each = {"limit": 1, "queue": 0}
        async with counting_gateway(tmp_path, [FAILED], [SILENT], each=each, first=FIRST) as serving:
            _, writer = await serving.send(CHAT)
            await serving.upstreams[1].wait_until(lambda: serving.post_counts == [1, 1])
            reply = await serving.post(BODIES[path], path)
            assert (reply.status, reply.error["code"]) == (502, "upstream_error")
            assert serving.post_counts == [2, 1]
            writer.close()

    run(work())


@table("path", BODIES)
def test_a_retry_after_a_stale_connection_keeps_its_slot(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        reply = REPLIES[path]
        script = [reply, MockReply((MockChunk(after_s=0.2),), raw=True, end="cut"), reply]
        async with counting_gateway(tmp_path, script, each={"limit": 1}) as serving:
            (upstream,) = serving.upstreams
            assert (await serving.post(BODIES[path], path)).status == 200
            first = asyncio.create_task(serving.post({**BODIES[path], "user": "first"}, path))
            await upstream.wait_until(lambda: serving.post_counts == [2])
            second = asyncio.create_task(serving.post({**BODIES[path], "user": "second"}, path))
            assert [(await first).status, (await second).status] == [200, 200]
            users = [json.loads(one.body).get("user") for one in upstream.requests if one.method == "POST"]
            assert users == [None, "first", "first", "second"]

    run(work())


@table("path", BODIES)
def test_dynamic_upstreams_get_four_attempts(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with counting_gateway(tmp_path, [FAILED], [FAILED], each={"is_dynamic": True}) as serving:
            assert (await serving.post(BODIES[path], path)).status == 502
            assert serving.post_counts == [2, 2]

    run(work())


@table("path", BODIES)
def test_a_silent_replica_is_a_timeout_and_stays_healthy(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with counting_gateway(tmp_path, [SILENT], each={"is_dynamic": True}, first_byte_s=0.2) as serving:
            reply = await serving.post(BODIES[path], path)
            assert (reply.status, reply.error["code"]) == (504, "timeout")
            assert serving.server.upstreams.all[0].is_healthy

    run(work())


def test_a_token_count_that_is_too_large_is_not_a_disconnect(tmp_path: Path) -> None:
    async def work() -> None:
        flood = MockReply((MockChunk("1" * 2**20),), headers={"Content-Type": "application/json"}, end="endless")
        async with counting_gateway(tmp_path, [flood], each={"is_dynamic": True}) as serving:
            reply = await serving.post(CHAT, "/v1/chat/completions/input_tokens")
            assert (reply.status, reply.error["code"]) == (502, "upstream_unreadable")
            assert serving.server.upstreams.all[0].is_healthy

    run(work())


@table("path", ["/v1/chat/completions", "/tokenize"])
def test_a_silent_engine_is_not_asked_twice(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        tokens = json_reply({"tokens": [1, 2]})
        async with run_server(tmp_path, SILENT, tokens, first_byte_s=0.3) as serving:
            reply = await serving.post({**CHAT, "content": "hello"} if path == "/tokenize" else CHAT, path)
            assert (reply.status, reply.error["code"]) == (504, "timeout")

    run(work())


INCOMPLETE = {
    "a timeout": SILENT,
    "a truncated reply": MockReply((MockChunk("{"),), headers={"Content-Type": "application/json"}, end="cut"),
    "a client that does not read": MockReply(
        (MockChunk("x" * 65536),), headers={"Content-Type": "application/json"}, end="endless"
    ),
}


@table("reply", INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_an_incomplete_passthrough_reply_counts_towards_the_token_limit(tmp_path: Path, reply: MockReply) -> None:
    async def work() -> None:
        body = {"model": "m", "input": "word " * 800}
        limits: dict[str, Any] = {"tokens_per_minute": 500, "first_byte_s": 0.3, "write_s": 0.3}
        async with gateway(tmp_path, [reply, VECTOR], **limits) as serving:
            (upstream,) = serving.upstreams
            _, writer = await serving.send(body, "/v1/embeddings")
            await upstream.wait_until(lambda: serving.post_counts == [1])
            while serving.server.upstreams.all[0].running:
                await serving.get("/health")
            assert (await serving.post(body, "/v1/embeddings")).status == 429
            writer.close()

    run(work())
