"""The cost of a JSON text, estimated before it is decoded, and a decoder that keeps to the estimate.

A decoder holds the interpreter until it is done: meanwhile no other stream is served. So a text from outside is decoded
with `decode`, and only after `is_costly`, or limits on the counts of `count`, have let it pass. Both scan the bytes in
C: no recursion, and no loop over bytes in Python.
"""

import re
from collections.abc import Generator
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import msgspec

BLOCKING_BUDGET_US = 40_000
"""What one text may cost, in microseconds of a quiet machine, from its bytes to the bytes that are sent for it. Other
streams may wait for 50 ms."""
SMALL_TEXT_BYTES = 16 * 1024
"""A text of fewer bytes costs less than that, whatever it holds."""
STEPWISE_LIMIT_BYTES = 16 * 1024 * 1024
"""The longest text that is decoded in several turns."""
ELEMENTS_LIMIT = 75_000
"""Commas of such a text: 12,500 log probabilities. An object with as many members takes a turn to take apart."""
DIGITS_LIMIT = 256
"""Digits of a number. Thousands cost their square; the largest real ones, seeds, have 20."""

# In nanoseconds, on CPython 3.12: msgspec decodes and encodes, Python walks over containers and their members.
_BYTE_NS = 6
_BYTE_OF_UNICODE_NS = 25
_CONTAINER_NS = 1_000
_NAME_NS = 700
_STRING_NS = 150
_ELEMENT_NS = 80
_DECIMAL_NS = 1_000
_ESCAPE_NS = 20

_STRINGS_LIMIT = 60_000  # among numbers and containers as many cost more than a turn; alone they are no real text
_OUTSIDE_LIMIT_BYTES = 2**21  # of all but strings: what is longer costs more than a turn

_FEW_STRINGS = 1_000
_ESCAPES_STEP_BYTES = 512 * 1024  # escapes take 20 ns each to remove
_ELEMENT_BYTES = 32  # an element that is decoded by itself costs as much as so many bytes
_STEPWISE_LEVELS = 12  # that are decoded one by one: log probabilities of a token stand on the seventh

_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACKETS_TO_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_TOO_MANY_DIGITS = b"0" * (DIGITS_LIMIT + 1)
_TINY_NUMBER = re.compile(rb"[eE]-[0-9]{3}")

Value = TypeVar("Value")
Blank = TypeVar("Blank")


class JsonSyntaxCounts(NamedTuple):
    """What a JSON text holds outside of its strings, as far as it could be counted within the limits."""

    containers: int
    members: int
    elements: int
    floats: int
    """Numbers with a point or an exponent."""
    negative_exponents: int
    """Numbers with a negative exponent."""
    has_long_number: bool
    bracket_steps: bytes
    """One byte for each bracket: 1 as a signed byte where it opens, -1 where it closes."""

    @property
    def depth(self) -> int:
        """Levels. It costs 50 ns for each bracket."""
        return max(accumulate(memoryview(self.bracket_steps).cast("b")), default=0)


def count_json_syntax(outside: bytes) -> JsonSyntaxCounts:
    """What stands outside of the strings of a JSON text; of text that is no JSON, something of that order."""
    numbers = outside.translate(_DIGITS_TO_ZERO)
    steps = outside.translate(_BRACKETS_TO_STEPS, _ALL_BUT_BRACKETS)
    return JsonSyntaxCounts(
        containers=(len(steps) + 1) // 2,
        members=outside.count(b":"),
        elements=outside.count(b","),
        floats=numbers.count(b".") + numbers.count(b"0e"),
        negative_exponents=numbers.count(b"e-"),
        has_long_number=_TOO_MANY_DIGITS in numbers,
        bracket_steps=steps,
    )


def outside_strings(data: bytes, limit: int) -> tuple[bytes, int] | None:
    """A JSON text without its strings, and how many it has; None where that is more than `limit`."""
    return run_to_completion(outside_strings_in_steps(data, limit))


def outside_strings_in_steps(data: bytes, limit: int) -> Generator[None, None, tuple[bytes, int] | None]:
    """The same in steps, of which each costs a turn at most."""
    if b"\\" in data:
        data = yield from _without_escapes(data)
    outside = _without_few_strings(data)
    if outside is not None:
        return outside
    pieces = data.split(b'"', 2 * limit + 1)  # without escapes, every second piece is a string
    return None if len(pieces) > 2 * limit + 1 else (b"".join(pieces[::2]), len(pieces) // 2)


def _without_escapes(data: bytes) -> Generator[None, None, bytes]:
    """A JSON text in which every quote begins or ends a string."""
    data = data.replace(b"\\\\", b"")
    pieces = []
    start = 0
    while True:
        end = start + _ESCAPES_STEP_BYTES
        end += data.startswith(b"\\", end - 1)  # what it escapes comes with it
        pieces.append(data[start:end].replace(b'\\"', b""))
        if end >= len(data):
            return b"".join(pieces)
        start = end
        yield


def _without_few_strings(data: bytes) -> tuple[bytes, int] | None:
    """The same without a copy of the strings, which may be long; None where there are too many for a loop."""
    pieces: list[bytes] = []
    start = 0
    for strings in range(_FEW_STRINGS):
        quote = data.find(b'"', start)
        if quote < 0:
            return b"".join([*pieces, data[start:]]), strings
        pieces.append(data[start:quote])
        start = data.find(b'"', quote + 1) + 1
        if start == 0:  # the last one has no end
            return b"".join(pieces), strings + 1
    return None


def exceeds_blocking_budget(data: bytes) -> bool:
    """Whether this text costs more than a turn."""
    return len(data) >= SMALL_TEXT_BYTES and estimate_cost_us(data) > BLOCKING_BUDGET_US


def estimate_cost_us(data: bytes) -> int:
    """What a text costs at most, in microseconds; where that is more than a turn, any number above it."""
    cost_ns = len(data) * (_BYTE_NS if data.isascii() else _BYTE_OF_UNICODE_NS)
    if cost_ns > BLOCKING_BUDGET_US * 1000:
        return cost_ns // 1000
    if b"\\" in data:
        cost_ns += data.count(b"\\") * _ESCAPE_NS
    split = outside_strings(data, _STRINGS_LIMIT) if cost_ns <= BLOCKING_BUDGET_US * 1000 else None
    if split is None or len(split[0]) > _OUTSIDE_LIMIT_BYTES:
        return BLOCKING_BUDGET_US + 1
    outside, strings = split
    found = count_json_syntax(outside)
    if found.has_long_number:
        return BLOCKING_BUDGET_US + 1
    cost_ns += strings * _STRING_NS
    cost_ns += found.containers * _CONTAINER_NS + found.members * _NAME_NS + found.elements * _ELEMENT_NS
    return (cost_ns + found.floats * _DECIMAL_NS + found.negative_exponents * _DECIMAL_NS) // 1000


def decode(data: bytes | str) -> object:
    """The value of strict JSON.

    Raises:
        msgspec.DecodeError: it is none.
        UnicodeError, RecursionError: nor is this.
    """
    text = data.encode() if isinstance(data, str) else data
    # msgspec takes 13 us for a number near the smallest of all (1e-320), Python's own `float` 1 us. It takes 0.2 us for
    # all others, where msgspec takes 0.05: still less than to look through a long text.
    if len(text) >= SMALL_TEXT_BYTES or ((b"e-" in text or b"E-" in text) and _TINY_NUMBER.search(text)):
        return _decode_with_float_hook(text)
    return _decode_fast(text)


def decode_in_steps(
    data: bytes, *, elements: int = ELEMENTS_LIMIT, limit_bytes: int = STEPWISE_LIMIT_BYTES
) -> Generator[None, None, object]:
    """The value of strict JSON, decoded in steps of which each costs a turn at most; see `decode`.

    `elements`: the most commas that it may have.
    """
    if not exceeds_blocking_budget(data):
        return decode(data)
    return (yield from decode_costly_in_steps(data, elements=elements, limit_bytes=limit_bytes))


def decode_costly_in_steps(
    data: bytes, *, elements: int = ELEMENTS_LIMIT, limit_bytes: int = STEPWISE_LIMIT_BYTES
) -> Generator[None, None, object]:
    """The same of a text that is known to be costly."""
    yield
    if len(data) > limit_bytes or data.count(b",") > elements:
        raise msgspec.DecodeError("The text is too long.")
    return (yield from _decode_value_in_steps(data, _STEPWISE_LEVELS))


def decode_unlimited_in_steps(data: bytes) -> Generator[None, None, object]:
    """The same without limits, for a text that was bounded when it came, or is our own."""
    return decode_in_steps(data, elements=len(data), limit_bytes=len(data))


def _decode_value_in_steps(data: bytes, levels: int) -> Generator[None, None, object]:
    start = data.lstrip()[:1]
    if not levels or start not in (b"[", b"{") or len(data) < SMALL_TEXT_BYTES:
        return decode(data)  # one text costs little, whatever its length; and what is so deep has few members
    if start == b"{":
        members = decode_members(data)
        yield
        values = yield from _decode_elements_in_steps(list(members.values()), levels - 1)
        return dict(zip(members, values, strict=True))
    if data.rfind(b"[") == data.find(b"[") and b"{" not in data and b'"' not in data:
        return (yield from _decode_numbers_in_steps(data))
    elements = decode_elements(data)
    yield
    return (yield from _decode_elements_in_steps(elements, levels - 1))


def _decode_numbers_in_steps(data: bytes) -> Generator[None, None, list[object]]:
    """A list of numbers: it can be cut at any comma."""
    text = data.strip()
    values: list[object] = []
    start = 1
    while start < len(text) - 1:
        comma = text.find(b",", start + SMALL_TEXT_BYTES)
        end = len(text) - 1 if comma < 0 else comma
        values += _decode_list_with_float_hook(b"[" + text[start:end] + b"]")
        start = end + 1
        yield
    if not text.endswith(b"]") or text[-2:-1] == b",":
        raise msgspec.DecodeError("The list has no end.")
    return values


def _decode_elements_in_steps(elements: list[msgspec.Raw], levels: int) -> Generator[None, None, list[object]]:
    values = []
    spent = 0
    for raw in elements:
        values.append((yield from _decode_value_in_steps(bytes(raw), levels)))
        spent += len(raw) + _ELEMENT_BYTES
        if spent > SMALL_TEXT_BYTES:
            spent = 0
            yield
    return values


def steps_yielding(steps: Generator[None, None, Value], blank: Blank) -> Generator[Blank, None, Value]:
    """The same steps, each of which gives `blank`: for whoever gives something else in steps of its own."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value
        yield blank


def run_to_completion(steps: Generator[None, None, Value]) -> Value:
    """What comes of the steps, where nobody waits meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value


def _parse_finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("Number out of range")
    return value


_decode_fast = msgspec.json.Decoder().decode
decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""The members of an object, as JSON texts."""
decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""The elements of a list, as JSON texts."""
_decode_with_float_hook = msgspec.json.Decoder(float_hook=_parse_finite_float).decode
_decode_list_with_float_hook = msgspec.json.Decoder(list[Any], float_hook=_parse_finite_float).decode
