"""Who may come in, and how often: keys and limits as the settings want them, of this server alone or shared."""

import importlib
from collections.abc import Collection
from typing import NamedTuple, Protocol, cast

from welldone.config.server import Config
from welldone.server.access.keys import ApiKeys, SharedApiKeys
from welldone.server.access.limits import BucketStorage, RateLimiter, SharedRateLimiter
from welldone.server.access.store import STORE_TIMEOUT_S, SharedStore, StoreClient


class AccessControl(NamedTuple):
    """All of it."""

    keys: ApiKeys
    limits: RateLimiter
    store: SharedStore | None


class _RedisModule(Protocol):
    """What `serve/redis_store.py` gives."""

    def RedisStoreClient(self, url: str, *, timeout_s: float) -> StoreClient: ...  # noqa: N802 - the name of a class


def connect_store(url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> StoreClient:
    """The way to a store. What knows Redis is loaded when it is needed, since its library is an extra."""
    return cast("_RedisModule", importlib.import_module("welldone.server.access.redis_store")).RedisStoreClient(
        url, timeout_s=timeout_s
    )


def make_access_control(config: Config, keys: Collection[str], bucket_storage: BucketStorage | None) -> AccessControl:
    """Keys and limits. `numbers` is what the workers of this machine share; with a store they need it not."""
    settings = config.server
    own = ApiKeys(keys, config.keys)
    if config.limits.store is None:
        limits = RateLimiter(
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            named=config.keys,
            principals=own.principals,
            storage=bucket_storage,
        )
        return AccessControl(own, limits, None)
    store = SharedStore(connect_store(config.limits.store))
    shared = SharedRateLimiter(
        store,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        named=config.keys,
        principals=() if own.allows_anonymous else own.principals,
    )
    if config.has_shared_keys:
        own = SharedApiKeys(keys, config.keys, store=store, on_found=shared.set_rates)
    return AccessControl(own, shared, store)
