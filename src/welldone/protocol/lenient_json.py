"""JSON as servers really send it: strict where it can be, and else what a careful person would read in it.

Each step is linear in the length of the text and ends by itself on hostile nesting.
"""

import json
import re
from collections.abc import Generator

import msgspec

from welldone.protocol import catalog
from welldone.protocol.events import Json
from welldone.protocol.json_budget import SMALL_TEXT_BYTES, decode, decode_costly_in_steps, exceeds_blocking_budget

# Text that arrives in halves: bytes of a character, or of a surrogate pair, split over two deltas.


# Bytes that are no UTF-8 were read as U+DC80 to U+DCFF, as the codec error handler "surrogateescape" does.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONE = re.compile("[\ud800-\udfff]")
_TAIL = re.compile("[\udc80-\udcff]{1,3}$")
_NUMBER_TYPES = frozenset((int, float))  # log probabilities are thousands of them: they are not looked at one by one
_DEPTH_LIMIT = 64  # nesting that unknown fields may keep; deeper is no field that a client reads


class CharacterJoiner:
    """Joins halves: what cannot be a character yet is held back until the next piece."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What of the text so far is whole."""
        text = self._held + text
        keep = _incomplete_tail_length(text)
        self._held = text[len(text) - keep :] if keep else ""
        return clean_unicode(text[: len(text) - keep] if keep else text)

    def close(self) -> str:
        """The rest: a half that never found its other one becomes U+FFFD."""
        rest, self._held = clean_unicode(self._held), ""
        return rest


def clean_unicode(text: str) -> str:
    """The text with its halves joined, and what finds no other half as U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _PAIR.sub(_join_pair, text)
        text = _BYTES.sub(_join_bytes, text)
        return _LONE.sub("\ufffd", text)
    return text


def scrub_object(value: Json) -> Json:
    """A JSON object, scrubbed."""
    return {clean_unicode(key): scrub_json(item, 1) for key, item in value.items()}


def scrub_json(value: object, depth: int = 0) -> object:
    """A JSON value with every string clean and no nesting beyond what an encoder takes."""
    if isinstance(value, str):
        return clean_unicode(value)
    if not isinstance(value, (list, dict)):
        return value
    if depth >= _DEPTH_LIMIT:
        return None
    deeper = depth + 1
    if isinstance(value, list):
        return [item if type(item) in _NUMBER_TYPES else scrub_json(item, deeper) for item in value]
    return {
        clean_unicode(key): item if type(item) in _NUMBER_TYPES else scrub_json(item, deeper)
        for key, item in value.items()
    }


def _join_pair(found: re.Match[str]) -> str:
    return found[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _join_bytes(found: re.Match[str]) -> str:
    return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _incomplete_tail_length(text: str) -> int:
    """How many characters at the end wait for their other half."""
    if "\ud800" <= text[-1:] <= "\udbff":
        return 1
    tail = _TAIL.search(text[-3:])  # no more can wait, and a search looks at all that it is given
    if tail is None:
        return 0
    raw = tail[0].encode("utf-8", "surrogateescape")
    for count in range(1, len(raw) + 1):
        lead = raw[-count]
        if lead >= 0xC2:  # the first byte of a sequence; it says how many there are
            return count if count < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
    return 0


_PYTHON_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
# A string that never closes is taken to the end: else each quote in it would be tried anew.
_PYTHON_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|\bNone\b|\bTrue\b|\bFalse\b""", re.DOTALL
)
_BYTES_REPR = re.compile(r"""\s*b(['"])(.*)\1\s*""", re.DOTALL)
_PYTHON_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U000([0-9a-fA-F]{5})|(.))", re.DOTALL)
_PYTHON_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

_INVALID_BYTES = re.compile("[\udc80-\udcff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(rb"[\x00-\x1f]")

LENIENT_LIMIT_BYTES = 128 * 1024  # of text that is no strict JSON: each 100 KB may take 40 ms to make sense of

# What the decoders raise on text that is not theirs; RecursionError on hostile nesting.
_DECODE_ERRORS = (ValueError, RecursionError, msgspec.DecodeError)

_scan = json.JSONDecoder(strict=False).raw_decode


_JSON_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""One escape of a JSON string. The group is half of a surrogate pair without its other half."""


class NotJson:
    """The text is no JSON, however kindly it is read."""


NOT_JSON = NotJson()


def parse_strict(data: bytes) -> object:
    """The value of strict JSON; NOT_JSON where it is none, or costs more than a turn."""
    if len(data) >= SMALL_TEXT_BYTES and exceeds_blocking_budget(data):
        return NOT_JSON
    try:
        return decode(data)
    except _DECODE_ERRORS:
        return NOT_JSON


def parse_by_grammar(data: bytes) -> object:
    """The value of JSON, or NOT_JSON, with numbers beyond every range and halves of surrogate pairs allowed.

    RFC 8259 allows both; strict decoders refuse them. Numbers are given as their text. Text that costs
    more than a turn is NOT_JSON too.
    """
    value = parse_strict(data)
    if value is not NOT_JSON or exceeds_blocking_budget(data):
        return value
    try:
        return json.loads(data.decode(), parse_int=str, parse_float=str, parse_constant=_reject_constant)
    except _DECODE_ERRORS:
        return NOT_JSON


def normalise_object_text(text: str) -> msgspec.Raw | None:
    """The JSON object that a text is, on one line, with its numbers as they were written; None where it is none.

    Of a text that is nearly JSON, the first object that can be read in it. Half of a surrogate pair becomes U+FFFD.
    """
    data = text.encode()
    if isinstance(parse_by_grammar(data), dict):
        return msgspec.Raw(msgspec.json.format(_JSON_ESCAPE.sub(_replace_lone_surrogate, data), indent=-1))
    read = [value for value in parse_lenient(data) if isinstance(value, dict)]
    return msgspec.Raw(msgspec.json.encode(scrub_object(read[0]))) if read else None


def parse_lenient(data: bytes) -> list[object]:
    """The values in text that is nearly JSON: several in a row, NaN, raw line breaks, Python's repr. [] for none.

    Bytes that are not UTF-8 come back as lone surrogates (U+DC80 and up), so that halves of a character can be joined.
    Of text that is too long to be read kindly in one turn there are none.
    """
    if exceeds_lenient_limit(data):
        return []
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip()
    values = _parse_all_values(text)
    if values or not text:
        return values
    quoted = _BYTES_REPR.fullmatch(text)
    if quoted:
        text = _undo_bytes_repr(quoted[2])
        values = _parse_all_values(text)
    return values or _parse_all_values(_PYTHON_TOKEN.sub(_python_token_to_json, text))


def exceeds_lenient_limit(data: bytes) -> bool:
    """Whether the tolerant parser would take more than one turn of the event loop."""
    return len(data) > LENIENT_LIMIT_BYTES or exceeds_blocking_budget(data)


def malformed_json_rule(data: bytes, values: list[object]) -> catalog.Rule:
    """What is wrong with text that is no strict JSON, and in which these `values` were read."""
    if _INVALID_BYTES.search(data.decode("utf-8", "surrogateescape")):
        return catalog.enc.VALID_UTF8
    if _SURROGATE_ESCAPE.search(data):
        return catalog.enc.NO_LONE_SURROGATE
    if len(values) > 1:
        return catalog.sse.ONE_OBJECT_PER_EVENT
    return catalog.enc.ESCAPE_LINE_BREAKS if values and _CONTROL.search(data) else catalog.enc.STRICT_JSON


def describe_unreadable(data: bytes) -> str:
    """Why a text has no value, in words for an error message."""
    return "too complex to be read at once" if exceeds_blocking_budget(data) else "no JSON"


def parse_first_value(data: bytes, *, in_steps: bool = False) -> Generator[None, None, tuple[object, bool]]:
    """The JSON value that text begins with, or NOT_JSON; and whether something follows it.

    `in_steps`: it is costly, and is decoded in steps of which each takes a turn.
    """
    try:
        return ((yield from decode_costly_in_steps(data)) if in_steps else decode(data)), False
    except _DECODE_ERRORS:
        if exceeds_lenient_limit(data):
            return NOT_JSON, False
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip()
    try:
        value, end = _scan(text)
    except _DECODE_ERRORS:
        return NOT_JSON, False
    return value, end < len(text)


def as_object(value: object) -> Json:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value, if it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def _parse_all_values(text: str) -> list[object]:
    """All JSON values of `text`, one after the other; [] if there is anything else in it."""
    values = []
    place = 0
    while place < len(text):
        try:
            value, place = _scan(text, place)
        except _DECODE_ERRORS:
            return []
        values.append(value)
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
    return values


def _reject_constant(name: str) -> object:
    raise ValueError(name)


def _replace_lone_surrogate(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else rb"\ufffd"


def _undo_bytes_repr(text: str) -> str:
    """What `repr` did to bytes, undone."""
    plain = _unescape(text)
    try:
        return plain.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return plain


def _python_token_to_json(found: re.Match[str]) -> str:
    token = found[0]
    if token.startswith("'"):
        return json.dumps(_unescape(token[1:-1]), ensure_ascii=False)
    return _PYTHON_CONSTANTS.get(token, token)


def _unescape(text: str) -> str:
    """Python's escapes, undone; one that it does not know stays as it is."""
    return _PYTHON_ESCAPE.sub(_unescape_match, text)


def _unescape_match(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is not None:
        return chr(int(code, 16))
    return _PYTHON_ESCAPES.get(found[4], found[0])
