"""Keys that an operator gives out once, for all front ends: they are in the store, and what was asked is remembered.

A key is looked for by its digest. How long that takes may tell something of a digest, from which nobody makes a key.
Where the store is away, the keys that are remembered stay good, and no other gets in.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from welldone.serve import log
from welldone.serve.keys import ANONYMOUS, ApiKeys, presented_digest, unknown_key_error
from welldone.serve.settings import KeySettings
from welldone.serve.store import StoreUnavailableError, SharedStore

CACHE_TTL_S = 5.0
"""A key that was taken away opens for so long yet."""
REFRESH_S = 4.0
"""Each key asks the store as often as that: one request does, and the others go on with what is known."""
NEGATIVE_TTL_S = 1.0
"""A key that was given out meanwhile waits so long. Who tries one wrong key again and again is not asked about."""

MAX_CACHED = 10_000  # some 5 MB
MAX_NEGATIVE_CACHED = 10_000  # some 2 MB: whoever guesses can fill it, and nothing else
UNUSED_TTL_S = 3_600.0
"""A key that nobody has used for so long is forgotten. It may have been taken away since, and would open again while
the store is away."""

_MAX_MODELS = 1_000
"""Patterns of one key. A request is held against each of them: a millisecond at most."""

_PerMinute = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class SharedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the store has it, without the key. The fields are those of `[keys.NAME]`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    models: Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_MODELS)] = ()
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    admin: bool = False
    metrics: bool = False


def parse_key(value: bytes) -> SharedKey | None:
    """A key as it is written in the store; None where it is written in another way."""
    try:
        return msgspec.json.decode(value, type=SharedKey)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _CachedKey:
    """A key that is remembered."""

    def __init__(self, key: SharedKey, now: float) -> None:
        self.key = key
        self.refresh_at = now + REFRESH_S
        self.expires_at = now + CACHE_TTL_S


class SharedApiKeys(ApiKeys):
    """The keys of this server, and those in the store. `on_found` is told each key that was looked up."""

    def __init__(
        self,
        keys: Iterable[str],
        named: Iterable[KeySettings] = (),
        *,
        store: SharedStore,
        on_found: Callable[[SharedKey], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(keys, named)
        self._local_principals = {ANONYMOUS, *super().principals}
        self._store = store
        self._on_found = on_found
        self._clock = clock
        self._cached: dict[bytes, _CachedKey] = {}
        self._negative_cache: dict[bytes, float] = {}
        """Until when they are taken to be unknown."""
        self._by_name: dict[str, SharedKey] = {}

    @property
    def allows_anonymous(self) -> bool:
        """Nobody gets in without a key, also while the store has none."""
        return False

    @property
    def has_several_principals(self) -> bool:
        """The store may give out any number of keys."""
        return True

    @property
    def cache_sizes(self) -> tuple[int, int]:
        """How many keys, and how many that are none."""
        return len(self._cached), len(self._negative_cache)

    def allowed_models(self, principal: str) -> tuple[str, ...] | None:
        """The names and patterns of the models that a key is for; None: all models. A key that is gone has none."""
        if principal in self._local_principals:
            return super().allowed_models(principal)
        key = self._by_name.get(principal)
        return () if key is None else key.models or None

    def is_admin(self, principal: str) -> bool:
        """Whether this one may see the whole server and steer it."""
        key = self._by_name.get(principal)
        return super().is_admin(principal) or (key is not None and key.admin)

    def may_read_metrics(self, principal: str) -> bool:
        """Whether a key may read the metrics."""
        key = self._by_name.get(principal)
        return super().may_read_metrics(principal) or (key is not None and key.metrics)

    async def authenticate(self, headers: Mapping[str, str]) -> str:
        """The name of the key that came."""
        came = presented_digest(headers)
        name = self._principal_of(came)
        if name is not None:
            return name
        key = await self._look_up(came)
        if key is None:
            raise unknown_key_error()
        return key.name

    async def _look_up(self, digest: bytes) -> SharedKey | None:
        held, now = self._cached.get(digest), self._clock()
        if held is not None and now > held.expires_at + UNUSED_TTL_S:
            self._evict(digest)
            held = None
        if held is not None:
            if now < held.refresh_at:
                return held.key
            held.refresh_at = held.expires_at
        elif now < self._negative_cache.get(digest, now):
            return None
        try:
            value = await self._store.call(lambda link: link.key(digest.hex()))
        except StoreUnavailableError:
            if held is None:
                return None
            held.expires_at = now  # it is in use
            return held.key
        self._evict(digest)
        key = None if value is None else self._checked_key(value)
        self._cache_result(digest, key)
        return key

    def _checked_key(self, value: bytes) -> SharedKey | None:
        key = parse_key(value)
        if key is None:
            log.event(logging.WARNING, "a key in the store is not written as it should be, and opens nothing")
            return None
        if key.name in self._local_principals:  # its rights would be those of another
            log.event(
                logging.WARNING,
                "a key in the store has the name of one of this server, and opens nothing here",
                {"key": key.name},
            )
            return None
        return key

    def _cache_result(self, digest: bytes, key: SharedKey | None) -> None:
        now = self._clock()
        if key is None:
            self._negative_cache[digest] = now + NEGATIVE_TTL_S
            if len(self._negative_cache) > MAX_NEGATIVE_CACHED:
                del self._negative_cache[next(iter(self._negative_cache))]
            return
        self._cached[digest] = _CachedKey(key, now)
        self._by_name[key.name] = key
        if len(self._cached) > MAX_CACHED:
            self._evict(next(iter(self._cached)))
        self._on_found(key)

    def _evict(self, digest: bytes) -> None:
        self._negative_cache.pop(digest, None)
        held = self._cached.pop(digest, None)
        if held is not None and self._by_name.get(held.key.name) is held.key:
            del self._by_name[held.key.name]
