"""Bytes of a client that cost a server more than they cost the client: many tiny requests, frames and chunks."""

from collections.abc import Callable
from typing import NamedTuple

from faults.client import chat
from tests.http.frames import CONT, HANDSHAKE, PING, TEXT, frame

_LAST = b"Connection: close\r\n"
_GOODBYE = b"connection: close"
_TOO_MANY = b"\x03\xf0"  # the close code 1008
_BODY = chat(stream=False)


class Flood(NamedTuple):
    """Bytes to send on a connection of their own."""

    name: str
    make: Callable[[int, bytes], bytes]
    """Called with a count and the header line with the client's key."""
    expected: bytes
    """Occurs near the end of what the server sends, in lower case."""
    size: int
    """The count in the full plan."""
    at_once: int = 1
    is_socket: bool = False


def _pipelined(request: bytes, *, has_key: bool = True) -> Callable[[int, bytes], bytes]:
    def make(count: int, key: bytes) -> bytes:
        head = request + (key if has_key else b"")
        return (head + b"\r\n") * count + head + _LAST + b"\r\n"

    return make


def _chunked(path: bytes, *, has_key: bool = True) -> Callable[[int, bytes], bytes]:
    def make(count: int, key: bytes) -> bytes:
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % path + (key if has_key else b"") + _LAST
        filling = b"1\r\n \r\n" * max(0, count - len(_BODY))
        body = b"".join(b"1\r\n%c\r\n" % byte for byte in _BODY)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + filling + body + b"0\r\n\r\n"

    return make


def _socket(make: Callable[[int], bytes]) -> Callable[[int, bytes], bytes]:
    return lambda count, key: HANDSHAKE.replace(b"\r\n\r\n", b"\r\n" + key + b"\r\n") + make(count)


def _many_choices(count: int, key: bytes) -> bytes:
    body = chat(stream=False, content="x" * count, n=16)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
    return head + key + _LAST + b"\r\n" + body


def _get(path: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\n" % path


_PREFLIGHT = (
    b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
    b"Access-Control-Request-Method: POST\r\n"
)
FLOODS = (
    Flood("pipelined requests", _pipelined(_get(b"/livez")), _GOODBYE, 20_000),
    Flood("pipelined requests to an unknown path", _pipelined(_get(b"/unknown")), _GOODBYE, 20_000),
    Flood("pipelined requests without a key", _pipelined(_get(b"/v1/models"), has_key=False), _GOODBYE, 20_000),
    Flood("pipelined preflights", _pipelined(_PREFLIGHT, has_key=False), _GOODBYE, 20_000),
    Flood("chunks of one byte", _chunked(b"/v1/chat/completions"), _GOODBYE, 600_000),
    Flood("chunks of one byte to an unknown path", _chunked(b"/unknown", has_key=False), _GOODBYE, 600_000),
    Flood("pings", _socket(lambda count: frame(PING) * count), _TOO_MANY, 280_000, is_socket=True),
    Flood(
        "fragments of one byte",
        _socket(lambda count: frame(TEXT, b"a", fin=False) + frame(CONT, b"b", fin=False) * count),
        _TOO_MANY,
        280_000,
        is_socket=True,
    ),
    Flood("sixteen long bodies with n = 16", _many_choices, _GOODBYE, 4_000_000, at_once=16),
)
