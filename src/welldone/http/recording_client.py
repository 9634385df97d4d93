"""HTTP/1.1 client that records the raw response with a timestamp per read, for `welldone check`.

The server under test is not trusted: every size and every wait is bounded, and the bytes that precede an error are
kept. Redirects are not followed. Its only dependency is msgspec, so that `check` starts fast.
"""

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, cast

import msgspec

from welldone.http.address import Address, encode_request
from welldone.http.connect import connect
from welldone.http.response_parser import CONNECTION_LOST, ResponseParser

RESPONSE_TIMEOUT_S = 120.0
"""Limit for one response. All probes together take less: 90 s with a small model on two cores."""
IDLE_TIMEOUT_S = 60.0
"""Limit between two reads: the default of nginx (proxy_read_timeout)."""
AFTER_DONE_TIMEOUT_S = 3.0
"""Limit for the end of the body after `[DONE]`. Servers that end it need milliseconds."""
BODY_LIMIT_BYTES = 64 * 2**20
"""Limit of a body: hundreds of thousands of chunks, far more than a probe requests."""

_ARRIVALS_LIMIT = 2**16  # timestamps that are kept; later reads replace the last one
_READ_BYTES = 65536
_DONE_TAIL_BYTES = 64  # more than `data: [DONE]` and the line ends around it
_DONE_EVENT = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]\s*\Z")
_ABORTED = "the client closed the connection"

Connect: TypeAlias = Callable[[Address, asyncio.Protocol], Awaitable[object]]
"""Connects a protocol to a server, and calls its `connection_made`."""


class RecordedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A raw response with timestamps, in seconds since the end of the request."""

    status: int | None
    """None: no complete head arrived."""
    headers: tuple[tuple[str, str], ...]
    """As sent: original order and case, repeated headers included."""
    body: bytes
    """Without transfer encoding, and decompressed if it was compressed with gzip or deflate."""
    pieces: tuple[int, ...] | None
    """Decoded size of each HTTP chunk; None without chunked transfer encoding."""
    is_complete: bool
    """The body ended according to its framing: last chunk, Content-Length, or end of the connection without either."""
    head_s: float | None
    """When the head was complete."""
    arrivals: tuple[tuple[float, int], ...]
    """For each read: its time, and the size of the body after it."""
    ended_s: float
    error: str | None
    """Why the response is incomplete; None: it is complete, or the client aborted."""
    is_aborted: bool = False
    """The client closed the connection on purpose (`leave`)."""
    is_abandoned: bool = False
    """The client stopped reading at the time or size limit: the response may have continued."""
    is_timed_out: bool = False
    """The time limit was reached."""


async def record_response(
    address: Address,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Iterable[tuple[str, str | None]] = (),
    timeout_s: float = RESPONSE_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    after_done_s: float = AFTER_DONE_TIMEOUT_S,
    limit_bytes: int = BODY_LIMIT_BYTES,
    leave: Callable[[bytes], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    connect: Connect = connect,
) -> RecordedResponse:
    """Send a request and record the response until its end.

    `headers` override the default headers; the value None removes one. After each read that follows the head, `leave`
    is called with the body so far: if it returns True, the connection is aborted at once. `connect` connects a protocol
    to the server.

    Raises:
        HttpClientError: there is no connection.
        ValueError: the path or a header is not valid.
    """
    defaults = [  # those of OpenAI's SDKs
        ("Accept", "application/json"),
        ("Accept-Encoding", "gzip, deflate"),
        ("Connection", "keep-alive"),
        ("Content-Type", None if body is None else "application/json"),
    ]
    request = encode_request(address, method, path, defaults=defaults, headers=headers, body=body)
    parser = ResponseParser(method, limit_bytes)
    connection = _RecordingConnection(request, parser, timeout_s, idle_timeout_s, after_done_s, leave, clock)
    try:
        await connect(address, connection)
        await connection.done
    finally:
        connection.close()
    return connection.recorded()


@dataclass(eq=False)
class _RecordingConnection(asyncio.Protocol):
    request: bytes
    parser: ResponseParser
    timeout_s: float
    idle_timeout_s: float
    after_done_s: float
    leave: Callable[[bytes], bool] | None
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started = 0.0  # on the loop's clock, like the deadlines
        self._sent_at: float | None = None
        self._head_at: float | None = None
        self._ended_at = 0.0
        self._arrivals: list[tuple[float, int]] = []
        self._is_aborted = False
        self._is_timed_out = False

    def close(self) -> None:
        """Abort the connection."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def recorded(self) -> RecordedResponse:
        """Return the recording; valid once `done` is."""
        parser = self.parser
        # A response may arrive before the request is sent completely: then it is the origin of the timestamps.
        origin = min(at for at in (self._sent_at, self._head_at, self._ended_at) if at is not None)
        return RecordedResponse(
            status=parser.status,
            headers=tuple(parser.headers) if parser.status is not None else (),
            body=bytes(parser.body),
            pieces=parser.pieces,
            is_complete=parser.is_complete,
            head_s=None if self._head_at is None else self._head_at - origin,
            arrivals=tuple((at - origin, size) for at, size in self._arrivals),
            ended_s=self._ended_at - origin,
            error=None if self._is_aborted else parser.error,
            is_aborted=self._is_aborted,
            is_abandoned=self._is_timed_out or parser.is_over_limit,
            is_timed_out=self._is_timed_out,
        )

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        self._started = self._loop.time()
        self._restart_timer()
        self._transport.set_write_buffer_limits(0)  # so that resume_writing follows the last byte
        self._transport.write(self.request)
        self.request = b""
        if not self._transport.get_write_buffer_size():
            self.resume_writing()

    def resume_writing(self) -> None:
        """Note that the request is sent."""
        self._sent_at = self.clock()
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """Parse and timestamp the bytes."""
        now = self.clock()
        size_before = len(self.parser.body)
        self.parser.feed(data)
        if self._head_at is None and self.parser.status is not None:
            self._head_at = now
        if len(self.parser.body) > size_before:
            if len(self._arrivals) >= _ARRIVALS_LIMIT:
                self._arrivals.pop()
            self._arrivals.append((now, len(self.parser.body)))
        if not self.parser.is_done and self._head_at is not None and self.leave is not None:
            self._is_aborted = self.leave(bytes(self.parser.body))
            if self._is_aborted:
                self.parser.fail(_ABORTED)
        if self.parser.is_done:
            self._finish()
        else:
            self._restart_timer()

    def eof_received(self) -> None:
        """End the recording: a half-closed connection delivers nothing more."""
        self.parser.feed_eof()
        self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """End the recording with what the kernel still has."""
        if not self.done.done():
            self._drain_socket()
            self.parser.fail(CONNECTION_LOST)
            self._finish()

    def _drain_socket(self) -> None:
        """Read what is left in the kernel's receive buffer.

        A server that rejects a request early closes the connection. The next write then fails, and asyncio stops
        reading although the error response may be in the buffer.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return  # encrypted bytes cannot be read past the transport
        descriptor = transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
            sock.setblocking(False)
            while not self.done.done() and (data := sock.recv(_READ_BYTES)):
                self.data_received(data)

    def _restart_timer(self) -> None:
        """Set the deadline for the next byte, its error, and whether the response may still have continued."""
        if self._timer is not None:
            self._timer.cancel()
        now, has_head = self._loop.time(), self.parser.status is not None
        whole, idle = ("the reply was not complete within", "no data for") if has_head else ("no reply within",) * 2
        limits = [
            (self._started + self.timeout_s, f"{whole} {self.timeout_s:g} s", True),
            (now + self.idle_timeout_s, f"{idle} {self.idle_timeout_s:g} s", True),
        ]
        if _DONE_EVENT.search(self.parser.body[-_DONE_TAIL_BYTES:]):
            limits.append((now + self.after_done_s, "the body did not end after [DONE]", False))
        when, reason, is_timed_out = min(limits)
        self._timer = self._loop.call_at(when, self._on_timeout, reason, is_timed_out)

    def _on_timeout(self, reason: str, is_timed_out: bool) -> None:
        self._is_timed_out = is_timed_out
        self.parser.fail(reason)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self._ended_at = self.clock()
            self.done.set_result(None)
            self.close()
