"""HTTP/1.1 and WebSocket client that records raw responses with a timestamp per read, for `welldone check`.

The server under test is not trusted: every size and every wait is bounded, and the bytes that precede an error are
kept. Redirects are not followed. Its only dependency is msgspec, so that `check` starts fast.
"""

import asyncio
import base64
import contextlib
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, cast

import msgspec

from welldone.http.address import Address, encode_request
from welldone.http.connect import HttpClientError, connect
from welldone.http.response_parser import CONNECTION_LOST, ResponseParser
from welldone.http.websocket_frames import FrameDecoder, FrameError, Opcode, accept_key, encode_frame

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
    pieces: tuple[int, ...] | None = None
    """Decoded size of each HTTP chunk; None without chunked transfer encoding."""
    is_complete: bool
    """The body ended according to its framing: last chunk, Content-Length, or end of the connection without either."""
    head_s: float | None = None
    """When the head was complete."""
    arrivals: tuple[tuple[float, int], ...] = ()
    """For each read: its time, and the size of the body after it."""
    ended_s: float = 0.0
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


# WebSockets: the messages of a server, with a timestamp each.

_HEAD_LIMIT_BYTES = 65536
_SWITCHING = "101"


class RefusedSocketError(Exception):
    """The server does not open a WebSocket, but sends a response."""

    def __init__(self, response: RecordedResponse) -> None:
        super().__init__(f"status {response.status}")
        self.response = response


class SocketRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that follow one message of the client, with their times since it was sent."""

    messages: tuple[tuple[float, Opcode, bytes], ...]
    ended_s: float
    error: str | None = None
    """Why the last message is missing."""
    is_timed_out: bool = False


class RecordingSocket:
    """An open WebSocket."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        transport: asyncio.Transport,
        *,
        is_key_accepted: bool,
        timeout_s: float,
        limit_bytes: int,
    ) -> None:
        self.is_key_accepted: bool = is_key_accepted
        """Whether `Sec-WebSocket-Accept` is right."""
        self._reader = reader
        self._transport = transport
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._decoder = FrameDecoder(limit_bytes, is_masked=False)

    async def exchange(self, text: bytes, is_last: Callable[[bytes], bool]) -> SocketRecording:
        """Send a message, and record messages until one is the last."""
        started = time.monotonic()
        messages: list[tuple[float, Opcode, bytes]] = []
        error, is_timed_out, is_ended = None, False, False
        try:
            async with asyncio.timeout(self._timeout_s):
                self._send(Opcode.TEXT, text)
                while error is None and not is_ended:
                    count = len(messages)
                    error = await self._receive(messages, started)
                    is_ended = any(is_last(data) for _, _, data in messages[count:])
        except TimeoutError:
            error, is_timed_out = f"the last message did not arrive within {self._timeout_s:g} s", True
        except FrameError as frame_error:
            error = str(frame_error)
        return SocketRecording(
            messages=tuple(messages),
            ended_s=time.monotonic() - started,
            error=None if is_ended else error,
            is_timed_out=is_timed_out,
        )

    async def _receive(self, messages: list[tuple[float, Opcode, bytes]], started: float) -> str | None:
        """Add the messages of one read; returns why there are no more."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            return "the server closed the connection"
        for message in self._decoder.feed(data):
            if message.opcode is Opcode.PING:
                self._send(Opcode.PONG, message.data)
            elif message.opcode is Opcode.CLOSE:
                self._send(Opcode.CLOSE, message.data[:2])
                return f"the server closed the WebSocket{_close_reason(message.data)}"
            elif message.opcode is not Opcode.PONG:
                messages.append((time.monotonic() - started, message.opcode, message.data))
        if sum(len(data) for _, _, data in messages) > self._limit_bytes:
            return f"the messages exceed {self._limit_bytes:,} bytes"
        return None

    def _send(self, opcode: Opcode, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode_frame(opcode, data, os.urandom(4)))


def _close_reason(data: bytes) -> str:
    code = f" with code {int.from_bytes(data[:2])}" if len(data) >= 2 else ""
    reason = data[2:].decode(errors="replace")
    return f"{code} ({reason})" if reason else code


@asynccontextmanager
async def open_socket(
    address: Address, path: str, *, headers: Iterable[tuple[str, str | None]], timeout_s: float, limit_bytes: int
) -> AsyncIterator[RecordingSocket]:
    """Open a WebSocket until the block ends.

    Raises:
        RefusedSocketError: the server answers with another status than 101.
        HttpClientError: there is no connection, or no HTTP response.
    """
    key = base64.b64encode(os.urandom(16)).decode()
    own = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    own += [("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", key)]
    reader = asyncio.StreamReader(limit=_HEAD_LIMIT_BYTES)
    transport = await connect(address, asyncio.StreamReaderProtocol(reader))
    try:
        transport.write(encode_request(address, "GET", path, defaults=own, headers=headers, body=None))
        try:
            async with asyncio.timeout(timeout_s):
                accepted = await _read_handshake(reader, limit_bytes)
        except TimeoutError:
            raise HttpClientError(f"no reply to the handshake within {timeout_s:g} s") from None
        is_key_accepted = accepted == accept_key(key)
        yield RecordingSocket(
            reader, transport, is_key_accepted=is_key_accepted, timeout_s=timeout_s, limit_bytes=limit_bytes
        )
    finally:
        transport.abort()


async def _read_handshake(reader: asyncio.StreamReader, limit_bytes: int) -> str:
    """Read the response; returns `Sec-WebSocket-Accept`."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        raise HttpClientError("no HTTP response to the handshake") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    if first.split()[1:2] == [_SWITCHING]:
        fields = (line.partition(":") for line in lines)
        return next((value.strip() for name, _, value in fields if name.lower() == "sec-websocket-accept"), "")
    parser = ResponseParser("GET", limit_bytes)
    parser.feed(head)
    while not parser.is_done:
        if data := await reader.read(_READ_BYTES):
            parser.feed(data)
        else:
            parser.feed_eof()
    if parser.status is None:
        raise HttpClientError(parser.error or "no HTTP response to the handshake")
    raise RefusedSocketError(
        RecordedResponse(
            status=parser.status,
            headers=tuple(parser.headers),
            body=bytes(parser.body),
            is_complete=parser.is_complete,
            error=parser.error,
        )
    )
