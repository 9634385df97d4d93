"""File descriptor limit: it is raised as far as needed, and clients are limited to what it allows."""

import resource

import pytest

from welldone.http import sockets

NO_LIMIT = resource.RLIM_INFINITY


class Limits:
    """A fake of getrlimit and setrlimit; values above `most` are rejected."""

    def __init__(self, soft: int, hard: int, most: int = 10**9) -> None:
        self.now, self._most = (soft, hard), most

    def get(self, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > self._most:
            raise ValueError
        self.now = wanted


@pytest.mark.parametrize(
    ("soft", "hard", "most", "clients", "after"),
    [
        (1_024, 524_288, 10**9, 1_000, 2_064),
        (1_024, NO_LIMIT, 10**9, 1_000, 2_064),
        (1_024, 1_064, 10**9, 500, 1_064),
        (4_096, 4_096, 10**9, 1_000, 4_096),
        (256, NO_LIMIT, 2_000, 96, 256),
        (NO_LIMIT, NO_LIMIT, 10**9, 1_000, NO_LIMIT),
        (20, 20, 10**9, 1, 20),
    ],
)
def test_the_limit_is_raised_to_what_the_clients_need(
    soft: int, hard: int, most: int, clients: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(soft, hard, most)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert sockets.reserve_descriptors(1_000) == clients
    assert limits.now == (after, hard)
