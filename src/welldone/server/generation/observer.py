"""Observers of the bytes that a server sends: the trace recorder and the inspector."""

from collections.abc import Mapping
from typing import Protocol

SAFE_HEADERS = frozenset(
    {"cache-control", "content-encoding", "content-length", "content-type", "date", "retry-after", "server"}
    | {"transfer-encoding", "x-accel-buffering", "x-request-id"}
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
