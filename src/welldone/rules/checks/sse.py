"""Checks of the framing: lines, fields and empty lines."""

from collections.abc import Iterator
from itertools import groupby

from welldone.rules.heard import Heard
from welldone.rules.messages import Kind, Message, Value
from welldone.rules.rule import Place, Rule
from welldone.wire import sse
from welldone.wire.faults import sse as faults

RUN_LIMIT = 100
"""The clients that count lines without data give up at 300; 100 leaves them room."""

_NO_VALUE = (Kind.EMPTY, Kind.COMMENT, Kind.BROKEN, Kind.ERROR_FIELD)


def _shared_frames(heard: Heard) -> Iterator[list[Message]]:
    """The readable values of each frame that has more than one."""
    for _, group in groupby(heard.messages, key=lambda message: message.number):
        messages = [message for message in group if message.kind not in _NO_VALUE]
        if len(messages) > 1:
            yield messages


def _blank_line(heard: Heard) -> Iterator[Place]:
    for messages in _shared_frames(heard):
        lines = [line for line in sse.lines(messages[0].frame.raw) if _is_payload(line)]
        if len(lines) == len(messages):
            yield Place(messages[1], lines[0].decode("utf-8", "replace"), "an empty line after each data line")


def _is_payload(line: bytes) -> bool:
    return line.startswith((b"data:", b"{", b"[DONE]"))


def _one_object(heard: Heard) -> Iterator[Place]:
    for messages in _shared_frames(heard):
        values = [message for message in messages if message.kind is not Kind.DONE]
        if len(values) > 1:
            yield Place(values[1], values[1].value.source, "a frame of its own for each JSON object")


def _on_one_line(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if _is_json(message.value) and "\n" in message.value.source:
            yield Place(message, message.value.source, "the whole JSON on one data line")


def _is_json(value: Value) -> bool:
    return value.kind is None


def _data_space(heard: Heard) -> Iterator[Place]:
    bare = {message.number for message in heard.messages if message.is_bare}
    for number, frame in enumerate(heard.frames, start=1):
        line = _badly_spaced(frame)
        if line is not None:
            text = line.decode("utf-8", "replace")
            yield Place(number, text, f"data: {text.removeprefix('data:').strip()[:60]}")
        elif number in bare:
            yield Place(number, frame.raw.decode("utf-8", "replace"), "'data: ' before the JSON")


def _badly_spaced(frame: sse.Frame) -> bytes | None:
    """The first data line without exactly one space after its colon."""
    lines = [line for line in sse.lines(frame.raw) if line.startswith(b"data:") and line[5:].strip()]
    for place, line in enumerate(lines):
        # The later lines of JSON that is spread over several may be indented.
        if not line.startswith(sse.DATA) or (place == 0 and line.startswith(b"data:  ")):
            return line
    return None


def _lf_only(heard: Heard) -> Iterator[Place]:
    for number, frame in enumerate(heard.frames, start=1):
        if b"\r" in frame.raw:
            yield Place(number, frame.raw[-60:].decode("utf-8", "replace"), "LF alone at the end of each line")


def _bom(heard: Heard) -> Iterator[Place]:
    if heard.trace.body.startswith(sse.BOM):
        yield Place(None, "\\xef\\xbb\\xbf", "the stream begins with 'data: '")


def _fields(heard: Heard, name: bytes) -> Iterator[tuple[int, sse.Frame, str]]:
    """Each frame that has a line with this field name, and that line."""
    for number, frame in enumerate(heard.frames, start=1):
        if frame.raw.startswith(name) or b"\n" + name in frame.raw or b"\r" + name in frame.raw:
            for line in sse.lines(frame.raw):
                if sse.field(line)[0] == name:
                    yield number, frame, line.decode("utf-8", "replace")


def _id_field(heard: Heard) -> Iterator[Place]:
    for number, _, line in _fields(heard, b"id"):
        yield Place(number, line, "no id: line")


def _retry_frame(heard: Heard) -> Iterator[Place]:
    for number, frame, line in _fields(heard, b"retry"):
        if frame.data is None:
            yield Place(number, line, "no retry: line")


def empty_data(heard: Heard) -> Iterator[Place]:
    """Events that have no data."""
    for message in heard.messages:
        if message.kind is Kind.EMPTY:
            yield Place(message, message.frame.raw.decode("utf-8", "replace"), "': keep-alive', or nothing")
    for number, frame, line in _fields(heard, b"event"):
        if frame.data is None:
            yield Place(number, line, "': keep-alive', or nothing")


def _foreign_json(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind is Kind.FOREIGN:
            yield Place(message, message.value.source, "chunks only; a comment for anything else")


def _event_name(heard: Heard) -> Iterator[Place]:
    for number, _, line in _fields(heard, b"event"):
        yield Place(number, line, "no event: line")


def _keepalive_form(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind is Kind.COMMENT:
            source = message.value.source
            yield Place(message, f"data: {source}", source.partition("\n")[0][:60])


def _run_limit(heard: Heard) -> Iterator[Place]:
    body = heard.trace.body
    speaking = {message.number for message in heard.messages}
    run, end = 0, 0
    for number, frame in enumerate(heard.frames, start=1):
        run += _count_lines(body[end : frame.byte])
        end = frame.byte + len(frame.raw)
        if number not in speaking:
            run += _count_lines(frame.raw)
            continue
        before, after = _lines_around(frame)
        if run + before >= RUN_LIMIT:
            yield Place(number, f"{run + before} lines without data before this frame", _wanted_run())
        run = after
    run += _count_lines(body[end:])
    if run >= RUN_LIMIT:
        yield Place(len(heard.frames) or None, f"{run} lines without data at the end", _wanted_run())


def _wanted_run() -> str:
    return f"fewer than {RUN_LIMIT} such lines in a row"


def _count_lines(raw: bytes) -> int:
    return raw.count(b"\n") + raw.count(b"\r") - raw.count(b"\r\n")


def _lines_around(frame: sse.Frame) -> tuple[int, int]:
    """How many lines stand before the first data line of a frame and after its last, the empty one included."""
    places = [place for place, line in enumerate(sse.lines(frame.raw)) if _is_payload(line)]
    if not places:
        return 0, _count_lines(frame.raw)
    return places[0], _count_lines(frame.raw) - places[-1] - 1


def _whole_writes(heard: Heard) -> Iterator[Place]:
    cuts = iter(_cuts(heard.trace.pieces or ()))
    cut = next(cuts, None)
    for number, frame in enumerate(heard.frames, start=1):
        while cut is not None and cut <= frame.byte:
            cut = next(cuts, None)
        if cut is not None and cut < frame.byte + len(frame.raw):
            there = cut - frame.byte
            heard_text = frame.raw[:there][-60:] + b" | " + frame.raw[there:][:60]
            yield Place(number, heard_text.decode("utf-8", "replace"), "the whole frame in one HTTP chunk")


def _cuts(pieces: tuple[int, ...]) -> Iterator[int]:
    """Where one HTTP chunk ends and the next begins."""
    at = 0
    for size in pieces:
        at += size
        yield at


RULES = (
    Rule(faults.EVENT_BLANK_LINE, _blank_line),
    Rule(faults.ONE_OBJECT_PER_EVENT, _one_object),
    Rule(faults.JSON_ON_ONE_LINE, _on_one_line),
    Rule(faults.DATA_SPACE, _data_space),
    Rule(faults.LF_ONLY, _lf_only),
    Rule(faults.NO_BOM, _bom),
    Rule(faults.NO_ID_FIELD, _id_field),
    Rule(faults.NO_RETRY_FRAME, _retry_frame),
    Rule(faults.NO_EMPTY_DATA, empty_data),
    Rule(faults.NO_FOREIGN_JSON, _foreign_json),
    Rule(faults.NO_EVENT_NAME, _event_name),
    Rule(faults.KEEPALIVE_FORM, _keepalive_form),
    Rule(faults.KEEPALIVE_RUN_LIMIT, _run_limit),
    Rule(faults.WHOLE_EVENT_WRITES, _whole_writes, needs=("pieces",)),
)
