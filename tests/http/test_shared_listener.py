"""Processes that accept on the same sockets have about as many connections."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from tests.http.aio import run
from tests.table import table
from welldone.http.shared_memory import WorkerLoads
from welldone.http.sockets import SharedListener, bind_sockets

CONNECTIONS = 20


class Accepting:
    """A process, played by a listener with its own copy of the sockets."""

    def __init__(self, sockets: list[socket.socket], loads: WorkerLoads, number: int) -> None:
        self.connections: list[socket.socket] = []
        self.has_all = asyncio.Event()
        self._loads, self._number = loads, number
        copies = [sock.dup() for sock in sockets]
        self.listener = SharedListener(copies, self._connect, lambda more: loads.is_ahead(number, more))

    async def _connect(self, connection: socket.socket) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # as a handshake takes time
        self.connections.append(connection)
        self._loads.publish(self._number, len(self.connections), 0)
        if len(self.connections) == CONNECTIONS:
            self.has_all.set()


@asynccontextmanager
async def sharing(count: int, playing: int) -> AsyncIterator[tuple[list[Accepting], tuple[str, int]]]:
    """Yield those of `count` processes that are played, and their address."""
    sockets, loads = bind_sockets("127.0.0.1", 0), WorkerLoads(count)
    crew = [Accepting(sockets, loads, number) for number in range(1, playing + 1)]
    try:
        yield crew, sockets[0].getsockname()
    finally:
        for one in crew:
            one.listener.close()
            for connection in one.connections:
                connection.close()
        for sock in sockets:
            sock.close()


async def _connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


@table("count", [2, 4])
def test_connections_are_spread_evenly(count: int) -> None:
    async def work() -> None:
        async with sharing(count, count) as (crew, address):
            clients = []
            for number in range(1, CONNECTIONS + 1):
                clients.append(await _connect(address))
                while sum(len(one.connections) for one in crew) < number:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0)
            assert [len(one.connections) for one in crew] == [CONNECTIONS // count] * count
            for client in clients:
                client.close()

    run(work())


@table("count", [2, 4])
def test_connections_that_come_at_once_are_spread_evenly(count: int) -> None:
    async def work() -> None:
        async with sharing(count, count) as (crew, address):
            clients = await asyncio.gather(*(_connect(address) for _ in range(CONNECTIONS)))
            while sum(len(one.connections) for one in crew) < CONNECTIONS:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            assert max(len(one.connections) for one in crew) <= CONNECTIONS // count + 1
            for client in clients:
                client.close()

    run(work())


def test_a_process_that_is_ahead_accepts_what_no_other_takes() -> None:
    async def work() -> None:
        async with sharing(2, 1) as ((one,), address):
            clients = [await _connect(address) for _ in range(CONNECTIONS)]
            await one.has_all.wait()
            for client in clients:
                client.close()

    run(work())


def test_accepting_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(socket.socket):
        errors: ClassVar[list[int]] = [errno.EMFILE, errno.ECONNABORTED]

        def accept(self) -> tuple[socket.socket, object]:
            if self.errors:
                number = self.errors.pop()
                raise OSError(number, "planted")
            return super().accept()

    async def work() -> None:
        monkeypatch.setattr("welldone.http.sockets._RETRY_S", 0.0)
        accepted = asyncio.get_running_loop().create_future()

        async def connect(connection: socket.socket) -> None:
            connection.close()
            accepted.set_result(None)
            raise ConnectionResetError("planted: the handshake failed")

        with Failing() as listening:
            listening.setblocking(False)
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            listener = SharedListener([listening], connect, lambda _: False)
            (await _connect(listening.getsockname())).close()
            await accepted
            listener.close()

    run(work())


def test_deaths_are_counted_with_the_requests_that_they_cut() -> None:
    loads = WorkerLoads(2)
    loads.publish(1, 5, 3)
    assert loads.is_ahead(1)
    assert loads.record_death(1) == 3
    assert not loads.is_ahead(1)
    assert loads.record_death(2) == 0
    assert loads.deaths == (2, 3)
