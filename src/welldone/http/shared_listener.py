"""Connections of worker processes that listen on the same sockets, spread evenly.

Of several processes that wait for a connection, the kernel may wake the same one again and again: 17 of 20 connections
came to one of two. So a process that has more connections than another lets a moment pass before it accepts one.
"""

import asyncio
import mmap
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

_WAIT_S = 0.001  # an idle process accepts within 0.1 ms
_RETRY_S = 1.0  # after an error: there is no descriptor
_ACCEPTED_AT_ONCE = 16
_PAIR = struct.Struct("=qq")


class WorkerLoads:
    """The load of each of `count` workers, and what was lost with those that died, in memory that forks share.

    A worker writes its own load; only the supervisor records deaths.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # Of each worker its connections and requests; before them deaths, and requests that they cut.
        self._memory = mmap.mmap(-1, (count + 1) * _PAIR.size)

    def publish(self, worker: int, connections: int, requests: int) -> None:
        """Set the open connections and running requests of a worker, from 1 to `count`."""
        _PAIR.pack_into(self._memory, worker * _PAIR.size, connections, requests)

    def is_ahead(self, worker: int, more: int = 0) -> bool:
        """Whether a worker has more connections than another, with `more` that it has not published yet."""
        return self._read(worker)[0] + more > min(self._read(other)[0] for other in range(1, self._count + 1))

    def record_death(self, worker: int) -> int:
        """Count a worker that died, and return how many requests it cut."""
        (deaths, cut), (_, requests) = self.deaths, self._read(worker)
        self.publish(worker, 0, 0)
        _PAIR.pack_into(self._memory, 0, deaths + 1, cut + requests)
        return requests

    @property
    def deaths(self) -> tuple[int, int]:
        """Number of workers that died, and of requests that they cut."""
        return self._read(0)

    def _read(self, index: int) -> tuple[int, int]:
        first, second = _PAIR.unpack_from(self._memory, index * _PAIR.size)
        return first, second


class SharedListener:
    """Accepts connections on sockets that other processes accept on as well.

    `connect` is called with each connection. `is_ahead` returns whether another process should accept the next one; it
    is called with the number of connections that `connect` has not finished.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        connect: Callable[[socket.socket], Awaitable[object]],
        is_ahead: Callable[[int], bool],
    ) -> None:
        self.sockets = sockets
        self._connect = connect
        self._is_ahead = is_ahead
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for sock in sockets:
            self._loop.add_reader(sock, self._on_readable, sock)

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()

    def _on_readable(self, sock: socket.socket) -> None:
        if self._is_ahead(len(self._connecting)):
            self._pause(sock, _WAIT_S)
        else:
            self._accept(sock)

    def _pause(self, sock: socket.socket, time_s: float) -> None:
        self._loop.remove_reader(sock)
        self._loop.call_later(time_s, self._continue, sock)

    def _continue(self, sock: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(sock, self._on_readable, sock)
            self._accept(sock)

    def _accept(self, sock: socket.socket) -> None:
        """Accept a connection, and more if this process is not ahead then."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # another process was faster, or the client has left
            except OSError:
                self._pause(sock, _RETRY_S)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._start(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
            if self._is_ahead(len(self._connecting)):
                return

    async def _start(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the TLS handshake failed
            await self._connect(connection)
