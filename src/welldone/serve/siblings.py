"""What a server needs that is one of several processes on one port, and the page of metrics of all of them together.

Each process says its own page to whoever connects to its socket, which stands in a folder that no other user can enter.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from welldone.net.shared import SharedNumbers
from welldone.serve.metrics_pages import merge

_WAIT_S = 1.0
"""For a sibling's page: it is made in milliseconds, and who asks for metrics gives up after some seconds."""

_PAGE_LIMIT_BYTES = 16 * 2**20
"""A page with the most models and a hundred upstreams has some 2 MB."""

_END = b"# EOF\n"
"""The last line, as OpenMetrics has it: a page without it is not whole."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of several processes that serve together."""

    number: int
    """From 1 to `count`."""
    count: int
    sockets: tuple[socket.socket, ...]
    """They listen, and all workers accept on them."""
    numbers: SharedNumbers
    """For the rates of keys."""
    folder: Path
    """Where the workers' own sockets are."""
    ready: Callable[[], None]
    """To be called when it serves."""


class Siblings:
    """The other processes, as one of them sees them. `render` gives its own page, and may be called in a thread."""

    def __init__(self, worker: Worker, render: Callable[[], tuple[str, bytes]]) -> None:
        self._worker = worker
        self._render = render
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to say our own page."""
        self._server = await asyncio.start_unix_server(self._say, self._path(self._worker.number))

    async def stop(self) -> None:
        """End that."""
        if self._server is not None:
            self._server.close()

    async def page(self) -> tuple[str, bytes]:
        """The content type and the body of the page of all. Who does not answer in time is left out."""
        others = [number for number in range(1, self._worker.count + 1) if number != self._worker.number]
        pages = await asyncio.gather(*map(self._ask, others))
        heard = [page for page in pages if page is not None]
        kind, own = await asyncio.to_thread(self._render)
        text = await asyncio.to_thread(merge, [own.decode(), *heard], len(others) - len(heard))
        return kind, text.encode()

    def _path(self, number: int) -> Path:
        return self._worker.folder / f"{number}.sock"

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    _, body = await asyncio.to_thread(self._render)
                    writer.write(body + _END)
                    await writer.drain()
        finally:
            writer.close()

    async def _ask(self, number: int) -> str | None:
        """A sibling's page, if it gives one in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(_WAIT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    while (piece := await reader.read(65536)) and len(body) <= _PAGE_LIMIT_BYTES:
                        body += piece
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return body.removesuffix(_END).decode() if body.endswith(_END) else None
