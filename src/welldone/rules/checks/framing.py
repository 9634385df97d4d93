"""Checks of HTTP headers, SSE framing, encoding, and the end of a stream (rules `http-`, `sse-`, `enc-`, `end-`)."""

import json
import re
from collections.abc import Iterator
from itertools import accumulate, groupby

from welldone.protocol import sse
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.stream import MessageKind, StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView, invalid_utf8

# Encoding: UTF-8, strict JSON, escapes

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_REPLACEMENT = re.compile(r"\ufffd|\\u[fF]{3}[dD]")
_LINE_BREAKS = re.compile("[\u2028\u2029\u0085]")
_STREAM_AND_WHOLE = (ReplyKind.STREAM, ReplyKind.WHOLE)
_WHOLE_CHARACTER = "the whole character, in the delta that completes it"


def _valid_utf8(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.WHOLE and (invalid := invalid_utf8(view.trace.body)):
        yield Violation(None, invalid, "UTF-8")
    for number, invalid in view.invalid_utf8_frames.items():
        yield Violation(number, invalid, "whole characters in UTF-8; hold back the first bytes of one")


def _replacement_char(view: TraceView) -> Iterator[Violation]:
    for chunk, choice_deltas in view.deltas_by_chunk:
        # enc-valid-utf8 reports bytes that are not UTF-8.
        if _REPLACEMENT.search(chunk.value.source) and chunk.frame_number not in view.invalid_utf8_frames:
            texts = (text for choice_delta in choice_deltas for text in choice_delta.all_text if "\ufffd" in text)
            yield from (Violation(chunk, text, _WHOLE_CHARACTER) for text in texts)
    for event in view.events:
        if _REPLACEMENT.search(event.value.source) and event.frame_number not in view.invalid_utf8_frames:
            texts = (text for text in _strings(event.json.get("delta")) if "\ufffd" in text)
            yield from (Violation(event, text, _WHOLE_CHARACTER) for text in texts)


def _lone_surrogate(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if _SURROGATE_ESCAPE.search(message.value.source):
            text = next((text for text in _strings(message.value.json) if _SURROGATE.search(text)), None)
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


def _strict_json(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.WHOLE and (
        view.first_value.kind is MessageKind.INVALID_JSON or not view.first_value.is_strict
    ):
        yield Violation(None, *_describe_invalid_json(view.first_value.source, "strict JSON"))
    for message in view.messages:
        if message.kind is MessageKind.INVALID_JSON:
            yield Violation(message, *_describe_invalid_json(message.value.source, "one JSON object"))
        elif not message.value.is_strict:
            yield Violation(message, _non_finite_excerpt(message), "null or a number such as -9999.0")


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


def _non_finite_excerpt(message: StreamMessage) -> str:
    found = _NON_FINITE.search(message.value.source)
    return found[0] if found else message.value.source


def _escape_line_breaks(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        source = message.value.source
        if message.value.has_controls:
            yield Violation(message, source, "\\n, \\t or \\u00XX for the control character")
        elif message.value.kind is None and (found := _LINE_BREAKS.search(source)):
            around = source[max(0, found.start() - 60) : found.end() + 60]
            yield Violation(message, around, f"\\u{ord(found[0]):04x} for the line separator")


ENCODING_CHECKS = (
    RuleCheck("enc-valid-utf8", _valid_utf8, _STREAM_AND_WHOLE),
    RuleCheck("enc-no-replacement-char", _replacement_char),
    RuleCheck("enc-no-lone-surrogate", _lone_surrogate),
    RuleCheck("enc-strict-json", _strict_json, _STREAM_AND_WHOLE),
    RuleCheck("enc-escape-line-breaks", _escape_line_breaks),
)


# End of the stream

DONE_LINE = b"data: [DONE]"


def done_missing(view: TraceView) -> Iterator[Violation]:
    """Report a successful stream without a sentinel in any spelling."""
    if view.is_complete_stream and not view.done_messages:
        yield Violation(view.messages[-1], "the end of the stream", "data: [DONE]")


def _done_exact(view: TraceView) -> Iterator[Violation]:
    # Once per frame: a frame may contain several.
    for number in dict.fromkeys(message.frame_number for message in view.done_messages):
        raw = view.frames[number - 1].raw
        if DONE_LINE not in sse.split_lines(raw):
            yield Violation(number, raw.decode("utf-8", "replace"), "data: [DONE]")


def _done_last(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for message in view.messages_after(view.done_messages[0]):
            yield Violation(message, message.value.source, "nothing after [DONE]")


def _last_terminated(view: TraceView) -> Iterator[Violation]:
    if view.frames and not view.frames[-1].ended:
        raw = view.frames[-1].raw
        # A comment needs no empty line after it.
        if not all(line.startswith(b":") for line in sse.split_lines(raw)):
            yield Violation(len(view.frames), raw.decode("utf-8", "replace"), "an empty line after the last event")


def truncated_reply(view: TraceView) -> Iterator[Violation]:
    """Report a non-streamed reply whose body ends early."""
    if view.is_truncated_reply:
        yield Violation(None, "the end of the connection before the end of the body", "the whole body, or an error")


def _early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if not view.done_messages:
        for choice in view.unfinished_choices:
            observed = f"the end of the stream before a finish_reason for choice {choice.index}"
            yield Violation(choice.deltas[-1], observed, "a finish_reason, or an error event, then data: [DONE]")


END_CHECKS = (
    RuleCheck("end-done-sent", done_missing, required_fields=("end",)),
    RuleCheck("end-done-exact", _done_exact),
    RuleCheck("end-done-last", _done_last),
    RuleCheck("end-last-event-terminated", _last_terminated),
    RuleCheck("end-no-early-eof", _early_eof, (ReplyKind.STREAM, ReplyKind.WHOLE), required_fields=("end",)),
)


# HTTP status and headers


def _content_type(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM and view.is_error_reply:
        return  # err-status-before-stream reports it
    if view.trace.media_type != "text/event-stream":
        yield Violation(None, _header_line(view, "content-type"), "Content-Type: text/event-stream")


def _charset(view: TraceView) -> Iterator[Violation]:
    for parameter in (view.trace.header("content-type") or "").lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(" \"'") not in ("utf-8", "utf8"):
            yield Violation(None, _header_line(view, "content-type"), "Content-Type: text/event-stream; charset=utf-8")


def _proxy_buffering(view: TraceView) -> Iterator[Violation]:
    value = view.trace.header("x-accel-buffering") or ""
    if value.strip().lower() != "no":
        yield Violation(None, _header_line(view, "x-accel-buffering"), "X-Accel-Buffering: no")


def _cache_control(view: TraceView) -> Iterator[Violation]:
    value = (view.trace.header("cache-control") or "").lower()
    # no-store forbids more than no-cache does.
    if "no-cache" not in value and "no-store" not in value:
        yield Violation(None, _header_line(view, "cache-control"), "Cache-Control: no-cache, no-transform")


def _compression(view: TraceView) -> Iterator[Violation]:
    value = view.trace.header("content-encoding")
    if value is not None and value.strip().lower() != "identity":
        yield Violation(None, _header_line(view, "content-encoding"), "no Content-Encoding on a stream")


def _chunked_terminated(view: TraceView) -> Iterator[Violation]:
    is_chunked = "chunked" in (view.trace.header("transfer-encoding") or "").lower()
    if is_chunked and not view.trace.complete:
        yield Violation(len(view.frames) or None, "the body ended without its zero chunk", "0 CR LF CR LF at the end")


def _body_ends(view: TraceView) -> Iterator[Violation]:
    if view.done_messages and not view.trace.complete:
        yield Violation(
            view.done_messages[0], "the body did not end after [DONE]", "the end of the body right after [DONE]"
        )


def _header_line(view: TraceView, name: str) -> str:
    value = view.trace.header(name)
    return f"no {name} header" if value is None else f"{name}: {value}"


HTTP_CHECKS = (
    RuleCheck(
        "http-content-type",
        _content_type,
        (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM),
        required_fields=("headers",),
    ),
    RuleCheck("http-charset-utf8", _charset, required_fields=("headers",)),
    RuleCheck("http-no-proxy-buffering", _proxy_buffering, required_fields=("headers",)),
    RuleCheck("http-cache-control", _cache_control, required_fields=("headers",)),
    RuleCheck("http-no-buffering-compression", _compression, required_fields=("headers",)),
    RuleCheck("http-chunked-terminated", _chunked_terminated, required_fields=("headers", "complete")),
    RuleCheck("http-body-ends-after-done", _body_ends, required_fields=("complete",)),
)


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
        if message.value.kind is None and "\n" in message.value.source:
            yield Violation(message, message.value.source, "the whole JSON on one data line")


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
    """Return the first data line without exactly one space after its colon."""
    lines = [line for line in sse.split_lines(frame.raw) if line.startswith(b"data:") and line[5:].strip()]
    for number, line in enumerate(lines):
        # Later lines of multi-line JSON may be indented.
        if not line.startswith(sse.DATA_PREFIX) or (number == 0 and line.startswith(b"data:  ")):
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
    """Yield each line with this field name, with its frame."""
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
    """Report events without data."""
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


SSE_CHECKS = (
    RuleCheck("sse-event-blank-line", _blank_line),
    RuleCheck("sse-one-object-per-event", _one_object),
    RuleCheck("sse-json-on-one-line", _on_one_line),
    RuleCheck("sse-data-space", _data_space),
    RuleCheck("sse-lf-only", _lf_only),
    RuleCheck("sse-no-bom", _no_bom),
    RuleCheck("sse-no-id-field", _id_field),
    RuleCheck("sse-no-retry-frame", _retry_frame),
    RuleCheck("sse-no-empty-data", empty_data),
    RuleCheck("sse-no-foreign-json", _foreign_json),
    RuleCheck("sse-no-event-name", _event_name),
    RuleCheck("sse-keepalive-form", _keepalive_form),
    RuleCheck("sse-keepalive-run-limit", _run_limit),
    RuleCheck("sse-whole-event-writes", _whole_event_writes, required_fields=("chunk_sizes",)),
)
