"""What a server needs that is one of several processes on one port: what the others know, and what all know together.

Each process answers whoever connects to its socket, which stands in a folder that no other user can enter. A question
is one line of JSON that says what is wanted. The answer is bytes and a mark that it is whole.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from welldone.http.shared_memory import SharedNumbers

# One page of metrics out of those of several processes, which are all written by `metrics`.


_SUMMED_GAUGES = frozenset(
    {
        "llamacpp:requests_deferred",
        "llamacpp:requests_processing",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "welldone_active_streams",
        "welldone_queue_depth",
        "welldone_tasks",
        "welldone_upstream_running",
        "welldone_upstream_waiting",
    }
)
"""Gauges that count what is there now. Of all others (what is up, since when, how fast) the largest holds."""


class _PageFamily(msgspec.Struct):
    header_lines: list[str]
    is_summed: bool
    values: dict[str, float] = {}


def merge_metrics_pages(pages: Iterable[str], missing: int) -> str:
    """The sum of the pages; `missing` is how many processes gave none."""
    families: dict[str, _PageFamily] = {}
    for page in pages:
        _add_page(page, families)
    lines = [
        "# HELP welldone_workers_missing Processes of this server whose numbers are not in this page.",
        "# TYPE welldone_workers_missing gauge",
        f"welldone_workers_missing {missing}",
    ]
    for family in families.values():
        lines += family.header_lines
        lines += [f"{series} {number!r}" for series, number in family.values.items()]
    return "\n".join(lines) + "\n"


def _add_page(page: str, families: dict[str, _PageFamily]) -> None:
    """Add a page to the families. A line of help begins one, its type follows, and then its numbers."""
    family, says = None, ""
    for line in page.removesuffix("\n").split("\n"):  # a label may hold what Python takes for the end of a line
        if line.startswith("# HELP "):
            says = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = families.setdefault(name, _PageFamily([says, line], kind != "gauge" or name in _SUMMED_GAUGES))
        elif family is not None:
            series, _, text = line.rpartition(" ")
            number, old = float(text), family.values.get(series, 0.0)
            family.values[series] = old + number if family.is_summed else max(old, number)


_TIMEOUT_S = 1.0
"""For a sibling's answer: it is made in milliseconds, and who asks for metrics gives up after some seconds."""

_QUERY_LIMIT_BYTES = 64 * 2**10
"""Names and numbers: some hundred bytes."""

_ANSWER_LIMIT_BYTES = 32 * 2**20
"""A page with the most models and a hundred upstreams has some 2 MB; the longest step of a tape some 25, as JSON."""

_END_MARK = b"\0"
"""The last byte: an answer without it is not whole. Neither JSON nor a page of metrics can hold it."""

_METRICS_TOPIC = "metrics"

WorkerQuery = Mapping[str, Any]
QueryHandler = Callable[[WorkerQuery], Awaitable[bytes]]
"""Answers a question, soon; nothing where there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of several processes that serve together."""

    number: int
    """From 1 to `count`."""
    count: int
    sockets: tuple[socket.socket, ...]
    """They listen, and all workers accept on them."""
    bucket_storage: SharedNumbers
    """For the rates of keys."""
    folder: Path
    """Where the workers' own sockets are."""
    on_ready: Callable[[], None]
    """To be called when it serves."""


class WorkerSync:
    """The other processes, as one of them sees them. `render` gives its own page, and may be called in a thread."""

    def __init__(self, worker: Worker, render: Callable[[], tuple[str, bytes]]) -> None:
        self._worker = worker
        self._render = render
        self._handlers: dict[str, QueryHandler] = {}
        self._server: asyncio.Server | None = None

    @property
    def count(self) -> int:
        """How many processes there are, this one included."""
        return self._worker.count

    def register(self, topic: str, handler: QueryHandler) -> None:
        """Let the others ask this process for something."""
        self._handlers[topic] = handler

    async def start(self) -> None:
        """Begin to answer the others."""
        path = self._path(self._worker.number)
        self._server = await asyncio.start_unix_server(self._serve_connection, path, limit=_QUERY_LIMIT_BYTES)

    async def stop(self) -> None:
        """End that."""
        if self._server is not None:
            self._server.close()

    async def gather(self, topic: str, query: WorkerQuery) -> list[bytes]:
        """What the others answer. Who has nothing to say, or says it too late, is left out."""
        return [answer for answer in await self._query_all(topic, query) if answer]

    async def metrics_page(self) -> tuple[str, bytes]:
        """The content type and the body of the page of all. Who does not answer in time is left out."""
        answers = await self._query_all(_METRICS_TOPIC, {})
        heard = [answer.decode() for answer in answers if answer is not None]
        kind, own = await asyncio.to_thread(self._render)
        text = await asyncio.to_thread(merge_metrics_pages, [own.decode(), *heard], len(answers) - len(heard))
        return kind, text.encode()

    def _path(self, number: int) -> Path:
        return self._worker.folder / f"{number}.sock"

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    writer.write(await self._handle_query(await _read_query(reader)) + _END_MARK)
                    await writer.drain()
        finally:
            writer.close()

    async def _handle_query(self, query: WorkerQuery) -> bytes:
        what = query.get("what")
        if what == _METRICS_TOPIC:
            return (await asyncio.to_thread(self._render))[1]
        answer = self._handlers.get(str(what))
        return b"" if answer is None else await answer(query)

    async def _query_all(self, topic: str, query: WorkerQuery) -> list[bytes | None]:
        others = [number for number in range(1, self._worker.count + 1) if number != self._worker.number]
        line = msgspec.json.encode({**query, "what": topic}) + b"\n"
        return await asyncio.gather(*(self._query_worker(number, line) for number in others))

    async def _query_worker(self, number: int, line: bytes) -> bytes | None:
        """A sibling's answer, if it gives one in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(line)
                    while (piece := await reader.read(65536)) and len(body) <= _ANSWER_LIMIT_BYTES:
                        body += piece
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return bytes(body.removesuffix(_END_MARK)) if body.endswith(_END_MARK) else None


async def _read_query(reader: asyncio.StreamReader) -> WorkerQuery:
    """What is asked; nothing where it is too long, or cut."""
    try:
        return msgspec.json.decode(await reader.readline(), type=dict[str, Any])
    except (ValueError, msgspec.DecodeError):
        return {}
