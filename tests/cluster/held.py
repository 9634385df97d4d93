"""An engine that says one word and then waits for one: `python held.py GATE PORT`. The gate is a named pipe."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from welldone.mock.script import CHUNK_TEMPLATE

GATE, PORT = sys.argv[1:]


class Held(BaseHTTPRequestHandler):
    """Each connection has one request."""

    def do_GET(self) -> None:
        """It is well, and says no more of itself."""
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """The first word at once; the second when somebody has opened the gate."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write((CHUNK_TEMPLATE % ('{"role":"assistant","content":"first"}', "null")).encode())
        Path(GATE).read_text()
        self.wfile.write(
            (CHUNK_TEMPLATE % ('{"content":" second"}', "null") + CHUNK_TEMPLATE % ("{}", '"stop"')).encode()
        )
        self.wfile.write(b"data: [DONE]\n\n")


ThreadingHTTPServer(("127.0.0.1", int(PORT)), Held).serve_forever()
