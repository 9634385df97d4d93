"""Who keeps what a server says to us, as it comes: a recorder, a page that watches, or both."""

from collections.abc import Mapping, Sequence
from typing import Protocol

SAFE_HEADERS = frozenset(
    {
        "cache-control",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "retry-after",
        "server",
        "transfer-encoding",
        "x-accel-buffering",
        "x-request-id",
    }
)
"""Headers of replies that hold no secret. Others are not kept."""


class StreamObserver(Protocol):
    """Keeps one exchange."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""

    def data(self, data: bytes) -> None:
        """More of its body."""

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """It has ended: whole, or with what went wrong, in words. What is said of it later counts less."""


class CompositeObserver:
    """Tells several of the same exchange."""

    def __init__(self, observers: Sequence[StreamObserver]) -> None:
        self._observers = observers

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        for tape in self._observers:
            tape.head(status, headers)

    def data(self, data: bytes) -> None:
        """More of its body."""
        for tape in self._observers:
            tape.data(data)

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """It has ended."""
        for tape in self._observers:
            tape.end(error, is_aborted=is_aborted)
