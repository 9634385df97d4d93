"""How much each key may ask in a minute: requests, and tokens.

Each is a bucket that holds a minute's worth and fills at an even rate. A request is paid when it comes; one for which
upstreams are asked several times (`n`, lists of prompts) costs as many, as soon as that is known. Tokens are paid when
they are known, after the answer: a bucket may then be in debt, and who owes waits until it is paid.

A bucket is two numbers, which may be kept where several processes share them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from welldone.gateway.errors import ApiError
from welldone.server.access.store import LimitCount, SharedStore, StoreUnavailableError

_MINUTE_S = 60.0

_UNITS = ("requests", "tokens")
"""Each principal has a bucket of each."""

_EPSILON = 1e-9
"""What adding up fractions may lose: who comes exactly when told is not refused for it."""

BucketUpdate = Callable[[float, float], tuple[float, float]]
"""New numbers of a bucket out of the old: its level, and when it was filled up to there."""


class BucketLevel(msgspec.Struct, frozen=True):
    """How full a bucket is."""

    limit: int
    remaining: int


class UsageTotals(msgspec.Struct):
    """What somebody has used since the start."""

    requests: int = 0
    tokens: int = 0

    def plus(self, other: "UsageTotals") -> "UsageTotals":
        """Both together."""
        return UsageTotals(self.requests + other.requests, self.tokens + other.tokens)


class RateLimitStatus(msgspec.Struct, frozen=True):
    """What somebody may still ask for, and has had; None: without a limit."""

    name: str
    requests: BucketLevel | None
    tokens: BucketLevel | None
    spent: UsageTotals


class RateLimitedKey(Protocol):
    """A key that may have limits of its own; None: those of all."""

    @property
    def name(self) -> str: ...

    @property
    def requests_per_minute(self) -> int | None: ...

    @property
    def tokens_per_minute(self) -> int | None: ...


class BucketStorage(Protocol):
    """Where buckets are kept, two numbers each, both 0 at first."""

    def update(self, index: int, change: BucketUpdate) -> tuple[float, float]:
        """Change the numbers of a bucket, with nobody in between, and give the new ones."""


class InMemoryBucketStorage:
    """The numbers of one process."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[float, float]] = {}

    def update(self, index: int, change: BucketUpdate) -> tuple[float, float]:
        """Change the numbers of a bucket, and give the new ones."""
        new = self._buckets[index] = change(*self._buckets.get(index, (0.0, 0.0)))
        return new


class TokenBucket:
    """So many units a minute."""

    def __init__(self, unit: str, per_minute: int, storage: BucketStorage, index: int) -> None:
        self.unit = unit
        self.size = per_minute
        self._storage = storage
        self._index = index

    def wait_s(self, now: float) -> float:
        """How long until there is a whole unit; 0 where there is one."""
        missing = 1 - self._refill_and_take(0, now)
        return missing / self._rate if missing > _EPSILON else 0.0

    def take(self, units: int, now: float) -> None:
        """Take so many, also such as are not there."""
        self._refill_and_take(units, now)

    def try_take(self, now: float) -> bool:
        """Take a unit, if there is one, and tell whether there was."""
        was_there = False

        def change(level: float, filled_at: float) -> tuple[float, float]:
            nonlocal was_there
            level, filled_at = self._refilled(level, filled_at, now)
            was_there = level >= 1 - _EPSILON
            return level - was_there, filled_at

        self._storage.update(self._index, change)
        return was_there

    def set_level(self, level: float, now: float) -> None:
        """So many are there now, as somebody else has counted."""
        self._storage.update(self._index, lambda *_: (level, now))

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's three headers: the size, what is left, and when it will be full."""
        level = self._refill_and_take(0, now)
        return {
            f"x-ratelimit-limit-{self.unit}": str(self.size),
            f"x-ratelimit-remaining-{self.unit}": str(_available_units(level)),
            f"x-ratelimit-reset-{self.unit}": format_duration((self.size - level) / self._rate),
        }

    def level(self, now: float) -> BucketLevel:
        """How full it is; nothing is taken."""
        return BucketLevel(self.size, _available_units(self._refill_and_take(0, now)))

    @property
    def _rate(self) -> float:
        return self.size / _MINUTE_S

    def _refill_and_take(self, units: int, now: float) -> float:
        """Fill up to now, take so many out, and give what is left."""

        def change(level: float, filled_at: float) -> tuple[float, float]:
            level, filled_at = self._refilled(level, filled_at, now)
            return level - units, filled_at

        return self._storage.update(self._index, change)[0]

    def _refilled(self, level: float, filled_at: float, now: float) -> tuple[float, float]:
        if not filled_at:  # nobody has used it yet
            return float(self.size), now
        # Another process may have looked at its clock after us and have come first: that time is not counted twice.
        later = max(filled_at, now)
        return min(float(self.size), level + (later - filled_at) * self._rate), later


class RateLimiter:
    """The buckets of all who ask. A limit of 0 is none.

    `named` are keys with limits of their own. Processes that share `numbers` name all `principals` in one order, from
    which the places of their buckets follow. Who is not named has the next place: a principal is a key, or nobody,
    and there are no more of them than keys were given out.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int,
        tokens_per_minute: int,
        named: Iterable[RateLimitedKey] = (),
        principals: Iterable[str] = (),
        storage: BucketStorage | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._default_limits = (requests_per_minute, tokens_per_minute)
        self._key_limits: dict[str, tuple[int, int]] = {}
        self._storage = InMemoryBucketStorage() if storage is None else storage
        self._clock = clock
        self._buckets: dict[str, dict[str, TokenBucket]] = {}
        self._totals: dict[str, UsageTotals] = {}
        for key in named:
            self.set_rates(key)
        for principal in principals:
            self._buckets_of(principal)

    def set_rates(self, key: RateLimitedKey) -> None:
        """A key with limits of its own. One whose limits change keeps what it had left."""
        common_requests, common_tokens = self._default_limits
        sizes = (
            common_requests if key.requests_per_minute is None else key.requests_per_minute,
            common_tokens if key.tokens_per_minute is None else key.tokens_per_minute,
        )
        if self._key_limits.get(key.name) != sizes:
            self._key_limits[key.name] = sizes
            if key.name in self._buckets:
                self._buckets[key.name] = self._make_buckets(key.name, list(self._buckets).index(key.name))

    async def admit(self, principal: str) -> dict[str, str]:
        """As `take`, also where others must be asked first."""
        return self.take_request(principal)

    def take_request(self, principal: str) -> dict[str, str]:
        """Count a request, and give the `x-ratelimit-*` headers of its reply; none where there is no limit.

        Raises:
            ApiError: 429 where a bucket is empty. A request that is refused costs nothing.
        """
        now = self._clock()
        return self._request_result(principal, _try_take(self._buckets_of(principal), now), now)

    def _request_result(self, principal: str, is_admitted: bool, now: float) -> dict[str, str]:
        """The headers, or the refusal, after a request was taken or not."""
        buckets = self._buckets_of(principal)
        self._totals[principal].requests += is_admitted
        headers: dict[str, str] = {}
        for bucket in buckets.values():
            headers |= bucket.headers(now)
        if is_admitted:
            return headers
        empty = max(buckets.values(), key=lambda bucket: bucket.wait_s(now))
        wait_s = empty.wait_s(now)
        raise ApiError(
            429,
            f"The limit of {empty.size} {empty.unit} a minute is reached. Try again in {format_duration(wait_s)}.",
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
            headers=headers,
        )

    def charge_requests(self, principal: str, requests: int) -> None:
        """Count what a request, which was taken, costs beyond one: an upstream is asked so many times more. As with
        tokens, who owes waits until it is paid."""
        if requests > 0 and (bucket := self._buckets_of(principal).get("requests")):
            bucket.take(requests, self._clock())

    def charge_tokens(self, principal: str, tokens: int) -> None:
        """Count the tokens of an answer, its prompt's and its own."""
        if bucket := self._buckets_of(principal).get("tokens"):
            bucket.take(tokens, self._clock())
        self._totals[principal].tokens += tokens

    async def close(self) -> None:
        """Nothing more is counted."""

    @property
    def principals(self) -> list[str]:
        """All who have buckets, or have asked."""
        return [name for name, buckets in self._buckets.items() if buckets or self._totals[name].requests]

    def status(self, principal: str) -> RateLimitStatus:
        """What somebody may still ask for. What was spent is that of this process."""
        buckets, now = self._buckets_of(principal), self._clock()
        requests, tokens = (buckets[unit].level(now) if unit in buckets else None for unit in _UNITS)
        return RateLimitStatus(principal, requests, tokens, msgspec.structs.replace(self._totals[principal]))

    def totals(self) -> dict[str, UsageTotals]:
        """What each who has asked has used in this process."""
        return {name: spent for name, spent in self._totals.items() if spent.requests}

    def _buckets_of(self, principal: str) -> dict[str, TokenBucket]:
        found = self._buckets.get(principal)
        if found is None:
            found = self._buckets[principal] = self._make_buckets(principal, len(self._buckets))
            self._totals[principal] = UsageTotals()
        return found

    def _make_buckets(self, principal: str, index: int) -> dict[str, TokenBucket]:
        first = index * len(_UNITS)
        return {
            unit: TokenBucket(unit, size, self._storage, first + number)
            for number, (unit, size) in enumerate(zip(_UNITS, self._limits_of(principal), strict=True))
            if size > 0
        }

    def _limits_of(self, principal: str) -> tuple[int, int]:
        return self._key_limits.get(principal, self._default_limits)


def _available_units(level: float) -> int:
    """The units of a bucket that can be taken."""
    return max(0, math.floor(level + _EPSILON))


def _try_take(buckets: dict[str, TokenBucket], now: float) -> bool:
    """Take a request, if nothing is owed, and tell whether it was taken."""
    if (tokens := buckets.get("tokens")) and tokens.wait_s(now) > 0:
        return False
    requests = buckets.get("requests")
    return requests is None or requests.try_take(now)


def format_duration(seconds: float) -> str:
    """A time as OpenAI writes it: `20ms`, `1s`, `8.64s`, `6m0s`. Rounded up: who waits so long has waited enough."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    whole = math.ceil(milliseconds / 1000)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes}m{whole % 60}s" if hours else f"{minutes}m{whole % 60}s"


# Limits that several front ends share: the store counts, and our own buckets are a copy of what it last said.
#
# So there is something to go on with where the store is away: each then counts on for itself.


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
