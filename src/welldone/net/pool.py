"""Connections that are used again. They wait here between two requests, a bounded number for a bounded time.

How many are open at once is not decided here: whoever sends requests limits those.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Unpack

from welldone.net.outbound import STALE_S, Address, Exchange, Fetched, Message, OutboundError, Receiver, fetch, send


class Pool:
    """The connections to all servers, by their addresses. The one that waited least is used first."""

    def __init__(self, *, idle_per_address: int = 64, idle_s: float = 4.0, stale_s: float = STALE_S) -> None:
        self.stale_s = stale_s
        # uvicorn and llama.cpp close a connection that was silent for 5 s: we are a little earlier than they.
        self._idle_per_address = idle_per_address
        self._idle_s = idle_s
        self._waiting: dict[Address, deque[_Waiting]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def idle(self) -> int:
        """How many connections wait."""
        return sum(map(len, self._waiting.values()))

    async def send(
        self,
        address: Address,
        method: str,
        path: str,
        receiver: Receiver,
        *,
        is_fresh: bool = False,
        **message: Unpack[Message],
    ) -> Exchange:
        """Begin an exchange, on a connection that waits or on a new one. The reply goes to the receiver.

        `is_fresh`: on a new one in any case. Who asks again, since a connection that waited was dead, meets no second.

        Raises:
            OutboundError: there is no connection.
            ValueError: the path or a header cannot be sent.
        """
        return await send(address, method, path, receiver, home=self, is_fresh=is_fresh, **message)

    async def fetch(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        within_s: float,
        limit_bytes: int = 1 << 20,
        **message: Unpack[Message],
    ) -> Fetched:
        """A whole reply, bounded in time and size. Sent again once where a connection that waited was dead.

        Raises:
            OutboundError: there is none.
            ValueError: the path or a header cannot be sent.
        """

        once = partial(fetch, address, method, path, within_s=within_s, limit_bytes=limit_bytes, home=self, **message)
        try:
            return await once()
        except OutboundError as error:
            if not error.is_stale:
                raise
        return await once(is_fresh=True)

    async def close(self) -> None:
        """End the connections that wait. Those that are still in use end with their reply."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for address in list(self._waiting):
            self.drop(address)
        await asyncio.sleep(0)  # the loop closes a socket in its next turn

    # What an exchange calls.

    def take(self, address: Address) -> asyncio.Transport | None:
        """A connection that waits, if there is one."""
        waiting = self._waiting.get(address)
        now = asyncio.get_running_loop().time()
        while waiting:
            newest = waiting.pop()
            if not newest.transport.is_closing() and newest.since + self._idle_s > now:
                return newest.transport
            newest.transport.abort()
        return None

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """A connection whose reply was whole, and which may stay open."""
        if self._is_closed or transport.is_closing():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(address, deque())
        if len(waiting) >= self._idle_per_address:
            waiting.popleft().transport.abort()
        newest = _Waiting(transport, waiting, loop.time())
        transport.set_protocol(newest)
        waiting.append(newest)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._sweep)

    def drop(self, address: Address) -> None:
        """End the connections to an address that wait."""
        for one in self._waiting.pop(address, ()):
            one.transport.abort()

    def _sweep(self) -> None:
        """End the connections that have waited for too long, and come again when the next has."""
        loop = asyncio.get_running_loop()
        for address, waiting in list(self._waiting.items()):
            while waiting and waiting[0].since + self._idle_s <= loop.time():
                waiting.popleft().transport.abort()
            if not waiting:
                del self._waiting[address]
        self._timer = None
        if self._waiting:
            oldest = min(waiting[0].since for waiting in self._waiting.values())
            self._timer = loop.call_at(oldest + self._idle_s, self._sweep)


class _Waiting(asyncio.Protocol):
    """A connection that waits. Whatever its server does now, it is of no more use."""

    def __init__(self, transport: asyncio.Transport, others: "deque[_Waiting]", since: float) -> None:
        self.transport = transport
        self.since = since
        self._others = others

    def data_received(self, data: bytes) -> None:
        """It speaks without being asked."""
        self._leave()

    def eof_received(self) -> None:
        """It closes."""
        self._leave()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._leave()

    def _leave(self) -> None:
        if self in self._others:
            self._others.remove(self)
        self.transport.abort()
