"""WebSocket frames, against the library that the server uses."""

import pytest
from websockets.frames import Frame
from websockets.frames import Opcode as LibraryOpcode
from websockets.protocol import Protocol, Side, State

from tests.table import table
from welldone.http.websocket_frames import FrameDecoder, FrameError, Opcode, SocketMessage, accept_key, encode_frame

LIMIT_BYTES = 100_000
MASK = b"\x12\x34\x56\x78"
SIZES = table("size", [0, 1, 5, 125, 126, 65535, 65536])


def _text(size: int) -> bytes:
    return bytes(ord("a") + index % 26 for index in range(size))


def test_the_accept_key_is_that_of_the_standard() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455 §1.3


@SIZES
def test_the_library_reads_our_frames(size: int) -> None:
    for side, mask in ((Side.SERVER, MASK), (Side.CLIENT, b"")):
        peer = Protocol(side, state=State.OPEN)
        peer.receive_data(encode_frame(Opcode.TEXT, _text(size), mask))
        (frame,) = peer.events_received()
        assert isinstance(frame, Frame)
        assert (frame.opcode, frame.data, frame.fin) == (LibraryOpcode.TEXT, _text(size), True)


@SIZES
def test_frames_of_the_library_are_read_at_any_split(size: int) -> None:
    for side in (Side.SERVER, Side.CLIENT):
        peer = Protocol(side, state=State.OPEN)
        peer.send_ping(b"p")
        peer.send_text(_text(size), fin=False)
        peer.send_pong(b"")
        peer.send_continuation(b"end", fin=True)
        peer.send_close(1000, "bye")
        data = b"".join(peer.data_to_send())
        expected = [
            SocketMessage(Opcode.PING, b"p"),
            SocketMessage(Opcode.PONG, b""),
            SocketMessage(Opcode.TEXT, _text(size) + b"end"),
            SocketMessage(Opcode.CLOSE, b"\x03\xe8bye"),
        ]
        for step in (1, 7, len(data)):
            decoder = FrameDecoder(LIMIT_BYTES, is_masked=side is Side.CLIENT)
            pieces = [data[at : at + step] for at in range(0, len(data), step)]
            assert [message for piece in pieces for message in decoder.feed(piece)] == expected


@table(
    ("data", "message"),
    [
        (b"\xc1\x00", "a frame begins with 0xc1"),
        (b"\x83\x00", "a frame begins with 0x83"),
        (b"\x81\x80", "a frame of a client is not masked, or one of a server is"),
        (b"\x80\x00", "a message begins before the end of another, or in its middle"),
        (b"\x01\x00\x81\x00", "a message begins before the end of another, or in its middle"),
        (b"\x01\x05aaaaa\x80\x06", "a message exceeds 10 bytes"),
        (b"\x81\x7f" + b"\xff" * 8, "a message exceeds 10 bytes"),
    ],
)
def test_wrong_frames_are_errors(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=f"^{message}$"):
        FrameDecoder(10, is_masked=False).feed(data)
