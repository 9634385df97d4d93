"""WebSockets of a mock server: the handshake, and the events of a reply as messages."""

from collections.abc import Iterator, Mapping

import msgspec

from welldone.mock.script import MockChunk, MockReply
from welldone.protocol.events import Json
from welldone.protocol.sse import SseDecoder
from welldone.protocol.websocket_frames import accept_key

_SWITCHING = 101


def is_handshake(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for a WebSocket. Each of its messages becomes a POST with the same headers."""
    return headers.get("upgrade", "").lower() == "websocket"


def accept_socket(headers: Mapping[str, str]) -> MockReply:
    """Return the reply that opens a WebSocket."""
    accepted = accept_key(headers.get("sec-websocket-key", ""))
    lines = ["HTTP/1.1 101 Scripted", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accepted}"]
    return MockReply((MockChunk("\r\n".join([*lines, "", ""])),), _SWITCHING, raw=True)


def opens_socket(reply: MockReply) -> bool:
    """Whether messages follow the reply."""
    return reply.status == _SWITCHING


def socket_messages(reply: MockReply) -> Iterator[tuple[float, bytes]]:
    """The events of a stream as messages, with the delay before each; an error as one event."""
    if reply.headers.get("Content-Type", "").startswith("application/json"):
        error: Json = msgspec.json.decode(reply.body)
        yield reply.after_s, msgspec.json.encode({"type": "error", "status": reply.status, **error})
        return
    decoder, delay_s = SseDecoder(), reply.after_s
    for chunk in reply.pieces:
        delay_s += chunk.after_s
        for frame in decoder.feed(chunk.data):
            if frame.data is not None and frame.data != b"[DONE]":
                yield delay_s, frame.data
                delay_s = 0.0
