"""Cost estimate of JSON texts, and decoders that keep to a time budget.

A decoder blocks the event loop until it is done. Untrusted text is therefore decoded with `decode`, and only after
`exceeds_blocking_budget`, or limits on the counts of `count_json_syntax`, have accepted it. Both scan the bytes in C,
without recursion or a Python loop over bytes. The generators here do one step within the budget between two yields.
"""

import re
from collections.abc import Callable, Generator
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import msgspec

BLOCKING_BUDGET_US = 40_000
"""Most time for one text, in microseconds of an idle machine, from received to sent bytes. Other streams may be delayed
by 50 ms."""
SMALL_TEXT_BYTES = 16 * 1024
"""A shorter text costs less than the budget, whatever it contains."""
STEPWISE_LIMIT_BYTES = 16 * 1024 * 1024
"""Longest text that is decoded in steps."""
ELEMENTS_LIMIT = 75_000
"""Most commas of such a text: 12,500 log probabilities. Splitting an object with as many members fits the budget."""
DIGITS_LIMIT = 256
"""Most digits of a number: parsing takes quadratic time. The longest real numbers, seeds, have 20."""

# Measured on CPython 3.12: msgspec decodes and encodes, Python iterates over containers and their members.
_BYTE_NS = 6
_BYTE_OF_UNICODE_NS = 25
_CONTAINER_NS = 1_000
_NAME_NS = 700
_STRING_NS = 150
_ELEMENT_NS = 80
_DECIMAL_NS = 1_000
_ESCAPE_NS = 20

_STRINGS_LIMIT = 60_000  # with numbers and containers between them, more exceed the budget
_OUTSIDE_LIMIT_BYTES = 2**21  # outside of strings; more exceeds the budget

_FEW_STRINGS = 1_000
_COUNTED_BYTES = 512 * 1024  # outside of strings, which takes 4 ms
_ESCAPES_STEP_BYTES = 512 * 1024  # removing an escape takes 20 ns
_ELEMENT_BYTES = 32  # overhead of decoding an element by itself, as a number of bytes
_STEPWISE_LEVELS = 12  # nesting levels that are decoded in steps; log probabilities are on the seventh

_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACKETS_TO_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_TOO_MANY_DIGITS = b"0" * (DIGITS_LIMIT + 1)
_NO_NUMBER = re.compile(rb"[^0-9.eE+-]")
_NUMBER_BYTES = 4 * DIGITS_LIMIT  # a number has three runs of digits
_TINY_NUMBER = re.compile(rb"-(?<=[eE]-)[0-9]{3}")  # the search for a literal first byte takes a fifth of the time

Value = TypeVar("Value")
Blank = TypeVar("Blank")


class JsonSyntaxCounts(NamedTuple):
    """Syntax elements of a JSON text outside of its strings."""

    containers: int
    members: int
    elements: int
    floats: int
    """Numbers with a decimal point or an exponent."""
    negative_exponents: int
    has_long_number: bool
    bracket_steps: bytes
    """One signed byte per bracket: 1 for an opening one, -1 for a closing one."""


def count_json_syntax(outside: bytes) -> JsonSyntaxCounts:
    """Count the syntax elements of a JSON text without its strings; for invalid JSON, the result is approximate."""
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


def nesting_depth(bracket_steps: bytes) -> int:
    """Return the nesting depth of a JSON text. Takes 50 ns per bracket."""
    return max(accumulate(memoryview(bracket_steps).cast("b")), default=0)


def cut_to_count(outside: bytes) -> list[bytes]:
    """Cut a long JSON text without its strings for `count_json_syntax`, between two numbers.

    A number without an end in `_NUMBER_BYTES` is cut: a valid one has too many digits before that.
    """
    pieces, start = [], 0
    while start < len(outside):
        end = start + _COUNTED_BYTES
        match = _NO_NUMBER.search(outside, end, end + _NUMBER_BYTES)
        end = end + _NUMBER_BYTES if match is None else match.start()
        pieces.append(outside[start:end])
        start = end
    return pieces


def is_small_and_flat(data: bytes, depth: int) -> bool:
    """Whether a text is short, has at most `depth` levels and no long number. False for some texts that are so too."""
    return (
        len(data) < SMALL_TEXT_BYTES
        and data.count(b"{") + data.count(b"[") <= depth
        and _TOO_MANY_DIGITS not in data.translate(_DIGITS_TO_ZERO)
    )


def outside_strings(data: bytes, limit: int) -> tuple[bytes, int] | None:
    """Return a JSON text without its strings, and their number; None if there are more than `limit`."""
    return run_to_completion(outside_strings_in_steps(data, limit))


def outside_strings_in_steps(data: bytes, limit: int) -> Generator[None, None, tuple[bytes, int] | None]:
    """Like `outside_strings`, in steps."""
    if b"\\" in data:
        data = yield from _without_escapes(data)
    outside = _without_few_strings(data)
    if outside is not None:
        return outside
    pieces = data.split(b'"', 2 * limit + 1)  # there are no escapes, so every second piece is a string
    return None if len(pieces) > 2 * limit + 1 else (b"".join(pieces[::2]), len(pieces) // 2)


def _without_escapes(data: bytes) -> Generator[None, None, bytes]:
    """Remove escapes, so that every quote starts or ends a string."""
    data = data.replace(b"\\\\", b"")
    pieces = []
    start = 0
    while True:
        end = start + _ESCAPES_STEP_BYTES
        end += data.startswith(b"\\", end - 1)  # keep the escaped character with its backslash
        pieces.append(data[start:end].replace(b'\\"', b""))
        if end >= len(data):
            return b"".join(pieces)
        start = end
        yield


def _without_few_strings(data: bytes) -> tuple[bytes, int] | None:
    """Like `outside_strings`, without copying long strings; None if there are too many strings for a loop."""
    pieces: list[bytes] = []
    start = 0
    for strings in range(_FEW_STRINGS):
        quote = data.find(b'"', start)
        if quote < 0:
            return b"".join([*pieces, data[start:]]), strings
        pieces.append(data[start:quote])
        start = data.find(b'"', quote + 1) + 1
        if start == 0:  # the last string is not terminated
            return b"".join(pieces), strings + 1
    return None


def exceeds_blocking_budget(data: bytes) -> bool:
    """Whether decoding this text in one step exceeds the budget."""
    return len(data) >= SMALL_TEXT_BYTES and estimate_cost_us(data) > BLOCKING_BUDGET_US


def estimate_cost_us(data: bytes) -> int:
    """Return an upper bound of the cost in microseconds; any larger number if it exceeds the budget."""
    cost_ns = len(data) * (_BYTE_NS if data.isascii() else _BYTE_OF_UNICODE_NS)
    if cost_ns > BLOCKING_BUDGET_US * 1000:
        return cost_ns // 1000
    if b"\\" in data:
        cost_ns += data.count(b"\\") * _ESCAPE_NS
    split = outside_strings(data, _STRINGS_LIMIT) if cost_ns <= BLOCKING_BUDGET_US * 1000 else None
    if split is None or len(split[0]) > _OUTSIDE_LIMIT_BYTES:
        return BLOCKING_BUDGET_US + 1
    outside, strings = split
    counts = count_json_syntax(outside)
    if counts.has_long_number:
        return BLOCKING_BUDGET_US + 1
    cost_ns += strings * _STRING_NS
    cost_ns += counts.containers * _CONTAINER_NS + counts.members * _NAME_NS + counts.elements * _ELEMENT_NS
    return (cost_ns + counts.floats * _DECIMAL_NS + counts.negative_exponents * _DECIMAL_NS) // 1000


def decode(data: bytes | str) -> object:
    """Decode strict JSON.

    Raises:
        msgspec.DecodeError: `data` is not JSON.
        UnicodeError: `data` is not UTF-8.
        RecursionError: `data` is nested too deeply.
    """
    text = data.encode() if isinstance(data, str) else data
    # For a subnormal number such as 1e-320, msgspec takes 13 us and Python's `float` 1 us. For others they take 0.05 us
    # and 0.2 us, which is still less than searching a long text for such numbers.
    if len(text) >= SMALL_TEXT_BYTES or _TINY_NUMBER.search(text):
        return _decode_with_float_hook(text)
    return _decode_fast(text)


def decode_in_steps(
    data: bytes, *, elements: int = ELEMENTS_LIMIT, limit_bytes: int = STEPWISE_LIMIT_BYTES
) -> Generator[None, None, object]:
    """Like `decode`, in steps within the budget. `elements`: the most commas of the text."""
    if not exceeds_blocking_budget(data):
        return decode(data)
    return (yield from decode_costly_in_steps(data, elements=elements, limit_bytes=limit_bytes))


def decode_costly_in_steps(
    data: bytes, *, elements: int = ELEMENTS_LIMIT, limit_bytes: int = STEPWISE_LIMIT_BYTES
) -> Generator[None, None, object]:
    """Like `decode_in_steps`, for a text that is known to exceed the budget."""
    yield
    if len(data) > limit_bytes or data.count(b",") > elements:
        raise msgspec.DecodeError("JSON text is too long")
    return (yield from _decode_value_in_steps(data, _STEPWISE_LEVELS))


def decode_unlimited_in_steps(data: bytes) -> Generator[None, None, object]:
    """Like `decode_in_steps`, without limits: for text that was limited on receipt, or is generated here."""
    return decode_in_steps(data, elements=len(data), limit_bytes=len(data))


def _decode_value_in_steps(data: bytes, levels: int) -> Generator[None, None, object]:
    start = data.lstrip()[:1]
    if not levels or start not in (b"[", b"{") or len(data) < SMALL_TEXT_BYTES:
        return decode(data)  # a single string is cheap at any length, and such deep levels have few members
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
    """Decode a list of numbers, which can be split at any comma."""
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
        raise msgspec.DecodeError("JSON list is not terminated")
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
    """Run `steps` within a generator of another type: yield `blank` for each step, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value
        yield blank


def run_to_completion(steps: Generator[None, None, Value]) -> Value:
    """Run all steps at once and return the result."""
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
decode_members: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
).decode
"""Decodes an object into its members as JSON texts."""
decode_elements: Callable[[bytes | msgspec.Raw], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""Decodes a list into its elements as JSON texts."""
_decode_with_float_hook = msgspec.json.Decoder(float_hook=_parse_finite_float).decode
_decode_list_with_float_hook = msgspec.json.Decoder(list[Any], float_hook=_parse_finite_float).decode
