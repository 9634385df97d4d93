"""A recorded reply (trace) with its request, and the readers of saved captures.

Two file formats are read: a saved body, optionally with its head as `curl -i` prints it, and a trace record. A record
is JSON that names the file of its body (`body`) or contains it: as text (`body_text`), or as base64 (`body_base64`) if
it is not UTF-8.
"""

import base64
import json
import re
from typing import Any

import msgspec


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded reply. None means unknown."""

    body: bytes
    endpoint: str = "chat"
    """`chat`, `completions`, `responses`, `messages` or `gemini`."""
    path: str | None = None
    """Path of the request with its query. Gemini's selects a stream and its form."""
    request: dict[str, Any] | None = None
    """The JSON body of the request."""
    status: int | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    complete: bool | None = None
    """Whether the HTTP body ended with its framing intact."""
    end: bool | None = True
    """None if the recorder closed the connection early, so that the end of the reply is unknown."""
    chunk_sizes: tuple[int, ...] | None = None
    """Sizes of the HTTP chunks of the body."""

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is absent or the headers are unknown."""
        values = [value for key, value in self.headers or () if key.lower() == name]
        return ", ".join(values) if values else None

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def wants_stream(self) -> bool | None:
        """Whether the request asked for a stream."""
        if self.endpoint == "gemini":
            return None if self.path is None else _GEMINI_STREAM in self.path
        return None if self.request is None else self.request.get("stream") is True

    @property
    def wants_array(self) -> bool | None:
        """Whether the request asked for a stream as a JSON array, which only Gemini has."""
        if self.endpoint != "gemini" or self.path is None:
            return None
        return self.wants_stream is True and _ALT_SSE.search(self.path) is None

    @property
    def wants_usage(self) -> bool | None:
        """Whether the request asked for a usage chunk."""
        return None if self.request is None else self.stream_option("include_usage") is True

    def stream_option(self, name: str) -> object:
        """Return a member of the request's `stream_options`; None if it is absent."""
        options = (self.request or {}).get("stream_options")
        return options.get(name) if isinstance(options, dict) else None


_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)? (\d{3})[^\n]*(?:\n|\Z)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_STATUS = re.compile(r"HTTP/\S+ (\d{3})")
_COMPLETION = re.compile(rb'(?<!\\)"object"\s{0,4}:\s{0,4}"text_completion')
_TEXT_CHOICE = re.compile(rb'"choices"\s{0,4}:\s{0,4}\[\s{0,4}\{[^{}]{0,200}"text"\s{0,4}:')
_FRAME_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed))\r?\n[^\r\n]*)\r?\n\r?\n",
    re.MULTILINE,
)
_CHOICES = re.compile(rb'(?<!\\)"choices"\s{0,4}:')
_RESPONSE = re.compile(rb'(?<!\\)"(?:type"\s{0,4}:\s{0,4}"response\.|object"\s{0,4}:\s{0,4}"response")')
_MESSAGE = re.compile(
    rb'(?<!\\)"type"\s{0,4}:\s{0,4}"(?:message_(?:start|delta|stop)|content_block_|message"|error"[^{}]{0,200}"error")'
)
_GEMINI_STREAM = ":streamGenerateContent"
_GEMINI_METHODS = (":generateContent", _GEMINI_STREAM)
_ALT_SSE = re.compile(r"[?&](?:\$|%24)?alt=sse(?:&|$)")
_GEMINI = re.compile(
    rb'(?<!\\)"(?:candidates"\s{0,4}:\s{0,4}[\[n]|promptFeedback"\s{0,4}:|usageMetadata"\s{0,4}:|modelVersion"\s{0,4}:'
    rb'|error"\s{0,4}:\s{0,4}\{[^{}]{0,2000}"status"\s{0,4}:\s{0,4}"[A-Z_]{2,40}")'
)
_SNIFF_BYTES = 65536  # far beyond any first chunk
_MAX_TIME_S = 1e9  # 30 years: a larger value is not a duration
_BODY_FIELDS = ("body_text", "body_base64", "body")
_HAS_BODY = re.compile(rb'"body(?:_text|_base64)?"')


def read_capture(data: bytes) -> Trace:
    """Read a saved reply: a body alone, or with its head as `curl -i` or `curl -i --raw` prints it.

    If there are several heads (100 Continue, redirects), the last one counts.
    """
    status: int | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    start = 0
    while head := _STATUS_LINE.match(data, start):
        end = _HEAD_END.search(data, head.end() - 2)
        status = int(head[1])
        headers = _headers(data[head.end() : end.start() if end else len(data)])
        start = end.end() if end else len(data)
    body, complete, chunk_sizes = _unframe(data[start:], headers or ())
    return Trace(
        body=body,
        endpoint=guess_endpoint(body),
        status=status,
        headers=headers,
        complete=complete,
        chunk_sizes=chunk_sizes,
    )


def _headers(head: bytes) -> tuple[tuple[str, str], ...]:
    pairs = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return tuple((name.strip(), value.strip()) for name, colon, value in pairs if colon)


def _unframe(body: bytes, headers: tuple[tuple[str, str], ...]) -> tuple[bytes, bool | None, tuple[int, ...] | None]:
    """Remove the HTTP framing. Returns the body, whether it is complete, and its chunk sizes."""
    names = {name.lower(): value.lower() for name, value in headers}
    if "chunked" in names.get("transfer-encoding", "") and _CHUNK_SIZE.match(body):
        return _dechunk(body)
    length = names.get("content-length", "")
    if len(length) < 19 and length.isascii() and length.isdigit():
        return body, len(body) >= int(length), None
    return body, None, None


def _dechunk(framed: bytes) -> tuple[bytes, bool, tuple[int, ...]]:
    chunks: list[bytes] = []
    position = 0
    complete = False
    while size := _CHUNK_SIZE.match(framed, position):
        count = int(size[1], 16)
        if count == 0:
            complete = True
            break
        chunk = framed[size.end() : size.end() + count]
        chunks.append(chunk)
        position = size.end() + len(chunk)
        position += 2 if framed.startswith(b"\r\n", position) else 1
    return b"".join(chunks), complete, tuple(len(chunk) for chunk in chunks)


def parse_object(data: bytes | str) -> dict[str, Any] | None:
    """Parse a JSON object; None if the bytes are something else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_record(data: bytes) -> dict[str, Any] | None:
    """Parse a trace record; None if the bytes are something else."""
    if not data.lstrip().startswith(b"{") or _HAS_BODY.search(data) is None:
        return None
    record = parse_object(data) or {}
    is_record = any(isinstance(record.get(name), str) for name in _BODY_FIELDS) and "choices" not in record
    return record if is_record else None


def inline_body(record: dict[str, Any]) -> bytes | None:
    """Return the body that a record contains; None if the record names a file instead.

    Raises:
        ValueError: the body is not encodable text or not base64.
    """
    if isinstance(text := record.get("body_text"), str):
        return text.encode()
    if isinstance(encoded := record.get("body_base64"), str):
        return base64.b64decode(encoded, validate=True)
    return None


def timed_reads(record: dict[str, Any]) -> list[tuple[float, int]]:
    """Return time in seconds and size of each read of the body, if the record has them."""
    reads = record.get("pieces")
    timed = []
    for read in reads if isinstance(reads, list) else ():
        match read:
            case [int() | float() as at_s, int() as size] if 0 <= at_s < _MAX_TIME_S and size > 0:
                timed.append((float(at_s), size))
    return timed


def unreadable_reason(body: bytes) -> str | None:
    """Explain why a capture is not the text that the server sent; None if it may be."""
    if body.startswith(b"\x1f\x8b"):
        return "the capture is compressed; capture it again with curl --compressed"
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the capture is UTF-16, as some shells write it; save it as UTF-8"
    return None


def read_trace(record: dict[str, Any], body: bytes) -> Trace:
    """Build the trace of a record: request, status line, headers and HTTP chunk sizes.

    A record with `error` and without `body_complete` was abandoned by its recorder. Only the complete frames of such a
    reply count; without any, the trace is empty.
    """
    request, complete = record.get("request"), record.get("body_complete")
    is_abandoned = complete is None and record.get("error") is not None and not _DONE.search(body)
    if is_abandoned:
        body = complete_frames(body)
        if not body:
            return Trace(body=b"", end=None)
    status_line = _STATUS.match(str(record.get("status")))
    path = record.get("endpoint")
    return Trace(
        body=body,
        endpoint=endpoint_of_path(str(path)) or "chat",
        path=path if isinstance(path, str) else None,
        request=request if isinstance(request, dict) else None,
        status=int(status_line[1]) if status_line else None,
        headers=_header_pairs(record.get("headers")),
        complete=complete if isinstance(complete, bool) else None,
        end=None if is_abandoned else True,
        chunk_sizes=_chunk_sizes(record.get("http_chunk_sizes")),
    )


def endpoint_of_path(path: str) -> str | None:
    """Return the endpoint of a URL path, which may have any prefix and a query; None if it is another path."""
    path = path.partition("?")[0].rstrip("/")
    if path.endswith(_GEMINI_METHODS):
        return "gemini"
    if path.endswith(("/responses", "/messages")):
        return path.rpartition("/")[2]
    if not path.endswith("completions"):
        return None
    return "chat" if path.endswith("/chat/completions") else "completions"


def complete_frames(body: bytes) -> bytes:
    """Cut a body after its last complete frame."""
    return body[: max((frame_end.end() for frame_end in _FRAME_END.finditer(body)), default=0)]


def _header_pairs(headers: object) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(headers, list):
        return None
    pairs = [pair for pair in headers if isinstance(pair, list) and len(pair) == 2]
    return tuple((str(name), str(value)) for name, value in pairs)


def _chunk_sizes(sizes: object) -> tuple[int, ...] | None:
    if not isinstance(sizes, list):
        return None
    return tuple(size for size in sizes if isinstance(size, int) and size >= 0)


def guess_endpoint(body: bytes) -> str:
    """Guess the endpoint from the members of the first object; the default is `chat`.

    Quoted JSON inside a text does not match, since its quotes are escaped.
    """
    start = body[:_SNIFF_BYTES]
    choices = _CHOICES.search(start)  # the patterns may match tool input in later chunks
    before = choices.start() if choices else len(start)
    if _RESPONSE.search(start, 0, before):
        return "responses"
    if _MESSAGE.search(start, 0, before):
        return "messages"
    if _GEMINI.search(start, 0, before):
        return "gemini"
    is_completion = _COMPLETION.search(start) or (_TEXT_CHOICE.search(start) and b'"delta"' not in start)
    return "completions" if is_completion else "chat"
