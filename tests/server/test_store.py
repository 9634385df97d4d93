"""The store that may be away: bounded waits, one warning, and back again. What is asked of it here is a script."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.http.aio import run, serving
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.access.keys import SharedKey
from welldone.server.access.limits import RateLimiter, SharedRateLimiter
from welldone.server.access.redis_store import RedisStoreClient
from welldone.server.access.store import LimitCount, SharedStore, StoreClient, StoreError, StoreUnavailableError

AWAY, BACK = "is away", "is back"


class Scripted(StoreClient):
    """A link that does what it is told."""

    def __init__(self) -> None:
        self.is_broken = False
        self.asked = 0
        self.looked = asyncio.Event()

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        self.asked += 1
        self.looked.set()
        await asyncio.sleep(0)  # so that others ask meanwhile
        if self.is_broken:
            raise StoreError("it is broken")
        return LimitCount(True, float(sizes[0] - 1), float(sizes[1]))

    async def key(self, digest: str) -> bytes | None:
        return None

    async def keys(self) -> Mapping[str, bytes]:
        return {}

    async def put_key(self, digest: str, value: bytes) -> None: ...

    async def drop_keys(self, digests: Iterable[str]) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def started(link: StoreClient, *, patience_s: float = 30.0, again_s: float = 0.0) -> AsyncIterator[SharedStore]:
    store = SharedStore(link, timeout_s=patience_s, retry_s=again_s)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def count(store: SharedStore) -> Awaitable[LimitCount]:
    return store.call(lambda link: link.count("a", (1, 1), requests=1, tokens=0))


def test_a_store_that_fails_is_left_alone_with_one_warning_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        link = Scripted()
        async with started(link) as store:
            link.is_broken = True
            failed = await asyncio.gather(*[count(store) for _ in range(5)], return_exceptions=True)
            assert {type(one) for one in failed} == {StoreUnavailableError}
            assert not store.is_up
            link.looked.clear()
            await link.looked.wait()  # it is looked at, and by nobody who asks
            link.is_broken = False
            while not store.is_up:  # noqa: ASYNC110 - it tells nobody, and each turn of the loop brings it nearer
                await asyncio.sleep(0)
            assert (await count(store)).is_in

    with caplog.at_level(logging.INFO, "welldone"):
        run(work())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert AWAY in caplog.messages[0]
    assert BACK in caplog.messages[1]


def test_while_the_store_is_away_nobody_asks_it() -> None:
    async def work() -> None:
        link = Scripted()
        link.is_broken = True
        async with started(link, again_s=3_600.0) as store:
            asked = link.asked
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    await count(store)
            assert link.asked == asked

    run(work())


def test_a_store_that_says_nothing_is_waited_for_only_so_long() -> None:
    class Silent(Scripted):
        async def count(
            self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
        ) -> LimitCount:
            await asyncio.Event().wait()
            raise AssertionError

    async def work() -> None:
        async with started(Silent(), patience_s=0.001, again_s=3_600.0) as store:
            assert not store.is_up
            limits = SharedRateLimiter(store, requests_per_minute=1, tokens_per_minute=0)
            assert (await limits.admit("a"))["x-ratelimit-remaining-requests"] == "0"
            with pytest.raises(ApiError):
                await limits.admit("a")

    run(work())


@table(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n" * 9,
        b"-READONLY You can't write against a read only replica.\r\n" * 9,
        b":1\r\n" * 9,
        b":no number\r\n" * 9,
        b"*3\r\n:1\r\n$3\r\nabc\r\n$-1\r\n" * 9,
        b"$99999999999999999999\r\n" * 9,
        b"*-5\r\n\x00\xff" * 9,
        b"+OK\r\n" * 9,
    ],
    ids=lambda said: str(said[:12]),
)
def test_what_is_no_redis_is_a_store_that_is_away(said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            if not said:
                return
            writer.write(said)
            await writer.drain()

    async def work() -> None:
        async with (
            serving(answer) as port,
            started(RedisStoreClient(f"redis://127.0.0.1:{port}/0"), patience_s=0.5, again_s=3_600.0) as store,
        ):
            assert not store.is_up

    run(work())


def test_an_answer_that_comes_too_late_is_given_to_nobody_else() -> None:
    async def work() -> None:
        may_answer = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                words = [(await reader.readline(), await reader.readline())[1].strip() for _ in range(int(line[1:]))]
                if words[-1] == b"first":
                    await may_answer.wait()
                writer.write(b"+OK\r\n" if words[0] != b"HGET" else b"$%d\r\n%s\r\n" % (len(words[-1]), words[-1]))
                await writer.drain()

        async with serving(answer) as port:
            link = RedisStoreClient(f"redis://127.0.0.1:{port}/0", timeout_s=0.5)
            with pytest.raises(StoreError):
                await link.key("first")
            may_answer.set()
            for word in ("second", "third"):
                assert await link.key(word) == word.encode()
            await link.close()

    run(work())


@table("number", [b"nan", b"inf", b"-inf", b"1e999", b"none"])
def test_what_is_no_number_is_no_answer(number: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            left = b"$%d\r\n%s\r\n" % (len(number), number)
            writer.write(b"*3\r\n:1\r\n" + left + left if b"EVAL" in data else b"+OK\r\n" * data.count(b"CLIENT"))
            await writer.drain()

    async def work() -> None:
        async with serving(answer) as port:
            link = RedisStoreClient(f"redis://127.0.0.1:{port}/0")
            with pytest.raises(StoreError, match="something else"):
                await link.count("a", (1, 1), requests=1, tokens=0)
            await link.close()

    run(work())


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with real_redis() as made:
        yield made


@NEEDS_REDIS
@pytest.mark.tier2
def test_the_store_counts_as_one_process_does(redis: RealRedis) -> None:
    """The same questions to both, close in time, have the same answers and the same headers but for the fractions."""

    async def asked(limits: RateLimiter) -> list[tuple[bool, str, str]]:
        got = []
        for number in range(8):
            limits.charge_tokens("a", 90 * (number == 4))
            await limits.close()
            try:
                headers = await limits.admit("a")
                is_in = True
            except ApiError as error:
                headers, is_in = error.headers, False
            left = headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-remaining-tokens"]
            got.append((is_in, *left))
        return got

    async def work() -> None:
        async with started(RedisStoreClient(redis.url)) as store:
            shared = SharedRateLimiter(store, requests_per_minute=5, tokens_per_minute=80)
            assert await asked(shared) == await asked(RateLimiter(requests_per_minute=5, tokens_per_minute=80))

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_many_who_ask_at_once_through_two_links_get_no_more_than_there_is(redis: RealRedis) -> None:
    async def admitted(limits: SharedRateLimiter) -> bool:
        try:
            return bool(await limits.admit("a"))
        except ApiError:
            return False

    async def work() -> None:
        async with started(RedisStoreClient(redis.url)) as one, started(RedisStoreClient(redis.url)) as other:
            both = [SharedRateLimiter(store, requests_per_minute=7, tokens_per_minute=0) for store in (one, other)]
            assert sum(await asyncio.gather(*[admitted(both[number % 2]) for number in range(700)])) in (7, 8)

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_tokens_of_one_front_end_are_owed_at_the_other_and_the_counter_expires(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(RedisStoreClient(redis.url)) as one, started(RedisStoreClient(redis.url)) as other:
            here, there = (
                SharedRateLimiter(store, requests_per_minute=0, tokens_per_minute=600) for store in (one, other)
            )
            for _ in range(3):
                here.charge_tokens("a", 300)
            await here.close()
            with pytest.raises(ApiError) as caught:
                await there.admit("a")
            assert "600 tokens a minute" in caught.value.message
            assert there.status("a").tokens == here.status("a").tokens
            await there.admit("b")
            there.set_rates(SharedKey(name="a", tokens_per_minute=0))
            await there.admit("a")

    run(work())
    assert redis.say("KEYS", "*").split() == ["welldone:limits:a"]
    assert 60_000 < int(redis.say("PTTL", "welldone:limits:a")) <= 90_001


@NEEDS_REDIS
@pytest.mark.tier2
def test_a_request_that_is_refused_costs_nothing(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(RedisStoreClient(redis.url)) as store:
            limits = SharedRateLimiter(store, requests_per_minute=1, tokens_per_minute=0)
            await limits.admit("a")
            errors = []
            for _ in range(50):
                with pytest.raises(ApiError) as caught:
                    await limits.admit("a")
                errors.append(caught.value)
            waits = [error.retry_after_s or 0.0 for error in errors]
            assert waits == sorted(waits, reverse=True)
            assert waits[0] <= 60.0

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_when_the_store_goes_away_what_is_left_of_the_shared_limit_is_where_each_goes_on(redis: RealRedis) -> None:
    async def work() -> None:
        async with (
            started(RedisStoreClient(redis.url)) as one,
            started(RedisStoreClient(redis.url), again_s=3_600.0) as other,
        ):
            here, there = (
                SharedRateLimiter(store, requests_per_minute=3, tokens_per_minute=0) for store in (one, other)
            )
            await here.admit("a")
            await there.admit("a")
            redis.kill()
            await there.admit("a")
            with pytest.raises(ApiError):
                await there.admit("a")
            assert not other.is_up

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_requests_that_one_front_end_sent_beyond_the_first_are_owed_at_the_other(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(RedisStoreClient(redis.url)) as one, started(RedisStoreClient(redis.url)) as other:
            here, there = (
                SharedRateLimiter(store, requests_per_minute=60, tokens_per_minute=0) for store in (one, other)
            )
            await here.admit("a")
            here.charge_requests("a", 127)
            await here.close()
            with pytest.raises(ApiError) as caught:
                await there.admit("a")
            assert "60 requests a minute" in caught.value.message
            assert 60 < (caught.value.retry_after_s or 0) <= 69
            await there.admit("b")

    run(work())


BROKEN_COUNTERS = {
    "text": ("SET", "welldone:limits:a", "x"),
    "list": ("RPUSH", "welldone:limits:a", "x"),
    "infinite": ("HSET", "welldone:limits:a", "at", "inf", "requests", "inf", "tokens", "-inf"),
    "no number": ("HSET", "welldone:limits:a", "at", "x", "requests", "nan", "tokens", "1e999"),
}


@NEEDS_REDIS
@pytest.mark.tier2
@pytest.mark.parametrize("words", BROKEN_COUNTERS.values(), ids=BROKEN_COUNTERS)
def test_a_counter_of_the_wrong_type_is_begun_anew(redis: RealRedis, words: tuple[str, ...]) -> None:
    async def work() -> None:
        redis.say(*words)
        async with started(RedisStoreClient(redis.url), again_s=3_600.0) as store:
            limits = SharedRateLimiter(store, requests_per_minute=2, tokens_per_minute=0)
            await limits.admit("a")
            await limits.admit("b")
            assert store.is_up
            await limits.admit("a")
            with pytest.raises(ApiError):
                await limits.admit("a")

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_keys_of_the_wrong_type_do_not_mark_the_store_as_away(
    redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with started(RedisStoreClient(redis.url), again_s=3_600.0) as store:
            redis.say("SET", "welldone:keys", "x")
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    await store.call(lambda link: link.key("aa"))
            assert store.is_up
            limits = SharedRateLimiter(store, requests_per_minute=2, tokens_per_minute=0)
            await limits.admit("a")
            redis.say("DEL", "welldone:keys")
            assert await store.call(lambda link: link.key("aa")) is None

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [record.message for record in caplog.records if "wrong type" in record.message] != []
    assert AWAY not in caplog.text
