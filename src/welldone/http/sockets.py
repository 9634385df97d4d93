"""Listening sockets, the file descriptor limit, and an even spread of connections over worker processes.

Sockets are bound before there is an event loop, so that several worker processes can accept on the same ones. The
kernel may wake the same process for each connection: 17 of 20 connections came to one of two. So a process that has
more connections than another lets a moment pass before it accepts one.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

BACKLOG = 1024
"""Connections that wait for accept(); the kernel caps it at net.core.somaxconn, 4,096 on Linux."""

_OTHER_FILES = 64
"""Descriptors that are not client connections: a server without models has about 20, each engine adds a few."""

_WAIT_S = 0.001  # an idle process accepts within 0.1 ms
_RETRY_S = 1.0  # after an error: there is no descriptor
_ACCEPTED_AT_ONCE = 16

_UNAVAILABLE_ERRNOS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of a machine without IPv6 for `::1`, to which its `localhost` may resolve nevertheless."""


def reserve_descriptors(clients: int) -> int:
    """Raise the descriptor limit for so many clients; return how many clients the limit allows.

    Each client may need an upstream connection besides its own. The usual soft limit is 1,024: a server that accepted
    more clients than its limit allows could not connect to any upstream and would consider all of them broken.
    """
    needed = 2 * clients + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # negative: unlimited
        wanted = min(needed, hard) if hard >= 0 else needed
        with suppress(ValueError, OSError):  # macOS has a lower limit (kern.maxfilesperproc) than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return clients if soft < 0 else max(1, min(clients, (soft - _OTHER_FILES) // 2))


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Open a listening socket for each address of the host, all on one port; with port 0 the system chooses it.

    Raises:
        OSError: no address is available, or the port is in use on one of them.
    """
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    entries = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in entries):
        chosen_port = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind_socket(family, (address[0], chosen_port, *address[2:])))
        except OSError as error:
            failure = error
            if error.errno not in _UNAVAILABLE_ERRNOS:
                break
    if failure is not None and (not sockets or failure.errno not in _UNAVAILABLE_ERRNOS):
        close_sockets(sockets)
        raise failure
    return sockets


def close_sockets(sockets: list[socket.socket]) -> None:
    """Close all sockets."""
    for sock in sockets:
        sock.close()


def _bind_socket(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart must not wait for TIME_WAIT
        if family == socket.AF_INET6:  # otherwise the socket takes the port for IPv4 as well
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


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
