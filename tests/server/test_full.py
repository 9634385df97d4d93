"""A server that is full: of requests, or because its machine has no room for another connection."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.gateways import gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, Heard
from welldone.mock.script import MockReply
from welldone.server import body_budget

WHOLE = MockReply((ROLE, HELLO, STOP, DONE))
HANGS = MockReply((ROLE,), end="hang")


def is_told_to_come_again(heard: Heard) -> bool:
    error = json.loads(heard.body)["error"]
    return heard.status == 503 and error["code"] == "server_busy" and b"\r\nretry-after: 1\r\n" in heard.raw.lower()


def test_a_server_with_as_many_requests_as_it_can_hold_refuses_more_and_says_that_it_is_well(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE], connections=1) as serving:
            reader, writer = await serving.send({**CHAT, "stream": True})
            await reader.readuntil(b"data: ")
            assert is_told_to_come_again(await serving.ask())
            assert is_told_to_come_again(await serving.get("/v1/models"))
            assert (await serving.get("/health")).status == 200
            assert (await serving.get("/")).status == 200
            writer.close()
            while serving.answers():
                await serving.get("/health")
            assert (await serving.ask()).status == 200

    run(work())


def test_a_server_whose_hands_are_full_of_long_bodies_refuses_more_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_budget, "BODIES_BYTES", 10_000)
    long = {**CHAT, "messages": [{"role": "user", "content": "a" * 6_000}]}

    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE]) as serving:
            reader, writer = await serving.send({**long, "stream": True})
            await reader.readuntil(b"data: ")
            assert is_told_to_come_again(await serving.ask(long))
            assert (await serving.ask()).status == 200
            writer.close()
            while serving.answers():
                await serving.get("/health")
            assert (await serving.ask({**long, "user": "a" * 9_000})).status == 200  # nobody else is here

    run(work())


def test_bodies_that_are_promised_and_do_not_come_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "BODIES_BYTES", 10_000)
    heads = [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"]

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE]) as serving:
            lines = [await asyncio.open_connection("127.0.0.1", serving.server.port) for _ in heads]
            for (_, writer), head in zip(lines, heads, strict=True):
                asked = (
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nExpect: 100-continue\r\n%b\r\n\r\n"
                )
                writer.write(asked % (serving.server.port, head))
            for reader, _ in lines:
                await reader.readuntil(b"100 Continue")  # so it waits for the body
            assert (await serving.ask()).status == 200
            for _, writer in lines:
                writer.close()

    run(work())


class Crowded(asyncio.SelectorEventLoop):
    """The loop of a machine that has no file left for a connection to these ports."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: set[int | None] = set()

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - as asyncio has it
        if port in self.ports:
            raise OSError(errno.EMFILE, "Too many open files")
        return await super().create_connection(factory, host, port, **more)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech", "/v1/messages/count_tokens"])
def test_an_upstream_is_not_to_blame_where_this_machine_has_no_room(path: str, tmp_path: Path) -> None:
    loop = Crowded()
    request = {**CHAT, "max_tokens": 9}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"speaks": ("messages",)}) as serving:
            await serving.server.upstreams.wait_until_probed(30)
            loop.ports = {upstream.port for upstream in serving.upstreams}
            for _ in range(10):
                heard = await serving.ask(request, path)
                assert heard.status == 503
                assert b"The server has no room for another connection." in heard.body
            loop.ports.clear()
            assert (await serving.ask()).status == 200

    run(work(), lambda: loop)


def test_the_bodies_of_many_answers_to_one_prompt_are_sent_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_budget, "BODIES_BYTES", 10_000)
    long = {**CHAT, "messages": [{"role": "user", "content": "a" * 9_000}], "n": 8}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"n": "each"}) as serving:
            heard = await serving.ask(long)
            assert heard.status == 200
            assert len(json.loads(heard.body)["choices"]) == 8
            assert sum(serving.asked) == 8

    run(work())


class Body:
    """A body for a server that takes it when it likes."""

    def __init__(self) -> None:
        self.held_bytes = 0


def test_no_second_body_is_made_where_there_is_no_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "BODIES_BYTES", 100)

    async def send(room: body_budget.BodyBudget, made: asyncio.Queue[Body], done: asyncio.Event) -> None:
        body = Body()
        async with room.reserve(body):
            body.held_bytes = 80
            made.put_nowait(body)
            await done.wait()

    async def work() -> None:
        room, done = body_budget.BodyBudget(), asyncio.Event()
        made: asyncio.Queue[Body] = asyncio.Queue()
        room.client_bytes = 50
        sending = [asyncio.create_task(send(room, made, done)) for _ in range(3)]
        for _ in sending:
            body = await made.get()
            await asyncio.sleep(0)
            assert made.empty()
            body.held_bytes = 0  # the server has taken it
        done.set()
        await asyncio.gather(*sending)
        assert not room.is_full

    run(work())
