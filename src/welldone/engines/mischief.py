"""Faults by name: replies as servers give them that die, stand still, mistake the protocol, or mean ill."""

import gzip
from collections.abc import Callable
from functools import partial

import msgspec

from welldone.engines.scripts import EVENT_STREAM, HELLO, JSON, End, Piece, Reply, as_raw, cut_at, json_reply
from welldone.wire.collect import collect
from welldone.wire.dialects import chat
from welldone.wire.events import Finish, Opening, Text, Usage
from welldone.wire.head import Head

_ROLE, _TEXT, _STOP, _DONE = HELLO.pieces
_MIDDLE = len(_ROLE.data) + len(_TEXT.data) // 2
"""A byte of the text's chunk: who stops there has begun, and has not said all."""
_NOWHERE = "http://127.0.0.1:9/v1/chat/completions"  # the port of `discard`: nobody listens there
_SLOW_S = 0.005  # a pause after each byte: the whole of HELLO takes some seconds
_LINE_BYTES = 10 * 2**20
_BOMB_MEMBERS = 1024  # of 1 MiB each, once they are unpacked: 1 GiB out of 1 MB


class Fault(msgspec.Struct, frozen=True):
    """One way to be wrong."""

    name: str
    says: str
    """What the server does, in a line."""
    reply: Reply
    spoil: Callable[[Reply], Reply] | None = None
    """The same fault of a right reply, for faults of the connection: all else about the reply stays right."""


def refusal(status: int, message: str, retry_after: str | None = None) -> Reply:
    """An error in OpenAI's words."""
    reply = json_reply({"error": {"message": message, "type": "server_error", "param": None, "code": None}}, status)
    more = {} if retry_after is None else {"Retry-After": retry_after}
    return msgspec.structs.replace(reply, headers=reply.headers | more)


def redirect(status: int, location: str) -> Reply:
    """A reply that sends the asker elsewhere."""
    return Reply((), status, {"Location": location}, framing="length")


def slowly(reply: Reply, after_s: float) -> Reply:
    """The same reply, a byte at a time."""
    pieces = tuple(Piece(base64=bytes([byte]), after_s=after_s) for byte in reply.body)
    return msgspec.structs.replace(reply, pieces=pieces)


def _cut(reply: Reply, end: End = "cut") -> Reply:
    """The reply up to the middle of its second piece, or of its only one."""
    first, *rest = [len(piece.data) for piece in reply.pieces]
    length = {"Content-Length": str(len(reply.body))} if reply.framing == "length" else {}
    promised = msgspec.structs.replace(reply, headers=reply.headers | length)
    return cut_at(promised, first + rest[0] // 2 if rest else first // 2, end)


def _packed(data: bytes, times: int = 1) -> Reply:
    piece = Piece(base64=gzip.compress(data, mtime=0), times=times)
    return Reply((piece,), headers=EVENT_STREAM | {"Content-Encoding": "gzip"})


def _whole() -> Reply:
    """Hello, in one JSON object."""
    said = collect([Opening(0), Text(0, "Hello"), Finish(0, "stop"), Usage(1, 1, 2, {})])
    data = chat.whole(Head("chatcmpl-1", 1, "scripted"), said)
    return Reply((Piece(base64=data),), headers=JSON, framing="length")


def _with_length(length: int) -> Reply:
    """Hello, under a length that is not its own."""
    return Reply(HELLO.pieces, headers=EVENT_STREAM | {"Content-Length": str(length)}, framing="length", end="close")


ALL = (
    Fault("no-done", "the stream ends without [DONE]", Reply(HELLO.pieces[:-1])),
    Fault("no-finish", "the stream ends without a finish_reason", Reply((_ROLE, _TEXT, _DONE))),
    Fault("empty", "200, and not a byte of a body", Reply()),
    Fault("cut", "the connection is closed within a chunk", cut_at(HELLO, _MIDDLE), _cut),
    Fault(
        "reset", "the connection is reset within a chunk", cut_at(HELLO, _MIDDLE, "reset"), partial(_cut, end="reset")
    ),
    Fault(
        "hang",
        "nothing more comes within a chunk, and the connection stays",
        cut_at(HELLO, _MIDDLE, "hang"),
        partial(_cut, end="hang"),
    ),
    Fault("close-first", "the connection is closed before the head", Reply(end="cut", raw=True)),
    Fault("reset-first", "the connection is reset before the head", Reply(end="reset", raw=True)),
    Fault("hang-first", "nothing comes at all, and the connection stays", Reply(end="hang", raw=True)),
    Fault("cut-head", "the connection is closed within the head", cut_at(as_raw(HELLO), 20)),
    Fault("close-after", "all is right, but the connection is closed unannounced", Reply(HELLO.pieces, end="close")),
    Fault(
        "not-http", "bytes that are no HTTP", Reply((Piece(base64=b"\x16\x03\x01 \xff\r\n\r\n"),), raw=True, end="cut")
    ),
    Fault("garbage", "a stream of bytes that are neither frames nor text", Reply((Piece(base64=b"\xff\x00{]" * 64),))),
    Fault(
        "bad-json", "a frame that is no JSON", Reply((_ROLE, Piece('data: {"choices":[{"index":0\n\n'), _STOP, _DONE))
    ),
    Fault("slow", "a byte at a time", slowly(HELLO, _SLOW_S)),
    Fault("limited", "429 with Retry-After", refusal(429, "too many requests", "7")),
    Fault("limited-silent", "429 without Retry-After", refusal(429, "too many requests")),
    Fault("broken", "500", refusal(500, "something broke")),
    Fault("unavailable", "503 with Retry-After", refusal(503, "the model is loading", "7")),
    Fault("unavailable-silent", "503 without Retry-After", refusal(503, "the model is loading")),
    Fault(
        "error-event",
        "an error in the middle of the stream",
        Reply((_ROLE, _TEXT, Piece('data: {"error":{"message":"out of memory","type":"server_error"}}\n\n'))),
    ),
    Fault(
        "wrong-type",
        "a stream that calls itself text/plain",
        Reply(HELLO.pieces, headers={"Content-Type": "text/plain"}),
    ),
    Fault(
        "html",
        "200 and a web page",
        Reply((Piece("<!doctype html><html><body>Welcome</body></html>\n"),), headers={"Content-Type": "text/html"}),
    ),
    Fault("gzip", "a compressed stream that nobody asked for", _packed(HELLO.body)),
    Fault("gzip-bomb", "1 MB that unpacks to 1 GB", _packed(b"\0" * 2**20, _BOMB_MEMBERS)),
    *(
        Fault(f"redirect-{status}", f"{status} to another place", redirect(status, _NOWHERE))
        for status in (301, 302, 307, 308)
    ),
    Fault("long-line", "a line of 10 MB", Reply((_ROLE, Piece("data: "), Piece("x", times=_LINE_BYTES), _DONE))),
    Fault("endless", "a stream that never ends", Reply((_ROLE, _TEXT), end="endless")),
    Fault("too-short", "fewer bytes than the Content-Length says", _with_length(len(HELLO.body) + 100)),
    Fault("too-long", "more bytes than the Content-Length says", _with_length(len(HELLO.body) - 100)),
    Fault("no-length", "a stream that only the end of the connection ends", Reply(HELLO.pieces, framing="close")),
    Fault(
        "http-1.0",
        "a reply of HTTP/1.0, without chunks or a length",
        Reply(
            (Piece("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), *HELLO.pieces), raw=True, end="close"
        ),
    ),
    Fault("whole", "one JSON object, also where a stream was asked for", _whole()),
    Fault("stream", "a stream, also where a whole reply was asked for", HELLO),
)

FAULTS = {fault.name: fault.reply for fault in ALL}
"""The reply of each, by name."""
