"""Detectors of the fault plan: each detects what it is for."""

import socket

import pytest

from faults.canaries import Artifact
from faults.hygiene import is_hung_up
from faults.ssrf import trap
from faults.web_access import APP, SETUPS, Kind, Name, Page, Visit, right
from tests.support.server import KEY


def test_a_trap_counts_connections_on_each_address() -> None:
    with trap() as made:
        assert made.caught() == 0
        hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            socket.create_connection((host, made.port)).close()
        assert made.caught() == len(hosts)
        assert made.caught() == 0


def test_a_key_is_found_and_not_repeated_in_the_report() -> None:
    artifact = Artifact("a log", f"… status=401 key={KEY}\n", (KEY, "another"))
    (hit,) = artifact.hits
    assert "a log" in hit
    assert KEY not in hit
    assert Artifact("a log", "nothing", (KEY,)).hits == []


@pytest.mark.parametrize(
    ("received", "is_so"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", True),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nconnection: close", False),
    ],
)
def test_connection_close_is_detected(received: bytes, is_so: bool) -> None:
    assert is_hung_up(received) is is_so


@pytest.mark.parametrize(
    ("house", "name", "page", "kind", "status", "allowed_origin"),
    [
        (0, "own", "none", "ask", 200, None),
        (0, "own", "same", "ask", 200, None),
        (0, "own", "foreign", "ask", 403, None),
        (0, "own", "app", "preflight", 403, None),
        (0, "foreign", "same", "look", 403, None),
        (0, "bare", "none", "look", 403, None),
        (0, "own", "none", "image", 403, None),
        (1, "named", "app", "preflight", 204, APP),
        (1, "foreign", "app", "ask", 403, None),
        (2, "bare", "none", "ask", 200, None),
        (2, "foreign", "same", "ask", 403, None),
        (3, "foreign", "same", "ask", 200, None),
        (5, "own", "foreign", "ask", 200, "*"),
        (5, "foreign", "foreign", "ask", 403, None),
        (5, "broken", "none", "ask", 400, None),
    ],
)
def test_the_expected_reply_to_a_browser(
    house: int, name: Name, page: Page, kind: Kind, status: int, allowed_origin: str | None
) -> None:
    assert right(SETUPS[house], Visit("a", name, "b", page, kind)) == (status, allowed_origin)
