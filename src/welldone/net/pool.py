"""Connections that are used again. They wait here between two requests, a bounded number for a bounded time.

How many are open at once is not decided here: whoever sends requests limits those.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Unpack

from welldone.net.outbound import (
    STALE_S,
    Address,
    Exchange,
    BufferedResponse,
    RequestOptions,
    HttpClientError,
    ResponseReceiver,
    fetch,
    send,
)


class ConnectionPool:
    """The connections to all servers, by their addresses. The one that waited least is used first."""

    def __init__(self, *, idle_per_address: int = 64, idle_s: float = 4.0, stale_s: float = STALE_S) -> None:
        self.stale_s = stale_s
        # uvicorn and llama.cpp close a connection that was silent for 5 s: we are a little earlier than they.
        self._idle_per_address = idle_per_address
        self._idle_s = idle_s
        self._idle: dict[Address, deque[_IdleConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def idle_count(self) -> int:
        """How many connections wait."""
        return sum(map(len, self._idle.values()))

    async def send(
        self,
        address: Address,
        method: str,
        path: str,
        receiver: ResponseReceiver,
        *,
        is_fresh: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Exchange:
        """Begin an exchange, on a connection that waits or on a new one. The reply goes to the receiver.

        `is_fresh`: on a new one in any case. Who asks again, since a connection that waited was dead, meets no second.

        Raises:
            OutboundError: there is no connection.
            ValueError: the path or a header cannot be sent.
        """
        return await send(address, method, path, receiver, pool=self, is_fresh=is_fresh, **options)

    async def fetch(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        timeout_s: float,
        limit_bytes: int = 1 << 20,
        **options: Unpack[RequestOptions],
    ) -> BufferedResponse:
        """A whole reply, bounded in time and size. Sent again once where a connection that waited was dead.

        Raises:
            OutboundError: there is none.
            ValueError: the path or a header cannot be sent.
        """

        once = partial(fetch, address, method, path, timeout_s=timeout_s, limit_bytes=limit_bytes, pool=self, **options)
        try:
            return await once()
        except HttpClientError as error:
            if not error.is_stale:
                raise
        return await once(is_fresh=True)

    async def close(self) -> None:
        """End the connections that wait. Those that are still in use end with their reply."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for address in list(self._idle):
            self.drop(address)
        await asyncio.sleep(0)  # the loop closes a socket in its next turn

    # What an exchange calls.

    def take(self, address: Address) -> asyncio.Transport | None:
        """A connection that waits, if there is one."""
        waiting = self._idle.get(address)
        now = asyncio.get_running_loop().time()
        while waiting:
            newest = waiting.pop()
            if not newest.transport.is_closing() and newest.idle_since + self._idle_s > now:
                return newest.transport
            newest.transport.abort()
        return None

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """A connection whose reply was whole, and which may stay open."""
        if self._is_closed or transport.is_closing():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        waiting = self._idle.setdefault(address, deque())
        if len(waiting) >= self._idle_per_address:
            waiting.popleft().transport.abort()
        newest = _IdleConnection(transport, waiting, loop.time())
        transport.set_protocol(newest)
        waiting.append(newest)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._close_expired)

    def drop(self, address: Address) -> None:
        """End the connections to an address that wait."""
        for one in self._idle.pop(address, ()):
            one.transport.abort()

    def _close_expired(self) -> None:
        """End the connections that have waited for too long, and come again when the next has."""
        loop = asyncio.get_running_loop()
        for address, waiting in list(self._idle.items()):
            while waiting and waiting[0].idle_since + self._idle_s <= loop.time():
                waiting.popleft().transport.abort()
            if not waiting:
                del self._idle[address]
        self._timer = None
        if self._idle:
            oldest = min(waiting[0].idle_since for waiting in self._idle.values())
            self._timer = loop.call_at(oldest + self._idle_s, self._close_expired)


class _IdleConnection(asyncio.Protocol):
    """A connection that waits. Whatever its server does now, it is of no more use."""

    def __init__(self, transport: asyncio.Transport, siblings: "deque[_IdleConnection]", idle_since: float) -> None:
        self.transport = transport
        self.idle_since = idle_since
        self._siblings = siblings

    def data_received(self, data: bytes) -> None:
        """It speaks without being asked."""
        self._discard()

    def eof_received(self) -> None:
        """It closes."""
        self._discard()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._discard()

    def _discard(self) -> None:
        if self in self._siblings:
            self._siblings.remove(self)
        self.transport.abort()
