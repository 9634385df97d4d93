"""A network that can be made ill: a TCP proxy before an upstream, with the eight toxics that toxiproxy has.

It stands in the process of the clients, and is never stopped itself. So it also notes which request is asked for when,
in one order with what the clients hear, whatever happens to the upstream behind it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal, Self, TypeAlias, get_args

from faults.asking import reset
from faults.nemesis.order import MARKER
from tests.live.upstream import until_one_ends

Kind: TypeAlias = Literal["latency", "down", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_READ_BYTES = 65536
_CONNECT_S = 10.0
"""More than any upstream is stopped for."""
_SLICE_BYTES = 11  # less than any frame
_SLICE_PAUSE_S = 0.001
_SLICES = 64  # of one read: a long one would take minutes
_DELAY_S = 0.3
"""Of all that comes late, less than the gateway's limits: those are for what never comes."""
_BYTES_PER_S = 20_000
_LIMIT_BYTES = 1500
"""A few frames."""


class _CutError(Exception):
    """The toxic ends the connection."""

    def __init__(self, *, is_rude: bool) -> None:
        super().__init__()
        self.is_rude = is_rude


class Proxy:
    """One upstream as the gateway sees it. `asked` is told the marker of each request, as soon as it is read."""

    def __init__(self, name: str, asked: Callable[[str], None]) -> None:
        self.name = name
        self.behind: int | None = None
        """The upstream's port; None while there is none."""
        self.toxic: Kind | None = None
        self._asked = asked
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # It is never listened on: it keeps the port while the proxy is down.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]

    @property
    def url(self) -> str:
        """Where the gateway finds it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def up(self) -> None:
        """Listen."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def down(self) -> None:
        """Listen no more, and drop all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()
        self._place.close()

    @asynccontextmanager
    async def ill(self, kind: Kind) -> AsyncIterator[None]:
        """Ill for so long."""
        if kind == "down":
            await self.down()
        else:
            self.toxic = kind
        try:
            yield
        finally:
            self.toxic = None
            await self.up()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass(reader, writer)
        except (_CutError, ConnectionError, TimeoutError) as error:
            if not isinstance(error, _CutError) or error.is_rude:
                reset(writer.transport)
        except asyncio.CancelledError:
            reset(writer.transport)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass both ways until one side has ended."""
        first = await reader.read(_READ_BYTES)
        # Now: an upstream that is stopped may let us wait for a connection until nobody asks any more.
        self._note(first)
        if self.behind is None:
            raise ConnectionRefusedError
        async with asyncio.timeout(_CONNECT_S):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.behind)
        inner_writer.write(first)
        try:
            _, back = await until_one_ends(
                self._pass_request(reader, inner_writer), self._pass_answer(inner_reader, writer)
            )
        finally:
            inner_writer.transport.abort()
        if not back.cancelled():
            back.result()

    def _note(self, data: bytes) -> None:
        """Whose request it is. The gateway sends a request in one piece, and ours are shorter than a read."""
        for found in MARKER.finditer(data):
            self._asked(found[0].decode())

    async def _pass_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # who lost it there hears that on the way back
            while data := await reader.read(_READ_BYTES):
                self._note(data)
                writer.write(data)
                await writer.drain()

    async def _pass_answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await reader.read(_READ_BYTES):
            await self._send(data, writer, passed)
            passed += len(data)
        if self.toxic == "slow_close":
            await asyncio.sleep(_DELAY_S)

    async def _send(self, data: bytes, writer: asyncio.StreamWriter, passed: int) -> None:
        toxic = self.toxic
        if toxic == "latency":
            await asyncio.sleep(_DELAY_S)
        elif toxic == "bandwidth":
            await asyncio.sleep(len(data) / _BYTES_PER_S)
        elif toxic in ("timeout", "reset_peer"):  # what came is swallowed
            await asyncio.sleep(_DELAY_S)
            raise _CutError(is_rude=toxic == "reset_peer")
        elif toxic == "limit_data" and passed + len(data) > _LIMIT_BYTES:
            writer.write(data[: max(0, _LIMIT_BYTES - passed)])
            raise _CutError(is_rude=False)
        elif toxic == "slicer":
            data = await _slice(data, writer)
        writer.write(data)
        await writer.drain()


async def _slice(data: bytes, writer: asyncio.StreamWriter) -> bytes:
    """Send the beginning in slices; what is left."""
    for _ in range(_SLICES):
        writer.write(data[:_SLICE_BYTES])
        await writer.drain()
        await asyncio.sleep(_SLICE_PAUSE_S)
        data = data[_SLICE_BYTES:]
    return data
