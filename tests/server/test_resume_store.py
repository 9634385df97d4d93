"""Streams that are resumed through another front end, over a shared Redis; and the store's part of it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.http.aio import run
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.server.resumable import ASKS, Connection, GatedUpstream, connect, gated_gateway, request, resume
from tests.server.running_gateway import Gateway
from tests.server.test_resume import CHUNKS, failed, start, wait_until
from tests.server.test_resume_responses import BACKGROUND, values
from welldone.config.server import LimitsSettings, ServeSettings
from welldone.gateway.errors import ApiError
from welldone.server.access.redis_store import STREAMS_PREFIX, RedisStoreClient
from welldone.server.access.store import (
    STREAM_COPIES,
    RefusedError,
    SharedStore,
    StoreClient,
    StoreError,
    StoreUnavailableError,
    Value,
)
from welldone.server.resume.sources import _LATE_CHECKS, COPY_TTL_S, DEAD_S, StoreCopies, StoreSource, WriterDiedError
from welldone.server.resume.streams import LOST, EventBatch, StreamLostError, StreamRegistry, StreamState

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]
KEY, OTHER_KEY = "first-key-canary", "other-key-canary"
MINE, YOURS = (f"Authorization: Bearer {key}\r\n" for key in (KEY, OTHER_KEY))


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with real_redis() as started:
        yield started


@asynccontextmanager
async def two_gateways(
    folder: Path, upstream: GatedUpstream, redis: RealRedis, *, drain_s: float = 30.0
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    config = {"limits": LimitsSettings(store=redis.url)}
    keys = [KEY, OTHER_KEY]
    async with (
        gated_gateway(folder / "one", upstream, keys=keys, config=config, drain_s=drain_s) as one,
        gated_gateway(folder / "other", upstream, keys=keys, config=config, drain_s=drain_s) as other,
    ):
        yield one, other


def test_a_stream_is_resumed_through_another_front_end(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(5)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            await first.lose()
            live = await resume(other, first.stream_id, 3, MINE)
            assert live.status == 200
            assert await failed(other, first.stream_id, 3, YOURS) == (404, "stream_not_found")
            await live.read_events(2)
            await upstream.allow_all()
            whole = seen + await live.read_all()
            assert live.is_complete
            again = await resume(one, first.stream_id, 0, MINE)
            assert await again.read_all() == whole
            ended = await resume(other, first.stream_id, 1, MINE)
            assert await ended.read_all() == whole[1:]
            assert await failed(other, first.stream_id, len(whole) + 1, MINE) == (400, "invalid_event_number")
            names = redis.command("KEYS", f"{STREAMS_PREFIX}*").split()
            assert all(0 < int(redis.command("TTL", name)) <= 300 for name in names)
            assert "canary" not in redis.command("KEYS", "*")
            assert upstream.request_count == 1

    run(work())


def test_a_background_response_is_streamed_by_another_front_end(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await connect(one.server.port, "/v1/responses", BACKGROUND, MINE)
            seen = await first.read_events(2)
            await first.lose()
            name = values(seen)[0]["response"]["id"]
            path = f"/v1/responses/{name}?stream=true&starting_after=1"
            live = await connect(other.server.port, path, headers=MINE)
            await upstream.allow_all()
            whole = values(seen + await live.read_all())
            assert [value["sequence_number"] for value in whole] == list(range(len(whole)))
            assert whole[-1]["type"] == "response.completed"

    run(work())


def test_a_stream_is_stopped_through_another_front_end(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            await first.read_events(3)
            live = await resume(other, first.stream_id, 3, MINE)
            stopped = await request(other.server.port, f"/v1/streams/{first.stream_id}", MINE, "DELETE")
            assert stopped.status == 200
            await upstream.allow(1)  # the message is read with the next event
            await upstream.disconnected.wait()
            assert b'"code":"stream_stopped"' in (await first.read_all())[-2]
            await live.read_all()
            while (await failed(other, first.stream_id, 3, MINE)) != (404, "stream_not_found"):
                pass

    run(work())


def test_a_stopping_front_end_finishes_streams_that_others_can_send(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            await first.lose()
            stopping = asyncio.create_task(one.server.stop())
            live = await resume(other, first.stream_id, 3, MINE)
            assert not stopping.done()
            await upstream.allow_all()
            assert await stopping
            whole = seen + await live.read_all()
            assert live.is_complete
            assert whole[-1].endswith(b"[DONE]\n\n")
            assert b'"error"' not in b"".join(whole)
            again = await resume(other, first.stream_id, 0, MINE)
            assert await again.read_all() == whole

    run(work())


def test_the_copy_survives_the_shutdown_of_its_front_end(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis, drain_s=0.1) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            await first.lose()
            live = await resume(other, first.stream_id, 3, MINE)
            assert not await one.server.stop()
            rest = await live.read_all()
            assert live.is_complete
            assert b'"code":"shutting_down"' in rest[-2]
            again = await resume(other, first.stream_id, 0, MINE)
            assert await again.read_all() == seen + rest

    run(work())


def test_without_the_store_streams_are_resumed_where_they_run(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            await first.read_events(3)
            live = await resume(other, first.stream_id, 3, MINE)
            redis.kill()
            assert await failed(other, "stream_unknown", 0, MINE) == (503, "store_unavailable")
            rest = await resume(one, first.stream_id, 3, MINE)
            redis.start()
            await upstream.allow_all()
            expected = await rest.read_all()
            assert expected[-1].endswith(b"[DONE]\n\n")
            events = await live.read_all()  # Redis stores nothing across restarts
            assert events == expected if live.is_complete else events == expected[: len(events)]

    run(work())


async def resume_when_known(gate: Gateway, stream_id: str, after: int, headers: str) -> Connection:
    """Resume a stream as the client of docs/resume.md does: while the reply is a 503 with Retry-After, try again."""
    while True:
        connection = await resume(gate, stream_id, after, headers)
        if connection.status != 503:
            return connection
        await connection.read_all()
        assert connection.headers["retry-after"] == "1"
        assert connection.json["error"]["code"] == "store_unavailable"
        assert connection.json["error"]["type"] == "server_error"


def test_while_the_store_is_silent_no_stream_is_said_to_be_unknown(
    tmp_path: Path, redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            live = await resume_when_known(other, first.stream_id, 0, MINE)
            assert await live.read_events(3) == seen
            redis.suspend()
            for _ in range(5):
                assert await failed(other, first.stream_id, 3, MINE) == (503, "store_unavailable")
                assert await failed(other, "stream_unknown", 0, MINE) == (503, "store_unavailable")
            deleted = await request(other.server.port, f"/v1/streams/{first.stream_id}", MINE, "DELETE")
            assert (deleted.status, deleted.json["error"]["code"]) == (503, "store_unavailable")
            late = await start(one, ASKS + MINE)  # its copy is written when the store is back
            await late.read_events(3)
            redis.resume()
            found = await resume_when_known(other, late.stream_id, 0, MINE)
            assert found.status == 200
            again = await resume_when_known(other, first.stream_id, 3, MINE)
            await upstream.allow_all()
            rest = await again.read_all()
            assert (again.status, again.is_complete) == (200, True)
            assert await live.read_all() == seen + rest
            unknown = await resume_when_known(other, "stream_unknown", 0, MINE)
            assert unknown.status == 404
            await first.read_all()

    run(work())
    warnings = [message for message in caplog.messages if "the store of resumable streams is unavailable" in message]
    assert 1 <= len(warnings) <= 2  # each gateway once


def test_a_store_that_comes_back_empty_gets_the_running_streams_again(tmp_path: Path, redis: RealRedis) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            live = await resume_when_known(other, first.stream_id, 0, MINE)
            await live.read_events(3)
            redis.kill()
            redis.start()
            while (again := await resume_when_known(other, first.stream_id, 0, MINE)).status != 200:
                await again.read_all()
            assert await again.read_events(3) == seen
            await upstream.allow_all()
            whole = await again.read_all()
            assert again.is_complete
            assert whole[-1].endswith(b"[DONE]\n\n")
            assert await first.read_all() == whole

    run(work())


@pytest.mark.parametrize("number", range(1, 6))
def test_whichever_read_of_the_store_fails_a_reader_gets_all(
    tmp_path: Path, redis: RealRedis, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    count, read_events = 0, RedisStoreClient.read_events

    async def read_or_fail(client: RedisStoreClient, name: str, after: int) -> EventBatch | None:
        nonlocal count
        count += 1
        if count == number:
            raise StoreError("no answer")
        return await read_events(client, name, after)

    monkeypatch.setattr(RedisStoreClient, "read_events", read_or_fail)

    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with two_gateways(tmp_path, upstream, redis) as (one, other):
            await upstream.allow(3)
            first = await start(one, ASKS + MINE)
            seen = await first.read_events(3)
            live = await resume_when_known(other, first.stream_id, 3, MINE)
            assert live.status == 200
            await wait_until(lambda: count >= number)
            await upstream.allow_all()
            rest = await live.read_all()
            assert live.is_complete
            assert await first.read_all() == seen + rest

    run(work())


# The operations of the store.


def batch(dropped: int, events: list[bytes], count: int, state: StreamState = StreamState.RUNNING) -> EventBatch:
    return EventBatch(dropped, count, state, events)


def test_events_are_stored_once_and_trimmed(redis: RealRedis) -> None:
    async def work() -> None:
        client = RedisStoreClient(redis.url)
        try:
            assert await client.read_events("a", 0) is None
            assert await client.append_events("a", batch(0, [], 0), 30.0) is None
            assert await client.read_events("a", 0) == batch(0, [], 0)
            for _ in range(2):  # the reply to the first attempt was lost
                await client.append_events("a", batch(0, [b"1", b"2"], 2), 30.0)
            assert await client.read_events("a", 0) == batch(0, [b"1", b"2"], 2)
            assert await client.read_events("a", 1) == batch(0, [b"2"], 2)
            await client.append_events("a", batch(2, [b"3"], 3), 30.0)
            assert await client.read_events("a", 2) == batch(2, [b"3"], 3)
            await client.append_events("a", batch(2, [b"4"], 4, StreamState.COMPLETE), 30.0)
            assert await client.read_events("a", 3) == batch(2, [b"4"], 4, StreamState.COMPLETE)
            await client.message_writer("a", b"stopped")
            await client.message_writer("a", b"reading")
            assert await client.append_events("a", batch(2, [], 4, StreamState.COMPLETE), 30.0) == b"stopped"
            assert await client.append_events("a", batch(2, [], 4, StreamState.COMPLETE), 30.0) is None
            await client.drop_events("a")
            assert await client.read_events("a", 0) is None
            assert await client.append_events("a", batch(2, [b"5"], 5), 30.0) == LOST
            assert await client.read_events("a", 0) is None
            assert await client.append_events("a", batch(4, [b"5"], 5), 30.0) is None  # the others are not kept
            assert await client.read_events("a", 0) == batch(4, [b"5"], 5)
        finally:
            await client.close()

    run(work())


def test_a_rejected_command_does_not_mark_the_store_as_down(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    """As with an access control list that allows only the commands for limits and keys."""

    async def work() -> None:
        redis.command("ACL", "SETUSER", "default", "-XADD")
        store = SharedStore(RedisStoreClient(redis.url), use=STREAM_COPIES)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await store.call(lambda client: client.append_events("a", batch(0, [b"1"], 1), 30.0))
        assert await store.find(lambda client: client.get_response("a")) is None
        redis.command("ACL", "SETUSER", "default", "-XRANGE", "-GET")
        assert await StoreSource(store, "me", "stream_1").find() is None  # nothing is shared
        assert await store.find(lambda client: client.get_response("a")) is None
        assert store.is_up
        assert caplog.messages == ["the store rejects a command"]
        await store.close()

    run(work())


def test_a_copy_that_expires_is_lost_for_its_reader(redis: RealRedis) -> None:
    async def work() -> None:
        client = RedisStoreClient(redis.url)
        store = SharedStore(client)
        name = hashlib.sha256(b"me\0stream_1").hexdigest()
        await client.append_events(name, batch(0, [b"1"], 1), 0.5)
        source = StoreSource(store, "me", "stream_1")
        assert await source.find() is source
        assert await StoreSource(store, "you", "stream_1").find() is None
        assert (await source.read(0, 5.0)).events == [b"1"]
        with pytest.raises(StreamLostError):
            await source.read(1, 60.0)
        await store.close()

    run(work())


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ],
    ids=["failover", "full"],
)
def test_a_store_that_rejects_writes_for_a_while_is_down(
    redis: RealRedis, fault: tuple[str, ...], end: tuple[str, ...]
) -> None:
    async def work() -> None:
        store = SharedStore(RedisStoreClient(redis.url), use=STREAM_COPIES)
        redis.command(*fault)
        with pytest.raises(StoreUnavailableError) as caught:
            await store.call(lambda client: client.append_events("a", batch(0, [b"1"], 1), 30.0))
        assert not isinstance(caught.value, RefusedError)
        redis.command(*end)
        await wait_until(lambda: store.is_up)
        assert await store.call(lambda client: client.append_events("a", batch(0, [b"1"], 1), 30.0)) is None
        await store.close()

    run(work())


def test_a_copy_that_is_not_written_any_more_is_that_of_a_dead_process(redis: RealRedis) -> None:
    async def work() -> None:
        client = RedisStoreClient(redis.url, timeout_s=30.0)
        store = SharedStore(client, timeout_s=30.0)
        name = hashlib.sha256(b"me\0stream_1").hexdigest()
        key = STREAMS_PREFIX + name

        async def is_checked() -> None:
            await client._redis.delete(f"{key}:message")
            while not await client._redis.exists(f"{key}:message"):
                pass

        await client.append_events(name, batch(0, [b"first", b"last"], 2), COPY_TTL_S)
        source = StoreSource(store, "me", "stream_1")
        assert (await source.read(0, 5.0)).events == [b"first", b"last"]
        reading = asyncio.create_task(source.read(2, 3600.0))
        for _ in range(2):  # the process is late, and writes before it counts as dead
            await client._redis.pexpire(key, round(1000 * (COPY_TTL_S - DEAD_S - 1.0)))
            for _ in range(_LATE_CHECKS - 2):
                await is_checked()
            await client.append_events(name, batch(0, [], 2), COPY_TTL_S)
            await is_checked()
        assert not reading.done()
        await client._redis.pexpire(key, round(1000 * (COPY_TTL_S - DEAD_S - 1.0)))
        with pytest.raises(WriterDiedError) as caught:
            await reading
        assert (caught.value.first, caught.value.count) == (b"first", 2)
        await store.close()

    run(work())


def test_a_reader_that_is_ahead_of_the_copy_of_a_dead_process_may_try_again(redis: RealRedis) -> None:
    async def work() -> None:
        client = RedisStoreClient(redis.url, timeout_s=30.0)
        store = SharedStore(client, timeout_s=30.0)
        name = hashlib.sha256(b"me\0stream_1").hexdigest()
        await client.append_events(name, batch(0, [b"first"], 1), COPY_TTL_S)
        reading = asyncio.create_task(StoreSource(store, "me", "stream_1").read(2, 0.0))
        while not reading.done():  # the process lives
            await client.append_events(name, batch(0, [], 1), COPY_TTL_S)
        assert (await reading).count == 1  # there is no such event yet
        await client._redis.pexpire(STREAMS_PREFIX + name, round(1000 * (COPY_TTL_S - DEAD_S)))
        with pytest.raises(ApiError) as caught:
            await StoreSource(store, "me", "stream_1").read(2, 0.0)
        assert (caught.value.status, caught.value.code) == (503, "server_gone")
        await store.close()

    run(work())


def test_what_the_store_rejects_is_not_copied_again_and_again(redis: RealRedis) -> None:
    class Counting(SharedStore):
        calls = 0

        async def call(self, operation: Callable[[StoreClient], Awaitable[Value]]) -> Value:
            self.calls += 1
            return await super().call(operation)

    async def work() -> None:
        redis.command("ACL", "SETUSER", "default", "-XADD", "-DEL")
        store = Counting(RedisStoreClient(redis.url), use=STREAM_COPIES)
        registry = StreamRegistry(ServeSettings(resume_s=30.0))
        copies = StoreCopies(store, registry)
        stream = registry.open("me", "stream_1")
        assert stream is not None
        copies.start(stream)
        await wait_until(lambda: not copies._tasks)
        registry.remove(stream)
        await wait_until(lambda: not copies._drops)
        assert store.calls == 2
        await store.close()

    run(work())
