"""Builds access control from the configuration: API keys and rate limits, local or in a shared store."""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from welldone.config.server import Config
from welldone.server.access.key_storage import FileKeyStorage, KeyStorage, SharedKeyStorage, WatchedKeyFile
from welldone.server.access.keys import ApiKeys, KeyLookup, SharedApiKeys
from welldone.server.access.limits import BucketStorage, RateLimiter
from welldone.server.access.store import STORE_TIMEOUT_S, SharedStore, StoreClient


class AccessControl(NamedTuple):
    """Keys and rate limits, and the store that they share."""

    keys: ApiKeys
    limits: RateLimiter
    store: SharedStore | None
    storage: KeyStorage | None
    """Where admins add and remove keys: the key file if there is one, else the shared store."""


def connect_store(url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> StoreClient:
    """A client of the shared store. `redis_store` is imported lazily: its library is an optional dependency."""
    module = importlib.import_module("welldone.server.access.redis_store")
    client: StoreClient = module.RedisStoreClient(url, timeout_s=timeout_s)
    return client


def make_access_control(
    config: Config, keys: Collection[str], bucket_storage: BucketStorage | None, places: Collection[str] = ()
) -> AccessControl:
    """Build keys and limits. The workers of this machine share `bucket_storage`, and `places` in it."""
    settings = config.server
    api_keys = ApiKeys(keys, config.keys)
    store = None if config.limits.store is None else SharedStore(connect_store(config.limits.store))
    limits = RateLimiter(
        settings.requests_per_minute,
        settings.tokens_per_minute,
        named=config.keys,
        principals=places or limited_principals(config, api_keys),
        storage=bucket_storage if store is None else None,
        store=store,
    )
    if config.has_stored_keys:
        look_up = _key_lookup(settings.keys_file, store)
        api_keys = SharedApiKeys(keys, config.keys, look_up=look_up, on_found=limits.set_rates)
    storage: KeyStorage | None = None
    if settings.keys_file is not None:
        storage = FileKeyStorage(settings.keys_file)
    elif store is not None:
        storage = SharedKeyStorage(store.call)
    return AccessControl(api_keys, limits, store, storage)


def limited_principals(config: Config, keys: ApiKeys) -> list[str]:
    """The principals of the settings that have limits, in the order of the settings (the same in every worker)."""
    has_others = config.limits.store is not None or config.has_stored_keys
    return [] if has_others and not keys.has_configured else keys.principals


def _key_lookup(path: Path | None, store: SharedStore | None) -> KeyLookup:
    """Look keys up in the key file, then in the shared store."""
    file = None if path is None else WatchedKeyFile(path)

    async def look_up(digest: bytes) -> bytes | None:
        found = None if file is None else await file.find(digest)
        if found is None and store is not None:
            return await store.call(lambda client: client.key(digest.hex()))
        return found

    return look_up
