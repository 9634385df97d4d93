"""Builds access control from the configuration: API keys and rate limits, local or in a shared store."""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from welldone.config.server import Config
from welldone.server.access.key_file import WatchedKeyFile
from welldone.server.access.keys import ApiKeys, KeyLookup, SharedApiKeys
from welldone.server.access.limits import BucketStorage, RateLimiter
from welldone.server.access.store import STORE_TIMEOUT_S, SharedStore, StoreClient


class AccessControl(NamedTuple):
    """Keys and rate limits, and the store that they share."""

    keys: ApiKeys
    limits: RateLimiter
    store: SharedStore | None


def connect_store(url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> StoreClient:
    """A client of the shared store. `redis_store` is imported lazily: its library is an optional dependency."""
    module = importlib.import_module("welldone.server.access.redis_store")
    client: StoreClient = module.RedisStoreClient(url, timeout_s=timeout_s)
    return client


def make_access_control(config: Config, keys: Collection[str], bucket_storage: BucketStorage | None) -> AccessControl:
    """Build keys and limits. `bucket_storage` is shared by the workers of this machine; unused with a shared store."""
    settings = config.server
    api_keys = ApiKeys(keys, config.keys)
    store = None if config.limits.store is None else SharedStore(connect_store(config.limits.store))
    has_others = store is not None or config.has_stored_keys
    limits = RateLimiter(
        settings.requests_per_minute,
        settings.tokens_per_minute,
        named=config.keys,
        principals=() if has_others and api_keys.allows_anonymous else api_keys.principals,
        storage=bucket_storage if store is None else None,
        store=store,
    )
    if config.has_stored_keys:
        look_up = _key_lookup(settings.keys_file, store)
        api_keys = SharedApiKeys(keys, config.keys, look_up=look_up, on_found=limits.set_rates)
    return AccessControl(api_keys, limits, store)


def _key_lookup(path: Path | None, store: SharedStore | None) -> KeyLookup:
    """Look keys up in the key file, then in the shared store."""
    file = None if path is None else WatchedKeyFile(path)

    async def look_up(digest: bytes) -> bytes | None:
        found = None if file is None else await file.find(digest)
        if found is None and store is not None:
            return await store.call(lambda client: client.key(digest.hex()))
        return found

    return look_up
