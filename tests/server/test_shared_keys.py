"""Keys in a store: looked up by digest, remembered within limits, and never opened for who is unknown."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
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
from welldone.server.access.store import LimitCount, SharedStore, StoreClient, StoreError

KEY, OTHER, OWN, NAMED = "wd-shared-0123456789", "wd-shared-9876543210", "wd-own-0123456789", "wd-named-0123456789"


class Kept(StoreClient):
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: list[str] = []
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
        self.asked.append(digest)
        await asyncio.sleep(0)
        return self.values.get(digest)

    async def keys(self) -> Mapping[str, bytes]:
        return self.values

    async def put_key(self, digest: str, value: bytes) -> None: ...

    async def drop_keys(self, digests: Iterable[str]) -> None: ...

    async def close(self) -> None: ...


class Stage:
    """Shared keys, their store, and the time."""

    def __init__(self) -> None:
        self.link = Kept()
        self.store = SharedStore(self.link, timeout_s=30.0, retry_s=3_600.0)
        self.now = 1000.0
        self.found: list[SharedKey] = []
        named = KeySettings(name="named", key=NAMED, models=("small",))
        self.keys = SharedApiKeys([OWN], [named], store=self.store, on_found=self.found.append, clock=lambda: self.now)

    async def name(self, key: str) -> str:
        return await self.keys.authenticate({"Authorization": f"Bearer {key}"})

    async def is_in(self, key: str) -> bool:
        try:
            return bool(await self.name(key))
        except ApiError as error:
            if error.status != 401 or key in error.message:
                raise
            return False


def on_stage(work: Callable[[Stage], Awaitable[None]]) -> None:
    async def played() -> None:
        stage = Stage()
        try:
            await work(stage)
        finally:
            await stage.store.close()

    run(played())


def test_a_key_of_the_store_opens_with_its_own_rights() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci", models=["qwen-*"], requests_per_minute=3)
        stage.link.give(OTHER, name="boss", admin=True)
        assert (await stage.name(KEY), await stage.name(OTHER)) == ("ci", "boss")
        assert [stage.keys.may_use("ci", model) for model in ("qwen-7b", "phi-4")] == [True, False]
        assert [stage.keys.is_admin(name) for name in ("ci", "boss")] == [False, True]
        assert stage.keys.may_use("boss", "any")
        assert [(key.name, key.requests_per_minute) for key in stage.found] == [("ci", 3), ("boss", None)]

    on_stage(work)


def test_local_keys_need_no_store() -> None:
    async def work(stage: Stage) -> None:
        stage.link.is_broken = True
        assert await stage.is_in(OWN)
        assert await stage.name(NAMED) == "named"
        assert [stage.keys.may_use("named", model) for model in ("small", "large")] == [True, False]
        assert not stage.keys.is_admin("named")
        assert stage.store.is_up  # nobody has asked

    on_stage(work)


def test_without_a_key_nobody_gets_in_also_where_there_are_none() -> None:
    async def work(stage: Stage) -> None:
        empty = SharedApiKeys([], store=stage.store)
        assert not empty.allows_anonymous
        assert not empty.is_admin("anonymous")
        for headers in ({}, {"x-api-key": KEY}):
            with pytest.raises(ApiError) as caught:
                await empty.authenticate(headers)
            assert caught.value.status == 401

    on_stage(work)


def test_a_key_is_asked_about_once_in_a_while_and_one_that_was_taken_away_opens_no_more() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci", admin=True)
        for _ in range(3):
            assert await stage.is_in(KEY)
        assert len(stage.link.asked) == 1
        stage.link.take(KEY)
        stage.now += REFRESH_S - 0.1
        assert await stage.is_in(KEY)
        stage.now += 0.1
        assert not await stage.is_in(KEY)
        assert not stage.keys.is_admin("ci")
        assert not stage.keys.may_use("ci", "any")

    on_stage(work)


def test_while_one_request_asks_again_the_others_go_on() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci")
        await stage.name(KEY)
        stage.now += REFRESH_S
        assert await asyncio.gather(*[stage.name(KEY) for _ in range(5)]) == ["ci"] * 5
        assert len(stage.link.asked) == 2

    on_stage(work)


def test_of_many_who_come_with_a_key_that_was_taken_away_none_gets_in() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci")
        await stage.name(KEY)
        stage.link.take(KEY)
        stage.now += CACHE_TTL_S
        assert await asyncio.gather(*[stage.is_in(KEY) for _ in range(5)]) == [False] * 5

    on_stage(work)


def test_a_key_that_was_taken_away_long_ago_does_not_open_while_the_store_is_away() -> None:
    async def work(stage: Stage) -> None:
        for key, name in ((KEY, "ci"), (OTHER, "boss")):
            stage.link.give(key, name=name)
            assert await stage.is_in(key)
        stage.link.take(KEY)
        stage.now += UNUSED_TTL_S
        assert await stage.is_in(OTHER)
        stage.now += CACHE_TTL_S + 0.1
        stage.link.is_broken = True
        for _ in range(3):  # what is in use stays good, however long that takes
            assert await stage.is_in(OTHER)
            assert not await stage.is_in(KEY)
            stage.now += UNUSED_TTL_S

    on_stage(work)


def test_an_unknown_key_is_refused_and_a_new_one_is_soon_known() -> None:
    async def work(stage: Stage) -> None:
        for _ in range(3):
            assert not await stage.is_in(KEY)
        assert len(stage.link.asked) == 1
        stage.link.give(KEY, name="ci")
        stage.now += NEGATIVE_TTL_S
        assert await stage.is_in(KEY)

    on_stage(work)


def test_while_the_store_is_away_known_keys_stay_good_and_unknown_ones_are_refused() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci", models=["qwen-*"])
        stage.link.give(OTHER, name="boss")
        assert await stage.is_in(KEY)
        stage.link.is_broken = True
        stage.now += 100 * CACHE_TTL_S
        for _ in range(2):
            assert await stage.is_in(KEY)
            assert not await stage.is_in(OTHER)
            stage.now += 100 * CACHE_TTL_S
        assert not stage.keys.may_use("ci", "phi-4")

    on_stage(work)


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
def test_what_is_no_key_or_has_the_name_of_a_local_one_opens_nothing(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(stage: Stage) -> None:
        stage.link.values[key_digest(KEY).hex()] = value
        assert not await stage.is_in(KEY)
        assert not stage.keys.is_admin("named")

    with caplog.at_level(logging.WARNING, "welldone"):
        on_stage(work)
    assert len(caplog.records) == 1
    assert "opens nothing" in caplog.text


def test_who_guesses_fills_no_memory_and_drives_out_no_key() -> None:
    async def work(stage: Stage) -> None:
        stage.link.give(KEY, name="ci")
        assert await stage.is_in(KEY)
        for number in range(keys.MAX_NEGATIVE_CACHED + 10):
            assert not await stage.is_in(f"guess-{number}")
        assert stage.keys.cache_sizes == (1, keys.MAX_NEGATIVE_CACHED)
        asked = len(stage.link.asked)
        assert await stage.is_in(KEY)
        assert len(stage.link.asked) == asked

    on_stage(work)
