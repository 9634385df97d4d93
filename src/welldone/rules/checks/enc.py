"""Checks of bytes and JSON: UTF-8, strict JSON, escapes."""

import json
import re
from collections.abc import Iterator

from welldone.rules.heard import ReplyKind, TraceView, invalid_utf8
from welldone.rules.messages import MessageKind, StreamMessage
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_REPLACEMENT = re.compile(r"\ufffd|\\u[fF]{3}[dD]")
_LINE_BREAKS = re.compile("[\u2028\u2029\u0085]")
_STREAM_AND_WHOLE = (ReplyKind.STREAM, ReplyKind.WHOLE)
_WHOLE_CHARACTER = "the whole character, in the delta that completes it"


def _valid_utf8(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.WHOLE and (garbage := invalid_utf8(view.trace.body)):
        yield Violation(None, garbage, "UTF-8")
    for number, garbage in view.invalid_utf8_frames.items():
        yield Violation(number, garbage, "whole characters in UTF-8; hold back the first bytes of one")


def _replacement_char(view: TraceView) -> Iterator[Violation]:
    for chunk, parts in view.deltas_by_chunk:
        # Bytes that are no UTF-8 have a rule of their own.
        if _REPLACEMENT.search(chunk.value.source) and chunk.frame_number not in view.invalid_utf8_frames:
            texts = (text for part in parts for text in part.all_text if "\ufffd" in text)
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
    """Every string in a JSON value, keys included; without recursion, so depth costs nothing."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


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
    """What is wrong with a text that is no strict JSON, and what should stand there."""
    if not _is_truncated(source):
        return source, expected
    tail = source if len(source) <= _TAIL_CHARACTERS else f"…{source[-_TAIL_CHARACTERS:]}"
    return f"truncated JSON: {tail}", f"{expected}, up to its closing bracket"


def _is_truncated(text: str) -> bool:
    """Whether the text is JSON that breaks off."""
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
_TAIL_CHARACTERS = 120  # characters: what the cut looks like
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
    RuleCheck(faults.enc.VALID_UTF8, _valid_utf8, _STREAM_AND_WHOLE),
    RuleCheck(faults.enc.NO_REPLACEMENT_CHAR, _replacement_char),
    RuleCheck(faults.enc.NO_LONE_SURROGATE, _lone_surrogate),
    RuleCheck(faults.enc.STRICT_JSON, _strict_json, _STREAM_AND_WHOLE),
    RuleCheck(faults.enc.ESCAPE_LINE_BREAKS, _escape_line_breaks),
)
