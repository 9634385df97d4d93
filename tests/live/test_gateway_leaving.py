"""Clients that leave the gateway: the upstream sees it, and nothing of them stays."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.aio import run
from tests.live.faults import LINUX, begin, leave, until
from tests.live.server import Running
from tests.live.upstream import REPLIES, ROLE, RUNNING, TEXT, Upstream, gateway, upstream
from tests.server import gateways
from tests.server.scripts import CHAT
from welldone.mock.script import MockReply

pytestmark = LINUX
GONE = r"status=499 .*has_left=yes"
WINDOWS = {
    "before the first byte": ("silent", True),
    "in the midst of its stream": ("stalls", True),
    "while a whole answer is made": ("stalls", False),
}
"""The model that is asked for, and whether its answer is streamed."""


@pytest.fixture(scope="module")
def behind() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


@pytest.fixture(scope="module")
def server(behind: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(tmp_path_factory.mktemp("gateway"), behind.url) as running:
        yield running
        assert running.end() == 0
        assert "Traceback" not in running.log.join()


@pytest.mark.parametrize("is_rude", [False, True], ids=["politely", "rudely"])
@pytest.mark.parametrize(("model", "stream"), WINDOWS.values(), ids=WINDOWS)
def test_the_upstream_sees_that_the_client_has_left(
    behind: Upstream, server: Running, model: str, stream: bool, is_rude: bool
) -> None:
    seen = len(server.log.all)
    line = begin(server, model=model, stream=stream)
    behind.until(lambda one: bool(one.requests) and one.requests[-1].end == "running")
    if stream and model == "stalls":
        line.wait(b"Hello")
    leave(line, is_rude=is_rude)
    behind.until(lambda one: one.requests[-1].end == "left")
    server.log.wait(GONE, seen=seen)
    until(server, RUNNING, 0)


def test_who_has_left_leaves_no_task_behind(tmp_path: Path) -> None:
    stalls = [REPLIES["silent"], MockReply((ROLE, TEXT), end="hang")] * 30

    async def work() -> None:
        async with gateways.gateway(tmp_path, stalls) as serving:
            (one,) = serving.upstreams
            before = len(asyncio.all_tasks())
            for round_ in range(60):
                _, writer = await serving.send({**CHAT, "stream": round_ % 3 == 0})
                if round_ % 4:
                    await one.wait_until(lambda: bool(one.requests) and one.requests[-1].end == "running")
                writer.transport.abort()
                await one.wait_until(lambda: all(seen.end == "left" for seen in one.requests))
            while serving.answers() or len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0)

    run(work())
