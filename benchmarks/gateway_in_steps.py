"""Client and upstream of a gateway in one thread: what the gateway reads next is sent after it has sent the last.

So its reads do not depend on the speed of any process.
"""

import json
import select
import socket
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

LIMIT_S = 600.0  # a request takes 0.1 s under callgrind on an idle machine; the limit turns a hang into a failure
TEXTS_PER_ANSWER = 6
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
_CHUNK = (
    'data: {"choices":[{"finish_reason":%s,"index":0,"delta":%s}],"created":1794706576,"id":"chatcmpl-tKuwrrGl4hhXNZ",'
    '"model":"m","system_fingerprint":"b0-b21e4de7","object":"chat.completion.chunk"}\n\n'
)
_ENVELOPE = {"id": "chatcmpl-tKuwrrGl4hhXNZ", "created": 1794706576, "model": "m", "system_fingerprint": "b0-b21e4de7"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": TEXTS_PER_ANSWER, "total_tokens": 9 + TEXTS_PER_ANSWER}
_USAGE_CHUNK = {"choices": [], **_ENVELOPE, "object": "chat.completion.chunk", "usage": _USAGE}


def _framed(*frames: str) -> bytes:
    """Each frame as a chunk of HTTP."""
    return b"".join(b"%x\r\n%b\r\n" % (len(frame), frame.encode()) for frame in frames)


def _text(number: int, member: str = "content") -> str:
    return _CHUNK % ("null", json.dumps({member: f" w{number % 10}"}))


_BEGIN = _HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked") + _framed(
    _CHUNK % ("null", '{"role":"assistant","content":null}')
)
_END = _framed(_CHUNK % ('"stop"', "{}"), f"data: {json.dumps(_USAGE_CHUNK)}\n\n", "data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM = _BEGIN + _framed(*map(_text, range(TEXTS_PER_ANSWER))) + _END


def _json_reply(value: object) -> bytes:
    body = json.dumps(value).encode()
    return _HEAD % (b"application/json", b"Content-Length: %d" % len(body)) + body


_MESSAGE = {"role": "assistant", "content": "".join(f" w{number}" for number in range(TEXTS_PER_ANSWER))}
_REPLY = _json_reply(
    {
        **_ENVELOPE,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
)
_MODELS = _json_reply({"object": "list", "data": [{"id": "m", "object": "model"}]})


class StepError(Exception):
    """The gateway does not send what it should."""


class Upstream:
    """Listening socket and connections of an upstream."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for opened in (self._listener, *self._connections):
            opened.close()

    def receive_post(self) -> tuple[socket.socket, dict[str, Any]]:
        """Return the connection and body of the next POST; a GET before it gets the list of models."""
        while True:
            ready, _, _ = select.select([self._listener, *self._connections], [], [], LIMIT_S)
            if not ready:
                raise StepError(f"the upstream received no request within {LIMIT_S:g} s")
            if ready[0] is self._listener:
                connection, _ = self._listener.accept()
                connection.settimeout(LIMIT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                continue
            head, body = receive_message(ready[0])
            if not head:
                self._connections.remove(ready[0])
                ready[0].close()
            elif head.startswith(b"POST "):
                return ready[0], json.loads(body)
            else:
                ready[0].sendall(_MODELS)


def receive_message(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of an HTTP message with Content-Length or chunks; both are empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return b"", b""
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"transfer-encoding" in lines:
        while not body.endswith(b"0\r\n\r\n"):
            body += _receive(connection)
    while len(body) < int(lines.get(b"content-length", b"0")):
        body += _receive(connection)
    return head, body


def _receive(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    if not received:
        raise StepError("the connection was closed within a message")
    return received


class Client:
    """A client on one connection."""

    def __init__(self, port: int, upstream: Upstream) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream = upstream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def wait_until_idle(self) -> None:
        """Send requests that the gateway answers itself. During the first it may still work for the one before."""
        for _ in range(3):
            self._connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            receive_message(self._connection)

    def send(self, path: str, request: dict[str, Any]) -> tuple[socket.socket, dict[str, Any]]:
        """Send a request; return what the upstream has received for it."""
        body = json.dumps(request).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self._upstream.receive_post()

    def request(self, path: str, request: dict[str, Any], expected: Sequence[bytes]) -> None:
        """Send a request and read the reply; the upstream sends its own at once."""
        connection, forwarded = self.send(path, request)
        connection.sendall(_STREAM if forwarded.get("stream") else _REPLY)
        head, body = receive_message(self._connection)
        if b" 200 " not in head.partition(b"\r\n")[0] or any(part not in body for part in expected):
            raise StepError(f"unexpected reply to {path}: {(head + body)[-500:]!r}")

    def stream_in_steps(
        self, path: str, request: dict[str, Any], chunks: int, member: str = "content"
    ) -> Iterator[None]:
        """Send a request, and yield after each chunk that the client has received: then the upstream sends the next.

        `member` of the deltas has the text.
        """
        connection, _ = self.send(path, request)
        connection.sendall(_BEGIN)
        for number in range(chunks):
            connection.sendall(_framed(_text(number, member)))
            received = b""
            while b'" w%d"' % (number % 10) not in received:
                received += _receive(self._connection)
            yield
        connection.sendall(_END)
        while not received.endswith(b"0\r\n\r\n"):
            received += _receive(self._connection)
