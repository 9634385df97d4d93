"""The shared store: timeouts, one warning, and recovery; with a fake client and with a real Redis."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.http.aio import run, serving
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.server.store_without_events import StoreWithoutEvents
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.access.keys import SharedKey
from welldone.server.access.limits import RateLimiter
from welldone.server.access.redis_store import RedisStoreClient
from welldone.server.access.store import LimitCount, SharedStore, StoreClient, StoreError, StoreUnavailableError

AWAY, BACK = "is unavailable", "is available again"


class ScriptedClient(StoreWithoutEvents):
    """A scripted client."""

    def __init__(self) -> None:
        self.is_broken = False
        self.calls = 0
        self.probed = asyncio.Event()

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        self.calls += 1
        self.probed.set()
        await asyncio.sleep(0)  # let concurrent calls start
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
async def started(client: StoreClient, *, patience_s: float = 30.0, again_s: float = 0.0) -> AsyncIterator[SharedStore]:
    store = SharedStore(client, timeout_s=patience_s, retry_s=again_s)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def connect(redis: RealRedis) -> RedisStoreClient:
    """A client that does not give up on a slow machine."""
    return RedisStoreClient(redis.url, timeout_s=30.0)


def count(store: SharedStore) -> Awaitable[LimitCount]:
    return store.call(lambda client: client.count("a", (1, 1), requests=1, tokens=0))


def test_after_a_failure_the_store_is_unused_until_a_probe_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        client = ScriptedClient()
        async with started(client) as store:
            client.is_broken = True
            failed = await asyncio.gather(*[count(store) for _ in range(5)], return_exceptions=True)
            assert {type(one) for one in failed} == {StoreUnavailableError}
            assert not store.is_up
            client.probed.clear()
            await client.probed.wait()  # only the background probe calls it
            client.is_broken = False
            while not store.is_up:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            assert (await count(store)).is_admitted

    with caplog.at_level(logging.INFO, "welldone"):
        run(work())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert AWAY in caplog.messages[0]
    assert BACK in caplog.messages[1]


def test_while_the_store_is_down_calls_do_not_reach_it() -> None:
    async def work() -> None:
        client = ScriptedClient()
        client.is_broken = True
        async with started(client, again_s=3_600.0) as store:
            calls_before = client.calls
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    await count(store)
            assert client.calls == calls_before

    run(work())


def test_a_call_to_a_silent_store_times_out() -> None:
    class Silent(ScriptedClient):
        async def count(
            self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
        ) -> LimitCount:
            await asyncio.Event().wait()
            raise AssertionError

    async def work() -> None:
        async with started(Silent(), patience_s=0.001, again_s=3_600.0) as store:
            assert not store.is_up
            limits = RateLimiter(requests_per_minute=1, tokens_per_minute=0, store=store)
            assert (await limits.admit("a"))["x-ratelimit-remaining-requests"] == "0"
            with pytest.raises(ApiError):
                await limits.admit("a")

    run(work())


@table(
    "reply",
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
    ids=lambda reply: str(reply[:12]),
)
def test_a_server_that_is_not_redis_is_an_unavailable_store(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            if not reply:
                return
            writer.write(reply)
            await writer.drain()

    async def work() -> None:
        async with (
            serving(answer) as port,
            started(RedisStoreClient(f"redis://127.0.0.1:{port}/0"), patience_s=0.5, again_s=3_600.0) as store,
        ):
            assert not store.is_up

    run(work())


def test_a_late_reply_is_not_given_to_another_call() -> None:
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
            client = RedisStoreClient(f"redis://127.0.0.1:{port}/0", timeout_s=0.5)
            with pytest.raises(StoreError):
                await client.key("first")
            may_answer.set()
            for word in ("second", "third"):
                assert await client.key(word) == word.encode()
            await client.close()

    run(work())


@table("number", [b"nan", b"inf", b"-inf", b"1e999", b"none"])
def test_a_reply_without_finite_numbers_is_an_error(number: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            left = b"$%d\r\n%s\r\n" % (len(number), number)
            writer.write(b"*3\r\n:1\r\n" + left + left if b"EVAL" in data else b"+OK\r\n" * data.count(b"CLIENT"))
            await writer.drain()

    async def work() -> None:
        async with serving(answer) as port:
            client = RedisStoreClient(f"redis://127.0.0.1:{port}/0")
            with pytest.raises(StoreError, match="unexpected reply"):
                await client.count("a", (1, 1), requests=1, tokens=0)
            await client.close()

    run(work())


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with real_redis() as server:
        yield server


@NEEDS_REDIS
@pytest.mark.tier2
def test_the_store_counts_like_a_single_process(redis: RealRedis) -> None:
    """The same requests to both have the same results and headers, except for fractions."""

    async def results(limits: RateLimiter) -> list[tuple[bool, str, str]]:
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
        async with started(connect(redis)) as store:
            shared = RateLimiter(requests_per_minute=5, tokens_per_minute=80, store=store)
            assert await results(shared) == await results(RateLimiter(requests_per_minute=5, tokens_per_minute=80))

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_concurrent_requests_through_two_clients_do_not_exceed_the_limit(redis: RealRedis) -> None:
    async def admitted(limits: RateLimiter) -> bool:
        try:
            return bool(await limits.admit("a"))
        except ApiError:
            return False

    async def work() -> None:
        async with started(connect(redis)) as one, started(connect(redis)) as other:
            both = [RateLimiter(requests_per_minute=7, tokens_per_minute=0, store=store) for store in (one, other)]
            assert sum(await asyncio.gather(*[admitted(both[number % 2]) for number in range(700)])) in (7, 8)

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_tokens_charged_by_one_server_count_at_the_other_and_expire(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(connect(redis)) as one, started(connect(redis)) as other:
            here, there = (
                RateLimiter(requests_per_minute=0, tokens_per_minute=600, store=store) for store in (one, other)
            )
            for _ in range(3):
                here.charge_tokens("a", 300)
            await here.close()
            with pytest.raises(ApiError) as caught:
                await there.admit("a")
            assert "600 tokens per minute" in caught.value.message
            assert there.status("a").tokens == here.status("a").tokens
            await there.admit("b")
            there.set_rates(SharedKey(name="a", tokens_per_minute=0))
            await there.admit("a")

    run(work())
    assert redis.command("KEYS", "*").split() == ["welldone:limits:a"]
    assert 60_000 < int(redis.command("PTTL", "welldone:limits:a")) <= 90_001


@NEEDS_REDIS
@pytest.mark.tier2
def test_a_rejected_request_is_not_charged(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(connect(redis)) as store:
            limits = RateLimiter(requests_per_minute=1, tokens_per_minute=0, store=store)
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
def test_without_the_store_each_process_continues_from_the_last_level(redis: RealRedis) -> None:
    async def work() -> None:
        async with (
            started(connect(redis)) as one,
            started(connect(redis), again_s=3_600.0) as other,
        ):
            here, there = (
                RateLimiter(requests_per_minute=3, tokens_per_minute=0, store=store) for store in (one, other)
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
def test_extra_requests_charged_by_one_server_count_at_the_other(redis: RealRedis) -> None:
    async def work() -> None:
        async with started(connect(redis)) as one, started(connect(redis)) as other:
            here, there = (
                RateLimiter(requests_per_minute=60, tokens_per_minute=0, store=store) for store in (one, other)
            )
            await here.admit("a")
            here.charge_requests("a", 127)
            await here.close()
            with pytest.raises(ApiError) as caught:
                await there.admit("a")
            assert "60 requests per minute" in caught.value.message
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
def test_a_counter_of_the_wrong_type_is_reset(redis: RealRedis, words: tuple[str, ...]) -> None:
    async def work() -> None:
        redis.command(*words)
        async with started(connect(redis), again_s=3_600.0) as store:
            limits = RateLimiter(requests_per_minute=2, tokens_per_minute=0, store=store)
            await limits.admit("a")
            await limits.admit("b")
            assert store.is_up
            await limits.admit("a")
            with pytest.raises(ApiError):
                await limits.admit("a")

    run(work())


@NEEDS_REDIS
@pytest.mark.tier2
def test_keys_of_the_wrong_type_do_not_mark_the_store_as_down(
    redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with started(connect(redis), again_s=3_600.0) as store:
            redis.command("SET", "welldone:keys", "x")
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    await store.call(lambda client: client.key("aa"))
            assert store.is_up
            limits = RateLimiter(requests_per_minute=2, tokens_per_minute=0, store=store)
            await limits.admit("a")
            redis.command("DEL", "welldone:keys")
            assert await store.call(lambda client: client.key("aa")) is None

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [record.message for record in caplog.records if "rejects a command" in record.message] != []
    assert AWAY not in caplog.text
