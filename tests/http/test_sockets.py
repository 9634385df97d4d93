"""Listening sockets that are bound before there is an event loop."""

import socket
from typing import Any

import pytest

from welldone.http import sockets

BOTH = [
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
]


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_bound_socket_accepts_connections() -> None:
    (bound,) = sockets.bind_sockets("127.0.0.1", 0)
    with bound, socket.create_connection(bound.getsockname()):
        bound.accept()[0].close()


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_a_host_share_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*BOTH, *BOTH])
    bound = sockets.bind_sockets("localhost", 0)
    assert [sock.getsockname()[0] for sock in bound] == ["127.0.0.1", "::1"]
    assert len({sock.getsockname()[1] for sock in bound}) == 1
    sockets.close_sockets(bound)


def test_an_unavailable_address_is_skipped_if_another_is_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737): no machine has it.
    unavailable: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*unavailable, BOTH[0]])
    bound = sockets.bind_sockets("localhost", 0)
    assert [sock.getsockname()[0] for sock in bound] == ["127.0.0.1"]
    sockets.close_sockets(bound)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: unavailable)
    with pytest.raises(OSError, match="assign"):
        sockets.bind_sockets("example", 0)


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as in_use, pytest.raises(OSError, match="in use"):
        sockets.bind_sockets("127.0.0.1", in_use.getsockname()[1])
