"""File server for tests of downloads, with configurable faults."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

LIMIT_S = 30.0
"""Far more than any wait in these tests takes."""


@dataclass
class Page:
    """The reply to requests for a path, and its faults."""

    data: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    has_length: bool = True
    heeds_if_range: bool = True
    cuts: list[int] = field(default_factory=list)
    """For each of the first replies: after how many bytes of the body the connection is closed."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the first replies, which then have no body."""
    range: str | None = None
    """A false value of Content-Range."""
    released: threading.Event | None = None
    """The body is sent when this is set."""


class ReceivedRequest(NamedTuple):
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]


class Site:
    """The server: pages by path, and the received requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pages: dict[str, Page] = {}
        self.requests: list[ReceivedRequest] = []
        self.is_closing = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def ranges(self) -> list[str | None]:
        """The Range header of each request."""
        return [request.headers.get("range") for request in self.requests]


@contextmanager
def site() -> Iterator[Site]:
    """Run a server; at the end of the block, pending replies are released."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            """Disable the log."""

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            running.requests.append(ReceivedRequest(self.command, self.path, headers))
            self.close_connection = True
            page = running.pages.get(path, Page(status=404))
            _send(self, page, headers, running)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that server_close waits for all threads
    running = Site(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield running
    finally:
        running.is_closing.set()
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, page: Page, received: dict[str, str], running: Site) -> None:
    status = page.statuses.pop(0) if page.statuses else page.status
    data, start = (page.data, 0) if status == 200 or status == page.status else (b"", 0)
    headers = dict(page.headers)
    is_same = not page.heeds_if_range or received.get("if-range") in (
        None,
        headers.get("ETag"),
        headers.get("Last-Modified"),
    )
    if status == 200 and page.has_ranges and is_same and (byte_range := received.get("range")):
        start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
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
    if page.released is not None:
        while not (page.released.wait(0.01) or running.is_closing.is_set()):
            pass
    with suppress(ConnectionError):  # the client may close the connection early
        handler.wfile.write(body)
