"""The store of shared limits and keys in Redis. Only this file knows its library, which is an extra.

Under `welldone:limits:NAME` is a hash that counts what somebody has used: `requests` and `tokens` run down at an even
rate, a minute's worth in a minute, and `at` says when they were written. It expires when all of it has run down. The
clock is that of Redis, so that front ends need not agree on theirs. Under `welldone:keys` is a hash of shared keys, by
the digests of the keys. No key itself is ever written there.
"""

import asyncio
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from welldone.server.access.store import STORE_TIMEOUT_S, LimitCount, StoreError, WrongTypeError

KEYS_HASH = "welldone:keys"
LIMITS_PREFIX = "welldone:limits:"

_CONNECTIONS = 2
"""One carries all questions of a server. Another is there where that one is being given up."""

_BATCH_SIZE = 256
"""Questions that go together, in some 50 KB. Each by itself was measured to cost us four times as much."""

_ERROR_CHARACTERS = 200  # characters of what Redis says is wrong
_UNEXPECTED_REPLY = "it answers something else than was asked"

_COUNT_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
local was = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local function number(text, otherwise)
  local value = tonumber(text or otherwise) or otherwise
  return value - value == 0 and value or otherwise
end
local passed = math.max(0, now - number(was[1], now))
local dust = 0.000000001
local sizes = {tonumber(ARGV[1]), tonumber(ARGV[2])}
local used, left, is_in, full_s = {}, {}, 1, 0
for i = 1, 2 do
  used[i] = math.max(0, number(was[i + 1], 0) - passed * sizes[i] / 60)
  if sizes[i] > 0 and used[i] > sizes[i] - 1 + dust then is_in = 0 end
end
if is_in == 1 then used[1] = used[1] + ARGV[3] end
used[1] = used[1] + ARGV[5]
used[2] = used[2] + ARGV[4]
for i = 1, 2 do
  if sizes[i] > 0 then full_s = math.max(full_s, used[i] * 60 / sizes[i]) else used[i] = 0 end
  left[i] = string.format('%.9f', sizes[i] - used[i])
end
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now),
  'requests', string.format('%.9f', used[1]), 'tokens', string.format('%.9f', used[2]))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', full_s * 1000 + 1))
return {is_in, left[1], left[2]}
"""
"""One step, so that of two who come at once one is first. A request that finds no room is not counted. What is no hash
or holds no finite number was not written here, and starts anew."""


_COUNT_SCRIPT_SHA = hashlib.sha1(_COUNT_SCRIPT.encode(), usedforsecurity=False).hexdigest()


class _PendingCommand(NamedTuple):
    """A question that waits to be sent."""

    args: tuple[str | int, ...]
    reply: "asyncio.Future[Any]"


class RedisStoreClient:
    """The way to a Redis, or to what speaks as it does."""

    def __init__(self, url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # who asks does not wait for another try
            protocol=2,  # all versions know it, and nothing of a newer one is used
        )
        self._redis = Redis.from_pool(pool)
        self._pending: list[_PendingCommand] = []
        self._flush_task: asyncio.Task[None] | None = None

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        """Count requests, if there is room for them, and in any case requests that are `owed`, and tokens."""
        said = await self._execute("EVAL", _COUNT_SCRIPT, 1, LIMITS_PREFIX + name, *sizes, requests, tokens, owed)
        try:
            is_in, left_requests, left_tokens = said
            count = LimitCount(bool(is_in), float(left_requests), float(left_tokens))
        except (TypeError, ValueError):
            raise StoreError(_UNEXPECTED_REPLY) from None
        if not (math.isfinite(count.requests) and math.isfinite(count.tokens)):  # nobody can count on from there
            raise StoreError(_UNEXPECTED_REPLY)
        return count

    async def key(self, digest: str) -> bytes | None:
        """What is kept of the key with this digest."""
        said = await self._execute("HGET", KEYS_HASH, digest)
        if said is None or isinstance(said, bytes):
            return said
        raise StoreError(_UNEXPECTED_REPLY)

    async def _execute(self, *args: str | int) -> Any:  # noqa: ANN401 - whatever Redis says
        """An answer. Questions of many go together, since each by itself is dear."""
        asked = _PendingCommand(args, asyncio.get_running_loop().create_future())
        self._pending.append(asked)
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.create_task(self._flush())
        said = await asked.reply
        if isinstance(said, Exception):
            kind = WrongTypeError if "WRONGTYPE" in str(said) else StoreError
            raise kind(_error_text(said))
        return said

    async def _flush(self) -> None:
        """Ask for all who wait. Who has given up meanwhile is not counted."""
        while self._pending:
            batch = [asked for asked in self._pending[:_BATCH_SIZE] if not asked.reply.done()]
            del self._pending[:_BATCH_SIZE]
            for asked, said in zip(batch, await self._run_batch(batch), strict=False):
                if not asked.reply.done():
                    asked.reply.set_result(said)

    async def _run_batch(self, batch: list[_PendingCommand]) -> list[Any]:
        """An answer or an error for each. The first count carries the script, which Redis then has."""
        has_script = False
        try:
            with _wrap_errors():
                async with asyncio.timeout(self._timeout_s), self._redis.pipeline(transaction=False) as pipe:
                    for asked in batch:
                        words = asked.args
                        if words[0] == "EVAL":
                            words = ("EVALSHA", _COUNT_SCRIPT_SHA, *words[2:]) if has_script else words
                            has_script = True
                        pipe.execute_command(*words)
                    return await pipe.execute(raise_on_error=False)
        except StoreError as error:
            return [error] * len(batch)

    async def keys(self) -> Mapping[str, bytes]:
        """What is kept of all keys, by their digests."""
        with _wrap_errors():
            said: Any = await self._redis.hgetall(KEYS_HASH)
            return {bytes(name).decode(): bytes(value) for name, value in said.items()}

    async def put_key(self, digest: str, value: bytes) -> None:
        """Keep a key."""
        with _wrap_errors():
            await self._redis.hset(KEYS_HASH, digest, value)

    async def drop_keys(self, digests: Iterable[str]) -> None:
        """Keep them no more."""
        with _wrap_errors():
            await self._redis.hdel(KEYS_HASH, *digests)

    async def close(self) -> None:
        """Leave it."""
        if self._flush_task is not None:
            self._flush_task.cancel()
        with _wrap_errors():
            await self._redis.aclose()


@contextmanager
def _wrap_errors() -> Iterator[None]:
    """What is wrong, in its own words."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what is no Redis may say anything, and the library stumble in any way
        raise StoreError(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (str(error) or type(error).__name__)[:_ERROR_CHARACTERS]
