"""Script of a mock server: replies as bytes, delays and ends, which can be stored as JSON or made from traces."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from welldone.core.events import Json
from welldone.core.sse import SseDecoder
from welldone.http.websocket_frames import accept_key
from welldone.rules.trace import read_trace, timed_reads

ReplyEnd: TypeAlias = Literal["whole", "close", "cut", "reset", "hang", "endless"]
ReplyFraming: TypeAlias = Literal["chunked", "length", "close"]

CHUNK_TEMPLATE = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
EVENT_STREAM_HEADERS = {"Content-Type": "text/event-stream"}
JSON_HEADERS = {"Content-Type": "application/json"}
_FRAMING_HEADERS = ("transfer-encoding", "connection", "keep-alive")  # headers of a trace that are generated anew


class MockChunk(msgspec.Struct, frozen=True):
    """Bytes that are sent after a delay, as text or, for binary data, as base64."""

    text: str = ""
    after_s: float = 0.0
    base64: bytes = b""
    times: int = 1
    """How often the bytes are repeated within the chunk."""

    @property
    def data(self) -> bytes:
        """The bytes of the chunk."""
        return (self.base64 or self.text.encode()) * self.times


class MockReply(msgspec.Struct, frozen=True):
    """A reply, and how it ends."""

    pieces: tuple[MockChunk, ...] = ()
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=EVENT_STREAM_HEADERS.copy)
    end: ReplyEnd = "whole"
    """`whole`: complete; `close`: complete, then the connection is closed without `Connection: close`; `cut`: closed
    before the end; `reset`: TCP reset before the end; `hang`: no end until the client disconnects; `endless`: the last
    chunk is repeated forever."""
    framing: ReplyFraming = "chunked"
    """How the body ends: last chunk, Content-Length, or end of the connection."""
    raw: bool = False
    """The pieces contain the complete HTTP response, if any; status and headers are ignored."""
    after_s: float = 0.0
    """Delay before the head."""

    @property
    def body(self) -> bytes:
        """The bytes of all chunks."""
        return b"".join(piece.data for piece in self.pieces)


HELLO_REPLY = MockReply(
    (
        MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":""}', "null")),
        MockChunk(CHUNK_TEMPLATE % ('{"content":"Hello"}', "null")),
        MockChunk(CHUNK_TEMPLATE % ("{}", '"stop"')),
        MockChunk("data: [DONE]\n\n"),
    )
)


class MockScript(msgspec.Struct, frozen=True):
    """All replies of a mock server."""

    posts: tuple[MockReply, ...] = (HELLO_REPLY,)
    """Replies to POST requests in this order; the last one is repeated."""
    paths: dict[str, MockReply] = {}
    """Replies to all requests for a path, instead of any other."""
    health: tuple[int, ...] = (200,)
    """Statuses of /health in this order; the last one is repeated."""
    props: dict[str, Any] | None = None
    """None: /props returns 404, as with engines other than llama.cpp."""
    models: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
    )
    speed: float = 1.0
    """Delays are divided by this; 0: no delays."""
    idle_s: float = 75.0
    """Keep-alive timeout; the default is that of nginx. uvicorn closes after 5 s."""


def json_reply(value: object, status: int = 200) -> MockReply:
    """Return a complete JSON reply."""
    return MockReply((MockChunk(base64=msgspec.json.encode(value)),), status, JSON_HEADERS, framing="length")


def with_raw_http(reply: MockReply) -> MockReply:
    """Return the same reply with its HTTP head and framing as raw bytes, so that it can be cut at any byte."""
    if reply.raw:
        return reply
    is_chunked = reply.framing == "chunked"
    pieces = [MockChunk(base64=_head_bytes(reply), after_s=reply.after_s)]
    for piece in reply.pieces:
        data = piece.data
        framed = b"%x\r\n%b\r\n" % (len(data), data) if is_chunked and data else data
        pieces.append(MockChunk(base64=framed, after_s=piece.after_s))
    if is_chunked and reply.end in ("whole", "close"):
        pieces.append(MockChunk("0\r\n\r\n"))
    return msgspec.structs.replace(reply, pieces=tuple(pieces), raw=True, after_s=0.0)


def _head_bytes(reply: MockReply) -> bytes:
    """Encode the head. The script's headers take precedence over generated ones, even if they are wrong."""
    names = {"chunked": "Transfer-Encoding", "length": "Content-Length", "close": "Connection"}
    name, value = names[reply.framing], str(len(reply.body)) if reply.framing == "length" else reply.framing
    header_names = {name.lower() for name in reply.headers}
    is_added = name.lower() not in header_names and reply.status != 204  # RFC 9110 §8.6: no Content-Length with a 204
    headers = reply.headers | {name: value} if is_added else reply.headers
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def cut_at(reply: MockReply, byte: int, end: ReplyEnd = "cut") -> MockReply:
    """Return the reply up to a byte of its body, with another end."""
    chunks = []
    for chunk in reply.pieces:
        data = chunk.data[:byte]
        byte -= len(data)
        if data:
            chunks.append(MockChunk(base64=data, after_s=chunk.after_s))
    return msgspec.structs.replace(reply, pieces=tuple(chunks), end=end)


def reply_from_trace(record: dict[str, Any], body: bytes) -> MockReply:
    """Return the reply of a recorded trace, with its chunks and, if recorded, their times."""
    trace = read_trace(record, body)
    end: ReplyEnd = "cut" if trace.complete is False or record.get("error") else "whole"
    if trace.status is None:  # the server sent no response
        return MockReply(end="cut", raw=True)
    headers = dict(trace.headers or ())
    names = {name.lower(): value.lower() for name, value in headers.items()}
    framing: ReplyFraming = "close"
    if "chunked" in names.get("transfer-encoding", ""):
        framing = "chunked"
    elif "content-length" in names:
        framing = "length"
    other_headers = {name: value for name, value in headers.items() if name.lower() not in _FRAMING_HEADERS}
    timed = timed_reads(record)
    if sum(size for _, size in timed) != len(body):
        timed = [(0.0, size) for size in trace.chunk_sizes or ()]
    head_s = record.get("head_s")
    start_s = float(head_s) if isinstance(head_s, int | float) else 0.0
    return MockReply(_split_body(body, timed, start_s), trace.status, other_headers, end, framing, after_s=start_s)


def _split_body(body: bytes, timed: list[tuple[float, int]], start_s: float) -> tuple[MockChunk, ...]:
    """Split the body into chunks; the rest, or all of it if no sizes are known, is one more chunk."""
    chunks = []
    for (previous_s, _), (at_s, size) in pairwise([(start_s, 0), *timed]):
        chunks.append(MockChunk(base64=body[:size], after_s=max(0.0, at_s - previous_s)))
        body = body[size:]
    return (*chunks, MockChunk(base64=body)) if body else tuple(chunks)


# WebSockets: the handshake, and the events of a reply as messages.

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
