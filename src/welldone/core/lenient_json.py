"""Strict and lenient JSON parsers, and repair of strings with partial characters.

Every function takes linear time and terminates on hostile nesting.
"""

import json
import re
from collections.abc import Generator
from contextlib import suppress

import msgspec

from welldone.core.events import Json
from welldone.core.json_budget import SMALL_TEXT_BYTES, decode, decode_costly_in_steps, exceeds_blocking_budget

# Partial characters: bytes of a UTF-8 sequence, or halves of a surrogate pair, split over two deltas. Bytes that are
# not UTF-8 are represented as U+DC80 to U+DCFF, as by the codec error handler "surrogateescape".
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONE = re.compile("[\ud800-\udfff]")
_TAIL = re.compile("[\udc80-\udcff]{1,3}$")
_NUMBER_TYPES = frozenset((int, float))  # skipped: log probabilities have thousands of numbers
_decode_string = msgspec.json.Decoder(str).decode
# Content of a JSON string that can be copied: complete characters, and no line separators.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]++|\\["\\nt])++')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]++|\\\\["\\\\nt])++')
LITERAL_BYTES: bytes = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
"""Bytes that need no escape in a JSON string."""
_DEPTH_LIMIT = 64  # nesting of unknown fields; deeper values become null


def decode_text(content: bytes) -> str:
    """Decode the content of a JSON string, without its quotation marks, which is known to be valid."""
    return _decode_string(b'"%b"' % content)


def is_verbatim_text(text: bytes) -> bool:
    """Whether a text with escapes or non-ASCII characters can be copied unchanged."""
    if text.isascii():
        return _PLAIN.fullmatch(text) is not None
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False


class CharacterJoiner:
    """Joins characters that are split over pieces: an incomplete character is held back until the next piece."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def is_idle(self) -> bool:
        """Whether no character is held back."""
        return not self._held

    def feed(self, text: str) -> str:
        """Return the complete characters."""
        text = self._held + text
        keep = _incomplete_tail_length(text)
        self._held = text[len(text) - keep :] if keep else ""
        return clean_unicode(text[: len(text) - keep] if keep else text)

    def close(self) -> str:
        """Return the rest; an incomplete character becomes U+FFFD."""
        rest, self._held = clean_unicode(self._held), ""
        return rest


def clean_unicode(text: str) -> str:
    """Join split characters in a text; incomplete ones become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
        text = _BYTES.sub(lambda raw: raw[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace"), text)
        return _LONE.sub("\ufffd", text)
    return text


def clean_string(value: object) -> str:
    """Return a string, or an integer as a string, with complete characters; "" for any other value."""
    return clean_unicode(value) if isinstance(value, str) else str(value) if type(value) is int else ""


def scrub_object(value: Json, depth: int = 1) -> Json:
    """Like `scrub_json`, for an object whose members have the nesting depth `depth`."""
    return {
        key if key.isascii() else clean_unicode(key): item if type(item) in _NUMBER_TYPES else scrub_json(item, depth)
        for key, item in value.items()
    }


def scrub_json(value: object, depth: int = 0) -> object:
    """Clean all strings of a JSON value, and replace values beyond the nesting limit by null."""
    if isinstance(value, str):
        return clean_unicode(value)
    if not isinstance(value, (list, dict)):
        return value
    if depth >= _DEPTH_LIMIT:
        return None
    if isinstance(value, dict):
        return scrub_object(value, depth + 1)
    return [item if type(item) in _NUMBER_TYPES else scrub_json(item, depth + 1) for item in value]


def _incomplete_tail_length(text: str) -> int:
    """Number of code points at the end that are an incomplete character."""
    if "\ud800" <= text[-1:] <= "\udbff":
        return 1
    tail = _TAIL.search(text[-3:])  # an incomplete UTF-8 sequence has at most 3 bytes
    if tail is None:
        return 0
    raw = tail[0].encode("utf-8", "surrogateescape")
    for count in range(1, len(raw) + 1):
        lead = raw[-count]
        if lead >= 0xC2:  # first byte of a sequence, which determines its length
            return count if count < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
    return 0


_PYTHON_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
# An unterminated string extends to the end: otherwise matching would be quadratic.
_PYTHON_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|\bNone\b|\bTrue\b|\bFalse\b""", re.DOTALL
)
_BYTES_REPR = re.compile(r"""\s*b(['"])(.*)\1\s*""", re.DOTALL)
_PYTHON_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U000([0-9a-fA-F]{5})|(.))", re.DOTALL)
_PYTHON_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

_INVALID_BYTES = re.compile("[\udc80-\udcff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(rb"[\x00-\x1f]")

LENIENT_LIMIT_BYTES = 128 * 1024  # lenient parsing may take 40 ms per 100 KB

# Exceptions of the decoders for invalid text; RecursionError for hostile nesting.
_DECODE_ERRORS = (ValueError, RecursionError, msgspec.DecodeError)

_scan = json.JSONDecoder(strict=False).raw_decode


_JSON_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""One escape of a JSON string. The group is a lone surrogate."""


NOT_JSON = object()
"""Result for text that is not JSON."""


def parse_strict(data: bytes) -> object:
    """Decode strict JSON; NOT_JSON if it is invalid or exceeds the blocking budget."""
    if len(data) >= SMALL_TEXT_BYTES and exceeds_blocking_budget(data):
        return NOT_JSON
    try:
        return decode(data)
    except _DECODE_ERRORS:
        return NOT_JSON


def parse_by_grammar(data: bytes) -> object:
    """Decode JSON, or return NOT_JSON; numbers of any size and lone surrogates are allowed.

    RFC 8259 allows both; strict decoders reject them. If the text has any, numbers are returned as strings. Text that
    exceeds the blocking budget is NOT_JSON as well.
    """
    value = parse_strict(data)
    if value is not NOT_JSON or exceeds_blocking_budget(data):
        return value
    try:
        return json.loads(data.decode(), parse_int=str, parse_float=str, parse_constant=_reject_constant)
    except _DECODE_ERRORS:
        return NOT_JSON


def normalise_object_text(text: str) -> msgspec.Raw | None:
    """Return a JSON object on one line, with its numbers as written; None if the text is not an object.

    For text that is almost JSON, the first object of lenient parsing. A lone surrogate becomes U+FFFD.
    """
    data = text.encode()
    if isinstance(parse_by_grammar(data), dict):
        plain = _JSON_ESCAPE.sub(lambda match: match[0] if match[1] is None else rb"\ufffd", data)
        return msgspec.Raw(msgspec.json.format(plain, indent=-1))
    objects = [value for value in parse_lenient(data) if isinstance(value, dict)]
    return msgspec.Raw(msgspec.json.encode(scrub_object(objects[0]))) if objects else None


def parse_lenient(data: bytes) -> list[object]:
    """Parse text that is almost JSON: several values in a row, NaN, raw line breaks, Python's repr. [] if it fails.

    Bytes that are not UTF-8 become lone surrogates (U+DC80 and up), so that split characters can be joined. Text that
    exceeds the limit for lenient parsing gives [].
    """
    if exceeds_lenient_limit(data):
        return []
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip()
    values = _parse_all_values(text)
    if values or not text:
        return values
    quoted = _BYTES_REPR.fullmatch(text)
    if quoted:
        text = _unescape(quoted[2])
        with suppress(UnicodeEncodeError):
            text = text.encode("latin-1").decode("utf-8", "surrogateescape")
        values = _parse_all_values(text)
    return values or _parse_all_values(_PYTHON_TOKEN.sub(_python_token_to_json, text))


def exceeds_lenient_limit(data: bytes) -> bool:
    """Whether lenient parsing would block the event loop for too long."""
    return len(data) > LENIENT_LIMIT_BYTES or exceeds_blocking_budget(data)


def malformed_json_rule(data: bytes, values: list[object]) -> str:
    """Return the rule that a text violates which is not strict JSON; `values` are those of lenient parsing."""
    if _INVALID_BYTES.search(data.decode("utf-8", "surrogateescape")):
        return "enc-valid-utf8"
    if _SURROGATE_ESCAPE.search(data):
        return "enc-no-lone-surrogate"
    if len(values) > 1:
        return "sse-one-object-per-event"
    return "enc-escape-line-breaks" if values and _CONTROL.search(data) else "enc-strict-json"


def describe_unreadable(data: bytes) -> str:
    """Describe for an error message why a text could not be parsed."""
    return "too complex to parse" if exceeds_blocking_budget(data) else "not JSON"


def parse_first_value(data: bytes, *, in_steps: bool = False) -> Generator[None, None, tuple[object, bool]]:
    """Parse the first JSON value of a text, or NOT_JSON; return it, and whether more text follows.

    `in_steps`: the text exceeds the blocking budget and is decoded in steps.
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
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return `value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_positive_int(value: object) -> int:
    """Return `value` if it is a positive whole number, else 0."""
    return value if type(value) is int and value > 0 else 0


def is_nonempty_string(value: object) -> bool:
    """Whether `value` is a string that is not empty."""
    return isinstance(value, str) and value != ""


def _parse_all_values(text: str) -> list[object]:
    """All JSON values of a text; [] if it contains anything else."""
    values = []
    position = 0
    while position < len(text):
        try:
            value, position = _scan(text, position)
        except _DECODE_ERRORS:
            return []
        values.append(value)
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
    return values


def _reject_constant(name: str) -> object:
    raise ValueError(name)


def _python_token_to_json(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith("'"):
        return json.dumps(_unescape(token[1:-1]), ensure_ascii=False)
    return _PYTHON_CONSTANTS.get(token, token)


def _unescape(text: str) -> str:
    """Decode Python escapes; unknown ones stay unchanged."""
    return _PYTHON_ESCAPE.sub(_unescape_match, text)


def _unescape_match(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code is not None else _PYTHON_ESCAPES.get(match[4], match[0])
