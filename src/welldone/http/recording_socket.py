"""WebSocket client that records the messages of a server with a timestamp each, for `welldone check`.

As for `recording_client`, the server is not trusted: every size and every wait is bounded.
"""

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec

from welldone.http.address import Address, encode_request
from welldone.http.connect import HttpClientError, connect
from welldone.http.recording_client import RecordedResponse
from welldone.http.response_parser import ResponseParser
from welldone.protocol.websocket_frames import FrameDecoder, FrameError, Opcode, accept_key, encode_frame

_HEAD_LIMIT_BYTES = 65536
_READ_BYTES = 65536
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
            pieces=None,
            is_complete=parser.is_complete,
            head_s=None,
            arrivals=(),
            ended_s=0.0,
            error=parser.error,
        )
    )
