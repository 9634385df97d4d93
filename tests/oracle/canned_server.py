"""Loopback server that returns given bytes to real clients."""

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from threading import Thread
from types import TracebackType
from typing import Self, TypeAlias

Request: TypeAlias = socket | tuple[bytes, socket]

_PATH = re.compile(r"/(\d+)/v1/(?:chat/)?completions")
_FRAME = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)


class CannedServer:
    """Context manager of a server with one base URL per body."""

    def __init__(self) -> None:
        self._http = _Http()
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def add(self, body: bytes) -> str:
        """Return a base URL at which both endpoints return `body`."""
        self._http.bodies.append(body)
        return f"http://127.0.0.1:{self._http.server_port}/{len(self._http.bodies) - 1}/v1"


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep their connections open

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    def handle_error(self, request: Request, client_address: object) -> None:
        # A client may disconnect after an error.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http
    # Send each chunk in one packet (Nagle's algorithm and delayed ACK).
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = _PATH.fullmatch(self.path)
        if found is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in filter(None, _FRAME.findall(self.server.bodies[int(found[1])])):
            self._chunk(piece)
        self._chunk(b"")

    def _chunk(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
