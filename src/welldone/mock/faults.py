"""Faults by name: replies as servers give them that die, stand still, mistake the protocol, or mean ill."""

import gzip
from collections.abc import Callable
from functools import partial

import msgspec

from welldone.mock.script import (
    EVENT_STREAM_HEADERS,
    HELLO_REPLY,
    JSON_HEADERS,
    MockChunk,
    MockReply,
    ReplyEnd,
    cut_at,
    json_reply,
    with_raw_http,
)
from welldone.protocol.collect import collect
from welldone.protocol.dialects import chat
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import ChoiceStart, Finish, Text, Usage

_ROLE, _TEXT, _STOP, _DONE = HELLO_REPLY.pieces
_MIDWAY_BYTES = len(_ROLE.data) + len(_TEXT.data) // 2
"""A byte of the text's chunk: who stops there has begun, and has not said all."""
_CLOSED_PORT_URL = "http://127.0.0.1:9/v1/chat/completions"  # the port of `discard`: nobody listens there
_BYTE_DELAY_S = 0.005  # a pause after each byte: the whole of HELLO takes some seconds
_LINE_BYTES = 10 * 2**20
_BOMB_MEMBERS = 1024  # of 1 MiB each, once they are unpacked: 1 GiB out of 1 MB


class MockFault(msgspec.Struct, frozen=True):
    """One way to be wrong."""

    name: str
    description: str
    """What the server does, in a line."""
    reply: MockReply
    apply: Callable[[MockReply], MockReply] | None = None
    """The same fault of a right reply, for faults of the connection: all else about the reply stays right."""


def error_reply(status: int, message: str, retry_after: str | None = None) -> MockReply:
    """An error in OpenAI's words."""
    reply = json_reply({"error": {"message": message, "type": "server_error", "param": None, "code": None}}, status)
    more = {} if retry_after is None else {"Retry-After": retry_after}
    return msgspec.structs.replace(reply, headers=reply.headers | more)


def redirect(status: int, location: str) -> MockReply:
    """A reply that sends the asker elsewhere."""
    return MockReply((), status, {"Location": location}, framing="length")


def byte_by_byte(reply: MockReply, after_s: float) -> MockReply:
    """The same reply, a byte at a time."""
    pieces = tuple(MockChunk(base64=bytes([byte]), after_s=after_s) for byte in reply.body)
    return msgspec.structs.replace(reply, pieces=pieces)


def _cut_midway(reply: MockReply, end: ReplyEnd = "cut") -> MockReply:
    """The reply up to the middle of its second piece, or of its only one."""
    first, *rest = [len(piece.data) for piece in reply.pieces]
    length = {"Content-Length": str(len(reply.body))} if reply.framing == "length" else {}
    promised = msgspec.structs.replace(reply, headers=reply.headers | length)
    return cut_at(promised, first + rest[0] // 2 if rest else first // 2, end)


def _gzipped(data: bytes, times: int = 1) -> MockReply:
    piece = MockChunk(base64=gzip.compress(data, mtime=0), times=times)
    return MockReply((piece,), headers=EVENT_STREAM_HEADERS | {"Content-Encoding": "gzip"})


def _json_hello() -> MockReply:
    """Hello, in one JSON object."""
    said = collect([ChoiceStart(0), Text(0, "Hello"), Finish(0, "stop"), Usage(1, 1, 2, {})])
    data = chat.encode_chat_reply(Envelope("chatcmpl-1", 1, "scripted"), said)
    return MockReply((MockChunk(base64=data),), headers=JSON_HEADERS, framing="length")


def _with_wrong_length(length: int) -> MockReply:
    """Hello, under a length that is not its own."""
    return MockReply(
        HELLO_REPLY.pieces,
        headers=EVENT_STREAM_HEADERS | {"Content-Length": str(length)},
        framing="length",
        end="close",
    )


ALL_FAULTS = (
    MockFault("no-done", "the stream ends without [DONE]", MockReply(HELLO_REPLY.pieces[:-1])),
    MockFault("no-finish", "the stream ends without a finish_reason", MockReply((_ROLE, _TEXT, _DONE))),
    MockFault("empty", "200, and not a byte of a body", MockReply()),
    MockFault("cut", "the connection is closed within a chunk", cut_at(HELLO_REPLY, _MIDWAY_BYTES), _cut_midway),
    MockFault(
        "reset",
        "the connection is reset within a chunk",
        cut_at(HELLO_REPLY, _MIDWAY_BYTES, "reset"),
        partial(_cut_midway, end="reset"),
    ),
    MockFault(
        "hang",
        "nothing more comes within a chunk, and the connection stays",
        cut_at(HELLO_REPLY, _MIDWAY_BYTES, "hang"),
        partial(_cut_midway, end="hang"),
    ),
    MockFault("close-first", "the connection is closed before the head", MockReply(end="cut", raw=True)),
    MockFault("reset-first", "the connection is reset before the head", MockReply(end="reset", raw=True)),
    MockFault("hang-first", "nothing comes at all, and the connection stays", MockReply(end="hang", raw=True)),
    MockFault("cut-head", "the connection is closed within the head", cut_at(with_raw_http(HELLO_REPLY), 20)),
    MockFault(
        "close-after",
        "all is right, but the connection is closed unannounced",
        MockReply(HELLO_REPLY.pieces, end="close"),
    ),
    MockFault(
        "not-http",
        "bytes that are no HTTP",
        MockReply((MockChunk(base64=b"\x16\x03\x01 \xff\r\n\r\n"),), raw=True, end="cut"),
    ),
    MockFault(
        "garbage",
        "a stream of bytes that are neither frames nor text",
        MockReply((MockChunk(base64=b"\xff\x00{]" * 64),)),
    ),
    MockFault(
        "bad-json",
        "a frame that is no JSON",
        MockReply((_ROLE, MockChunk('data: {"choices":[{"index":0\n\n'), _STOP, _DONE)),
    ),
    MockFault("slow", "a byte at a time", byte_by_byte(HELLO_REPLY, _BYTE_DELAY_S)),
    MockFault("limited", "429 with Retry-After", error_reply(429, "too many requests", "7")),
    MockFault("limited-silent", "429 without Retry-After", error_reply(429, "too many requests")),
    MockFault("broken", "500", error_reply(500, "something broke")),
    MockFault("unavailable", "503 with Retry-After", error_reply(503, "the model is loading", "7")),
    MockFault("unavailable-silent", "503 without Retry-After", error_reply(503, "the model is loading")),
    MockFault(
        "error-event",
        "an error in the middle of the stream",
        MockReply((_ROLE, _TEXT, MockChunk('data: {"error":{"message":"out of memory","type":"server_error"}}\n\n'))),
    ),
    MockFault(
        "wrong-type",
        "a stream that calls itself text/plain",
        MockReply(HELLO_REPLY.pieces, headers={"Content-Type": "text/plain"}),
    ),
    MockFault(
        "html",
        "200 and a web page",
        MockReply(
            (MockChunk("<!doctype html><html><body>Welcome</body></html>\n"),), headers={"Content-Type": "text/html"}
        ),
    ),
    MockFault("gzip", "a compressed stream that nobody asked for", _gzipped(HELLO_REPLY.body)),
    MockFault("gzip-bomb", "1 MB that unpacks to 1 GB", _gzipped(b"\0" * 2**20, _BOMB_MEMBERS)),
    *(
        MockFault(f"redirect-{status}", f"{status} to another place", redirect(status, _CLOSED_PORT_URL))
        for status in (301, 302, 307, 308)
    ),
    MockFault(
        "long-line",
        "a line of 10 MB",
        MockReply((_ROLE, MockChunk("data: "), MockChunk("x", times=_LINE_BYTES), _DONE)),
    ),
    MockFault("endless", "a stream that never ends", MockReply((_ROLE, _TEXT), end="endless")),
    MockFault("too-short", "fewer bytes than the Content-Length says", _with_wrong_length(len(HELLO_REPLY.body) + 100)),
    MockFault("too-long", "more bytes than the Content-Length says", _with_wrong_length(len(HELLO_REPLY.body) - 100)),
    MockFault(
        "no-length", "a stream that only the end of the connection ends", MockReply(HELLO_REPLY.pieces, framing="close")
    ),
    MockFault(
        "http-1.0",
        "a reply of HTTP/1.0, without chunks or a length",
        MockReply(
            (MockChunk("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), *HELLO_REPLY.pieces),
            raw=True,
            end="close",
        ),
    ),
    MockFault("whole", "one JSON object, also where a stream was asked for", _json_hello()),
    MockFault("stream", "a stream, also where a whole reply was asked for", HELLO_REPLY),
)

FAULT_REPLIES = {fault.name: fault.reply for fault in ALL_FAULTS}
"""The reply of each, by name."""
