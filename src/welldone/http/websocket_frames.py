"""WebSocket frames (RFC 6455 §5), for `welldone check` and `welldone mock`.

The server uses the library websockets. A checker that shared its reader with the server would share its mistakes, and
`check` needs msgspec only. There are no extensions.
"""

import base64
import hashlib
from enum import IntEnum

import msgspec

_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # §1.3
_LONG_SIZES = {126: 2, 127: 8}
"""Bytes of the size that follow these values of the short size (§5.2)."""


class Opcode(IntEnum):
    """Kind of a frame."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class SocketMessage(msgspec.Struct, frozen=True):
    """A message, whose fragments are joined, or a control frame."""

    opcode: Opcode
    data: bytes


class FrameError(ValueError):
    """The peer breaks the protocol. The message is a clause."""


def accept_key(key: str) -> str:
    """Return the value of `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _KEY_SUFFIX, usedforsecurity=False).digest()).decode()


def encode_frame(opcode: Opcode, data: bytes, mask: bytes = b"") -> bytes:
    """Return a frame; that of a client needs a random mask of 4 bytes."""
    size = len(data)
    short = size if size < 126 else 126 if size < 2**16 else 127
    long = size.to_bytes(_LONG_SIZES[short]) if short in _LONG_SIZES else b""
    return bytes([0x80 | opcode, (0x80 if mask else 0) | short]) + long + mask + _mask(data, mask)


def _mask(data: bytes, mask: bytes) -> bytes:
    if not mask:
        return data
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(size)


class FrameDecoder:
    """Reads the frames of a peer. `is_masked`: whether it is a client."""

    def __init__(self, limit_bytes: int, *, is_masked: bool) -> None:
        self._limit_bytes = limit_bytes
        self._is_masked = is_masked
        self._buffer = bytearray()
        self._fragments = bytearray()
        self._opcode: Opcode | None = None  # of the message that is being read

    def feed(self, data: bytes) -> list[SocketMessage]:
        """Return the messages and control frames that are complete.

        Raises:
            FrameError: the peer breaks the protocol, or a message is too long.
        """
        self._buffer += data
        messages = []
        while (frame := self._next_frame()) is not None:
            is_last, opcode, payload = frame
            if opcode >= Opcode.CLOSE:
                messages.append(SocketMessage(opcode, payload))
                continue
            if (opcode is Opcode.CONTINUATION) is (self._opcode is None):
                raise FrameError("a message begins before the end of another, or in its middle")
            self._opcode = opcode if self._opcode is None else self._opcode
            self._fragments += payload
            if is_last:
                messages.append(SocketMessage(self._opcode, bytes(self._fragments)))
                self._fragments.clear()
                self._opcode = None
        return messages

    def _next_frame(self) -> tuple[bool, Opcode, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        try:
            opcode = Opcode(first & 0x7F)  # with the reserved bits
        except ValueError:
            raise FrameError(f"a frame begins with {first:#x}") from None
        if bool(second & 0x80) is not self._is_masked:
            raise FrameError("a frame of a client is not masked, or one of a server is")
        mask_at = 2 + _LONG_SIZES.get(second & 0x7F, 0)
        start = mask_at + (4 if self._is_masked else 0)
        if len(buffer) < start:
            return None
        size = second & 0x7F if mask_at == 2 else int.from_bytes(buffer[2:mask_at])
        if size + len(self._fragments) > self._limit_bytes:
            raise FrameError(f"a message exceeds {self._limit_bytes:,} bytes")
        if len(buffer) < start + size:
            return None
        payload = _mask(bytes(buffer[start : start + size]), bytes(buffer[mask_at:start]))
        del buffer[: start + size]
        return bool(first & 0x80), opcode, payload
