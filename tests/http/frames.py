"""A WebSocket client on a plain connection, with frames made by hand (RFC 6455 §5), right or wrong."""

import asyncio
import struct
from typing import NamedTuple

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
"""With the key of the example in RFC 6455 §1.3."""
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The answer to that key."""
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_MASK = b"\x11\x22\x33\x44"


class Received(NamedTuple):
    """A frame of the server."""

    opcode: int
    data: bytes

    @property
    def close_code(self) -> int:
        """The code of a close frame."""
        assert self.opcode == CLOSE, self
        return int.from_bytes(self.data[:2], "big")


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, bits: int = 0, is_masked: bool = True) -> bytes:
    """Return a frame of a client; `bits` are the reserved ones."""
    first = (fin << 7) | (bits << 4) | opcode
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", first, is_masked << 7 | size)
    elif size < 2**16:
        head = struct.pack("!BBH", first, is_masked << 7 | 126, size)
    else:
        head = struct.pack("!BBQ", first, is_masked << 7 | 127, size)
    if not is_masked:
        return head + data
    return head + _MASK + bytes(byte ^ _MASK[index % 4] for index, byte in enumerate(data))


def close_frame(code: int, reason: bytes = b"") -> bytes:
    """Return a close frame."""
    return frame(CLOSE, struct.pack("!H", code) + reason)


class FrameClient:
    """A connection after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.head = head
        """Of the response."""

    def send(self, *frames: bytes) -> None:
        """Send frames."""
        self.writer.write(b"".join(frames))

    async def receive(self) -> Received:
        """Return the next frame, which must be whole and not masked."""
        first, second = await self.reader.readexactly(2)
        assert first & 0xF0 == 0x80
        assert second < 128
        size = second
        if size > 125:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        return Received(first & 0x0F, await self.reader.readexactly(size))

    async def rest(self) -> bytes:
        """Return all bytes up to the end of the connection, and close it."""
        data = await self.reader.read()
        self.writer.close()
        return data


async def connect(port: int, handshake: bytes = HANDSHAKE) -> FrameClient:
    """Connect and send the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(handshake)
    head = await reader.readuntil(b"\r\n\r\n")
    return FrameClient(reader, writer, head)
