"""An overloaded server: too many requests, too many bytes of bodies, no file descriptors."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, RecordedReply
from welldone.mock.script import MockReply
from welldone.server import parts

WHOLE = MockReply((ROLE, HELLO, STOP, DONE))
HANGS = MockReply((ROLE,), end="hang")


def has_retry_after(reply: RecordedReply) -> bool:
    error = json.loads(reply.body)["error"]
    return reply.status == 503 and error["code"] == "server_busy" and b"\r\nretry-after: 1\r\n" in reply.raw.lower()


def test_a_server_at_its_connection_limit_rejects_requests_and_stays_healthy(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE], connections=1) as serving:
            reader, writer = await serving.send({**CHAT, "stream": True})
            await reader.readuntil(b"data: ")
            assert has_retry_after(await serving.post())
            assert has_retry_after(await serving.get("/v1/models"))
            assert (await serving.get("/health")).status == 200
            assert (await serving.get("/")).status == 200
            writer.close()
            while serving.answers():
                await serving.get("/health")
            assert (await serving.post()).status == 200

    run(work())


def test_a_server_over_its_body_budget_rejects_further_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BODY_BUDGET_BYTES", 10_000)
    long = {**CHAT, "messages": [{"role": "user", "content": "a" * 6_000}]}

    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE]) as serving:
            reader, writer = await serving.send({**long, "stream": True})
            await reader.readuntil(b"data: ")
            assert has_retry_after(await serving.post(long))
            assert (await serving.post()).status == 200
            writer.close()
            while serving.answers():
                await serving.get("/health")
            assert (await serving.post({**long, "user": "a" * 9_000})).status == 200  # the only request

    run(work())


def test_announced_bodies_that_do_not_arrive_take_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BODY_BUDGET_BYTES", 10_000)
    heads = [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"]

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE]) as serving:
            lines = [await asyncio.open_connection("127.0.0.1", serving.server.port) for _ in heads]
            for (_, writer), head in zip(lines, heads, strict=True):
                head_template = (
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nExpect: 100-continue\r\n%b\r\n\r\n"
                )
                writer.write(head_template % (serving.server.port, head))
            for reader, _ in lines:
                await reader.readuntil(b"100 Continue")  # the server waits for the body
            assert (await serving.post()).status == 200
            for _, writer in lines:
                writer.close()

    run(work())


class OutOfDescriptorsLoop(asyncio.SelectorEventLoop):
    """The event loop of a machine without file descriptors for connections to these ports."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: set[int | None] = set()

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - as asyncio has it
        if port in self.ports:
            raise OSError(errno.EMFILE, "Too many open files")
        return await super().create_connection(factory, host, port, **more)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech", "/v1/messages/count_tokens"])
def test_an_upstream_is_not_blamed_for_a_lack_of_local_file_descriptors(path: str, tmp_path: Path) -> None:
    loop = OutOfDescriptorsLoop()
    request = {**CHAT, "max_tokens": 9}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"speaks": ("messages",)}) as serving:
            await serving.server.upstreams.wait_until_probed(30)
            loop.ports = {upstream.port for upstream in serving.upstreams}
            for _ in range(10):
                reply = await serving.post(request, path)
                assert reply.status == 503
                assert b"The server has no room for another connection." in reply.body
            loop.ports.clear()
            assert (await serving.post()).status == 200

    run(work(), lambda: loop)


def test_the_bodies_of_many_choices_are_sent_as_the_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "BODY_BUDGET_BYTES", 10_000)
    long = {**CHAT, "messages": [{"role": "user", "content": "a" * 9_000}], "n": 8}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"n": "each"}) as serving:
            reply = await serving.post(long)
            assert reply.status == 200
            assert len(json.loads(reply.body)["choices"]) == 8
            assert sum(serving.post_counts) == 8

    run(work())


class Body:
    """A body that is sent when the test decides."""

    def __init__(self) -> None:
        self.pending_body_bytes = 0


def test_no_second_body_is_built_over_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BODY_BUDGET_BYTES", 100)

    async def send(room: parts.BodyBudget, bodies: asyncio.Queue[Body], done: asyncio.Event) -> None:
        body = Body()
        await room.reserve(body)
        body.pending_body_bytes = 80
        bodies.put_nowait(body)
        await done.wait()
        room.release(body)

    async def work() -> None:
        room, done = parts.BodyBudget(), asyncio.Event()
        bodies: asyncio.Queue[Body] = asyncio.Queue()
        room.client_bytes = 50
        sending = [asyncio.create_task(send(room, bodies, done)) for _ in range(3)]
        for _ in sending:
            body = await bodies.get()
            await asyncio.sleep(0)
            assert bodies.empty()
            body.pending_body_bytes = 0  # sent completely
        done.set()
        await asyncio.gather(*sending)
        assert not room.is_full

    run(work())
