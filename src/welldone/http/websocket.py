"""A WebSocket (RFC 6455) on a connection of the HTTP server.

The library websockets reads and writes the frames. Its `Protocol` does no I/O, and it has no dependencies (wsproto has
h11). Compression is not offered. Messages that the application has not taken yet are limited in number and size: beyond
that the connection is not read.
"""

import asyncio
import base64
import binascii
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import IntEnum

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from welldone.http.address import check_header_line
from welldone.http.messages import LINGER_S, AcceptedConnection, HttpRequest

_DATA_OPCODES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_QUEUE_LIMIT = 16
"""Messages that wait for the application: as many responses may be in flight on a WebSocket of OpenAI."""
_SLICE_BYTES = 2048  # the smallest frame has 6 bytes and takes 12 us
_SHORT_BYTES = 126
"""A shorter frame costs more for its head than for its data. Clients split long messages into larger fragments."""
_CLOSE_S = 5.0  # for the client to complete the close handshake
_LOGGER = logging.getLogger("welldone.websocket")
_LOGGER.setLevel(logging.ERROR)  # the library logs contents of frames
VERSION = "13"
"""The version of the protocol."""


class CloseCode(IntEnum):
    """Why a connection is closed (RFC 6455 §7.4.1)."""

    GOING_AWAY = 1001
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TRY_AGAIN_LATER = 1013


_FRAME_LIMITS = {True: (100, "control frames"), False: (10_000, "short fragments")}
"""Frames in a second, by whether they are control frames: clients ping every 20 s; 10,000 fragments take 0.1 s."""


class HandshakeError(Exception):
    """The request is not a valid WebSocket handshake. The message is the reason."""


class WebSocket:
    """A connection after its handshake. All callbacks are called by the event loop.

    `on_buffered` is called with each change of the number of received bytes that the application has not taken;
    `on_close` when the client closes the connection, or breaks the protocol.
    """

    def __init__(
        self,
        request: HttpRequest,
        headers: Mapping[str, str],
        *,
        limit_bytes: int,
        on_buffered: Callable[[int], object],
        on_close: Callable[[], object],
    ) -> None:
        """Accept a handshake: `headers` are further headers of the response, `limit_bytes` the size of a message.

        Raises:
            HandshakeError: the request is not a valid handshake.
        """
        head = _handshake(request.headers, headers)
        self._protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=limit_bytes, logger=_LOGGER)
        self._limit_bytes = limit_bytes
        self._on_buffered = on_buffered
        self._on_close = on_close
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0
        self._fragments = bytearray()
        self._buffered_bytes = 0  # as reported
        self._frame_counts: Counter[bool] = Counter()  # since `_counted_since`, as in `_FRAME_LIMITS`
        self._counted_since = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()  # the close handshake is complete
        try:
            self.connection: AcceptedConnection = request.upgrade(head, self._receive)
        except ValueError as error:
            raise HandshakeError(str(error)) from None
        self.connection.slice_bytes = _SLICE_BYTES
        self._transport = self.connection.transport

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._protocol.state is State.OPEN

    async def receive(self, timeout_s: float) -> bytes | None:
        """Return the next message, which is UTF-8; None after `wake`, after the timeout, or if the client closes."""
        if not self._messages and self.is_open:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                return None
            finally:
                self._waiter = None
        if not self._messages or not self.is_open:
            return None
        message = self._messages.popleft()
        self._queued_bytes -= len(message)
        self._report_buffered()
        self.connection.resume_reading()
        return message

    def wake(self) -> None:
        """Let `receive` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, text: bytes) -> None:
        """Send a message, unless the connection is closed."""
        if self.is_open:
            self._protocol.send_text(text)
            self._flush()

    def ping(self) -> None:
        """Send a ping, so that the kernel notices a client that is gone."""
        if self.is_open:
            self._protocol.send_ping(b"")
            self._flush()

    async def close(self, code: CloseCode, reason: str) -> None:
        """Close the connection, unless the client has, and wait until it has received the close frame."""
        if self.is_open:
            self._protocol.send_close(code, reason)
            self._flush()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ended.wait()
        except TimeoutError:
            return
        has_failed = self._protocol.close_rcvd is None
        if has_failed and self._transport.can_write_eof() and not self._transport.is_closing():
            # Data of the client that arrives after the socket is closed would reset the connection, and the close
            # frame would be lost. The client's disconnect cancels the caller.
            self._transport.write_eof()
            await asyncio.sleep(LINGER_S)

    def fail(self, code: CloseCode, reason: str) -> None:
        """Close the connection at once: nothing is received any more."""
        self._protocol.fail(code, reason)
        self._flush()
        self._end()

    def release(self) -> None:
        """Drop what the application has not taken."""
        self._messages.clear()
        self._fragments.clear()
        self._queued_bytes = 0
        self._on_buffered(-self._buffered_bytes)
        self._buffered_bytes = 0

    def _receive(self, data: bytes) -> None:
        if self._ended.is_set():
            return  # nothing can be sent any more
        self._protocol.receive_data(data)
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame)  # the handshake is done
            self._limit_frames(frame)
            if self.is_open and frame.opcode in _DATA_OPCODES:
                self._receive_frame(frame)
        # A client that does not read gets no further pongs, which would fill the memory.
        if not (self.is_open and self.connection.is_write_paused):
            self._flush()
        else:
            self._protocol.data_to_send()
        if self.is_open:
            self._report_buffered()
            if len(self._messages) >= _QUEUE_LIMIT or self._queued_bytes > self._limit_bytes:
                self.connection.pause_reading()
        else:
            self._end()

    def _limit_frames(self, frame: Frame) -> None:
        """Close the connection of a client that sends too many frames which cost more than their bytes."""
        is_control = frame.opcode not in _DATA_OPCODES
        if not is_control and (frame.fin or len(frame.data) >= _SHORT_BYTES):
            return
        now = asyncio.get_running_loop().time()
        if now >= self._counted_since + 1.0:
            self._counted_since = now
            self._frame_counts.clear()
        self._frame_counts[is_control] += 1
        limit, name = _FRAME_LIMITS[is_control]
        if self._frame_counts[is_control] > limit and self.is_open:
            self._protocol.fail(CloseCode.POLICY_VIOLATION, f"more than {limit} {name} in a second")

    def _receive_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are JSON in text frames")
            return
        self._fragments += frame.data
        if not frame.fin:
            return
        message = bytes(self._fragments)
        self._fragments.clear()
        try:
            message.decode()
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "invalid UTF-8")
            return
        self._messages.append(message)
        self._queued_bytes += len(message)
        self.wake()

    def _report_buffered(self) -> None:
        buffered_bytes = self._queued_bytes + len(self._fragments) + len(self._protocol.reader.buffer)
        change, self._buffered_bytes = buffered_bytes - self._buffered_bytes, buffered_bytes
        if change:
            self._on_buffered(change)

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._protocol.data_to_send()))

    def _end(self) -> None:
        """Handle a close frame of the client, or a failure."""
        if not self._ended.is_set():
            self._ended.set()
            self.wake()
            self._on_close()


def is_handshake(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for a WebSocket."""
    return "websocket" in _tokens(headers, "upgrade") and "upgrade" in _tokens(headers, "connection")


def _handshake(request: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """Return the head of the response (RFC 6455 §4.2.2)."""
    key = request.get("sec-websocket-key", "")
    try:
        is_valid = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_valid = False
    if not is_valid:
        raise HandshakeError("The Sec-WebSocket-Key header must be 16 bytes in base64.")
    own = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept_key(key)}
    lines = [f"{name}: {value}" for name, value in {**headers, **own}.items()]
    check_header_line("".join(lines))
    return "\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines, "", ""]).encode("latin-1")


def _tokens(headers: Mapping[str, str], name: str) -> list[str]:
    return [token.strip().lower() for token in headers.get(name, "").split(",")]
