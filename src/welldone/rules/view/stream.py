"""Lenient parser of SSE frames into messages: chunks, events, errors, the sentinel, or unreadable data.

A check must see past one violation to find the others. A missing `data:`, several values in one frame, or NaN in the
JSON are therefore recorded on the message, and the value is still parsed.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator
from enum import Enum, auto
from typing import Any, NoReturn

import msgspec

from welldone.core import sse


class MessageKind(Enum):
    """Classification of a message."""

    CHUNK = auto()
    EVENT = auto()
    """An object with a type, on the endpoints that send those in place of chunks."""
    ERROR = auto()
    """An object with a non-empty `error`, or with `error` as its only member."""
    FLAT_ERROR = auto()
    """An error in some other shape."""
    ERROR_FIELD = auto()
    """A line whose field name is `error`."""
    DONE = auto()
    """The sentinel `[DONE]`, in any spelling."""
    EMPTY = auto()
    COMMENT = auto()
    """A comment inside data."""
    FOREIGN = auto()
    """JSON that is no chunk, event or error."""
    INVALID_JSON = auto()


ERROR_KINDS = (MessageKind.ERROR, MessageKind.FLAT_ERROR, MessageKind.ERROR_FIELD)
CHUNK_KEYS = ("choices", "id", "object", "created", "model", "usage", "error")
"""Members of a chunk. An object that has none of them is something else."""


class ParsedValue(msgspec.Struct, frozen=True):
    """One value in the data of a frame."""

    source: str
    """Its text as received."""
    kind: MessageKind | None = None
    """None for JSON, which is classified by its members."""
    json: Any = None
    is_strict: bool = True
    """False if it contains NaN or Infinity."""
    has_controls: bool = False
    """Whether a string contains an unescaped control character."""


class StreamMessage(msgspec.Struct, frozen=True):
    """One value of a stream with its frame. Frames are numbered from 1."""

    frame_number: int
    frame: sse.Frame
    kind: MessageKind
    value: ParsedValue
    json: dict[str, Any]
    """Its JSON object; empty if it is something else."""
    has_bad_prefix: bool = False
    """Whether its line had no `data:`, or more than one."""


class TraceEvent(msgspec.Struct, frozen=True):
    """A message that is an event, with its type."""

    message: StreamMessage
    type: str

    @property
    def json(self) -> dict[str, Any]:
        return self.message.json

    @property
    def frame_number(self) -> int:
        return self.message.frame_number


def event_type(message: StreamMessage) -> str:
    """Return the type of an event, or the `event:` name of its frame if it has none."""
    type = message.json.get("type")
    return type if isinstance(type, str) else message.frame.event


def _integer(digits: str) -> int | float:
    # int() refuses more than 4,300 digits and takes quadratic time.
    return int(digits) if len(digits) < 400 else float(digits)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


_STRICT_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_reject_constant)
_LENIENT_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)
_CONTROLS_DECODER = json.JSONDecoder(strict=False, parse_int=_integer, parse_constant=_reject_constant)
_CONSTANTS_DECODER = json.JSONDecoder(parse_int=_integer)

_SPACE = re.compile(r"[ \t\r\n]*")
_DONE = re.compile(r"""(["']?)\[? {0,4}done {0,4}\]?\1(?=\s|$)""", re.IGNORECASE)
_REPEATED_PREFIX = re.compile(r"^(?:data: {0,4})+(?=[\[{])", re.MULTILINE)
_SSE_FIELDS = (b"", b"data", b"event", b"id", b"retry", b"error")


def _decodes(decoder: json.JSONDecoder, text: str) -> bool:
    try:
        decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_value(text: str, start: int) -> tuple[ParsedValue, int]:
    """Parse the value at `start`; return it with its end. Unreadable text extends to the end of `text`."""
    if done := _DONE.match(text, start):
        return ParsedValue(done[0], MessageKind.DONE), done.end()
    try:
        value, end = _LENIENT_DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        value_kind = MessageKind.COMMENT if text.startswith(":", start) else MessageKind.INVALID_JSON
        return ParsedValue(text[start:], value_kind), len(text)
    source = text[start:end]
    if _decodes(_STRICT_DECODER, source):
        return ParsedValue(source, json=value), end
    is_strict = _decodes(_CONTROLS_DECODER, source)
    has_controls = not _decodes(_CONSTANTS_DECODER, source)
    return ParsedValue(source, json=value, is_strict=is_strict, has_controls=has_controls), end


def skip_space(text: str, start: int) -> int:
    """Return the position of the next character that is not JSON white space."""
    space = _SPACE.match(text, start)
    return space.end() if space else start


def read_values(text: str) -> list[ParsedValue]:
    """Parse all values in the data of one frame."""
    if text.startswith("{"):
        try:
            return [ParsedValue(text, json=_STRICT_DECODER.decode(text))]
        except (ValueError, RecursionError):
            pass  # the slow path below finds out what is wrong
    values: list[ParsedValue] = []
    position = skip_space(text, 0)
    while position < len(text):
        value, end = read_value(text, position)
        values.append(value)
        position = skip_space(text, end)
    return values or [ParsedValue(text, MessageKind.EMPTY)]


def error_kind(value: object, event: str = "") -> MessageKind | None:
    """Classify a JSON value as an error; None if it is none."""
    if not isinstance(value, dict):
        return None
    if has_error_content(value):
        return MessageKind.ERROR
    if value.get("object") == "error" or value.keys() == {"detail"}:
        return MessageKind.FLAT_ERROR
    if "choices" in value:
        return None
    has_message = isinstance(value.get("message"), str)
    if event == "error" or (has_message and any(key in value for key in ("code", "type", "status"))):
        return MessageKind.FLAT_ERROR
    return None


def has_error_content(value: dict[str, Any]) -> bool:
    """Whether an object has an `error` that is not empty. An empty one counts only without other members."""
    error = value.get("error")
    contents = list(error.values()) if isinstance(error, dict) else [error]
    return any(contents) or (error is not None and (value.get("type") == "error" or value.keys() == {"error"}))


def _chunk_kind(value: ParsedValue, event: str, keys: Iterable[str]) -> MessageKind:
    if error := error_kind(value.json, event):
        return error
    if isinstance(value.json, dict) and any(key in value.json for key in keys):
        return MessageKind.CHUNK
    return MessageKind.FOREIGN


def _event_kind(value: ParsedValue, event: str, types: Container[str]) -> MessageKind:
    """Classify a value of a stream of typed events; the frame's `event:` name replaces a missing type."""
    members = _json_object(value)
    type = members.get("type")
    has_type = isinstance(type, str)
    error = error_kind(members, "" if has_type else event)
    # Events of known types may have a member `message` too.
    if error is MessageKind.FLAT_ERROR and has_type and type in types:
        error = None
    if error is not None and type != "error":
        return error
    return MessageKind.EVENT if has_type or (members and event) else MessageKind.FOREIGN


def _json_object(value: ParsedValue) -> dict[str, Any]:
    return value.json if isinstance(value.json, dict) else {}


def _is_readable(values: list[ParsedValue]) -> bool:
    return all(value.kind is not MessageKind.INVALID_JSON for value in values)


def _unprefixed_lines(strays: list[bytes]) -> list[bytes]:
    """Return the lines from the first one that is clearly data without its `data:`."""
    for index, line in enumerate(strays):
        if line.startswith((b"{", b"[DONE]")):
            return strays[index:]
    return []


def _join_lines(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode("utf-8", "replace")


def _payload(line: bytes) -> bytes:
    """Return what a data line or a line without a field name contributes to the JSON of its frame."""
    name, value = sse.parse_field(line)
    if name == b"data":
        return value
    return b"" if name in _SSE_FIELDS else line


def _read_data(data: bytes) -> tuple[list[ParsedValue], bool]:
    """Parse the data of a frame; return its values, and whether the data starts with `data:` again."""
    text, count = _REPEATED_PREFIX.subn("", data.decode("utf-8", "replace"))
    return read_values(text), count > 0


def _frame_values(frame: sse.Frame) -> Iterator[tuple[ParsedValue, bool]]:
    """Yield the values of a frame, each with whether its `data:` is missing or repeated."""
    if frame.data is not None and frame.raw == sse.data_frame(frame.data):
        # The common case: one data line and nothing else.
        values, is_repeated = _read_data(frame.data)
        yield from ((value, is_repeated) for value in values)
        return
    lines = sse.split_lines(frame.raw)
    strays = [line for line in lines if sse.parse_field(line)[0] not in _SSE_FIELDS]
    if frame.data is not None:
        values, is_repeated = _read_data(frame.data)
        # A line break inside the JSON leaves its later lines without `data:`.
        needs_strays = bool(strays) and not _is_readable(values)
        if needs_strays and _is_readable(together := read_values(_join_lines([_payload(line) for line in lines]))):
            values, strays = together, []
        yield from ((value, is_repeated) for value in values)
    if bare := _unprefixed_lines(strays):
        yield from ((value, True) for value in read_values(_join_lines(bare)))
    for line in lines:
        if sse.parse_field(line)[0] == b"error":
            yield ParsedValue(_join_lines([line]), MessageKind.ERROR_FIELD), False


def _element_values(frame: sse.Frame) -> Iterator[tuple[ParsedValue, bool]]:
    """Yield the values of an element of an array; without a comma between them there are several."""
    return ((value, False) for value in read_values((frame.data or b"").decode("utf-8", "replace")))


def read_messages(
    frames: list[sse.Frame],
    types: Container[str] | None,
    keys: Iterable[str] = CHUNK_KEYS,
    *,
    is_array: bool = False,
) -> list[StreamMessage]:
    """Parse frames into messages: events if `types` is given, else chunks. Comments and empty lines yield none."""

    def kind(value: ParsedValue, event: str) -> MessageKind:
        if value.kind is not None:
            return value.kind
        return _chunk_kind(value, event, keys) if types is None else _event_kind(value, event, types)

    values = _element_values if is_array else _frame_values
    return [
        StreamMessage(number, frame, kind(value, frame.event), value, _json_object(value), is_bare)
        for number, frame in enumerate(frames, start=1)
        for value, is_bare in values(frame)
    ]


_ARRAY_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)


def cut_array(body: bytes) -> tuple[list[sse.Frame], bool]:
    """Cut a JSON array into its elements, each as a frame, and return whether it is closed."""
    frames: list[sse.Frame] = []
    depth = start = 0

    def add(end: int) -> None:
        element = body[start:end].strip()
        if element:
            frames.append(sse.Frame(body.index(element, start), element, element))

    for token in _ARRAY_TOKEN.finditer(body):
        symbol = body[token.start() : token.start() + 1]
        if symbol in b"[{":
            depth += 1
            start = token.end() if depth == 1 else start
        elif symbol in b"]}":
            depth -= 1
            if depth == 0:
                add(token.start())
                return frames, True
        elif symbol == b"," and depth == 1:
            add(token.start())
            start = token.end()
    add(len(body))
    return frames, False
