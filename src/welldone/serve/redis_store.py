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

from welldone.serve.store import PATIENCE_S, Count, StoreError, WrongTypeError

KEYS = "welldone:keys"
LIMITS = "welldone:limits:"

_CONNECTIONS = 2
"""One carries all questions of a server. Another is there where that one is being given up."""

_AT_ONCE = 256
"""Questions that go together, in some 50 KB. Each by itself was measured to cost us four times as much."""

_SHOWN = 200  # characters of what Redis says is wrong
_ELSE = "it answers something else than was asked"

_COUNT = """
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


_COUNT_SHA = hashlib.sha1(_COUNT.encode(), usedforsecurity=False).hexdigest()


class _Asked(NamedTuple):
    """A question that waits to be sent."""

    words: tuple[str | int, ...]
    answer: "asyncio.Future[Any]"


class RedisLink:
    """The way to a Redis, or to what speaks as it does."""

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=patience_s,
            socket_timeout=patience_s,
            socket_connect_timeout=patience_s,
            retry=Retry(NoBackoff(), 0),  # who asks does not wait for another try
            protocol=2,  # all versions know it, and nothing of a newer one is used
        )
        self._redis = Redis.from_pool(pool)
        self._waiting: list[_Asked] = []
        self._sending: asyncio.Task[None] | None = None

    async def count(self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int) -> Count:
        """Count requests, if there is room for them, and in any case requests that are `owed`, and tokens."""
        said = await self._ask("EVAL", _COUNT, 1, LIMITS + name, *sizes, requests, tokens, owed)
        try:
            is_in, left_requests, left_tokens = said
            count = Count(bool(is_in), float(left_requests), float(left_tokens))
        except (TypeError, ValueError):
            raise StoreError(_ELSE) from None
        if not (math.isfinite(count.requests) and math.isfinite(count.tokens)):  # nobody can count on from there
            raise StoreError(_ELSE)
        return count

    async def key(self, digest: str) -> bytes | None:
        """What is kept of the key with this digest."""
        said = await self._ask("HGET", KEYS, digest)
        if said is None or isinstance(said, bytes):
            return said
        raise StoreError(_ELSE)

    async def _ask(self, *words: str | int) -> Any:  # noqa: ANN401 - whatever Redis says
        """An answer. Questions of many go together, since each by itself is dear."""
        asked = _Asked(words, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        said = await asked.answer
        if isinstance(said, Exception):
            kind = WrongTypeError if "WRONGTYPE" in str(said) else StoreError
            raise kind(_words(said))
        return said

    async def _send(self) -> None:
        """Ask for all who wait. Who has given up meanwhile is not counted."""
        while self._waiting:
            batch = [asked for asked in self._waiting[:_AT_ONCE] if not asked.answer.done()]
            del self._waiting[:_AT_ONCE]
            for asked, said in zip(batch, await self._answers(batch), strict=False):
                if not asked.answer.done():
                    asked.answer.set_result(said)

    async def _answers(self, batch: list[_Asked]) -> list[Any]:
        """An answer or an error for each. The first count carries the script, which Redis then has."""
        has_script = False
        try:
            with _errors():
                async with asyncio.timeout(self._patience_s), self._redis.pipeline(transaction=False) as pipe:
                    for asked in batch:
                        words = asked.words
                        if words[0] == "EVAL":
                            words = ("EVALSHA", _COUNT_SHA, *words[2:]) if has_script else words
                            has_script = True
                        pipe.execute_command(*words)
                    return await pipe.execute(raise_on_error=False)
        except StoreError as error:
            return [error] * len(batch)

    async def keys(self) -> Mapping[str, bytes]:
        """What is kept of all keys, by their digests."""
        with _errors():
            said: Any = await self._redis.hgetall(KEYS)
            return {bytes(name).decode(): bytes(value) for name, value in said.items()}

    async def put_key(self, digest: str, value: bytes) -> None:
        """Keep a key."""
        with _errors():
            await self._redis.hset(KEYS, digest, value)

    async def drop_keys(self, digests: Iterable[str]) -> None:
        """Keep them no more."""
        with _errors():
            await self._redis.hdel(KEYS, *digests)

    async def close(self) -> None:
        """Leave it."""
        if self._sending is not None:
            self._sending.cancel()
        with _errors():
            await self._redis.aclose()


@contextmanager
def _errors() -> Iterator[None]:
    """What is wrong, in its own words."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what is no Redis may say anything, and the library stumble in any way
        raise StoreError(_words(error)) from None


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (str(error) or type(error).__name__)[:_SHOWN]
