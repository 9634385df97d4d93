"""Checks of the framing: lines, fields and empty lines."""

from collections.abc import Iterator
from itertools import groupby

from welldone.rules.heard import TraceView
from welldone.rules.messages import MessageKind, StreamMessage, ParsedValue
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import sse
from welldone.wire import faults

KEEPALIVE_RUN_LIMIT = 100
"""The clients that count lines without data give up at 300; 100 leaves them room."""

_KINDS_WITHOUT_VALUE = (MessageKind.EMPTY, MessageKind.COMMENT, MessageKind.INVALID_JSON, MessageKind.ERROR_FIELD)


def _multi_value_frames(view: TraceView) -> Iterator[list[StreamMessage]]:
    """The readable values of each frame that has more than one."""
    for _, group in groupby(view.messages, key=lambda message: message.frame_number):
        messages = [message for message in group if message.kind not in _KINDS_WITHOUT_VALUE]
        if len(messages) > 1:
            yield messages


def _blank_line(view: TraceView) -> Iterator[Violation]:
    for messages in _multi_value_frames(view):
        lines = [line for line in sse.split_lines(messages[0].frame.raw) if _is_payload(line)]
        if len(lines) == len(messages):
            yield Violation(messages[1], lines[0].decode("utf-8", "replace"), "an empty line after each data line")


def _is_payload(line: bytes) -> bool:
    return line.startswith((b"data:", b"{", b"[DONE]"))


def _one_object(view: TraceView) -> Iterator[Violation]:
    for messages in _multi_value_frames(view):
        values = [message for message in messages if message.kind is not MessageKind.DONE]
        if len(values) > 1:
            yield Violation(values[1], values[1].value.source, "a frame of its own for each JSON object")


def _on_one_line(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if _is_json(message.value) and "\n" in message.value.source:
            yield Violation(message, message.value.source, "the whole JSON on one data line")


def _is_json(value: ParsedValue) -> bool:
    return value.kind is None


def _data_space(view: TraceView) -> Iterator[Violation]:
    bare = {message.frame_number for message in view.messages if message.lacks_data_prefix}
    for number, frame in enumerate(view.frames, start=1):
        line = _badly_spaced(frame)
        if line is not None:
            text = line.decode("utf-8", "replace")
            yield Violation(number, text, f"data: {text.removeprefix('data:').strip()[:60]}")
        elif number in bare:
            yield Violation(number, frame.raw.decode("utf-8", "replace"), "'data: ' before the JSON")


def _badly_spaced(frame: sse.Frame) -> bytes | None:
    """The first data line without exactly one space after its colon."""
    lines = [line for line in sse.split_lines(frame.raw) if line.startswith(b"data:") and line[5:].strip()]
    for place, line in enumerate(lines):
        # The later lines of JSON that is spread over several may be indented.
        if not line.startswith(sse.DATA_PREFIX) or (place == 0 and line.startswith(b"data:  ")):
            return line
    return None


def _lf_only(view: TraceView) -> Iterator[Violation]:
    for number, frame in enumerate(view.frames, start=1):
        if b"\r" in frame.raw:
            yield Violation(number, frame.raw[-60:].decode("utf-8", "replace"), "LF alone at the end of each line")


def _no_bom(view: TraceView) -> Iterator[Violation]:
    if view.trace.body.startswith(sse.BOM):
        yield Violation(None, "\\xef\\xbb\\xbf", "the stream begins with 'data: '")


def _frames_with_field(view: TraceView, name: bytes) -> Iterator[tuple[int, sse.Frame, str]]:
    """Each frame that has a line with this field name, and that line."""
    for number, frame in enumerate(view.frames, start=1):
        if frame.raw.startswith(name) or b"\n" + name in frame.raw or b"\r" + name in frame.raw:
            for line in sse.split_lines(frame.raw):
                if sse.parse_field(line)[0] == name:
                    yield number, frame, line.decode("utf-8", "replace")


def _id_field(view: TraceView) -> Iterator[Violation]:
    for number, _, line in _frames_with_field(view, b"id"):
        yield Violation(number, line, "no id: line")


def _retry_frame(view: TraceView) -> Iterator[Violation]:
    for number, frame, line in _frames_with_field(view, b"retry"):
        if frame.data is None:
            yield Violation(number, line, "no retry: line")


def empty_data(view: TraceView) -> Iterator[Violation]:
    """Events that have no data."""
    for message in view.messages:
        if message.kind is MessageKind.EMPTY:
            yield Violation(message, message.frame.raw.decode("utf-8", "replace"), "': keep-alive', or nothing")
    for number, frame, line in _frames_with_field(view, b"event"):
        if frame.data is None:
            yield Violation(number, line, "': keep-alive', or nothing")


def _foreign_json(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FOREIGN:
            yield Violation(message, message.value.source, "chunks only; a comment for anything else")


def _event_name(view: TraceView) -> Iterator[Violation]:
    for number, _, line in _frames_with_field(view, b"event"):
        yield Violation(number, line, "no event: line")


def _keepalive_form(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.COMMENT:
            source = message.value.source
            yield Violation(message, f"data: {source}", source.partition("\n")[0][:60])


def _run_limit(view: TraceView) -> Iterator[Violation]:
    body = view.trace.body
    speaking = {message.frame_number for message in view.messages}
    run, end = 0, 0
    for number, frame in enumerate(view.frames, start=1):
        run += _count_lines(body[end : frame.byte])
        end = frame.byte + len(frame.raw)
        if number not in speaking:
            run += _count_lines(frame.raw)
            continue
        before, after = _lines_around(frame)
        if run + before >= KEEPALIVE_RUN_LIMIT:
            yield Violation(number, f"{run + before} lines without data before this frame", _expected_run())
        run = after
    run += _count_lines(body[end:])
    if run >= KEEPALIVE_RUN_LIMIT:
        yield Violation(len(view.frames) or None, f"{run} lines without data at the end", _expected_run())


def _expected_run() -> str:
    return f"fewer than {KEEPALIVE_RUN_LIMIT} such lines in a row"


def _count_lines(raw: bytes) -> int:
    return raw.count(b"\n") + raw.count(b"\r") - raw.count(b"\r\n")


def _lines_around(frame: sse.Frame) -> tuple[int, int]:
    """How many lines stand before the first data line of a frame and after its last, the empty one included."""
    places = [place for place, line in enumerate(sse.split_lines(frame.raw)) if _is_payload(line)]
    if not places:
        return 0, _count_lines(frame.raw)
    return places[0], _count_lines(frame.raw) - places[-1] - 1


def _whole_event_writes(view: TraceView) -> Iterator[Violation]:
    cuts = iter(_chunk_boundaries(view.trace.chunk_sizes or ()))
    cut = next(cuts, None)
    for number, frame in enumerate(view.frames, start=1):
        while cut is not None and cut <= frame.byte:
            cut = next(cuts, None)
        if cut is not None and cut < frame.byte + len(frame.raw):
            there = cut - frame.byte
            heard_text = frame.raw[:there][-60:] + b" | " + frame.raw[there:][:60]
            yield Violation(number, heard_text.decode("utf-8", "replace"), "the whole frame in one HTTP chunk")


def _chunk_boundaries(chunk_sizes: tuple[int, ...]) -> Iterator[int]:
    """Where one HTTP chunk ends and the next begins."""
    at = 0
    for size in chunk_sizes:
        at += size
        yield at


SSE_CHECKS = (
    RuleCheck(faults.sse.EVENT_BLANK_LINE, _blank_line),
    RuleCheck(faults.sse.ONE_OBJECT_PER_EVENT, _one_object),
    RuleCheck(faults.sse.JSON_ON_ONE_LINE, _on_one_line),
    RuleCheck(faults.sse.DATA_SPACE, _data_space),
    RuleCheck(faults.sse.LF_ONLY, _lf_only),
    RuleCheck(faults.sse.NO_BOM, _no_bom),
    RuleCheck(faults.sse.NO_ID_FIELD, _id_field),
    RuleCheck(faults.sse.NO_RETRY_FRAME, _retry_frame),
    RuleCheck(faults.sse.NO_EMPTY_DATA, empty_data),
    RuleCheck(faults.sse.NO_FOREIGN_JSON, _foreign_json),
    RuleCheck(faults.sse.NO_EVENT_NAME, _event_name),
    RuleCheck(faults.sse.KEEPALIVE_FORM, _keepalive_form),
    RuleCheck(faults.sse.KEEPALIVE_RUN_LIMIT, _run_limit),
    RuleCheck(faults.sse.WHOLE_EVENT_WRITES, _whole_event_writes, required_fields=("pieces",)),
)
