"""Engine that sends one token and blocks until a named pipe is written: `python blocking_engine.py PIPE PORT`."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from welldone.mock.script import CHUNK_TEMPLATE

PIPE, PORT = sys.argv[1:]


class BlockingHandler(BaseHTTPRequestHandler):
    """Handles one request per connection."""

    def do_GET(self) -> None:
        """Answer /health; other paths do not exist."""
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """Send the first token at once and the second after a write to the pipe."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write((CHUNK_TEMPLATE % ('{"role":"assistant","content":"first"}', "null")).encode())
        Path(PIPE).read_text()
        self.wfile.write(
            (CHUNK_TEMPLATE % ('{"content":" second"}', "null") + CHUNK_TEMPLATE % ("{}", '"stop"')).encode()
        )
        self.wfile.write(b"data: [DONE]\n\n")


ThreadingHTTPServer(("127.0.0.1", int(PORT)), BlockingHandler).serve_forever()
