"""Rate limits per key: requests and tokens per minute, as token buckets.

A bucket holds a minute's limit and refills at a constant rate. A request is charged when it arrives; one that needs
several upstream requests (`n`, lists of prompts) is charged for each as soon as their number is known. Tokens are
charged after the answer: the bucket may then be overdrawn, and requests are rejected until it has refilled.

A bucket is stored as two numbers, which several processes can share.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from welldone.config.server import Config, KeySettings
from welldone.gateway.errors import ApiError
from welldone.server.access.keys import MAX_KEYS, ApiKeys, SharedKey
from welldone.server.access.store import LimitCount, SharedStore, StoreUnavailableError

_MINUTE_S = 60.0

_UNITS = ("requests", "tokens")
"""Each principal has one bucket per unit."""

FIRST_FILE_INDEX = MAX_KEYS + 1
"""Index of the first key of a key file, after all configured keys and requests without a key."""

_FINAL_SYNC_S = 2.0
"""Time at shutdown to report pending charges to the store: a thousand keys take one second."""

_EPSILON = 1e-9
"""Tolerance for rounding errors: a request exactly after its Retry-After is admitted."""

BucketUpdate = Callable[[float, float], tuple[float, float]]
"""Maps the level of a bucket and the time of its last refill to new values."""


class BucketLevel(msgspec.Struct, frozen=True):
    """The state of a bucket."""

    limit: int
    remaining: int


class UsageTotals(msgspec.Struct):
    """Usage of a principal since the start of the process."""

    requests: int = 0
    tokens: int = 0

    def plus(self, added: "UsageTotals") -> "UsageTotals":
        """The sum."""
        return UsageTotals(self.requests + added.requests, self.tokens + added.tokens)


class RateLimitStatus(msgspec.Struct, frozen=True):
    """Remaining limits and usage of a principal; None: no limit."""

    name: str
    requests: BucketLevel | None
    tokens: BucketLevel | None
    spent: UsageTotals


class BucketStorage(Protocol):
    """Storage of buckets, two numbers each, initially 0."""

    def update(self, index: int, change: BucketUpdate) -> tuple[float, float]:
        """Update a bucket atomically and return the new numbers."""


class InMemoryBucketStorage:
    """Buckets of one process."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[float, float]] = {}

    def update(self, index: int, change: BucketUpdate) -> tuple[float, float]:
        """Update a bucket and return the new numbers."""
        new = self._buckets[index] = change(*self._buckets.get(index, (0.0, 0.0)))
        return new


class TokenBucket(msgspec.Struct, frozen=True):
    """A limit of units per minute."""

    unit: str
    size: int
    storage: BucketStorage
    index: int

    def wait_s(self, now: float) -> float:
        """Seconds until a unit is available."""
        missing = 1 - self.take(0, now)
        return missing / self._rate if missing > _EPSILON else 0.0

    def take(self, units: int, now: float) -> float:
        """Take units and return the level; the bucket may be overdrawn."""

        def change(level: float, filled_at: float) -> tuple[float, float]:
            level, filled_at = self._refilled(level, filled_at, now)
            return level - units, filled_at

        return self.storage.update(self.index, change)[0]

    def try_take(self, now: float) -> bool:
        """Take a unit if one is available, and return whether it was."""
        is_available = False

        def change(level: float, filled_at: float) -> tuple[float, float]:
            nonlocal is_available
            level, filled_at = self._refilled(level, filled_at, now)
            is_available = level >= 1 - _EPSILON
            return level - is_available, filled_at

        self.storage.update(self.index, change)
        return is_available

    def set_level(self, level: float, now: float) -> None:
        """Set the level that the shared store reports."""
        self.storage.update(self.index, lambda *_: (level, now))

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's `x-ratelimit-*` headers: the limit, what remains, and the time until it is full."""
        level = self.take(0, now)
        return {
            f"x-ratelimit-limit-{self.unit}": str(self.size),
            f"x-ratelimit-remaining-{self.unit}": str(_available_units(level)),
            f"x-ratelimit-reset-{self.unit}": format_duration((self.size - level) / self._rate),
        }

    def level(self, now: float) -> BucketLevel:
        """The current state."""
        return BucketLevel(self.size, _available_units(self.take(0, now)))

    @property
    def _rate(self) -> float:
        return self.size / _MINUTE_S

    def _refilled(self, level: float, filled_at: float, now: float) -> tuple[float, float]:
        if not filled_at:  # unused so far
            return float(self.size), now
        # Another process may have read the clock later and updated first: do not count the same time twice.
        later = max(filled_at, now)
        return min(float(self.size), level + (later - filled_at) * self._rate), later


class RateLimiter:
    """The buckets of all principals. A limit of 0 is none.

    `named` are keys with limits of their own. Processes that share a `storage` pass all `principals` in the same order,
    which determines the index of their buckets. The keys of a key file have an index of their own. Others get the next
    index; their number is bounded by the number of keys.

    With a `store` that several servers share, the buckets are a copy of its levels: while it is unavailable, each
    process counts for itself.
    """

    def __init__(
        self,
        requests_per_minute: int,
        tokens_per_minute: int,
        *,
        named: Iterable[KeySettings | SharedKey] = (),
        principals: Iterable[str] = (),
        storage: BucketStorage | None = None,
        store: SharedStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._default_limits = (requests_per_minute, tokens_per_minute)
        self._key_limits: dict[str, tuple[int, int]] = {}
        self._storage = InMemoryBucketStorage() if storage is None else storage
        self._store = store
        self._clock = clock
        self._unsynced: dict[str, tuple[int, int]] = {}  # requests and tokens to report to the store, by principal
        self._sync_task: asyncio.Task[None] | None = None
        self._buckets: dict[str, dict[str, TokenBucket]] = {}
        self._slots: dict[str, int] = {}  # of the keys of a key file
        self._totals: dict[str, UsageTotals] = {}
        self._indexes: dict[str, int] = {name: index for index, name in enumerate(principals) if name}
        self._configured = set(self._indexes)
        self._removed: set[str] = set()
        for key in named:
            self.set_rates(key)
        for principal in self._configured:
            self._buckets_of(principal)

    def reload(
        self,
        requests_per_minute: int,
        tokens_per_minute: int,
        *,
        named: Iterable[KeySettings | SharedKey],
        principals: Sequence[str],
        places: Sequence[str] | None = None,
    ) -> None:
        """Set other limits and principals. Those that stay keep their level and usage.

        Processes that share a storage pass the same `places`, which `keep_places` has ordered.
        """
        self._default_limits = (requests_per_minute, tokens_per_minute)
        for name in self._removed - set(principals):  # by the reload before this one
            self._buckets.pop(name, None)
            self._totals.pop(name, None)
        self._removed = self._configured - set(principals)
        if places is None:
            shared_names = [name for name in self._indexes if name not in self._configured]  # in the shared store
            places = keep_places(_in_order(self._indexes), [*principals, *shared_names], self._storage)
        self._configured = set(principals)
        self._indexes = {name: index for index, name in enumerate(places) if name}
        for name in self._removed:
            self._key_limits.pop(name, None)
            self._buckets[name] = {}  # its requests in progress are not charged
        for key in named:
            self.set_rates(key)
        for name in (self._buckets.keys() | self._configured) - self._removed:
            self._buckets[name] = self._make_buckets(name)
        for name in self._buckets:
            self._totals.setdefault(name, UsageTotals())

    def set_rates(self, key: KeySettings | SharedKey) -> None:
        """Set the limits of a key. When they change, the level of its buckets stays."""
        common_requests, common_tokens = self._default_limits
        sizes = (
            common_requests if key.requests_per_minute is None else key.requests_per_minute,
            common_tokens if key.tokens_per_minute is None else key.tokens_per_minute,
        )
        if isinstance(key, SharedKey) and key.slot is not None:
            self._slots[key.name] = key.slot
        if self._key_limits.get(key.name) != sizes:
            self._key_limits[key.name] = sizes
            if key.name in self._buckets:
                self._buckets[key.name] = self._make_buckets(key.name)

    async def admit(self, principal: str) -> dict[str, str]:
        """As `take_request`, counted in the shared store if there is one."""
        if self._store is not None and self._buckets_of(principal):
            with contextlib.suppress(StoreUnavailableError):
                count = await self._count_in_store(self._store, principal, requests=1)
                now = self._clock()
                self._copy_levels(principal, count, now)
                return self._request_result(principal, count.is_admitted, now)
        return self.take_request(principal)

    def take_request(self, principal: str) -> dict[str, str]:
        """Charge a request and return the `x-ratelimit-*` headers of its response.

        Raises:
            ApiError: 429 if a bucket is empty. Rejected requests are not charged.
        """
        buckets = self._buckets_of(principal)
        if not buckets:
            self._totals[principal].requests += 1
            return {}
        now, requests, tokens = self._clock(), buckets.get("requests"), buckets.get("tokens")
        is_overdrawn = tokens is not None and tokens.wait_s(now) > 0
        is_admitted = not is_overdrawn and (requests is None or requests.try_take(now))
        return self._request_result(principal, is_admitted, now)

    def _request_result(self, principal: str, is_admitted: bool, now: float) -> dict[str, str]:
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
            f"Rate limit of {empty.size} {empty.unit} per minute exceeded. Try again in {format_duration(wait_s)}.",
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
            headers=headers,
        )

    def charge_requests(self, principal: str, requests: int) -> None:
        """Charge the upstream requests of an admitted request beyond the first; may overdraw the bucket."""
        if requests > 0 and (bucket := self._buckets_of(principal).get("requests")):
            bucket.take(requests, self._clock())
            self._schedule_sync(principal, requests, 0)

    def charge_tokens(self, principal: str, tokens: int) -> None:
        """Charge the prompt and completion tokens of an answer."""
        if bucket := self._buckets_of(principal).get("tokens"):
            bucket.take(tokens, self._clock())
            if tokens > 0:
                self._schedule_sync(principal, 0, tokens)
        self._totals[principal].tokens += tokens

    async def close(self) -> None:
        """Report pending charges to the store."""
        if self._sync_task is not None:
            await asyncio.wait([self._sync_task], timeout=_FINAL_SYNC_S)
            self._sync_task.cancel()

    @property
    def principals(self) -> list[str]:
        """The principals with limits or requests."""
        return [name for name, buckets in self._buckets.items() if buckets or self._totals[name].requests]

    def status(self, principal: str) -> RateLimitStatus:
        """Remaining limits of a principal, and its usage in this process."""
        buckets, now = self._buckets_of(principal), self._clock()
        requests, tokens = (buckets[unit].level(now) if unit in buckets else None for unit in _UNITS)
        return RateLimitStatus(principal, requests, tokens, msgspec.structs.replace(self._totals[principal]))

    def totals(self) -> dict[str, UsageTotals]:
        """Usage in this process, by principal."""
        return {name: spent for name, spent in self._totals.items() if spent.requests}

    def _buckets_of(self, principal: str) -> dict[str, TokenBucket]:
        buckets = self._buckets.get(principal)
        if buckets is None:
            buckets = self._buckets[principal] = self._make_buckets(principal)
            self._totals[principal] = UsageTotals()
        return buckets

    def _make_buckets(self, principal: str) -> dict[str, TokenBucket]:
        first = self._index_of(principal) * len(_UNITS)
        return {
            unit: TokenBucket(unit, size, self._storage, first + number)
            for number, (unit, size) in enumerate(zip(_UNITS, self._limits_of(principal), strict=True))
            if size > 0
        }

    def _index_of(self, principal: str) -> int:
        if principal in self._slots:
            return FIRST_FILE_INDEX + self._slots[principal]
        if principal not in self._indexes:
            self._indexes[principal] = max(self._indexes.values(), default=-1) + 1
        return self._indexes[principal]

    def _limits_of(self, principal: str) -> tuple[int, int]:
        return self._key_limits.get(principal, self._default_limits)

    def _schedule_sync(self, principal: str, requests: int, tokens: int) -> None:
        """Report charges to the store in the background."""
        if self._store is None or not self._store.is_up:
            return
        owed_requests, owed_tokens = self._unsynced.get(principal, (0, 0))
        self._unsynced[principal] = (owed_requests + requests, owed_tokens + tokens)
        if self._sync_task is None or self._sync_task.done():
            self._sync_task = asyncio.create_task(self._sync(self._store))

    async def _sync(self, store: SharedStore) -> None:
        while self._unsynced:
            principal, (requests, tokens) = self._unsynced.popitem()
            try:
                count = await self._count_in_store(store, principal, owed=requests, tokens=tokens)
            except StoreUnavailableError:  # the local buckets have them
                self._unsynced.clear()
            else:
                self._copy_levels(principal, count, self._clock())

    async def _count_in_store(
        self, store: SharedStore, principal: str, *, requests: int = 0, owed: int = 0, tokens: int = 0
    ) -> LimitCount:
        sizes = self._limits_of(principal)
        return await store.call(
            lambda client: client.count(principal, sizes, requests=requests, owed=owed, tokens=tokens)
        )

    def _copy_levels(self, principal: str, count: LimitCount, now: float) -> None:
        owed_requests, owed_tokens = self._unsynced.get(principal, (0, 0))
        levels = {"requests": count.requests - owed_requests, "tokens": count.tokens - owed_tokens}
        for unit, bucket in self._buckets_of(principal).items():
            bucket.set_level(levels[unit], now)


def keep_places(before: Sequence[str], principals: Iterable[str], storage: BucketStorage) -> list[str]:
    """Order principals so that those of before keep the index of their buckets; an empty name is a free place.

    The buckets of new principals are full.
    """
    names, known = dict.fromkeys(principals), set(before)
    new = iter([name for name in names if name not in known])
    places = [name if name in names else next(new, "") for name in before]
    places += new
    for place, name in enumerate(places):
        if name and name not in known:
            for bucket in range(place * len(_UNITS), (place + 1) * len(_UNITS)):
                storage.update(bucket, lambda *_: (0.0, 0.0))
    return places


def _in_order(indexes: Mapping[str, int]) -> list[str]:
    names = {index: name for name, index in indexes.items()}
    return [names.get(index, "") for index in range(max(names, default=-1) + 1)]


def _available_units(level: float) -> int:
    return max(0, math.floor(level + _EPSILON))


def format_duration(seconds: float) -> str:
    """A duration in OpenAI's format, rounded up: `20ms`, `1s`, `8.64s`, `6m0s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    whole = math.ceil(milliseconds / 1000)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes}m{whole % 60}s" if hours else f"{minutes}m{whole % 60}s"


def limited_principals(config: Config, keys: ApiKeys) -> list[str]:
    """The principals of the settings that have limits, in the order of the settings (the same in every worker)."""
    has_others = config.limits.store is not None or config.has_stored_keys
    return [] if has_others and not keys.has_configured else keys.principals
