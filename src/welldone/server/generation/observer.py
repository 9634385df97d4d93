"""Observers of the bytes that a server sends: the trace recorder, the inspector, or both."""

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
"""Reply headers without secrets. Observers store no others."""


class StreamObserver(Protocol):
    """Receives one exchange."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the status and headers."""

    def data(self, data: bytes) -> None:
        """Receive bytes of the body."""

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Receive the end, with an error message if the reply is incomplete. Later calls are ignored."""


class CompositeObserver:
    """Forwards one exchange to several observers."""

    def __init__(self, observers: Sequence[StreamObserver]) -> None:
        self._observers = observers

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Forward the status and headers."""
        for observer in self._observers:
            observer.head(status, headers)

    def data(self, data: bytes) -> None:
        """Forward bytes of the body."""
        for observer in self._observers:
            observer.data(data)

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Forward the end."""
        for observer in self._observers:
            observer.end(error, is_aborted=is_aborted)
