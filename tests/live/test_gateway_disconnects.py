"""Clients that disconnect from the gateway: the upstream request is cancelled, and no task remains."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.aio import run
from tests.server import running_gateway
from tests.server.running_server import CHAT
from tests.support.faults import LINUX, disconnect, start_chat, wait_for_metric
from tests.support.server import Running
from tests.support.upstream import REPLIES, ROLE, RUNNING, TEXT, Upstream, gateway, upstream
from welldone.mock.script import MockReply

pytestmark = LINUX
DISCONNECTED = r"status=499 .*has_left=yes"
WINDOWS = {
    "before the first byte": ("silent", True),
    "during its stream": ("stalls", True),
    "while a whole answer is generated": ("stalls", False),
}
"""The requested model, and whether its answer is streamed."""


@pytest.fixture(scope="module")
def backend() -> Iterator[Upstream]:
    with upstream() as started:
        yield started


@pytest.fixture(scope="module")
def server(backend: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(tmp_path_factory.mktemp("gateway"), backend.url) as running:
        yield running
        assert running.end() == 0
        assert "Traceback" not in running.log.join()


@pytest.mark.parametrize("is_reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize(("model", "stream"), WINDOWS.values(), ids=WINDOWS)
def test_a_disconnect_of_the_client_cancels_the_upstream_request(
    backend: Upstream, server: Running, model: str, stream: bool, is_reset: bool
) -> None:
    seen = len(server.log.all)
    connection = start_chat(server, model=model, stream=stream)
    backend.wait_until(lambda mock: bool(mock.requests) and mock.requests[-1].end == "running")
    if stream and model == "stalls":
        connection.wait(b"Hello")
    disconnect(connection, is_reset=is_reset)
    backend.wait_until(lambda mock: mock.requests[-1].end == "left")
    server.log.wait(DISCONNECTED, seen=seen)
    wait_for_metric(server, RUNNING, 0)


def test_disconnected_clients_leave_no_task_behind(tmp_path: Path) -> None:
    stalls = [REPLIES["silent"], MockReply((ROLE, TEXT), end="hang")] * 30

    async def work() -> None:
        async with running_gateway.gateway(tmp_path, stalls) as serving:
            (mock,) = serving.upstreams
            before = len(asyncio.all_tasks())
            for round_ in range(60):
                _, writer = await serving.send({**CHAT, "stream": round_ % 3 == 0})
                if round_ % 4:
                    await mock.wait_until(lambda: bool(mock.requests) and mock.requests[-1].end == "running")
                writer.transport.abort()
                await mock.wait_until(lambda: all(request.end == "left" for request in mock.requests))
            while serving.answers() or len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0)

    run(work())
