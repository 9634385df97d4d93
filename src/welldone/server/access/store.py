"""Store that several servers share: rate limit counters, API keys, and copies of streams and responses.

Every call has a timeout. After a failure requests no longer use the store, until a background probe succeeds. A store
that does not answer is not one that has no such value: `StoreUnavailableError` is a 503 unless there is a fallback.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from welldone.gateway.errors import ApiError
from welldone.server.observe import log
from welldone.server.resume.streams import EventBatch

STORE_TIMEOUT_S = 0.5
"""Timeout of one call, and so the longest delay of a request. A call normally takes a millisecond; a Redis that forks
for a snapshot may pause for some hundred."""

STORE_RETRY_S = 1.0
"""Interval between probes of an unavailable store, and the `Retry-After` of requests that need it."""

STORE_SETTLE_S = 3.0
"""After an outage, other processes may not have written yet what they could not write during it: they probe the store
every `STORE_RETRY_S`, with a timeout, and then write."""

Value = TypeVar("Value")


class StoreError(Exception):
    """A call failed. The message is short and contains no secret."""


class RejectedCommandError(StoreError):
    """The store rejects a command: it is not allowed, or the value has the wrong type. The rest of it is usable."""


class StoreUnavailableError(ApiError):
    """The store cannot be used now."""

    def __init__(self, subject: str) -> None:
        message = f"The store of {subject} is unavailable. Try again."
        super().__init__(503, message, code="store_unavailable", retry_after_s=STORE_RETRY_S)


class RefusedError(StoreUnavailableError):
    """The store has answered, and would not do this later either."""


class LimitCount(NamedTuple):
    """Result of counting against the limits of a principal."""

    is_admitted: bool
    """Whether the requests are within the limits."""
    requests: float
    """Remaining requests of the minute; negative after an overdraft; meaningless without a limit."""
    tokens: float


class StoreClient(Protocol):
    """Client of a store. All failures are `StoreError`s; callers apply timeouts."""

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        """Count `requests` if they are within the limits, and unconditionally the `owed` requests and `tokens`.

        `sizes` are the limits per minute of requests and tokens; 0 is no limit.
        """

    async def key(self, digest: str) -> bytes | None:
        """The stored entry of the key with this digest."""

    async def keys(self) -> Mapping[str, bytes]:
        """All stored keys, by digest."""

    async def put_key(self, digest: str, value: bytes) -> None:
        """Store a key."""

    async def drop_keys(self, digests: Iterable[str]) -> None:
        """Delete keys."""

    async def append_events(self, name: str, batch: EventBatch, ttl_s: float) -> bytes | None:
        """Add events to the copy of a stream, the last of which is `batch.count`, and keep it for `ttl_s`.

        Events up to `batch.dropped` are deleted. Returns and deletes the message of a reader; `LOST` if the earlier
        events are not there.
        """

    async def read_events(self, name: str, after: int) -> EventBatch | None:
        """The events of a copied stream after a number; None if there is no such stream."""

    async def message_writer(self, name: str, message: bytes) -> float:
        """Leave a message for the process that copies the stream. Returns how long the copy is kept without a write."""

    async def drop_events(self, name: str) -> None:
        """Delete the copy of a stream."""

    async def put_response(self, owner: str, name: str, value: bytes, limits: "ResponseLimits") -> None:
        """Store a response, unless it was dropped. The oldest ones of the owner that exceed the limits are deleted."""

    async def get_response(self, name: str) -> bytes | None:
        """A stored response; empty if it was dropped, None if there is none."""

    async def drop_response(self, name: str, ttl_s: float) -> None:
        """Delete a response. For `ttl_s` it is known that it was deleted, and it cannot be stored again."""

    async def close(self) -> None:
        """Close the connections."""


class ResponseLimits(NamedTuple):
    """Limits of the responses of one owner."""

    ttl_s: float
    responses: int
    size_bytes: int


class StoreUse(NamedTuple):
    """What a store is used for, and what happens without it, for the log."""

    subject: str
    fallback: str


LIMITS_AND_KEYS = StoreUse("shared limits and keys", "each process counts for itself until it is back")
RESPONSE_COPIES = StoreUse("stored responses", "each process has only its own until it is back")
STREAM_COPIES = StoreUse("resumable streams", "streams can be resumed only where they run until it is back")


class SharedStore:
    """Wraps a `StoreClient` with a timeout and a circuit breaker. Each use of a store has its own.

    `owner` identifies the key of a principal (`ApiKeys.owner`).
    """

    def __init__(
        self,
        client: StoreClient,
        *,
        use: StoreUse = LIMITS_AND_KEYS,
        owner: Callable[[str], str] = lambda principal: principal,
        timeout_s: float = STORE_TIMEOUT_S,
        retry_s: float = STORE_RETRY_S,
    ) -> None:
        self.is_up: bool = True
        self._use = use
        self._owner = owner
        self._client = client
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._probe_task: asyncio.Task[None] | None = None
        self._has_warned = False
        self._settled_at = 0.0

    async def start(self) -> None:
        """Probe the store; the server also starts without it."""
        with contextlib.suppress(StoreUnavailableError):
            await self.call(_probe)

    async def call(self, operation: Callable[[StoreClient], Awaitable[Value]]) -> Value:
        """Run an operation.

        Raises:
            StoreUnavailableError: the store is down, or the call failed.
            RefusedError: the store rejects the command, or the stored value has the wrong type.
        """
        if not self.is_up:
            raise StoreUnavailableError(self._use.subject)
        try:
            return await self._call(operation)
        except RejectedCommandError as error:
            if not self._has_warned:
                self._has_warned = True
                log.event(logging.WARNING, "the store rejects a command", {"reason": str(error)})
            raise RefusedError(self._use.subject) from None
        except StoreError as error:
            self._mark_down(error)
            raise StoreUnavailableError(self._use.subject) from None

    async def find(self, operation: Callable[[StoreClient], Awaitable[Value | None]]) -> Value | None:
        """Read what another process may have written. None: it has not, or this use of the store is not allowed.

        Raises:
            StoreUnavailableError: it is not known, since the store is down or was so just now.
        """
        try:
            value = await self.call(operation)
        except RefusedError:
            return None
        if value is None and asyncio.get_running_loop().time() < self._settled_at:
            raise StoreUnavailableError(self._use.subject)
        return value

    def copy_name(self, principal: str, copy_id: str = "") -> str:
        """Name of the copy of a stream or a response. Another key would look for another name."""
        return hashlib.sha256(f"{self._owner(principal)}\0{copy_id}".encode(errors="surrogatepass")).hexdigest()

    async def close(self) -> None:
        """Stop probing and close the connections."""
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.wait([self._probe_task])
        with contextlib.suppress(StoreError):
            await self._call(lambda client: client.close())

    async def _call(self, operation: Callable[[StoreClient], Awaitable[Value]]) -> Value:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await operation(self._client)
        except TimeoutError:
            raise StoreError(f"no answer within {self._timeout_s:g} s") from None

    def _mark_down(self, error: StoreError) -> None:
        if not self.is_up:  # concurrent calls fail together
            return
        self.is_up = False
        log.event(
            logging.WARNING,
            f"the store of {self._use.subject} is unavailable: {self._use.fallback}",
            {"reason": str(error)},
        )
        self._probe_task = asyncio.create_task(self._wait_until_up())

    async def _wait_until_up(self) -> None:
        while not self.is_up:
            await asyncio.sleep(self._retry_s)
            with contextlib.suppress(StoreError):
                await self._call(_probe)
                self._settled_at = asyncio.get_running_loop().time() + STORE_SETTLE_S
                self.is_up = True
        log.event(logging.INFO, f"the store of {self._use.subject} is available again")


async def _probe(client: StoreClient) -> None:
    """Use the operations of requests: a store may be reachable and still reject writes."""
    await client.count("", (1, 0), requests=0, tokens=0)
    await client.key("")
