"""Clients that read slowly, or not at all: the upstream is held back, and nothing piles up in the gateway."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.faults import LINUX, begin, memory_of, metric, post, request, until
from tests.live.raw import CHAT, LIMIT_S
from tests.live.server import Running
from tests.live.upstream import ACTIVE, RUNNING, Front, Upstream, front, gateway, upstream

pytestmark = LINUX
PATHS = pytest.mark.parametrize("path", [CHAT, "/v1/audio/speech"], ids=["an answer", "what only passes through"])
MUCH_BYTES = 256 * 2**20
"""What the upstream has said in the end. It would say more."""
GROWTH_BYTES = 2**20
HELD_BYTES = 64 * 2**20
"""What the system itself may keep on the way, for those who do not read: up to 6 MB at each end of a connection, and
some have room for more."""
LOOK_BYTES = 16 * 2**20
QUIET = 20
"""Questions that the server answers while nothing passes, before it counts as held."""


@pytest.fixture
def behind() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


@pytest.fixture
def before(behind: Upstream) -> Iterator[Front]:
    with front(behind) as made:
        yield made


@pytest.fixture
def server(before: Front, tmp_path: Path) -> Iterator[Running]:
    """A gateway that has streamed before: what it needs for that, it has."""
    with gateway(tmp_path, f"http://127.0.0.1:{before.port}/v1") as running:
        for _ in range(3):
            with begin(running, model="flood") as line:
                heard = 0
                while heard < 16 * 2**20:
                    heard += len(line.socket.recv(2**20))
            until(running, ACTIVE, 0)
        before.passed = 0
        yield running
        assert running.end() == 0


def unread(server: Running, path: str) -> socket.socket:
    """A client that asks for what never ends, and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(LIMIT_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(post(server, request(server, model="flood", stream=True), "Connection: close", path=path))
    return client


def held(server: Running, before: Front) -> int:
    """Memory that the server holds when the upstream stands still: nothing has passed for a while."""
    passed, quiet = -1, 0
    while quiet < QUIET:
        metric(server, RUNNING)
        quiet = quiet + 1 if before.passed == passed else 0
        passed = before.passed
    return memory_of(server.process.pid)


@PATHS
def test_who_never_reads_holds_the_upstream_back(behind: Upstream, before: Front, server: Running, path: str) -> None:
    with ExitStack() as stack:
        growth = []
        for count in range(1, 6):
            stack.enter_context(unread(server, path))
            behind.until_running(count)
            growth.append(held(server, before))
            assert 0 < before.passed < count * HELD_BYTES
        # The first one finds what is still to be made for all.
        assert (growth[-1] - growth[0]) / (len(growth) - 1) < GROWTH_BYTES
    until(server, RUNNING, 0)


@PATHS
def test_who_never_reads_is_cut(tmp_path: Path, behind: Upstream, path: str) -> None:
    with gateway(tmp_path, behind.url, options=["--write", "1"]) as server, unread(server, path):
        behind.until(lambda one: bool(one.seen) and one.seen[-1].end == "left")
        server.log.wait(f"{path} .*client_too_slow")
        until(server, RUNNING, 0)


def test_who_reads_slowly_gets_much_and_nothing_piles_up(before: Front, server: Running) -> None:
    looks: list[int] = []
    heard = 0
    with begin(server, model="flood") as line:
        while heard < MUCH_BYTES:
            if heard >= len(looks) * LOOK_BYTES:
                looks.append(held(server, before))
            data = line.socket.recv(2**20)
            assert data
            heard += len(data)
    until(server, ACTIVE, 0)
    assert before.passed - heard < HELD_BYTES
    assert max(looks) - looks[0] < GROWTH_BYTES
