"""Memory budget for the bodies of all running requests: received from clients, and not yet sent to backends."""

import asyncio
from typing import Protocol

BODY_BUDGET_BYTES = 256 * 2**20
"""Total. A client's body takes about 1.5 times its size until its answer is complete."""
_POLL_S = 0.01  # servers accept a body within milliseconds


class BodyHolder(Protocol):
    """An attempt that sends a body to a backend."""

    @property
    def pending_body_bytes(self) -> int:
        """Bytes of the body that are not sent yet."""


class BodyBudget:
    """Counts the bytes of request bodies."""

    def __init__(self) -> None:
        self.client_bytes = 0
        """Bytes of clients' bodies."""
        self._holders: set[BodyHolder] = set()
        self._lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the budget is exceeded."""
        if not self._holders:
            return self.client_bytes > BODY_BUDGET_BYTES
        pending = {holder: holder.pending_body_bytes for holder in self._holders}
        self._holders = {holder for holder, size in pending.items() if size}  # a body that was sent is not sent again
        return self.client_bytes + sum(pending.values()) > BODY_BUDGET_BYTES

    async def reserve(self, holder: BodyHolder) -> None:
        """Wait until the budget has room, then count the holder's body until `release`.

        The caller builds the body before its next await: the next caller then sees its size. One body is always
        admitted: otherwise clients' bodies alone could block all requests.
        """
        if self._holders and (self._lock.locked() or self.is_full):
            async with self._lock:
                while self.is_full and any(other.pending_body_bytes for other in self._holders):  # noqa: ASYNC110 - sockets have no event for this
                    await asyncio.sleep(_POLL_S)
        self._holders.add(holder)

    def release(self, holder: BodyHolder) -> None:
        """Count the holder's body no longer."""
        self._holders.discard(holder)
