"""Who may come in, and how often: keys and limits as the settings want them, of this server alone or shared."""

import importlib
from collections.abc import Collection
from typing import NamedTuple, Protocol, cast

from welldone.serve.keys import Keys
from welldone.serve.limits import Limits, Numbers
from welldone.serve.settings import Config
from welldone.serve.shared_keys import SharedKeys
from welldone.serve.shared_limits import SharedLimits
from welldone.serve.store import PATIENCE_S, Link, Store


class Doors(NamedTuple):
    """All of it."""

    keys: Keys
    limits: Limits
    store: Store | None


class _Links(Protocol):
    """What `serve/redis_store.py` gives."""

    def RedisLink(self, url: str, *, patience_s: float) -> Link: ...  # noqa: N802 - the name of a class


def link_to(url: str, *, patience_s: float = PATIENCE_S) -> Link:
    """The way to a store. What knows Redis is loaded when it is needed, since its library is an extra."""
    return cast("_Links", importlib.import_module("welldone.serve.redis_store")).RedisLink(url, patience_s=patience_s)


def doors(config: Config, keys: Collection[str], numbers: Numbers | None) -> Doors:
    """Keys and limits. `numbers` is what the workers of this machine share; with a store they need it not."""
    settings = config.server
    own = Keys(keys, config.keys)
    if config.limits.store is None:
        limits = Limits(
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            named=config.keys,
            principals=own.principals,
            numbers=numbers,
        )
        return Doors(own, limits, None)
    store = Store(link_to(config.limits.store))
    shared = SharedLimits(
        store,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        named=config.keys,
        principals=() if own.is_open else own.principals,
    )
    if config.has_shared_keys:
        own = SharedKeys(keys, config.keys, store=store, on_found=shared.set_rates)
    return Doors(own, shared, store)
