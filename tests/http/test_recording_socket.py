"""The WebSocket client of `welldone check`, with servers that send any bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.http.aio import run, serving
from tests.table import table
from welldone.http.address import parse_url
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RefusedSocketError, SocketRecording, open_socket
from welldone.http.websocket_frames import FrameDecoder, Opcode, SocketMessage, accept_key, encode_frame

LIMIT_BYTES = 1000
LAST = b'{"last":true}'


@asynccontextmanager
async def _serving(sent: bytes, head: bytes | None, received: list[SocketMessage]) -> AsyncIterator[str]:
    """A server that sends these bytes after the first message of its client; yields its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.partition(": ")[2] for line in request.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        lines = f"HTTP/1.1 101 ok\r\nSec-WebSocket-Accept: {accept_key(key)}\r\n\r\n"
        writer.write(lines.encode() if head is None else head)
        decoder = FrameDecoder(LIMIT_BYTES, is_masked=True)
        while data := await reader.read(65536):
            if not received:
                writer.write(sent)
            received.extend(decoder.feed(data))

    async with serving(answer) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def _exchange(
    sent: bytes, head: bytes | None = None, received: list[SocketMessage] | None = None, timeout_s: float = 20.0
) -> SocketRecording:
    async with _serving(sent, head, [] if received is None else received) as url:
        address = parse_url(url)
        async with open_socket(address, "/x", headers=(), timeout_s=timeout_s, limit_bytes=LIMIT_BYTES) as socket:
            assert socket.is_key_accepted
            recording = await socket.exchange(b"hello", lambda data: data == LAST)
            assert recording.messages or recording.error
        return recording


def test_messages_are_recorded_and_pings_are_answered() -> None:
    received: list[SocketMessage] = []
    frames = [(Opcode.PING, b"p"), (Opcode.PONG, b""), (Opcode.BINARY, b"\x00"), (Opcode.TEXT, LAST)]
    recording = run(_exchange(b"".join(encode_frame(*frame) for frame in frames), received=received))
    assert [message[1:] for message in recording.messages] == [(Opcode.BINARY, b"\x00"), (Opcode.TEXT, LAST)]
    assert recording.error is None
    assert received[0] == SocketMessage(Opcode.TEXT, b"hello")


@table(
    ("sent", "error"),
    [
        (encode_frame(Opcode.CLOSE, b""), "the server closed the WebSocket"),
        (encode_frame(Opcode.CLOSE, b"\x03\xe9bye"), "the server closed the WebSocket with code 1001 (bye)"),
        (encode_frame(Opcode.TEXT, b"x", b"abcd"), "a frame of a client is not masked, or one of a server is"),
        (encode_frame(Opcode.TEXT, b"x" * 600) * 2, "the messages exceed 1,000 bytes"),
        (encode_frame(Opcode.TEXT, b"x" * 1001), "a message exceeds 1,000 bytes"),
    ],
)
def test_an_exchange_without_its_last_message_has_the_reason(sent: bytes, error: str) -> None:
    assert run(_exchange(sent)).error == error


def test_a_server_that_sends_nothing_times_out() -> None:
    recording = run(_exchange(b"", timeout_s=0.3))
    assert recording.is_timed_out
    assert recording.error == "the last message did not arrive within 0.3 s"


def test_a_handshake_without_an_answer_times_out() -> None:
    with pytest.raises(HttpClientError, match=r"^no reply to the handshake within 0\.3 s$"):
        run(_exchange(b"", b"", timeout_s=0.3))


def test_a_refusal_has_its_status_and_body() -> None:
    with pytest.raises(RefusedSocketError) as caught:
        run(_exchange(b"", b"HTTP/1.1 426 no\r\nContent-Length: 2\r\n\r\nno"))
    assert (caught.value.response.status, caught.value.response.body) == (426, b"no")
