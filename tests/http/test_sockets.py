"""Sockets that listen before there is an event loop."""

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


def test_who_connects_is_there_to_be_accepted() -> None:
    (made,) = sockets.bind_sockets("127.0.0.1", 0)
    with made, socket.create_connection(made.getsockname()):
        made.accept()[0].close()


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_a_host_get_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*BOTH, *BOTH])
    made = sockets.bind_sockets("localhost", 0)
    assert [one.getsockname()[0] for one in made] == ["127.0.0.1", "::1"]
    assert len({one.getsockname()[1] for one in made}) == 1
    sockets.close_sockets(made)


def test_an_address_that_the_machine_does_not_have_is_left_out_where_there_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 192.0.2.0/24 is for examples: no machine has it.
    elsewhere: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*elsewhere, BOTH[0]])
    made = sockets.bind_sockets("localhost", 0)
    assert [one.getsockname()[0] for one in made] == ["127.0.0.1"]
    sockets.close_sockets(made)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere)
    with pytest.raises(OSError, match="assign"):
        sockets.bind_sockets("example", 0)


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        sockets.bind_sockets("127.0.0.1", taken.getsockname()[1])
