"""Programs that play an engine: they answer every chat with "Hello", after what the test wants them to do."""

import textwrap

_PROGRAM = """
import http.server, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}", "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
@before_answer@
        chunk = '{"id":"a","object":"chat.completion.chunk","created":1,"model":"a","choices":[{"index":0,%s}]}'
        sent = [chunk % '"delta":{"role":"assistant","content":"Hello"},"finish_reason":null',
                chunk % '"delta":{},"finish_reason":"stop"', "[DONE]"]
        self.answer("".join(f"data: {one}\\n\\n" for one in sent).encode(), "text/event-stream")

    def answer(self, data, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass

@before_start@
http.server.@server@(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def fake_engine(before_answer: str, before_start: str = "", *, server: str = "ThreadingHTTPServer") -> str:
    """Return a program whose first argument is the port. `before_answer` has the bytes of the request in `body`."""
    text = _PROGRAM.replace("@before_answer@", textwrap.indent(textwrap.dedent(before_answer).strip("\n"), " " * 8))
    return text.replace("@before_start@", textwrap.dedent(before_start).strip("\n")).replace("@server@", server)
