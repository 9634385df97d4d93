"""Worker sync: queries between the worker processes of one server, and merged metrics.

Each worker listens on a Unix socket in a folder that other users cannot enter. A query is one line of JSON with a
`topic`. The reply is bytes, followed by an end mark.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from welldone.http.shared_memory import SharedNumbers, WorkerLoads
from welldone.server.observe.metrics import FAMILIES_BY_NAME

_SUMMED_GAUGES = {
    *("process_open_fds", "process_resident_memory_bytes", "process_virtual_memory_bytes"),
    *(name for name, family in FAMILIES_BY_NAME.items() if family.is_summed),
}


class _PageFamily(msgspec.Struct):
    header_lines: list[str]
    is_summed: bool
    values: dict[str, float] = {}


def merge_metrics_pages(pages: Iterable[str], missing: int, deaths: tuple[int, int]) -> str:
    """Merge /metrics pages; `missing` is the number of workers without a reply, `deaths` as in `WorkerLoads`."""
    families: dict[str, _PageFamily] = {}
    for page in pages:
        _add_page(page, families)
    own = {"welldone_workers_missing": missing, "welldone_worker_deaths": deaths[0]}
    own["welldone_worker_cut_requests"] = deaths[1]
    lines: list[str] = []
    for name, number in own.items():
        row = FAMILIES_BY_NAME[name]
        name += "_total" if row.kind == "counter" else ""
        lines += [f"# HELP {name} {row.help}", f"# TYPE {name} {row.kind}", f"{name} {number}"]
    for family in families.values():
        lines += family.header_lines
        lines += [f"{series} {number!r}" for series, number in family.values.items()]
    return "\n".join(lines) + "\n"


def _add_page(page: str, families: dict[str, _PageFamily]) -> None:
    """Add a page. A family is a HELP line, a TYPE line, and samples."""
    family, help_line = None, ""
    for line in page.removesuffix("\n").split("\n"):  # not splitlines: labels may contain other line separators
        if line.startswith("# HELP "):
            help_line = line
        elif line.startswith("# TYPE "):
            _, _, name, metric_type = line.split(" ")
            family = families.setdefault(
                name, _PageFamily([help_line, line], metric_type != "gauge" or name in _SUMMED_GAUGES)
            )
        elif family is not None:
            series, _, text = line.rpartition(" ")
            number, old = float(text), family.values.get(series, 0.0)
            family.values[series] = old + number if family.is_summed else max(old, number)


_TIMEOUT_S = 1.0
"""Timeout of a query. Replies take milliseconds; a scraper gives up after some seconds."""

_QUERY_LIMIT_BYTES = 64 * 2**10
"""Queries have some hundred bytes."""

_ANSWER_LIMIT_BYTES = 32 * 2**20
"""A /metrics page with 200 models and 100 upstreams has about 2 MB; the longest part of a capture about 25, as JSON."""

_END_MARK = b"\0"
"""Last byte of a complete reply. Neither JSON nor a /metrics page can contain it."""

_METRICS_TOPIC = "metrics"

WorkerQuery = Mapping[str, Any]
QueryHandler = Callable[[WorkerQuery], Awaitable[bytes]]
"""Handles a query quickly; an empty reply means no result."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of several worker processes of a server."""

    number: int
    """From 1 to `count`."""
    count: int
    sockets: tuple[socket.socket, ...]
    """Listening sockets, shared by all workers."""
    loads: WorkerLoads
    """Load of all workers."""
    bucket_storage: SharedNumbers
    """Shared rate limits."""
    folder: Path
    """Folder of the workers' Unix sockets."""
    on_ready: Callable[[], None]
    """Called when the worker is serving."""
    places: tuple[str, ...] = ()
    """The principals by their place in the shared rate limits."""
    control: socket.socket | None = None
    """Connection to the supervisor."""


class WorkerSync:
    """Connects a worker to the others; without `worker` there are none.

    `render` returns its own /metrics page; it is called in a thread.
    """

    def __init__(self, worker: Worker | None, render: Callable[[], tuple[str, bytes]]) -> None:
        self._worker = worker
        self._render = render
        self._handlers: dict[str, QueryHandler] = {_METRICS_TOPIC: self._encode_metrics}
        self.count: int = 1 if worker is None else worker.count
        """Number of workers, including this one."""
        self._server: asyncio.Server | None = None

    def register(self, topic: str, handler: QueryHandler) -> None:
        """Register the handler of a topic."""
        self._handlers[topic] = handler

    async def start(self) -> None:
        """Start to answer queries."""
        if self._worker is not None:
            path = self._path(self._worker.number)
            self._server = await asyncio.start_unix_server(self._serve_connection, path, limit=_QUERY_LIMIT_BYTES)

    async def stop(self) -> None:
        """Stop answering queries."""
        if self._server is not None:
            self._server.close()

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the other workers."""
        own = 1 if self._worker is None else self._worker.number
        return tuple(number for number in range(1, self.count + 1) if number != own)

    async def query(self, number: int, topic: str, query: WorkerQuery) -> bytes | None:
        """The reply of another worker; None if it is late or gone."""
        return await self._query_worker(number, msgspec.json.encode({**query, "topic": topic}) + b"\n")

    async def gather(self, topic: str, query: WorkerQuery) -> list[bytes]:
        """The non-empty replies of the other workers; those that are late are left out."""
        return [reply for reply in await self._query_all(topic, query) if reply]

    async def metrics_page(self) -> tuple[str, bytes]:
        """The content type and the body of the merged /metrics page; workers that are late are left out."""
        content_type, own = await asyncio.to_thread(self._render)
        if self._worker is None:
            return content_type, own
        replies = await self._query_all(_METRICS_TOPIC, {})
        pages = [reply.decode() for reply in replies if reply is not None]
        missing, deaths = len(replies) - len(pages), self._worker.loads.deaths
        text = await asyncio.to_thread(merge_metrics_pages, [own.decode(), *pages], missing, deaths)
        return content_type, text.encode()

    def _path(self, number: int) -> Path:
        assert self._worker is not None
        return self._worker.folder / f"{number}.sock"

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    query = await _read_query(reader)
                    handler = self._handlers.get(str(query.get("topic")))
                    writer.write((b"" if handler is None else await handler(query)) + _END_MARK)
                    await writer.drain()
        finally:
            writer.close()

    async def _encode_metrics(self, _: WorkerQuery) -> bytes:
        return (await asyncio.to_thread(self._render))[1]

    async def _query_all(self, topic: str, query: WorkerQuery) -> list[bytes | None]:
        return await asyncio.gather(*(self.query(number, topic, query) for number in self.others))

    async def _query_worker(self, number: int, line: bytes) -> bytes | None:
        """The reply of another worker, if it is complete and in time."""
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
    """Read a query; empty if it is too long or truncated."""
    try:
        return msgspec.json.decode(await reader.readline(), type=dict[str, Any])
    except (ValueError, msgspec.DecodeError):
        return {}
