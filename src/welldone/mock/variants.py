"""Variants of the mock server: any model name and a chosen text, one broken rule, or an injected fault.

The faults are replies of servers that crash, hang, violate the protocol or are malicious.
"""

import gzip
from collections.abc import Callable
from functools import partial

import msgspec

from welldone.config.settings import unknown_name, unknown_rule
from welldone.core.catalog import RULES
from welldone.core.collect import collect
from welldone.core.envelope import Envelope
from welldone.core.events import ChoiceStart, Finish, Text, Usage
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat import writer as chat
from welldone.mock.reference.choices import MockChoice, tokenize
from welldone.mock.reference.schemas import MockChatRequest
from welldone.mock.reference.server import DEFAULT_TEXT, MockHandler, ReferenceServer
from welldone.mock.script import (
    HELLO_REPLY,
    MockChunk,
    MockReply,
    MockScript,
    ReplyEnd,
    cut_at,
    json_reply,
    with_raw_http,
)
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.violations import violating_handler

_ROLE, _TEXT, _STOP, _DONE = HELLO_REPLY.pieces
_MIDWAY_BYTES = len(_ROLE.data) + len(_TEXT.data) // 2
"""A byte within the text chunk: the reply has started and is incomplete."""
_CLOSED_PORT_URL = "http://127.0.0.1:9/v1/chat/completions"  # port of the discard protocol: no listener
_BYTE_DELAY_S = 0.005  # the complete reply then takes a few seconds
_NOT_HTTP = MockChunk(base64=b"\x16\x03\x01 \xff\r\n\r\n")
_GARBAGE = MockChunk(base64=b"\xff\x00{]" * 64)
_BAD_JSON = MockChunk('data: {"choices":[{"index":0\n\n')
_ERROR = MockChunk('data: {"error":{"message":"out of memory","type":"server_error"}}\n\n')
_PAGE = MockChunk("<!doctype html><html><body>Welcome</body></html>\n")
_LONG_TEXT = MockChunk("x", times=10 * 2**20)
_HTTP_1_0_HEAD = MockChunk("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
_BOMB_MEMBERS = 1024  # gzip members that decompress to 1 MiB each: 1 GiB from 1 MB


class MockFault(msgspec.Struct, frozen=True):
    """A named fault."""

    name: str
    description: str
    reply: MockReply
    apply: Callable[[MockReply], MockReply] | None = None
    """For faults of the connection: applies the fault to an otherwise correct reply."""


def error_reply(status: int, message: str, retry_after: str | None = None) -> MockReply:
    """Return an error in OpenAI's format."""
    reply = json_reply({"error": {"message": message, "type": "server_error", "param": None, "code": None}}, status)
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return msgspec.structs.replace(reply, headers=reply.headers | headers)


def redirect(status: int, location: str) -> MockReply:
    """Return a redirect."""
    return MockReply((), status, {"Location": location}, framing="length")


def byte_by_byte(reply: MockReply, after_s: float) -> MockReply:
    """Return the same reply with one byte per chunk."""
    chunks = tuple(MockChunk(base64=bytes([byte]), after_s=after_s) for byte in reply.body)
    return msgspec.structs.replace(reply, pieces=chunks)


def _cut_midway(reply: MockReply, end: ReplyEnd) -> MockReply:
    """Cut the reply in the middle of its second chunk, or of its only one."""
    first, *rest = [len(chunk.data) for chunk in reply.pieces]
    length = {"Content-Length": str(len(reply.body))} if reply.framing == "length" else {}
    with_length = msgspec.structs.replace(reply, headers=reply.headers | length)
    return cut_at(with_length, first + rest[0] // 2 if rest else first // 2, end)


def _midway_fault(end: ReplyEnd, description: str) -> MockFault:
    return MockFault(end, description, cut_at(HELLO_REPLY, _MIDWAY_BYTES, end), partial(_cut_midway, end=end))


def _gzipped(data: bytes, times: int = 1) -> MockReply:
    chunk = MockChunk(base64=gzip.compress(data, mtime=0), times=times)
    return MockReply((chunk,), headers=HELLO_REPLY.headers | {"Content-Encoding": "gzip"})


def _json_hello() -> MockReply:
    collected = collect([ChoiceStart(0), Text(0, "Hello"), Finish(0, "stop"), Usage(1, 1, 2, {})])
    data = chat.ChunkFormat(RequestFacts()).encode_reply(Envelope("chatcmpl-1", 1, "scripted"), collected)
    return json_reply(msgspec.Raw(data))


def _with_type(content_type: str, *chunks: MockChunk) -> MockReply:
    return MockReply(chunks, headers={"Content-Type": content_type})


def _with_wrong_length(length: int) -> MockReply:
    headers = HELLO_REPLY.headers | {"Content-Length": str(length)}
    return MockReply(HELLO_REPLY.pieces, headers=headers, framing="length", end="close")


ALL_FAULTS = (
    MockFault("no-done", "the stream ends without [DONE]", MockReply(HELLO_REPLY.pieces[:-1])),
    MockFault("no-finish", "the stream ends without a finish_reason", MockReply((_ROLE, _TEXT, _DONE))),
    MockFault("empty", "200 with an empty body", MockReply()),
    _midway_fault("cut", "the connection is closed within a chunk"),
    _midway_fault("reset", "the connection is reset within a chunk"),
    _midway_fault("hang", "the stream hangs within a chunk; the connection stays open"),
    MockFault("close-first", "the connection is closed before the head", MockReply(end="cut", raw=True)),
    MockFault("reset-first", "the connection is reset before the head", MockReply(end="reset", raw=True)),
    MockFault("hang-first", "no response; the connection stays open", MockReply(end="hang", raw=True)),
    MockFault("cut-head", "the connection is closed within the head", cut_at(with_raw_http(HELLO_REPLY), 20)),
    MockFault(
        "close-after",
        "a complete stream, then the connection is closed without Connection: close",
        MockReply(HELLO_REPLY.pieces, end="close"),
    ),
    MockFault("not-http", "bytes that are not HTTP", MockReply((_NOT_HTTP,), raw=True, end="cut")),
    MockFault("garbage", "a stream of bytes that are neither SSE nor UTF-8", MockReply((_GARBAGE,))),
    MockFault("bad-json", "a frame that is not JSON", MockReply((_ROLE, _BAD_JSON, _STOP, _DONE))),
    MockFault("slow", "one byte at a time", byte_by_byte(HELLO_REPLY, _BYTE_DELAY_S)),
    MockFault("limited", "429 with Retry-After", error_reply(429, "too many requests", "7")),
    MockFault("limited-silent", "429 without Retry-After", error_reply(429, "too many requests")),
    MockFault("broken", "500", error_reply(500, "something broke")),
    MockFault("unavailable", "503 with Retry-After", error_reply(503, "the model is loading", "7")),
    MockFault("unavailable-silent", "503 without Retry-After", error_reply(503, "the model is loading")),
    MockFault("error-event", "an error in the middle of the stream", MockReply((_ROLE, _TEXT, _ERROR))),
    MockFault("wrong-type", "a stream with Content-Type text/plain", _with_type("text/plain", *HELLO_REPLY.pieces)),
    MockFault("html", "200 with an HTML page", _with_type("text/html", _PAGE)),
    MockFault("gzip", "a compressed stream without Accept-Encoding", _gzipped(HELLO_REPLY.body)),
    MockFault("gzip-bomb", "1 MB that decompresses to 1 GB", _gzipped(b"\0" * 2**20, _BOMB_MEMBERS)),
    *(
        MockFault(f"redirect-{status}", f"{status} to another URL", redirect(status, _CLOSED_PORT_URL))
        for status in (301, 302, 307, 308)
    ),
    MockFault("long-line", "a line of 10 MB", MockReply((_ROLE, MockChunk("data: "), _LONG_TEXT, _DONE))),
    MockFault("endless", "a stream that never ends", MockReply((_ROLE, _TEXT), end="endless")),
    MockFault("too-short", "fewer bytes than Content-Length", _with_wrong_length(len(HELLO_REPLY.body) + 100)),
    MockFault("too-long", "more bytes than Content-Length", _with_wrong_length(len(HELLO_REPLY.body) - 100)),
    MockFault("no-length", "a stream that ends with the connection", MockReply(HELLO_REPLY.pieces, framing="close")),
    MockFault(
        "http-1.0",
        "an HTTP/1.0 response without Content-Length",
        MockReply((_HTTP_1_0_HEAD, *HELLO_REPLY.pieces), raw=True, end="close"),
    ),
    MockFault("whole", "one JSON object, even if a stream was requested", _json_hello()),
    MockFault("stream", "a stream, even if none was requested", HELLO_REPLY),
)

FAULT_REPLIES = {fault.name: fault.reply for fault in ALL_FAULTS}
"""Replies by fault name."""


MODEL_NAME = "mock"
_CONTEXT_LENGTH = 131_072  # longer than the prompts of tests, with room for the longest answer
_GENERATION_PATHS = ("/completions", "/responses", "/messages")  # suffixes of the paths that answer a prompt
MODELS: dict[str, object] = {
    "object": "list",
    "data": [{"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "welldone"}],
}


class AnyModelServer(ReferenceServer):
    """The reference server, but with any model name, and optionally one fixed text for all answers."""

    def __init__(self, text: str | None = None, gap_s: float = 0.0) -> None:
        super().__init__(text=text or DEFAULT_TEXT, gap_s=gap_s, models=(MODEL_NAME,), context=_CONTEXT_LENGTH)
        self._fixed_text = text

    def resolve_model(self, name: str | None) -> str:
        return name or MODEL_NAME

    def choose_answer(self, request: MockChatRequest) -> MockChoice:
        if self._fixed_text is None:
            return super().choose_answer(request)
        return MockChoice(reasoning=self.reasoning_tokens(request), text=tokenize(self._fixed_text))

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) if self._fixed_text is None else self._fixed_text


def fault_server(fault: MockFault, speed: float = 1.0) -> MockServer:
    """Make a server with a fault. A fault of the connection applies to answers, but not to errors and model lists."""
    if fault.apply is None:
        return MockServer(MockScript(posts=(fault.reply,), models=MODELS, speed=speed))
    handler = _with_fault(fault.apply, AnyModelServer())
    return MockServer(MockScript(speed=speed), handler, handles_all=True)


def make_mock_server(
    *, rule: str | None = None, fault: str | None = None, text: str | None = None, gap_s: float = 0.0
) -> MockServer:
    """Make a server whose answers are correct, break one rule, or have a fault.

    Raises:
        ValueError: there is no such rule or fault, no server can break the rule, or the parameters exclude each other.
    """
    if (rule is not None or fault is not None) and (text is not None or gap_s or None not in (rule, fault)):
        raise ValueError("give one of rule, fault and text: an answer with a broken rule or a fault has its own text")
    if fault is not None:
        faults = {known_fault.name: known_fault for known_fault in ALL_FAULTS}
        if fault not in faults:
            raise ValueError(unknown_name("fault", fault, faults, "welldone mock --list shows them"))
        return fault_server(faults[fault])
    if rule is None:
        return MockServer(MockScript(), AnyModelServer(text, gap_s).answer, handles_all=True)
    if rule not in RULES:
        raise ValueError(unknown_rule(rule, RULES))
    try:
        handler = violating_handler(rule, AnyModelServer())
    except LookupError:
        raise ValueError(f"no answer of a server can break the rule {rule}") from None
    return MockServer(MockScript(), handler, handles_all=True)


def _with_fault(spoil: Callable[[MockReply], MockReply], ideal: ReferenceServer) -> MockHandler:
    """Return a handler that applies a fault to answers, but not to errors and model lists."""

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        is_answer = (
            seen.method == "POST" and reply.status == 200 and seen.path.partition("?")[0].endswith(_GENERATION_PATHS)
        )
        return spoil(reply) if is_answer else reply

    return answer
