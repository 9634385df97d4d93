"""Limits that several front ends share: the store counts, and our own buckets are a copy of what it last said.

So there is something to go on with where the store is away: each then counts on for itself.
"""

import asyncio
from typing import Any

from welldone.serve.limits import RateLimiter
from welldone.serve.store import StoreUnavailableError, LimitCount, SharedStore

_FINAL_SYNC_S = 2.0
"""For tokens that the store has not been told when the server ends: a thousand keys take one."""


class SharedRateLimiter(RateLimiter):
    """Limits in a store."""

    def __init__(self, store: SharedStore, **rest: Any) -> None:  # noqa: ANN401 - those of `Limits`
        super().__init__(**rest)
        self._store = store
        self._unsynced: dict[str, tuple[int, int]] = {}
        """Requests and tokens that the store has not been told yet, by who had them."""
        self._sync_task: asyncio.Task[None] | None = None

    async def admit(self, principal: str) -> dict[str, str]:
        """As `take`, where all count together."""
        if not self._buckets_of(principal):
            return self.take_request(principal)
        try:
            count = await self._count_in_store(principal, requests=1)
        except StoreUnavailableError:
            return self.take_request(principal)
        now = self._clock()
        self._copy_levels(principal, count, now)
        return self._request_result(principal, count.is_admitted, now)

    def charge_requests(self, principal: str, requests: int) -> None:
        """Count requests to upstreams beyond the first. The store is told when there is time."""
        super().charge_requests(principal, requests)
        if requests > 0 and "requests" in self._buckets_of(principal):
            self._schedule_sync(principal, requests, 0)

    def charge_tokens(self, principal: str, tokens: int) -> None:
        """Count the tokens of an answer. The store is told when there is time, and nobody waits for it."""
        super().charge_tokens(principal, tokens)
        if tokens > 0 and "tokens" in self._buckets_of(principal):
            self._schedule_sync(principal, 0, tokens)

    def _schedule_sync(self, principal: str, requests: int, tokens: int) -> None:
        if not self._store.is_up:
            return
        owed_requests, owed_tokens = self._unsynced.get(principal, (0, 0))
        self._unsynced[principal] = (owed_requests + requests, owed_tokens + tokens)
        if self._sync_task is None or self._sync_task.done():
            self._sync_task = asyncio.create_task(self._sync())

    async def close(self) -> None:
        """Tell the store what it has not been told."""
        if self._sync_task is not None:
            await asyncio.wait([self._sync_task], timeout=_FINAL_SYNC_S)
            self._sync_task.cancel()

    async def _sync(self) -> None:
        while self._unsynced:
            principal, (requests, tokens) = self._unsynced.popitem()
            try:
                count = await self._count_in_store(principal, owed=requests, tokens=tokens)
            except StoreUnavailableError:  # they are counted here
                self._unsynced.clear()
            else:
                self._copy_levels(principal, count, self._clock())

    async def _count_in_store(self, principal: str, *, requests: int = 0, owed: int = 0, tokens: int = 0) -> LimitCount:
        sizes = self._limits_of(principal)
        return await self._store.call(
            lambda link: link.count(principal, sizes, requests=requests, owed=owed, tokens=tokens)
        )

    def _copy_levels(self, principal: str, count: LimitCount, now: float) -> None:
        owed_requests, owed_tokens = self._unsynced.get(principal, (0, 0))
        levels = {"requests": count.requests - owed_requests, "tokens": count.tokens - owed_tokens}
        for unit, bucket in self._buckets_of(principal).items():
            bucket.set_level(levels[unit], now)
