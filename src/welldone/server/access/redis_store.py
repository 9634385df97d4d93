"""Redis client of the shared store. Only this module imports the redis library, an optional dependency.

`welldone:limits:NAME` is a hash per principal, a leaky bucket: `requests` and `tokens` drain at a constant rate, a
minute's limit per minute, and `at` is the time of the last write. It expires when it is drained. The clock is that of
Redis, so that servers need not agree on theirs. `welldone:keys` is a hash of API keys by their digests; the keys
themselves are never stored. `welldone:streams:NAME` is a Redis stream with the events of a resumable stream, whose ids
are the numbers of the events; `welldone:streams:NAME:message` is a message of its reader. Both expire.
`welldone:responses:NAME` is a stored response, `welldone:responses-of:OWNER` the names of an owner by their expiry, and
`welldone:response-sizes:OWNER` their sizes, with the sum under an empty name. All three expire.
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
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, ResponseError

from welldone.server.access.store import (
    STORE_TIMEOUT_S,
    LimitCount,
    RejectedCommandError,
    ResponseLimits,
    StoreError,
)
from welldone.server.resume.streams import BATCH_EVENTS, LOST, READING, EventBatch, StreamState

KEYS_HASH = "welldone:keys"
LIMITS_PREFIX = "welldone:limits:"
STREAMS_PREFIX = "welldone:streams:"
RESPONSES_PREFIX = "welldone:responses:"
RESPONSE_INDEX_PREFIX = "welldone:responses-of:"
RESPONSE_SIZES_PREFIX = "welldone:response-sizes:"

_CONNECTIONS = 2
"""One connection carries all commands of a server; the second takes over while the first is being closed."""

_BATCH_SIZE = 256
"""Commands per pipeline, about 50 KB. Sent one by one they took four times the CPU time."""

_MESSAGE_TTL_S = 60  # of a reader's message; the writer reads it every second
_EVENT_FIELD, _STATE_FIELD, _START_FIELD = b"event", b"state", b"start"
"""Fields of a stream's entries. The first entry has the number 0; the last one, after the events, has the state."""
_KNOWN_ENTRY = "equal or smaller"
"""Of Redis' error for an entry that exists: the reply to an earlier attempt was lost."""

_TEMPORARY_ERRORS = (MasterDownError, OutOfMemoryError, ReadOnlyError)
"""Errors of a Redis that is usable at other times: during a failover, or until entries have expired."""
_ERROR_CHARACTERS = 200  # characters of a Redis error message
_UNEXPECTED_REPLY = "unexpected reply"

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
"""Atomic check and count. A rejected request is not counted. Values of the wrong type and numbers that are not finite
were not written by this script, and are reset."""


_PUT_RESPONSE_SCRIPT = """
if redis.call('GET', KEYS[1]) == '' then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value, ttl, count, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local prefix, own = ARGV[5], ARGV[6]
local function forget(name)
  local size = redis.call('HGET', KEYS[3], name)
  redis.call('ZREM', KEYS[2], name)
  redis.call('HDEL', KEYS[3], name)
  if size then redis.call('HINCRBY', KEYS[3], '', '-' .. size) end
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do forget(name) end
forget(own)
redis.call('SET', KEYS[1], value, 'PX', ttl)
redis.call('ZADD', KEYS[2], now + ttl, own)
redis.call('HSET', KEYS[3], own, #value)
redis.call('HINCRBY', KEYS[3], '', #value)
while redis.call('ZCARD', KEYS[2]) > count or tonumber(redis.call('HGET', KEYS[3], '')) > bytes do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then break end
  redis.call('DEL', prefix .. oldest)
  forget(oldest)
end
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PEXPIRE', KEYS[3], ttl)
return 1
"""
"""Stores a response and deletes the oldest of its owner beyond the limits. A response that was deleted is empty."""


_COUNT_SCRIPT_SHA = hashlib.sha1(_COUNT_SCRIPT.encode(), usedforsecurity=False).hexdigest()


class _PendingCommand(NamedTuple):
    """A command that waits to be sent."""

    args: tuple[str | int, ...]
    reply: "asyncio.Future[Any]"


class RedisStoreClient:
    """Client of a Redis-compatible server."""

    def __init__(self, url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # callers fall back instead of waiting
            protocol=2,  # RESP2: supported by all versions
        )
        self._redis = Redis.from_pool(pool)
        self._pending: list[_PendingCommand] = []
        self._flush_task: asyncio.Task[None] | None = None

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        """See `StoreClient.count`."""
        reply = await self._execute("EVAL", _COUNT_SCRIPT, 1, LIMITS_PREFIX + name, *sizes, requests, tokens, owed)
        try:
            is_admitted, left_requests, left_tokens = reply
            count = LimitCount(bool(is_admitted), float(left_requests), float(left_tokens))
        except (TypeError, ValueError):
            raise StoreError(_UNEXPECTED_REPLY) from None
        if not (math.isfinite(count.requests) and math.isfinite(count.tokens)):
            raise StoreError(_UNEXPECTED_REPLY)
        return count

    async def key(self, digest: str) -> bytes | None:
        """The stored entry of the key with this digest."""
        reply = await self._execute("HGET", KEYS_HASH, digest)
        if reply is None or isinstance(reply, bytes):
            return reply
        raise StoreError(_UNEXPECTED_REPLY)

    async def _execute(self, *args: str | int) -> Any:  # noqa: ANN401 - any Redis reply
        """Queue a command for the next pipeline and wait for its reply."""
        command = _PendingCommand(args, asyncio.get_running_loop().create_future())
        self._pending.append(command)
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.create_task(self._flush())
        reply = await command.reply
        if isinstance(reply, Exception):
            error_type = RejectedCommandError if "WRONGTYPE" in str(reply) else StoreError
            raise error_type(_error_text(reply))
        return reply

    async def _flush(self) -> None:
        """Send all pending commands, except those whose caller was cancelled."""
        while self._pending:
            batch = [command for command in self._pending[:_BATCH_SIZE] if not command.reply.done()]
            del self._pending[:_BATCH_SIZE]
            for command, reply in zip(batch, await self._run_batch(batch), strict=False):
                if not command.reply.done():
                    command.reply.set_result(reply)

    async def _run_batch(self, batch: list[_PendingCommand]) -> list[Any]:
        """A reply or an error per command. The first EVAL loads the script; later ones refer to its hash."""
        has_script = False
        try:
            with _wrap_errors():
                async with asyncio.timeout(self._timeout_s), self._redis.pipeline(transaction=False) as pipe:
                    for command in batch:
                        args = command.args
                        if args[0] == "EVAL":
                            args = ("EVALSHA", _COUNT_SCRIPT_SHA, *args[2:]) if has_script else args
                            has_script = True
                        pipe.execute_command(*args)
                    return await pipe.execute(raise_on_error=False)
        except StoreError as error:
            return [error] * len(batch)

    async def keys(self) -> Mapping[str, bytes]:
        """All stored keys, by digest."""
        with _wrap_errors():
            entries: Any = await self._redis.hgetall(KEYS_HASH)
            return {bytes(digest).decode(): bytes(value) for digest, value in entries.items()}

    async def put_key(self, digest: str, value: bytes) -> None:
        """Store a key."""
        with _wrap_errors():
            await self._redis.hset(KEYS_HASH, digest, value)

    async def drop_keys(self, digests: Iterable[str]) -> None:
        """Delete keys."""
        with _wrap_errors():
            await self._redis.hdel(KEYS_HASH, *digests)

    async def append_events(self, name: str, batch: EventBatch, ttl_s: float) -> bytes | None:
        """See `StoreClient.append_events`."""
        key, first = STREAMS_PREFIX + name, batch.count - len(batch.events) + 1
        entries = [(number, _EVENT_FIELD, event) for number, event in enumerate(batch.events, first)]
        if batch.state is not StreamState.RUNNING:
            entries.append((batch.count + 1, _STATE_FIELD, batch.state.encode()))
        with _wrap_stream_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.exists(key)
                if first == 1:
                    pipe.execute_command("XADD", key, "0-1", _START_FIELD, b"")
                for number, field, value in entries:
                    pipe.execute_command("XADD", key, f"{number}-0", field, value)
                if batch.dropped:
                    kept = batch.count - batch.dropped + (batch.state is not StreamState.RUNNING)
                    pipe.execute_command("XTRIM", key, "MAXLEN", max(1, kept))
                pipe.pexpire(key, round(ttl_s * 1000))
                pipe.get(f"{key}:message")
                pipe.delete(f"{key}:message")
                replies = await pipe.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception) and _KNOWN_ENTRY not in str(reply):
                    raise reply
            if first > batch.dropped + 1 and not replies[0]:  # it has expired, or Redis has restarted
                await self._redis.delete(key)
                return LOST
            message: bytes | None = replies[-2]
            return message

    async def read_events(self, name: str, after: int) -> EventBatch | None:
        """See `StoreClient.read_events`."""
        key = STREAMS_PREFIX + name
        with _wrap_stream_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.execute_command("XRANGE", key, "-", "+", "COUNT", 1)
                pipe.execute_command("XREVRANGE", key, "+", "-", "COUNT", 1)
                pipe.execute_command("XRANGE", key, f"{after + 1}-0", "+", "COUNT", BATCH_EVENTS)
                oldest, newest, entries = await pipe.execute()
            if not newest:
                return None
            events = [fields[_EVENT_FIELD] for _, fields in entries if _EVENT_FIELD in fields]
            count, last_fields = _entry_number(newest[0]), newest[0][1]
            state = StreamState.RUNNING
            if _STATE_FIELD in last_fields:
                count, state = count - 1, StreamState(last_fields[_STATE_FIELD].decode())
            return EventBatch(max(0, _entry_number(oldest[0]) - 1), count, state, events)

    async def message_writer(self, name: str, message: bytes) -> float:
        """See `StoreClient.message_writer`. `STOPPED` is not replaced by `READING`."""
        key = STREAMS_PREFIX + name
        with _wrap_stream_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.set(f"{key}:message", message, ex=_MESSAGE_TTL_S, nx=message == READING)
                pipe.pttl(key)
                _, kept_ms = await pipe.execute()
                return int(kept_ms) / 1000

    async def drop_events(self, name: str) -> None:
        """See `StoreClient.drop_events`."""
        with _wrap_stream_errors():
            await self._redis.delete(STREAMS_PREFIX + name)

    async def put_response(self, owner: str, name: str, value: bytes, limits: ResponseLimits) -> None:
        """See `StoreClient.put_response`."""
        keys = (RESPONSES_PREFIX + name, RESPONSE_INDEX_PREFIX + owner, RESPONSE_SIZES_PREFIX + owner)
        numbers = (max(1, round(limits.ttl_s * 1000)), limits.responses, limits.size_bytes)
        with _wrap_stream_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                arguments = (*keys, value, *numbers, RESPONSES_PREFIX, name)
                pipe.execute_command("EVAL", _PUT_RESPONSE_SCRIPT, len(keys), *arguments)
                await pipe.execute()

    async def get_response(self, name: str) -> bytes | None:
        """See `StoreClient.get_response`."""
        with _wrap_stream_errors():
            value: Any = await self._redis.get(RESPONSES_PREFIX + name)
            return None if value is None else bytes(value)

    async def drop_response(self, name: str, ttl_s: float) -> None:
        """See `StoreClient.drop_response`."""
        with _wrap_stream_errors():
            await self._redis.set(RESPONSES_PREFIX + name, b"", px=max(1, round(ttl_s * 1000)))

    async def close(self) -> None:
        """Close the connections."""
        if self._flush_task is not None:
            self._flush_task.cancel()
        with _wrap_errors():
            await self._redis.aclose()


def _entry_number(entry: tuple[bytes, Any]) -> int:
    return int(entry[0].partition(b"-")[0])


@contextmanager
def _wrap_errors() -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - a server that is not Redis may make the library raise anything
        raise StoreError(_error_text(error)) from None


@contextmanager
def _wrap_stream_errors() -> Iterator[None]:
    with _wrap_errors():
        try:
            yield
        except _TEMPORARY_ERRORS:
            raise  # as a store that is down
        except ResponseError as error:
            raise RejectedCommandError(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    return (str(error) or type(error).__name__)[:_ERROR_CHARACTERS]
