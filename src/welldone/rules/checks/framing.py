"""Checks of HTTP headers, SSE framing, encoding, and the end of a stream (rules `http-`, `sse-`, `enc-`, `end-`)."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, groupby

from welldone.core import sse
from welldone.core.catalog import ANY
from welldone.rules.rule_check import CheckList, Violation
from welldone.rules.view.stream import MessageKind, StreamMessage
from welldone.rules.view.view import STREAM_KINDS, ReplyKind, TraceView, invalid_utf8

CHECKS = CheckList()

# Encoding: UTF-8, strict JSON, escapes

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_REPLACEMENT = re.compile(r"\ufffd|\\u[fF]{3}[dD]")
_LINE_BREAKS = re.compile("[\u2028\u2029\u0085]")
_WHOLE_CHARACTER = "the whole character, in the delta that completes it"


@CHECKS.rule("enc-valid-utf8", *STREAM_KINDS, ReplyKind.WHOLE)
def _valid_utf8(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.WHOLE and (invalid := invalid_utf8(view.trace.body)):
        yield Violation(None, invalid, "UTF-8")
    for number, invalid in view.invalid_utf8_frames.items():
        yield Violation(number, invalid, "whole characters in UTF-8; hold back the first bytes of one")


@CHECKS.rule("enc-no-replacement-char", *STREAM_KINDS)
def _replacement_char(view: TraceView) -> Iterator[Violation]:
    chunk_texts = (
        (chunk, (text for delta in deltas for text in delta.all_text)) for chunk, deltas in view.deltas_by_chunk
    )
    event_texts = ((event, _strings(event.json.get("delta"))) for event in view.events)
    elements = view.chunks if view.is_gemini else []
    element_texts = ((element, _strings(element.json.get("candidates"))) for element in elements)
    for message, texts in chain(chunk_texts, event_texts, element_texts):
        # enc-valid-utf8 reports bytes that are not UTF-8.
        if _REPLACEMENT.search(message.value.source) and message.frame_number not in view.invalid_utf8_frames:
            yield from (Violation(message, text, _WHOLE_CHARACTER) for text in texts if "\ufffd" in text)


@CHECKS.each("enc-no-lone-surrogate", lambda view: view.messages, *STREAM_KINDS)
def _lone_surrogate(message: StreamMessage) -> Iterator[Violation]:
    if _SURROGATE_ESCAPE.search(message.value.source):
        text = next(filter(_SURROGATE.search, _strings(message.value.json)), None)
        if text is not None:
            yield Violation(message, text, "both halves of the pair in one string")


def _strings(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, keys included; iterative, since values may be nested deeply."""
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, dict):
            stack += current.keys()
            stack += current.values()
        elif isinstance(current, list):
            stack += current


@CHECKS.rule("enc-strict-json", *STREAM_KINDS, ReplyKind.WHOLE)
def _strict_json(view: TraceView) -> Iterator[Violation]:
    # gem-no-early-eof reports an array without its end.
    is_closed_array = view.reply_kind is ReplyKind.ARRAY and view.is_array_closed
    is_broken = is_closed_array and view.first_value.kind is MessageKind.INVALID_JSON
    if is_broken and not any(message.kind is MessageKind.INVALID_JSON for message in view.messages):
        yield Violation(None, view.body_text[-_TAIL_CHARACTERS:], "one JSON array, with a comma after each element")
    if view.reply_kind is ReplyKind.WHOLE and (
        view.first_value.kind is MessageKind.INVALID_JSON or not view.first_value.is_strict
    ):
        yield Violation(None, *_describe_invalid_json(view.first_value.source, "strict JSON"))
    for message in view.messages:
        if message.kind is MessageKind.INVALID_JSON:
            yield Violation(message, *_describe_invalid_json(message.value.source, "one JSON object"))
        elif not message.value.is_strict:
            match = _NON_FINITE.search(message.value.source)
            observed = match[0] if match else message.value.source
            yield Violation(message, observed, "null or a number such as -9999.0", "not finite" if match else ANY)


def _describe_invalid_json(source: str, expected: str) -> tuple[str, str]:
    """Return what is observed and what is expected, for a text that is not strict JSON."""
    if not _is_truncated(source):
        return source, expected
    tail = source if len(source) <= _TAIL_CHARACTERS else f"…{source[-_TAIL_CHARACTERS:]}"
    return f"truncated JSON: {tail}", f"{expected}, up to its closing bracket"


def _is_truncated(text: str) -> bool:
    """Whether the text is incomplete JSON."""
    try:
        _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].rstrip()
        is_in_string = error.msg.startswith("Unterminated") or ("escape" in error.msg and len(rest) < _ESCAPE_LENGTH)
        return is_in_string or any(word.startswith(rest) for word in _JSON_WORDS)
    except (ValueError, RecursionError):
        return False
    return False


_LENIENT = json.JSONDecoder(strict=False)
_JSON_WORDS = ("true", "false", "null", "NaN", "-Infinity")
_ESCAPE_LENGTH = len(r"\u0000")
_TAIL_CHARACTERS = 120  # enough to show where it breaks off
_NON_FINITE = re.compile(r".{0,60}(?:NaN|Infinity).{0,60}", re.DOTALL)


@CHECKS.each("enc-escape-line-breaks", lambda view: view.messages, *STREAM_KINDS)
def _escape_line_breaks(message: StreamMessage) -> Iterator[Violation]:
    source = message.value.source
    if message.value.has_controls:
        yield Violation(message, source, "\\n, \\t or \\u00XX for the control character")
    elif message.value.kind is None and (match := _LINE_BREAKS.search(source)):
        around = source[max(0, match.start() - 60) : match.end() + 60]
        yield Violation(message, around, f"\\u{ord(match[0]):04x} for the line separator")


# End of the stream

DONE_LINE = b"data: [DONE]"


@CHECKS.rule("end-done-sent", needs=("end",))
@CHECKS.rule("cmpl-done", needs=("end",))
def done_missing(view: TraceView) -> Iterator[Violation]:
    """Report a successful stream without a sentinel in any spelling."""
    if view.is_complete_stream and not view.done_messages:
        yield Violation(view.messages[-1], "the end of the stream", "data: [DONE]")


@CHECKS.rule("end-done-exact")
def _done_exact(view: TraceView) -> Iterator[Violation]:
    # Once per frame: a frame may contain several.
    for number in dict.fromkeys(message.frame_number for message in view.done_messages):
        raw = view.frames[number - 1].raw
        if DONE_LINE not in sse.split_lines(raw):
            text = raw.decode("utf-8", "replace")
            form = "quoted" if '"' in text else "trailing space" if DONE_LINE + b" " in raw else ANY
            yield Violation(number, text, "data: [DONE]", form)


@CHECKS.rule("end-done-last")
def _done_last(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for message in view.messages_after(view.done_messages[0]):
            yield Violation(message, message.value.source, "nothing after [DONE]")


@CHECKS.rule("end-last-event-terminated")
def _last_terminated(view: TraceView) -> Iterator[Violation]:
    if view.frames and not view.frames[-1].ended:
        raw = view.frames[-1].raw
        # A comment needs no empty line after it.
        if not all(line.startswith(b":") for line in sse.split_lines(raw)):
            yield Violation(len(view.frames), raw.decode("utf-8", "replace"), "an empty line after the last event")


def truncated_reply(view: TraceView) -> Iterator[Violation]:
    """Report a non-streamed reply whose body ends early."""
    is_cut = view.reply_kind is ReplyKind.WHOLE and view.trace.complete is False
    if is_cut and view.first_value.kind is MessageKind.INVALID_JSON:
        yield Violation(None, "the end of the connection before the end of the body", "the whole body, or an error")


@CHECKS.rule("end-no-early-eof", ReplyKind.STREAM, ReplyKind.WHOLE, needs=("end",))
def _early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if not view.done_messages:
        for choice in view.unfinished_choices:
            observed = f"the end of the stream before a finish_reason for choice {choice.index}"
            yield Violation(choice.deltas[-1], observed, "a finish_reason, or an error event, then data: [DONE]")


# HTTP status and headers


@CHECKS.rule("http-content-type", *STREAM_KINDS, ReplyKind.JSON_INSTEAD_OF_STREAM, needs=("headers",))
def _content_type(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM and view.is_error_reply:
        return  # err-status-before-stream reports it
    expected = "application/json" if view.reply_kind is ReplyKind.ARRAY else "text/event-stream"
    if view.trace.media_type != expected:
        yield Violation(None, _header_line(view, "content-type"), f"Content-Type: {expected}")


@CHECKS.rule("http-charset-utf8", *STREAM_KINDS, needs=("headers",))
def _charset(view: TraceView) -> Iterator[Violation]:
    for parameter in (view.trace.header("content-type") or "").lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(" \"'") not in ("utf-8", "utf8"):
            expected = f"Content-Type: {view.trace.media_type}; charset=utf-8"
            yield Violation(None, _header_line(view, "content-type"), expected)


def _require_header(rule: str, name: str, is_valid: Callable[[str | None], bool], expected: str) -> None:
    """Add the check of a header; `is_valid` gets its value in lower case."""

    @CHECKS.rule(rule, *STREAM_KINDS, needs=("headers",))
    def _check(view: TraceView) -> Iterator[Violation]:
        value = view.trace.header(name)
        if not is_valid(value if value is None else value.strip().lower()):
            yield Violation(None, _header_line(view, name), expected)


def _forbids_caching(value: str | None) -> bool:
    return value is not None and ("no-cache" in value or "no-store" in value)  # no-store forbids more than no-cache


_NO_COMPRESSION = "no Content-Encoding on a stream"
_require_header("http-no-proxy-buffering", "x-accel-buffering", lambda value: value == "no", "X-Accel-Buffering: no")
_require_header("http-cache-control", "cache-control", _forbids_caching, "Cache-Control: no-cache, no-transform")
_require_header(
    "http-no-buffering-compression", "content-encoding", lambda value: value in (None, "identity"), _NO_COMPRESSION
)


@CHECKS.rule("http-chunked-terminated", *STREAM_KINDS, needs=("headers", "complete"))
def _chunked_terminated(view: TraceView) -> Iterator[Violation]:
    is_chunked = "chunked" in (view.trace.header("transfer-encoding") or "").lower()
    if is_chunked and not view.trace.complete:
        yield Violation(len(view.frames) or None, "the body ended without its zero chunk", "0 CR LF CR LF at the end")


@CHECKS.rule("http-body-ends-after-done", needs=("complete",))
def _body_ends(view: TraceView) -> Iterator[Violation]:
    if view.done_messages and not view.trace.complete:
        expected = "the end of the body right after [DONE]"
        yield Violation(view.done_messages[0], "the body did not end after [DONE]", expected)


def _header_line(view: TraceView, name: str) -> str:
    value = view.trace.header(name)
    return f"no {name} header" if value is None else f"{name}: {value}"


# SSE lines and fields

KEEPALIVE_RUN_LIMIT = 100
"""Clients that count lines without data give up at 300; 100 leaves a margin."""

_KINDS_WITHOUT_VALUE = (MessageKind.EMPTY, MessageKind.COMMENT, MessageKind.INVALID_JSON, MessageKind.ERROR_FIELD)


def _multi_value_frames(view: TraceView) -> Iterator[list[StreamMessage]]:
    """Yield the readable values of each frame that has more than one."""
    for _, group in groupby(view.messages, key=lambda message: message.frame_number):
        messages = [message for message in group if message.kind not in _KINDS_WITHOUT_VALUE]
        if len(messages) > 1:
            yield messages


@CHECKS.each("sse-event-blank-line", _multi_value_frames)
def _blank_line(messages: list[StreamMessage]) -> Iterator[Violation]:
    lines = [line for line in sse.split_lines(messages[0].frame.raw) if _is_payload(line)]
    if len(lines) == len(messages):
        yield Violation(messages[1], lines[0].decode("utf-8", "replace"), "an empty line after each data line")


def _is_payload(line: bytes) -> bool:
    return line.startswith((b"data:", b"{", b"[DONE]"))


@CHECKS.each("sse-one-object-per-event", _multi_value_frames)
def _one_object(messages: list[StreamMessage]) -> Iterator[Violation]:
    values = [message for message in messages if message.kind is not MessageKind.DONE]
    if len(values) > 1:
        yield Violation(values[1], values[1].value.source, "a frame of its own for each JSON object")


@CHECKS.each("sse-json-on-one-line", lambda view: view.messages)
def _on_one_line(message: StreamMessage) -> Iterator[Violation]:
    if message.value.kind is None and "\n" in message.value.source:
        yield Violation(message, message.value.source, "the whole JSON on one data line")


@CHECKS.rule("sse-data-space")
def _data_space(view: TraceView) -> Iterator[Violation]:
    bare = {message.frame_number for message in view.messages if message.has_bad_prefix}
    for number, frame in enumerate(view.frames, start=1):
        line = _badly_spaced(frame)
        if line is not None:
            text = line.decode("utf-8", "replace")
            yield Violation(number, text, f"data: {text.removeprefix('data:').strip()[:60]}")
        elif number in bare:
            yield Violation(number, frame.raw.decode("utf-8", "replace"), "'data: ' once before the JSON", "twice")


def _badly_spaced(frame: sse.Frame) -> bytes | None:
    """Return the first data line without exactly one space after its colon."""
    lines = [line for line in sse.split_lines(frame.raw) if line.startswith(b"data:") and line[5:].strip()]
    for number, line in enumerate(lines):
        # Later lines of multi-line JSON may be indented.
        if not line.startswith(sse.DATA_PREFIX) or (number == 0 and line.startswith(b"data:  ")):
            return line
    return None


@CHECKS.rule("sse-lf-only")
def _lf_only(view: TraceView) -> Iterator[Violation]:
    for number, frame in enumerate(view.frames, start=1):
        if b"\r" in frame.raw:
            yield Violation(number, frame.raw[-60:].decode("utf-8", "replace"), "LF alone at the end of each line")


@CHECKS.rule("sse-no-bom")
def _no_bom(view: TraceView) -> Iterator[Violation]:
    if view.trace.body.startswith(sse.BOM):
        yield Violation(None, "\\xef\\xbb\\xbf", "the stream begins with 'data: '")


def _frames_with_field(view: TraceView, name: bytes) -> Iterator[tuple[int, sse.Frame, str]]:
    """Yield each line with this field name, with its frame."""
    for number, frame in enumerate(view.frames, start=1):
        if frame.raw.startswith(name) or b"\n" + name in frame.raw or b"\r" + name in frame.raw:
            for line in sse.split_lines(frame.raw):
                if sse.parse_field(line)[0] == name:
                    yield number, frame, line.decode("utf-8", "replace")


def _forbid_field(rule: str, name: bytes, expected: str, *, is_alone: bool = False) -> None:
    """Add the check for lines with a field name; with `is_alone`, for those in frames without data."""

    @CHECKS.rule(rule)
    def _check(view: TraceView) -> Iterator[Violation]:
        for number, frame, line in _frames_with_field(view, name):
            if not is_alone or frame.data is None:
                yield Violation(number, line, expected)


_forbid_field("sse-no-id-field", b"id", "no id: line")
_forbid_field("sse-no-retry-frame", b"retry", "no retry: line", is_alone=True)
_forbid_field("sse-no-event-name", b"event", "no event: line")


@CHECKS.rule("sse-no-empty-data")
def empty_data(view: TraceView) -> Iterator[Violation]:
    """Report events without data."""
    expected = "an empty line, or nothing" if view.is_gemini else "': keep-alive', or nothing"
    for message in view.messages:
        if message.kind is MessageKind.EMPTY:
            yield Violation(message, message.frame.raw.decode("utf-8", "replace"), expected)
    for number, frame, line in _frames_with_field(view, b"event"):
        if frame.data is None:
            yield Violation(number, line, expected)


@CHECKS.each("sse-no-foreign-json", lambda view: view.messages)
def _foreign_json(message: StreamMessage) -> Iterator[Violation]:
    if message.kind is MessageKind.FOREIGN:
        yield Violation(message, message.value.source, "chunks only; a comment for anything else")


@CHECKS.each("sse-keepalive-form", lambda view: view.messages)
def _keepalive_form(message: StreamMessage) -> Iterator[Violation]:
    if message.kind is MessageKind.COMMENT:
        source = message.value.source
        yield Violation(message, f"data: {source}", source.partition("\n")[0][:60])


@CHECKS.rule("sse-keepalive-run-limit")
def _run_limit(view: TraceView) -> Iterator[Violation]:
    body = view.trace.body
    frames_with_data = {message.frame_number for message in view.messages}
    expected = f"fewer than {KEEPALIVE_RUN_LIMIT} such lines in a row"
    run, end = 0, 0
    for number, frame in enumerate(view.frames, start=1):
        run += _count_lines(body[end : frame.byte])
        end = frame.byte + len(frame.raw)
        if number not in frames_with_data:
            run += _count_lines(frame.raw)
            continue
        before, after = _lines_around(frame)
        if run + before >= KEEPALIVE_RUN_LIMIT:
            yield Violation(number, f"{run + before} lines without data before this frame", expected)
        run = after
    run += _count_lines(body[end:])
    if run >= KEEPALIVE_RUN_LIMIT:
        yield Violation(len(view.frames) or None, f"{run} lines without data at the end", expected)


def _count_lines(raw: bytes) -> int:
    return raw.count(b"\n") + raw.count(b"\r") - raw.count(b"\r\n")


def _lines_around(frame: sse.Frame) -> tuple[int, int]:
    """Count the lines before the first data line of a frame and after its last, including the empty one."""
    data_lines = [number for number, line in enumerate(sse.split_lines(frame.raw)) if _is_payload(line)]
    if not data_lines:
        return 0, _count_lines(frame.raw)
    return data_lines[0], _count_lines(frame.raw) - data_lines[-1] - 1


@CHECKS.rule("sse-whole-event-writes", needs=("chunk_sizes",))
def _whole_event_writes(view: TraceView) -> Iterator[Violation]:
    boundaries = accumulate(view.trace.chunk_sizes or ())
    boundary = next(boundaries, None)
    for number, frame in enumerate(view.frames, start=1):
        while boundary is not None and boundary <= frame.byte:
            boundary = next(boundaries, None)
        if boundary is not None and boundary < frame.byte + len(frame.raw):
            offset = boundary - frame.byte
            observed = frame.raw[:offset][-60:] + b" | " + frame.raw[offset:][:60]
            yield Violation(number, observed.decode("utf-8", "replace"), "the whole frame in one HTTP chunk")
