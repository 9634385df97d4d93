"""Listening sockets and the file descriptor limit.

Sockets are bound before there is an event loop, so that several worker processes can accept on the same ones.
"""

import errno
import resource
import socket
from contextlib import suppress

BACKLOG = 1024
"""Connections that wait for accept(); the kernel caps it at net.core.somaxconn, 4,096 on Linux."""

_OTHER_FILES = 64
"""Descriptors that are not client connections: a server without models has about 20, each engine adds a few."""

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
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
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
