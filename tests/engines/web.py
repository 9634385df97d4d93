"""A web server that is good or bad at handing out files, on this machine and on a port that the system chose."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

LIMIT_S = 30.0
"""When somebody counts as stuck: far beyond what a test needs."""


@dataclass
class Page:
    """What is at a path, and how it is handed out."""

    data: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    has_length: bool = True
    heeds_if_range: bool = True
    cuts: list[int] = field(default_factory=list)
    """For each of the first replies: after how many bytes of the body the connection ends."""
    statuses: list[int] = field(default_factory=list)
    """The statuses of the first replies, instead of the page."""
    range: str | None = None
    """What is said of a part that was asked for, instead of the truth."""
    gate: threading.Event | None = None
    """The body waits for it."""


class Asked(NamedTuple):
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]


class Site:
    """The server: its pages by path, and what it was asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pages: dict[str, Page] = {}
        self.asked: list[Asked] = []
        self.is_over = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def ranges(self) -> list[str | None]:
        """Which part each request asked for."""
        return [asked.headers.get("range") for asked in self.asked]


@contextmanager
def site() -> Iterator[Site]:
    """A running server. It ends with the block, whoever still waits for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.asked.append(Asked(self.command, self.path, headers))
            self.close_connection = True
            page = made.pages.get(path, Page(status=404))
            _send(self, page, headers, made)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that all of them are waited for
    made = Site(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.is_over.set()
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, page: Page, asked: dict[str, str], made: Site) -> None:
    status = page.statuses.pop(0) if page.statuses else page.status
    data, start = (page.data, 0) if status == 200 or status == page.status else (b"", 0)
    headers = dict(page.headers)
    is_same = not page.heeds_if_range or asked.get("if-range") in (
        None,
        headers.get("ETag"),
        headers.get("Last-Modified"),
    )
    if status == 200 and page.has_ranges and is_same and (wanted := asked.get("range")):
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        status = 206 if start < len(data) else 416
        headers["Content-Range"] = page.range or f"bytes {start}-{len(data) - 1}/{len(data)}"
    body = data[start:]
    if page.has_length:
        headers.setdefault("Content-Length", str(len(body)))
    handler.send_response(status)
    for name, value in {**headers, "Connection": "close"}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if page.cuts:
        body = body[: page.cuts.pop(0)]
    if page.gate is not None:
        while not (page.gate.wait(0.01) or made.is_over.is_set()):
            pass
    with suppress(ConnectionError):  # who has no room for it leaves
        handler.wfile.write(body)
