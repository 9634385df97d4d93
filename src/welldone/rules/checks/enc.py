"""Checks of bytes and JSON: UTF-8, strict JSON, escapes."""

import json
import re
from collections.abc import Iterator

from welldone.rules.heard import Form, Heard, bad_bytes
from welldone.rules.messages import Kind, Message
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import enc as faults

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_REPLACEMENT = re.compile(r"\ufffd|\\u[fF]{3}[dD]")
_LINE_BREAKS = re.compile("[\u2028\u2029\u0085]")
_BOTH = (Form.STREAM, Form.WHOLE)
_WHOLE_CHARACTER = "the whole character, in the delta that completes it"


def _valid_utf8(heard: Heard) -> Iterator[Place]:
    if heard.form is Form.WHOLE and (garbage := bad_bytes(heard.trace.body)):
        yield Place(None, garbage, "UTF-8")
    for number, garbage in heard.garbled.items():
        yield Place(number, garbage, "whole characters in UTF-8; hold back the first bytes of one")


def _replacement_char(heard: Heard) -> Iterator[Place]:
    for chunk, parts in heard.by_chunk:
        # Bytes that are no UTF-8 have a rule of their own.
        if _REPLACEMENT.search(chunk.value.source) and chunk.number not in heard.garbled:
            texts = (text for part in parts for text in part.texts if "\ufffd" in text)
            yield from (Place(chunk, text, _WHOLE_CHARACTER) for text in texts)
    for event in heard.events:
        if _REPLACEMENT.search(event.value.source) and event.number not in heard.garbled:
            texts = (text for text in _strings(event.json.get("delta")) if "\ufffd" in text)
            yield from (Place(event, text, _WHOLE_CHARACTER) for text in texts)


def _lone_surrogate(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if _SURROGATE_ESCAPE.search(message.value.source):
            text = next((text for text in _strings(message.value.json) if _SURROGATE.search(text)), None)
            if text is not None:
                yield Place(message, text, "both halves of the pair in one string")


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


def _strict_json(heard: Heard) -> Iterator[Place]:
    if heard.form is Form.WHOLE and (heard.value.kind is Kind.BROKEN or not heard.value.is_strict):
        yield Place(None, *_unreadable(heard.value.source, "strict JSON"))
    for message in heard.messages:
        if message.kind is Kind.BROKEN:
            yield Place(message, *_unreadable(message.value.source, "one JSON object"))
        elif not message.value.is_strict:
            yield Place(message, _constant(message), "null or a number such as -9999.0")


def _unreadable(source: str, wanted: str) -> tuple[str, str]:
    """What is wrong with a text that is no strict JSON, and what should stand there."""
    if not _is_truncated(source):
        return source, wanted
    tail = source if len(source) <= _TAIL else f"…{source[-_TAIL:]}"
    return f"truncated JSON: {tail}", f"{wanted}, up to its closing bracket"


def _is_truncated(text: str) -> bool:
    """Whether the text is JSON that breaks off."""
    try:
        _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].rstrip()
        is_in_string = error.msg.startswith("Unterminated") or ("escape" in error.msg and len(rest) < _ESCAPE)
        return is_in_string or any(word.startswith(rest) for word in _WORDS)
    except (ValueError, RecursionError):
        return False
    return False


_LENIENT = json.JSONDecoder(strict=False)
_WORDS = ("true", "false", "null", "NaN", "-Infinity")
_ESCAPE = len(r"\u0000")
_TAIL = 120  # characters: what the cut looks like
_CONSTANT = re.compile(r".{0,60}(?:NaN|Infinity).{0,60}", re.DOTALL)


def _constant(message: Message) -> str:
    found = _CONSTANT.search(message.value.source)
    return found[0] if found else message.value.source


def _escape_line_breaks(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        source = message.value.source
        if message.value.has_controls:
            yield Place(message, source, "\\n, \\t or \\u00XX for the control character")
        elif message.value.kind is None and (found := _LINE_BREAKS.search(source)):
            around = source[max(0, found.start() - 60) : found.end() + 60]
            yield Place(message, around, f"\\u{ord(found[0]):04x} for the line separator")


RULES = (
    Rule(faults.VALID_UTF8, _valid_utf8, _BOTH),
    Rule(faults.NO_REPLACEMENT_CHAR, _replacement_char),
    Rule(faults.NO_LONE_SURROGATE, _lone_surrogate),
    Rule(faults.STRICT_JSON, _strict_json, _BOTH),
    Rule(faults.ESCAPE_LINE_BREAKS, _escape_line_breaks),
)
