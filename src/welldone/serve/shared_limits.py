"""Limits that several front ends share: the store counts, and our own buckets are a copy of what it last said.

So there is something to go on with where the store is away: each then counts on for itself.
"""

import asyncio
from typing import Any

from welldone.serve.limits import Limits
from welldone.serve.store import AwayError, Count, Store

_LAST_S = 2.0
"""For tokens that the store has not been told when the server ends: a thousand keys take one."""


class SharedLimits(Limits):
    """Limits in a store."""

    def __init__(self, store: Store, **rest: Any) -> None:  # noqa: ANN401 - those of `Limits`
        super().__init__(**rest)
        self._store = store
        self._owed: dict[str, tuple[int, int]] = {}
        """Requests and tokens that the store has not been told yet, by who had them."""
        self._telling: asyncio.Task[None] | None = None

    async def admit(self, principal: str) -> dict[str, str]:
        """As `take`, where all count together."""
        if not self._of(principal):
            return self.take(principal)
        try:
            count = await self._ask(principal, requests=1)
        except AwayError:
            return self.take(principal)
        now = self._clock()
        self._copy(principal, count, now)
        return self._taken(principal, count.is_in, now)

    def owe(self, principal: str, requests: int) -> None:
        """Count requests to upstreams beyond the first. The store is told when there is time."""
        super().owe(principal, requests)
        if requests > 0 and "requests" in self._of(principal):
            self._tell_soon(principal, requests, 0)

    def spend(self, principal: str, tokens: int) -> None:
        """Count the tokens of an answer. The store is told when there is time, and nobody waits for it."""
        super().spend(principal, tokens)
        if tokens > 0 and "tokens" in self._of(principal):
            self._tell_soon(principal, 0, tokens)

    def _tell_soon(self, principal: str, requests: int, tokens: int) -> None:
        if not self._store.is_up:
            return
        owed_requests, owed_tokens = self._owed.get(principal, (0, 0))
        self._owed[principal] = (owed_requests + requests, owed_tokens + tokens)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def close(self) -> None:
        """Tell the store what it has not been told."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=_LAST_S)
            self._telling.cancel()

    async def _tell(self) -> None:
        while self._owed:
            principal, (requests, tokens) = self._owed.popitem()
            try:
                count = await self._ask(principal, owed=requests, tokens=tokens)
            except AwayError:  # they are counted here
                self._owed.clear()
            else:
                self._copy(principal, count, self._clock())

    async def _ask(self, principal: str, *, requests: int = 0, owed: int = 0, tokens: int = 0) -> Count:
        sizes = self._sizes_of(principal)
        return await self._store.ask(
            lambda link: link.count(principal, sizes, requests=requests, owed=owed, tokens=tokens)
        )

    def _copy(self, principal: str, count: Count, now: float) -> None:
        owed_requests, owed_tokens = self._owed.get(principal, (0, 0))
        levels = {"requests": count.requests - owed_requests, "tokens": count.tokens - owed_tokens}
        for unit, bucket in self._of(principal).items():
            bucket.set(levels[unit], now)
