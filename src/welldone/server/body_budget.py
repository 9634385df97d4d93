"""The bodies of all requests that are being answered, counted: those of clients, and those on their way to servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

BODY_BUDGET_BYTES = 256 * 2**20
"""Of all of them. Each of a client's is held about one and a half times until its answer is whole."""
_POLL_S = 0.01  # how often it is looked whether there is room again: servers take a body in milliseconds


class BodyHolder(Protocol):
    """Has a body for a server."""

    @property
    def pending_body_bytes(self) -> int:
        """How much of it the server has not taken yet."""


class BodyBudget:
    """How many bytes there are."""

    def __init__(self) -> None:
        self.client_bytes = 0
        """Of clients' bodies."""
        self._holders: set[BodyHolder] = set()
        self._lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether there is too much already."""
        return self.client_bytes + sum(holder.pending_body_bytes for holder in self._holders) > BODY_BUDGET_BYTES

    @asynccontextmanager
    async def reserve(self, holder: BodyHolder) -> AsyncIterator[None]:
        """Wait for room, then count what is held. Make the body after that, and without waiting: the next looks then.

        One body at a time there is always room for: else those of clients could keep out all others.
        """
        async with self._lock:
            while self.is_full and any(other.pending_body_bytes for other in self._holders):  # noqa: ASYNC110 - sockets tell nobody
                await asyncio.sleep(_POLL_S)
            self._holders.add(holder)
        try:
            yield
        finally:
            self._holders.discard(holder)
