"""Keys in the shared store: lookup by digest, and the cache."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.store_without_events import StoreWithoutEvents
from welldone.config.server import KeySettings
from welldone.gateway.errors import ApiError
from welldone.server.access import keys
from welldone.server.access.keys import (
    CACHE_TTL_S,
    NEGATIVE_TTL_S,
    REFRESH_S,
    UNUSED_TTL_S,
    SharedApiKeys,
    SharedKey,
    key_digest,
)
from welldone.server.access.store import STORE_RETRY_S, LimitCount, SharedStore, StoreError, StoreUnavailableError

KEY, OTHER, OWN, NAMED = "wd-shared-0123456789", "wd-shared-9876543210", "wd-own-0123456789", "wd-named-0123456789"


class InMemoryStore(StoreWithoutEvents):
    """An in-memory store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lookups: list[str] = []
        self.is_broken = False

    def give(self, key: str, **fields: Any) -> None:  # noqa: ANN401 - each its own
        self.values[key_digest(key).hex()] = msgspec.json.encode(fields)

    def take(self, key: str) -> None:
        del self.values[key_digest(key).hex()]

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        return LimitCount(True, 1.0, 1.0)

    async def key(self, digest: str) -> bytes | None:
        if self.is_broken:
            raise StoreError("it is broken")
        self.lookups.append(digest)
        await asyncio.sleep(0)
        return self.values.get(digest)

    async def keys(self) -> Mapping[str, bytes]:
        return self.values

    async def put_key(self, digest: str, value: bytes) -> None: ...

    async def drop_keys(self, digests: Iterable[str]) -> None: ...

    async def close(self) -> None: ...


class Setup:
    """Shared keys with their store and a manual clock."""

    def __init__(self) -> None:
        self.client = InMemoryStore()
        self.store = SharedStore(self.client, timeout_s=30.0, retry_s=3_600.0)
        self.now = 1000.0
        self.keys_found: list[SharedKey] = []
        named = KeySettings(name="named", key=NAMED, models=("small",))
        self.keys = SharedApiKeys(
            [OWN], [named], look_up=self.look_up, on_found=self.keys_found.append, clock=lambda: self.now
        )

    async def look_up(self, digest: bytes) -> bytes | None:
        return await self.store.call(lambda client: client.key(digest.hex()))

    async def name(self, key: str) -> str:
        return await self.keys.authenticate({"Authorization": f"Bearer {key}"})

    async def is_in(self, key: str) -> bool:
        try:
            return bool(await self.name(key))
        except ApiError as error:
            if error.status != 401 or key in error.message:
                raise
            return False


def with_setup(work: Callable[[Setup], Awaitable[None]]) -> None:
    async def main() -> None:
        setup = Setup()
        try:
            await work(setup)
        finally:
            await setup.store.close()

    run(main())


def test_a_key_in_the_store_has_its_own_permissions() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci", models=["qwen-*"], requests_per_minute=3)
        setup.client.give(OTHER, name="boss", admin=True)
        assert (await setup.name(KEY), await setup.name(OTHER)) == ("ci", "boss")
        assert [setup.keys.may_use("ci", model) for model in ("qwen-7b", "phi-4")] == [True, False]
        assert [setup.keys.is_admin(name) for name in ("ci", "boss")] == [False, True]
        assert setup.keys.may_use("boss", "any")
        assert [(key.name, key.requests_per_minute) for key in setup.keys_found] == [("ci", 3), ("boss", None)]

    with_setup(work)


def test_local_keys_need_no_store() -> None:
    async def work(setup: Setup) -> None:
        setup.client.is_broken = True
        assert await setup.is_in(OWN)
        assert await setup.name(NAMED) == "named"
        assert [setup.keys.may_use("named", model) for model in ("small", "large")] == [True, False]
        assert not setup.keys.is_admin("named")
        assert setup.store.is_up  # no call was made

    with_setup(work)


def test_requests_need_a_key_even_if_there_are_none() -> None:
    async def work(setup: Setup) -> None:
        empty = SharedApiKeys([], look_up=setup.look_up)
        assert not empty.allows_anonymous
        assert not empty.is_admin("anonymous")
        for headers in ({}, {"x-api-key": KEY}):
            with pytest.raises(ApiError) as caught:
                await empty.authenticate(headers)
            assert caught.value.status == 401

    with_setup(work)


def test_a_cached_key_is_refreshed_and_a_revoked_key_is_rejected() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci", admin=True)
        for _ in range(3):
            assert await setup.is_in(KEY)
        assert len(setup.client.lookups) == 1
        setup.client.take(KEY)
        setup.now += REFRESH_S - 0.1
        assert await setup.is_in(KEY)
        setup.now += 0.1
        assert not await setup.is_in(KEY)
        assert not setup.keys.is_admin("ci")
        assert not setup.keys.may_use("ci", "any")

    with_setup(work)


def test_while_one_request_refreshes_the_others_use_the_cache() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci")
        await setup.name(KEY)
        setup.now += REFRESH_S
        assert await asyncio.gather(*[setup.name(KEY) for _ in range(5)]) == ["ci"] * 5
        assert len(setup.client.lookups) == 2

    with_setup(work)


def test_concurrent_requests_with_a_revoked_key_are_all_rejected() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci")
        await setup.name(KEY)
        setup.client.take(KEY)
        setup.now += CACHE_TTL_S
        assert await asyncio.gather(*[setup.is_in(KEY) for _ in range(5)]) == [False] * 5

    with_setup(work)


def test_an_expired_key_is_rejected_while_the_store_is_unavailable() -> None:
    async def work(setup: Setup) -> None:
        for key, name in ((KEY, "ci"), (OTHER, "boss")):
            setup.client.give(key, name=name)
            assert await setup.is_in(key)
        setup.client.take(KEY)
        setup.now += UNUSED_TTL_S
        assert await setup.is_in(OTHER)
        setup.now += CACHE_TTL_S + 0.1
        setup.client.is_broken = True
        for _ in range(3):  # a key in use stays valid, however long the outage
            assert await setup.is_in(OTHER)
            with pytest.raises(StoreUnavailableError):
                await setup.name(KEY)
            setup.now += UNUSED_TTL_S

    with_setup(work)


def test_an_unknown_key_is_rejected_and_a_new_one_soon_accepted() -> None:
    async def work(setup: Setup) -> None:
        for _ in range(3):
            assert not await setup.is_in(KEY)
        assert len(setup.client.lookups) == 1
        setup.client.give(KEY, name="ci")
        setup.now += NEGATIVE_TTL_S
        assert await setup.is_in(KEY)

    with_setup(work)


def test_while_the_store_is_unavailable_cached_keys_are_accepted_and_others_get_a_503() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci", models=["qwen-*"])
        setup.client.give(OTHER, name="boss")
        assert await setup.is_in(KEY)
        setup.client.is_broken = True
        setup.now += 100 * CACHE_TTL_S
        for _ in range(2):
            assert await setup.is_in(KEY)
            with pytest.raises(ApiError) as caught:  # it may be valid
                await setup.name(OTHER)
            assert (caught.value.status, caught.value.code) == (503, "store_unavailable")
            assert caught.value.retry_after_s == STORE_RETRY_S
            setup.now += 100 * CACHE_TTL_S
        assert not setup.keys.may_use("ci", "phi-4")

    with_setup(work)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b'{"name": 1}',
        b'{"name": ""}',
        b'{"name": "a b"}',
        b'{"name": "ci\\n"}',
        b'{"name": "ci", "requests_per_minute": -1}',
        b'{"name": "ci", "models": "all"}',
        b'{"name": "ci", "models": [' + b'"a",' * 1_000 + b'"a"]}',
        b'{"name": "anonymous"}',
        b'{"name": "named", "admin": true}',
    ],
    ids=lambda value: str(value[:40]),
)
def test_an_invalid_entry_or_one_with_a_local_name_is_ignored(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work(setup: Setup) -> None:
        setup.client.values[key_digest(KEY).hex()] = value
        assert not await setup.is_in(KEY)
        assert not setup.keys.is_admin("named")

    with caplog.at_level(logging.WARNING, "welldone"):
        with_setup(work)
    assert len(caplog.records) == 1
    assert "ignoring a" in caplog.text


def test_guessed_keys_neither_fill_the_memory_nor_evict_valid_ones() -> None:
    async def work(setup: Setup) -> None:
        setup.client.give(KEY, name="ci")
        assert await setup.is_in(KEY)
        for number in range(keys.MAX_NEGATIVE_CACHED + 10):
            assert not await setup.is_in(f"guess-{number}")
        assert len(setup.keys._cached) == 1
        assert len(setup.keys._negative_cache) == keys.MAX_NEGATIVE_CACHED
        lookups = len(setup.client.lookups)
        assert await setup.is_in(KEY)
        assert len(setup.client.lookups) == lookups

    with_setup(work)
