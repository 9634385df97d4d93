"""Stored responses that several front ends share over a real Redis: any of them continues, returns and deletes them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import LIMIT_S, run
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply
from welldone.config.server import KeySettings, LimitsSettings
from welldone.mock.script import MockChunk, MockReply
from welldone.server.access.redis_store import (
    RESPONSE_INDEX_PREFIX,
    RESPONSE_SIZES_PREFIX,
    RESPONSES_PREFIX,
    RedisStoreClient,
)
from welldone.server.access.store import ResponseLimits

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]
KEY, OTHER_KEY = "first-key-canary", "other-key-canary"
MINE, YOURS = (f"Authorization: Bearer {key}\r\n" for key in (KEY, OTHER_KEY))
PATH = "/v1/responses"
FAST = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
SLOW = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with real_redis() as started:
        yield started


@asynccontextmanager
async def front_ends(
    folder: Path,
    redis: RealRedis,
    reply: MockReply = FAST,
    **settings: Any,  # noqa: ANN401 - of the server
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways with an upstream each, keys and a store."""
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                gateway(
                    folder,
                    [reply],
                    keys=[KEY, OTHER_KEY],
                    config={"limits": LimitsSettings(store=redis.url)},
                    **settings,
                )
            )
            for _ in range(2)
        ]
        yield one, other


async def create(gate: Gateway, text: str, headers: str = MINE, **more: Any) -> RecordedReply:  # noqa: ANN401
    return await gate.post({"model": "x", "input": text, **more}, PATH, headers)


def response_of(reply: RecordedReply) -> dict[str, Any]:
    """The response of a whole reply or a stream."""
    if reply.body.startswith(b"{"):
        whole: dict[str, Any] = reply.json
        return whole
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    last: dict[str, Any] = events[-1]["response"]
    return last


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_continues_at_any_front_end(tmp_path: Path, redis: RealRedis, stream: bool) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis) as (one, other):
            first = response_of(await create(one, "first", stream=stream))
            reply = await create(other, "second", previous_response_id=first["id"], stream=stream)
            second = response_of(reply)
            assert reply.status == 200
            third = await create(one, "third", previous_response_id=second["id"])
            assert third.status == 200
            sent = json.loads([one for one in one.upstreams[0].requests if one.method == "POST"][-1].body)
            assert [message["content"] for message in sent["messages"]] == [
                *("first", "Hello", "second", "Hello"),
                "third",
            ]
            for gate in (one, other):
                assert (await gate.get(f"{PATH}/{first['id']}", MINE)).json["id"] == first["id"]
                assert (await gate.get(f"{PATH}/{first['id']}", YOURS)).status == 404
                items = (await gate.get(f"{PATH}/{second['id']}/input_items", MINE)).json["data"]
                assert len(items) == 3
            reply = await create(other, "mine?", YOURS, previous_response_id=first["id"])
            assert (reply.status, reply.error["code"]) == (400, "previous_response_not_found")

    run(body())


def test_a_deleted_response_is_gone_everywhere(tmp_path: Path, redis: RealRedis) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis) as (one, other):
            made = response_of(await create(one, "first"))
            reply = await other.get(f"{PATH}/{made['id']}", MINE, method="DELETE")
            assert reply.json["deleted"] is True
            for gate in (one, other):
                assert (await gate.get(f"{PATH}/{made['id']}", MINE)).status == 404
                assert (await create(gate, "second", previous_response_id=made["id"])).status == 400

    run(body())


def test_a_background_response_is_polled_at_another_front_end(tmp_path: Path, redis: RealRedis) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis, SLOW) as (one, other):
            made = response_of(await create(one, "first", background=True))
            path = f"{PATH}/{made['id']}"
            reply = await other.get(f"{path}/cancel", MINE, method="POST")
            assert (reply.status, reply.error["code"]) == (409, "not_here")
            async with asyncio.timeout(LIMIT_S):
                while (found := (await other.get(path, MINE)).json)["status"] != "completed":
                    assert found["status"] in ("queued", "in_progress")
            assert found["output"][0]["content"][0]["text"] == "HelloHello"
            assert (await other.get(f"{path}/cancel", MINE, method="POST")).json == found

    run(body())


def test_without_the_store_each_front_end_has_its_own(tmp_path: Path, redis: RealRedis) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis) as (one, other):
            redis.kill()
            made = response_of(await create(one, "first"))
            assert (await create(one, "second", previous_response_id=made["id"])).status == 200
            assert (await other.get(f"{PATH}/{made['id']}", MINE)).status == 503

    run(body())


async def when_known(send: Callable[[], Awaitable[RecordedReply]]) -> RecordedReply:
    """Send a request again while the reply is a 503 with Retry-After."""
    while (reply := await send()).status == 503:
        assert is_unavailable(reply)
    return reply


def is_unavailable(reply: RecordedReply) -> bool:
    """Whether it is a 503 of the store, which clients try again."""
    headers = {name.lower(): value for name, value in reply.capture.headers or ()}
    return (reply.status, reply.error["code"], headers["retry-after"]) == (503, "store_unavailable", "1")


def test_while_the_store_is_silent_no_response_is_said_to_be_unknown(
    tmp_path: Path, redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis) as (one, other):
            before = response_of(await create(one, "first"))["id"]
            await when_known(lambda: other.get(f"{PATH}/{before}/input_items", MINE))  # it is written
            at_other = response_of(await create(other, "mine"))["id"]
            redis.suspend()
            during = response_of(await create(one, "second"))["id"]
            for number in range(3):
                for made in (during, f"resp_{number}"):
                    for reply in (
                        await other.get(f"{PATH}/{made}", MINE),
                        await other.get(f"{PATH}/{made}", MINE, method="DELETE"),
                        await other.get(f"{PATH}/{made}/input_items", MINE),
                        await other.get(f"{PATH}/{made}/cancel", MINE, method="POST"),
                        await other.get(f"{PATH}/{made}?stream=true", MINE),
                        await create(other, "more", previous_response_id=made),
                        await create(other, "more", previous_response_id=made, stream=True),
                        await other.post({"model": "x", "previous_response_id": made}, f"{PATH}/compact", MINE),
                    ):
                        assert is_unavailable(reply)
            assert (await create(other, "more", previous_response_id=at_other)).status == 200  # it needs no store
            assert (await other.get(f"{PATH}/{at_other}", MINE)).status == 200
            deleted = await other.get(f"{PATH}/{at_other}", MINE, method="DELETE")
            assert deleted.status == 503  # it would still be in the store
            assert (await other.get(f"{PATH}/{at_other}", MINE)).status == 200
            redis.resume()
            for made in (before, during):
                reply = await when_known(partial(create, other, "more", previous_response_id=made))
                assert reply.status == 200
            for gate in (other, one):
                reply = await when_known(partial(gate.get, f"{PATH}/resp_unknown", MINE))
                assert (reply.status, reply.error["code"]) == (404, "not_found")
            reply = await when_known(lambda: other.get(f"{PATH}/{at_other}", MINE, method="DELETE"))
            assert reply.json["deleted"] is True
            assert (await when_known(lambda: one.get(f"{PATH}/{at_other}", MINE))).status == 404

    run(body())
    warnings = [message for message in caplog.messages if "the store of stored responses is unavailable" in message]
    assert 1 <= len(warnings) <= 2  # each front end once


def test_a_key_of_another_server_with_the_same_name_is_another_key(tmp_path: Path, redis: RealRedis) -> None:
    """Two servers with different settings on one Redis. The third one has the key of the first."""

    async def body() -> None:
        async with AsyncExitStack() as stack:

            def front(key: str) -> AbstractAsyncContextManager[Gateway]:
                config = {"limits": LimitsSettings(store=redis.url), "keys": (KeySettings(name="team", key=key),)}
                return gateway(tmp_path, [FAST], config=config)

            one, other, third = [await stack.enter_async_context(front(key)) for key in (KEY, OTHER_KEY, KEY)]
            made = response_of(await create(one, "private"))["id"]
            for _ in range(2):
                assert (await when_known(partial(third.get, f"{PATH}/{made}", MINE))).json["id"] == made
                for method in ("GET", "DELETE"):
                    reply = await when_known(partial(other.get, f"{PATH}/{made}", YOURS, method=method))
                    assert reply.status == 404
                reply = await when_known(partial(create, other, "more", YOURS, previous_response_id=made))
                assert reply.error["code"] == "previous_response_not_found"

    run(body())


def test_nothing_is_shared_without_a_time(tmp_path: Path, redis: RealRedis) -> None:
    async def body() -> None:
        async with front_ends(tmp_path, redis, stored_s=0.0) as (one, other):
            made = response_of(await create(one, "first"))
            reply = await other.get(f"{PATH}/{made['id']}", MINE)
            assert reply.status == 404
            assert "shares" not in reply.error["message"]

    run(body())


def test_the_store_keeps_the_newest_of_each_owner_within_its_limits(redis: RealRedis) -> None:
    async def body() -> None:
        client = RedisStoreClient(redis.url)
        try:
            limits = ResponseLimits(60.0, 3, 100)
            for number in range(5):
                await client.put_response("me", f"a{number}", b"x" * 10, limits)
            await client.put_response("you", "b", b"y", limits)
            assert [await client.get_response(f"a{number}") for number in range(5)] == [None, None, *[b"x" * 10] * 3]
            await client.put_response("me", "a4", b"z" * 85, limits)  # replaced: two others do not fit beside it
            assert [await client.get_response(name) for name in ("a2", "a3", "a4", "b")] == [
                *(None, b"x" * 10),
                *(b"z" * 85, b"y"),
            ]
            await client.put_response("me", "large", b"z" * 101, limits)
            assert [await client.get_response(name) for name in ("a3", "a4", "large")] == [None, None, None]
            await client.drop_response("b", 60.0)
            await client.put_response("you", "b", b"y", limits)
            assert await client.get_response("b") == b""
            await client.put_response("me", "short", b"s", ResponseLimits(0.001, 3, 100))
            for key in (RESPONSES_PREFIX + "short", RESPONSE_INDEX_PREFIX + "me", RESPONSE_SIZES_PREFIX + "me"):
                async with asyncio.timeout(LIMIT_S):
                    while await client._redis.exists(key):
                        pass
        finally:
            await client.close()

    run(body())
