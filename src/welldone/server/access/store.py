"""What front ends share, kept elsewhere: how much each key has asked for, and keys. It may be away: then nobody waits.

One wait is bounded. A store that fails is left alone from then on, and asked by nobody but us, until it is back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from welldone.server.observe import log

STORE_TIMEOUT_S = 0.5
"""For one answer, and so the longest that a request waits for the store. It takes a millisecond where all is well; a
Redis that makes a copy of itself may stop for some hundred of them."""

STORE_RETRY_S = 1.0
"""Between looks at a store that is away. No machine feels it, and nobody waits long for limits to be shared again."""

Value = TypeVar("Value")


class StoreError(Exception):
    """The store did not do what it was asked for; why, in a few words without a secret."""


class WrongTypeError(StoreError):
    """The store holds something else under a name than what belongs there. All else in it can be used."""


class StoreUnavailableError(Exception):
    """There is no store now."""


class LimitCount(NamedTuple):
    """What the store says of somebody's limits."""

    is_admitted: bool
    """Whether there was room for what was asked."""
    requests: float
    """What is left of a minute's worth; below 0 where something is owed. Without a limit it says nothing."""
    tokens: float


class StoreClient(Protocol):
    """The way to a store. Whatever goes wrong is a `StoreError`, and bounded waits are for who asks."""

    async def count(
        self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int
    ) -> LimitCount:
        """Count requests, if there is room for them, and in any case requests that are `owed`, and tokens. `sizes` are
        a minute's; 0 is no limit."""

    async def key(self, digest: str) -> bytes | None:
        """What is kept of the key with this digest."""

    async def keys(self) -> Mapping[str, bytes]:
        """What is kept of all keys, by their digests."""

    async def put_key(self, digest: str, value: bytes) -> None:
        """Keep a key."""

    async def drop_keys(self, digests: Iterable[str]) -> None:
        """Keep them no more."""

    async def close(self) -> None:
        """Leave the store."""


class SharedStore:
    """A store as the server uses it."""

    def __init__(
        self, client: StoreClient, *, timeout_s: float = STORE_TIMEOUT_S, retry_s: float = STORE_RETRY_S
    ) -> None:
        self.is_up = True
        self._client = client
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._probe_task: asyncio.Task[None] | None = None
        self._has_warned = False

    async def start(self) -> None:
        """Look whether it is there; who starts does not wait for one that is away."""
        with contextlib.suppress(StoreUnavailableError):
            await self.call(_probe)

    async def call(self, operation: Callable[[StoreClient], Awaitable[Value]]) -> Value:
        """The store's answer.

        Raises:
            AwayError: it is away, known from before or seen now; or it cannot answer this question.
        """
        if not self.is_up:
            raise StoreUnavailableError
        try:
            return await self._call(operation)
        except WrongTypeError as error:
            if not self._has_warned:
                self._has_warned = True
                log.event(logging.WARNING, "the store holds a value of the wrong type", {"reason": str(error)})
            raise StoreUnavailableError from None
        except StoreError as error:
            self._mark_down(error)
            raise StoreUnavailableError from None

    async def close(self) -> None:
        """Leave it."""
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.wait([self._probe_task])
        with contextlib.suppress(StoreError):
            await self._call(lambda link: link.close())

    async def _call(self, operation: Callable[[StoreClient], Awaitable[Value]]) -> Value:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await operation(self._client)
        except TimeoutError:
            raise StoreError(f"no answer within {self._timeout_s:g} s") from None

    def _mark_down(self, error: StoreError) -> None:
        if not self.is_up:  # many may ask at once, and all fail
            return
        self.is_up = False
        log.event(
            logging.WARNING,
            "the store of shared limits and keys is away: each process counts for itself until it is back",
            {"reason": str(error)},
        )
        self._probe_task = asyncio.create_task(self._wait_until_up())

    async def _wait_until_up(self) -> None:
        while not self.is_up:
            await asyncio.sleep(self._retry_s)
            with contextlib.suppress(StoreError):
                await self._call(_probe)
                self.is_up = True
        log.event(logging.INFO, "the store of shared limits and keys is back")


async def _probe(client: StoreClient) -> None:
    """Ask all that requests ask: a store may be there, and refuse to be written to."""
    await client.count("", (1, 0), requests=0, tokens=0)
    await client.key("")
