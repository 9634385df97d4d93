"""What a scripted engine says: bytes, pauses and ends, as values that fit into a JSON file. Traces become such too."""

from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from welldone.rules.trace import read_trace

ReplyEnd: TypeAlias = Literal["whole", "close", "cut", "reset", "hang", "endless"]
ReplyFraming: TypeAlias = Literal["chunked", "length", "close"]

CHUNK_TEMPLATE = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
EVENT_STREAM_HEADERS = {"Content-Type": "text/event-stream"}
JSON_HEADERS = {"Content-Type": "application/json"}
_FRAMING_HEADERS = frozenset({"transfer-encoding", "connection", "keep-alive"})  # headers of a trace that are made anew


class MockChunk(msgspec.Struct, frozen=True):
    """Some bytes, after a pause. `base64` is for those that are no text."""

    text: str = ""
    after_s: float = 0.0
    base64: bytes = b""
    times: int = 1
    """How often they are repeated, all as one piece."""

    @property
    def data(self) -> bytes:
        """The bytes."""
        return (self.base64 or self.text.encode()) * self.times


class MockReply(msgspec.Struct, frozen=True):
    """A reply, and how it ends."""

    pieces: tuple[MockChunk, ...] = ()
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=EVENT_STREAM_HEADERS.copy)
    end: ReplyEnd = "whole"
    """`whole`; `close`: whole, and then the connection is closed, which was not announced; `cut`: closed without its
    end; `reset`: the same, rudely; `hang`: no end, until the asker leaves; `endless`: the last piece again and again.
    """
    framing: ReplyFraming = "chunked"
    """How the asker knows where the body ends: by chunks, by its length, or because the connection is closed."""
    raw: bool = False
    """The pieces are all that is sent: they hold the HTTP, if there is any, and status and headers do not count."""
    after_s: float = 0.0
    """The pause before the head."""

    @property
    def body(self) -> bytes:
        """All bytes of the pieces."""
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
    """All that the engine says. The last `health` is the one that stays."""

    posts: tuple[MockReply, ...] = (HELLO_REPLY,)
    """Replies to POSTs, in this order; the last one is used again."""
    paths: dict[str, MockReply] = {}
    """Replies to all requests of a path, whatever else would be said there."""
    health: tuple[int, ...] = (200,)
    props: dict[str, Any] | None = None
    """None: /props is not found, as with engines that are not llama.cpp."""
    models: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
    )
    speed: float = 1.0
    """How much faster than written the pauses are; 0: there are none."""
    idle_s: float = 75.0
    """How long a connection may be idle before it is closed. nginx has this default; uvicorn closes after 5 s."""


def json_reply(value: object, status: int = 200) -> MockReply:
    """A whole JSON reply."""
    return MockReply((MockChunk(base64=msgspec.json.encode(value)),), status, JSON_HEADERS, framing="length")


def with_raw_http(reply: MockReply) -> MockReply:
    """The same reply with its HTTP written out, so that it can be cut at any byte."""
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
    """The head. A header that the script gives is not made here, even if it is wrong."""
    made = {
        "chunked": ("Transfer-Encoding", "chunked"),
        "length": ("Content-Length", str(len(reply.body))),
        "close": ("Connection", "close"),
    }
    given = {name.lower() for name in reply.headers}
    name, value = made[reply.framing]
    is_made = name.lower() not in given and reply.status != 204  # which has no body, and so no length of one
    headers = reply.headers | {name: value} if is_made else reply.headers
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def cut_at(reply: MockReply, byte: int, end: ReplyEnd = "cut") -> MockReply:
    """The reply up to a byte of its pieces, and there another end."""
    kept = []
    for piece in reply.pieces:
        data = piece.data[:byte]
        byte -= len(data)
        if data:
            kept.append(MockChunk(base64=data, after_s=piece.after_s))
    return msgspec.structs.replace(reply, pieces=tuple(kept), end=end)


def reply_from_trace(record: dict[str, Any], body: bytes) -> MockReply:
    """The reply of a recorded trace: in the pieces in which it came, and at their times where those were recorded."""
    trace = read_trace(record, body)
    end: ReplyEnd = "cut" if trace.complete is False or record.get("error") else "whole"
    if trace.status is None:  # there was no reply
        return MockReply(end="cut", raw=True)
    headers = dict(trace.headers or ())
    names = {name.lower(): value.lower() for name, value in headers.items()}
    framing: ReplyFraming = "close"
    if "chunked" in names.get("transfer-encoding", ""):
        framing = "chunked"
    elif "content-length" in names:
        framing = "length"
    kept = {name: value for name, value in headers.items() if name.lower() not in _FRAMING_HEADERS}
    timed = _timed_sizes(record.get("pieces"), len(body)) or [(0.0, size) for size in trace.chunk_sizes or ()]
    head_s = record.get("head_s")
    begun_s = float(head_s) if isinstance(head_s, int | float) else 0.0
    return MockReply(_split_body(body, timed, begun_s), trace.status, kept, end, framing, after_s=begun_s)


def _timed_sizes(sizes: object, length: int) -> list[tuple[float, int]]:
    """The times and sizes of a record's pieces; none where they do not make the body."""
    try:
        found = msgspec.convert(sizes, list[tuple[float, int]])
    except msgspec.ValidationError:
        return []
    is_right = sum(size for _, size in found) == length and all(size >= 0 for _, size in found)
    return found if is_right else []


def _split_body(body: bytes, timed: list[tuple[float, int]], begun_s: float) -> tuple[MockChunk, ...]:
    """The body in pieces. What is left over, or all of it where no sizes are known, is one more."""
    pieces = []
    for (before, _), (at, size) in pairwise([(begun_s, 0), *timed]):
        pieces.append(MockChunk(base64=body[:size], after_s=max(0.0, at - before)))
        body = body[size:]
    return (*pieces, MockChunk(base64=body)) if body else tuple(pieces)
