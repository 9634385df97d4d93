"""TCP proxy in front of an upstream, with the eight toxics of toxiproxy.

It runs in the process of the clients and is never stopped. So it also records which request reaches the upstream when,
in one order with what the clients receive.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal, Self, TypeAlias, get_args

from faults.client import reset
from faults.nemesis.upstream_actions import MARKER
from tests.support.upstream import run_until_first_ends

Kind: TypeAlias = Literal["latency", "down", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_READ_BYTES = 65536
_CONNECT_S = 10.0
"""Longer than any upstream is stopped."""
_SLICE_BYTES = 11  # less than any frame
_SLICE_PAUSE_S = 0.001
_SLICES = 64  # of one read: a long one would take minutes
_DELAY_S = 0.3
"""Delays below the gateway's timeouts."""
_BYTES_PER_S = 20_000
_LIMIT_BYTES = 1500
"""A few frames."""


class _CutError(Exception):
    """The toxic ends the connection."""

    def __init__(self, *, is_rude: bool) -> None:
        super().__init__()
        self.is_rude = is_rude


class Proxy:
    """Proxy of one upstream. `on_request` is called with the marker of each request."""

    def __init__(self, name: str, on_request: Callable[[str], None]) -> None:
        self.name = name
        self.upstream_port: int | None = None
        """Port of the upstream; None while it is down."""
        self.toxic: Kind | None = None
        self._on_request = on_request
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Never listens: reserves the port while the proxy is down.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]

    @property
    def url(self) -> str:
        """Port of the proxy."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def up(self) -> None:
        """Start listening."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def down(self) -> None:
        """Stop listening and drop all connections."""
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
        """Apply a toxic until the context ends."""
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
        """Forward in both directions until one side ends."""
        first = await reader.read(_READ_BYTES)
        # Now: a connection to a stopped upstream may take until the request is gone.
        self._note(first)
        if self.upstream_port is None:
            raise ConnectionRefusedError
        async with asyncio.timeout(_CONNECT_S):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        inner_writer.write(first)
        try:
            _, back = await run_until_first_ends(
                self._pass_request(reader, inner_writer), self._pass_answer(inner_reader, writer)
            )
        finally:
            inner_writer.transport.abort()
        if not back.cancelled():
            back.result()

    def _note(self, data: bytes) -> None:
        """Read the marker of a request; requests here fit into one read."""
        for found in MARKER.finditer(data):
            self._on_request(found[1].decode())

    async def _pass_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a lost connection is noticed on the way back
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
        elif toxic in ("timeout", "reset_peer"):  # drop the data
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
    """Send the beginning in slices; return the rest."""
    for _ in range(_SLICES):
        writer.write(data[:_SLICE_BYTES])
        await writer.drain()
        await asyncio.sleep(_SLICE_PAUSE_S)
        data = data[_SLICE_BYTES:]
    return data
