"""Builds access control from the configuration: API keys and rate limits, local or in a shared store."""

import importlib
from collections.abc import Collection
from typing import NamedTuple, Protocol, cast

from welldone.config.server import Config
from welldone.server.access.keys import ApiKeys, SharedApiKeys
from welldone.server.access.limits import BucketStorage, RateLimiter, SharedRateLimiter
from welldone.server.access.store import STORE_TIMEOUT_S, SharedStore, StoreClient


class AccessControl(NamedTuple):
    """Keys and rate limits, and the store that they share."""

    keys: ApiKeys
    limits: RateLimiter
    store: SharedStore | None


class _RedisModule(Protocol):
    """The interface of `redis_store`."""

    def RedisStoreClient(self, url: str, *, timeout_s: float) -> StoreClient: ...  # noqa: N802 - the name of a class


def connect_store(url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> StoreClient:
    """A client of the shared store. `redis_store` is imported lazily: its library is an optional dependency."""
    return cast("_RedisModule", importlib.import_module("welldone.server.access.redis_store")).RedisStoreClient(
        url, timeout_s=timeout_s
    )


def make_access_control(config: Config, keys: Collection[str], bucket_storage: BucketStorage | None) -> AccessControl:
    """Build keys and limits. `bucket_storage` is shared by the workers of this machine; unused with a shared store."""
    settings = config.server
    api_keys = ApiKeys(keys, config.keys)
    rates = (settings.requests_per_minute, settings.tokens_per_minute)
    if config.limits.store is None:
        limits = RateLimiter(*rates, named=config.keys, principals=api_keys.principals, storage=bucket_storage)
        return AccessControl(api_keys, limits, None)
    store = SharedStore(connect_store(config.limits.store))
    principals = () if api_keys.allows_anonymous else api_keys.principals
    shared = SharedRateLimiter(store, *rates, named=config.keys, principals=principals)
    if config.has_shared_keys:
        api_keys = SharedApiKeys(keys, config.keys, store=store, on_found=shared.set_rates)
    return AccessControl(api_keys, shared, store)
