"""Sockets that listen, made before there is an event loop, so that several processes can accept on the same ones."""

import errno
import socket

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
