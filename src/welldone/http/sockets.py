"""Sockets that listen, made before there is an event loop, so that several processes can accept on the same ones."""

import errno
import resource
import socket
from contextlib import suppress

# How many files and connections this process may have open at once.


_OTHER_FILES = 64
"""Files that are no clients: a bare server has some 20, and each engine a few more."""


def reserve_descriptors(clients: int) -> int:
    """How many of so many clients may be connected at once: each may need a connection to a server besides its own.

    Where the system's limit is too low, as much is taken as it gives. Most begin with 1,024, for programs of old.
    Who took more clients than that could not reach any server for them, and would find every server broken.
    """
    needed = 2 * clients + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # less than nothing: no limit
        wanted = min(needed, hard) if hard >= 0 else needed
        with suppress(ValueError, OSError):  # some systems have a limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return clients if soft < 0 else max(1, min(clients, (soft - _OTHER_FILES) // 2))


_BACKLOG = 1024  # as the HTTP server has it; the kernel cuts it to its own limit
_UNAVAILABLE_ERRNOS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What a machine without IPv6 says of `::1`, which its `localhost` may stand for all the same."""


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket for each address that the host stands for, all on one port, which the system chooses where it is 0.

    Raises:
        OSError: no address of it can be had, or the port is taken on one.
    """
    sockets: list[socket.socket] = []
    trouble: OSError | None = None
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind_socket(family, (address[0], chosen, *address[2:])))
        except OSError as error:
            trouble = error
            if error.errno not in _UNAVAILABLE_ERRNOS:
                break
    if trouble is not None and (not sockets or trouble.errno not in _UNAVAILABLE_ERRNOS):
        close_sockets(sockets)
        raise trouble
    return sockets


def close_sockets(sockets: list[socket.socket]) -> None:
    """Close all of them."""
    for one in sockets:
        one.close()


def _bind_socket(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left can be had again
        if family == socket.AF_INET6:  # else it would take the port for IPv4 as well
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
