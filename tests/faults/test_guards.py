"""The traps and judges of the plan: each sees what it is there for."""

import socket

import pytest

from faults.canaries import Place
from faults.doors import APP, HOUSES, Kind, Name, Page, Visit, right
from faults.hygiene import is_hung_up
from faults.reaching import trap
from tests.live.server import KEY


def test_a_trap_counts_who_comes_at_each_of_its_addresses() -> None:
    with trap() as made:
        assert made.caught() == 0
        hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            socket.create_connection((host, made.port)).close()
        assert made.caught() == len(hosts)
        assert made.caught() == 0


def test_a_key_is_found_wherever_it_stands_and_is_not_said_again() -> None:
    place = Place("a log", f"… status=401 key={KEY}\n", (KEY, "another"))
    (hit,) = place.hits
    assert "a log" in hit
    assert KEY not in hit
    assert Place("a log", "nothing", (KEY,)).hits == []


@pytest.mark.parametrize(
    ("heard", "is_so"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", True),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nconnection: close", False),
    ],
)
def test_a_reply_says_whether_it_is_the_last(heard: bytes, is_so: bool) -> None:
    assert is_hung_up(heard) is is_so


@pytest.mark.parametrize(
    ("house", "name", "page", "kind", "status", "told"),
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
def test_what_a_browser_should_get(
    house: int, name: Name, page: Page, kind: Kind, status: int, told: str | None
) -> None:
    assert right(HOUSES[house], Visit("a", name, "b", page, kind)) == (status, told)
