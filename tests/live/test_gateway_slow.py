"""Clients that read slowly, or not at all: the upstream is held back, and nothing piles up in the gateway."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.faults import LINUX, begin, leave, memory_of, metric, post, request, until
from tests.live.raw import LIMIT_S
from tests.live.server import Running
from tests.live.upstream import ACTIVE, RUNNING, Front, Upstream, front, gateway, upstream

pytestmark = LINUX
MUCH_BYTES = 256 * 2**20
"""What the upstream would like to say."""
GROWTH_BYTES = 2**20
HELD_BYTES = 32 * 2**20
"""What the system keeps on the way for those who do not read: some MB for each of four sockets."""


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
    url = f"http://127.0.0.1:{before.port}/v1"
    with gateway(tmp_path, url, options=["--write", "1"]) as running:
        for _ in range(3):
            read(running, 16 * 2**20)
        before.passed = 0
        yield running
        assert running.end() == 0


def read(server: Running, size: int) -> None:
    """Read so much of what never ends, and leave."""
    line = begin(server, model="flood")
    with line:
        heard = 0
        while heard < size:
            data = line.socket.recv(2**20)
            assert data
            heard += len(data)
    until(server, ACTIVE, 0)


def forget_peak(server: Running) -> int:
    """Memory that the server holds now. From here on its peak is watched."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return memory_of(server.process.pid)


def peak(server: Running) -> int:
    """The most memory that it has held since."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_who_never_reads_holds_the_upstream_back_and_is_cut(behind: Upstream, before: Front, server: Running) -> None:
    seen, memory = len(server.log.all), forget_peak(server)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(LIMIT_S)
        client.connect(("127.0.0.1", server.port))
        client.sendall(post(server, request(server, model="flood", stream=True), "Connection: close"))
        server.log.wait("error=client_too_slow", seen=seen)
        behind.until(lambda one: one.seen[-1].end == "left")
        until(server, RUNNING, 0)
    assert metric(server, 'welldone_stream_failures_total{reason="client_too_slow"}') == 1
    assert before.passed < HELD_BYTES
    assert peak(server) - memory < GROWTH_BYTES


def test_who_reads_slowly_gets_much_and_nothing_piles_up(before: Front, server: Running) -> None:
    memory = forget_peak(server)
    heard = 0
    line = begin(server, model="flood")
    while heard < MUCH_BYTES:
        while len(data := line.socket.recv(4096 if heard % 7 else 2**20)) == 2**20:
            heard += len(data)
        assert data
        heard += len(data)
    leave(line)
    until(server, ACTIVE, 0)
    assert before.passed - heard < HELD_BYTES
    assert peak(server) - memory < GROWTH_BYTES
