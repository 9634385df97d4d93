"""What front ends share, kept elsewhere: how much each key has asked for, and keys. It may be away: then nobody waits.

One wait is bounded. A store that fails is left alone from then on, and asked by nobody but us, until it is back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from welldone.serve import log

PATIENCE_S = 0.5
"""For one answer, and so the longest that a request waits for the store. It takes a millisecond where all is well; a
Redis that makes a copy of itself may stop for some hundred of them."""

AGAIN_S = 1.0
"""Between looks at a store that is away. No machine feels it, and nobody waits long for limits to be shared again."""

Value = TypeVar("Value")


class StoreError(Exception):
    """The store did not do what it was asked for; why, in a few words without a secret."""


class WrongTypeError(StoreError):
    """The store holds something else under a name than what belongs there. All else in it can be used."""


class AwayError(Exception):
    """There is no store now."""


class Count(NamedTuple):
    """What the store says of somebody's limits."""

    is_in: bool
    """Whether there was room for what was asked."""
    requests: float
    """What is left of a minute's worth; below 0 where something is owed. Without a limit it says nothing."""
    tokens: float


class Link(Protocol):
    """The way to a store. Whatever goes wrong is a `StoreError`, and bounded waits are for who asks."""

    async def count(self, name: str, sizes: tuple[int, int], *, requests: int, owed: int = 0, tokens: int) -> Count:
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


class Store:
    """A store as the server uses it."""

    def __init__(self, link: Link, *, patience_s: float = PATIENCE_S, again_s: float = AGAIN_S) -> None:
        self.is_up = True
        self._link = link
        self._patience_s = patience_s
        self._again_s = again_s
        self._looking: asyncio.Task[None] | None = None
        self._has_warned = False

    async def start(self) -> None:
        """Look whether it is there; who starts does not wait for one that is away."""
        with contextlib.suppress(AwayError):
            await self.ask(_look)

    async def ask(self, question: Callable[[Link], Awaitable[Value]]) -> Value:
        """The store's answer.

        Raises:
            AwayError: it is away, known from before or seen now; or it cannot answer this question.
        """
        if not self.is_up:
            raise AwayError
        try:
            return await self._answer(question)
        except WrongTypeError as error:
            if not self._has_warned:
                self._has_warned = True
                log.event(logging.WARNING, "the store holds a value of the wrong type", {"reason": str(error)})
            raise AwayError from None
        except StoreError as error:
            self._lose(error)
            raise AwayError from None

    async def close(self) -> None:
        """Leave it."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        with contextlib.suppress(StoreError):
            await self._answer(lambda link: link.close())

    async def _answer(self, question: Callable[[Link], Awaitable[Value]]) -> Value:
        try:
            async with asyncio.timeout(self._patience_s):
                return await question(self._link)
        except TimeoutError:
            raise StoreError(f"no answer within {self._patience_s:g} s") from None

    def _lose(self, error: StoreError) -> None:
        if not self.is_up:  # many may ask at once, and all fail
            return
        self.is_up = False
        log.event(
            logging.WARNING,
            "the store of shared limits and keys is away: each process counts for itself until it is back",
            {"reason": str(error)},
        )
        self._looking = asyncio.create_task(self._wait_for_it())

    async def _wait_for_it(self) -> None:
        while not self.is_up:
            await asyncio.sleep(self._again_s)
            with contextlib.suppress(StoreError):
                await self._answer(_look)
                self.is_up = True
        log.event(logging.INFO, "the store of shared limits and keys is back")


async def _look(link: Link) -> None:
    """Ask all that requests ask: a store may be there, and refuse to be written to."""
    await link.count("", (1, 0), requests=0, tokens=0)
    await link.key("")
