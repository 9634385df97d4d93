"""Cost estimate of JSON texts, and decoding within the budget."""

import math
from collections.abc import Generator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.json_budget import (
    BLOCKING_BUDGET_US,
    ELEMENTS_LIMIT,
    STEPWISE_LIMIT_BYTES,
    count_json_syntax,
    cut_to_count,
    decode,
    decode_in_steps,
    decode_unlimited_in_steps,
    estimate_cost_us,
    exceeds_blocking_budget,
    is_small_and_flat,
    nesting_depth,
    outside_strings,
    run_to_completion,
    steps_yielding,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
TOP = {"token": "x", "logprob": -1.5, "bytes": [120]}
ENTRY = {**TOP, "top_logprobs": [TOP] * 5}


def run(steps: Generator[None, None, object]) -> tuple[object, int]:
    """Result of the steps, and their number."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def listed(unit: bytes, count: int) -> bytes:
    return b"[" + b",".join([unit] * count) + b"]"


@given(VALUES)
def test_a_value_is_decoded_as_msgspec_does(value: object) -> None:
    data = msgspec.json.encode(value)
    assert decode(data) == msgspec.json.decode(data)


@table("text", ["8.5e-323", "1E-320", "2.2250738585072011e-308", "1e-400", "-5e-324", "1e-0308", "1e-7"])
def test_a_subnormal_number_keeps_its_value(text: str) -> None:
    assert decode(f"[{text}]") == [float(text)]


@table("text", ["1e400", "[1e-310,-1e400]", "[NaN]", "[", ""])
def test_invalid_json_is_rejected_by_both_decoders(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


def test_subnormal_numbers_in_a_long_text_are_decoded_by_python() -> None:
    values = decode(listed(b"8.5e-323", 3_000))
    assert isinstance(values, list)
    assert all(math.isclose(value, 8.5e-323, rel_tol=0.1) for value in values)


@table(
    "data",
    [
        listed(b"[]", 50_000),
        listed(b"{}", 50_000),
        listed(b'""', 100_000),
        listed(b'"\\\\"', 100_000),
        listed(b"1", 600_000),
        listed(b"1.5", 50_000),
        listed(b"8.5e-323", 25_000),
        b"{" + b",".join(b'"%d":1' % number for number in range(60_000)) + b"}",
        b'["' + b"\\n" * 2_000_000 + b'"]',
        '["é"]'.encode() + b"x" * 2_000_000,
        b'["' + b"x" * 11_000_000 + b'"]',
        b"[" * 100_000,
        b"[" + b"1" * 20_000 + b"]",
        b'"' * 1_000_000,
    ],
    ids=lambda data: f"{data[:8]!r} of {len(data)}",
)
def test_a_text_over_the_blocking_budget_is_detected_before_decoding(data: bytes) -> None:
    assert exceeds_blocking_budget(data)


@table(
    "data",
    [
        b'{"image":"' + b"A" * 6_000_000 + b'"}',
        b'{"text":"' + b"[{,:.1e-9\\n" * 50_000 + b'"}',
        msgspec.json.encode([ENTRY] * 200),
        listed(b"128000", 200_000),
    ],
    ids=["a picture", "a text of brackets", "log probabilities", "tokens"],
)
def test_real_texts_are_within_the_blocking_budget(data: bytes) -> None:
    assert estimate_cost_us(data) <= BLOCKING_BUDGET_US


def test_a_text_over_the_blocking_budget_is_decoded_in_steps() -> None:
    reply = {"choices": [{"logprobs": {"content": [ENTRY] * 3_000}}, {"index": 1}], "usage": {"total_tokens": 1.5}}
    value, steps = run(decode_in_steps(msgspec.json.encode(reply)))
    assert value == reply
    assert steps > 10


@pytest.mark.parametrize("end", [b"", b'"'])
def test_a_text_with_an_unterminated_string_is_counted(end: bytes) -> None:
    assert outside_strings(b'{"a":1,"b' + end, 100) == (b"{:1,", 2)
    assert outside_strings(b'["a",' * 2_000 + b'"b' + end, 3_000) == (b"[," * 2_000, 2_001)


@table(
    ("data", "expected"),
    [
        (b'{"a":[{"b":1}]}', True),
        (b"[" * 5, False),
        (b'{"a":"' + b"x" * 16_384 + b'"}', False),
        (b"[" + b"1" * 256 + b"]", True),
        (b"[" + b"1" * 257 + b"]", False),
    ],
)
def test_a_small_and_flat_text_is_recognised(data: bytes, expected: bool) -> None:
    assert is_small_and_flat(data, 4) is expected


def test_a_long_text_is_counted_piece_by_piece() -> None:
    text = b"[" + b"1," * 1_000_000 + b"1]"
    pieces = cut_to_count(text)
    assert b"".join(pieces) == text
    assert len(pieces) > 1
    assert sum(count_json_syntax(piece).elements for piece in pieces) == 1_000_000


@pytest.mark.parametrize("number", [b"1" * 257, b"1." + b"2" * 257, b"1" * 600 + b"e-5"])
def test_a_long_number_is_found_wherever_a_text_is_cut(number: bytes) -> None:
    for before in range(2**19 - len(number) - 1, 2**19 + 2):
        pieces = cut_to_count(b"[" + b" " * before + number + b",1]")
        assert any(count_json_syntax(piece).has_long_number for piece in pieces), before


def test_nesting_depth_is_counted() -> None:
    assert [nesting_depth(count_json_syntax(text).bracket_steps) for text in (b"", b"[{}]", b"[[]][")] == [0, 2, 2]


def test_steps_can_run_within_another_generator() -> None:
    data = msgspec.json.encode([ENTRY] * 3_000)
    steps = steps_yielding(decode_in_steps(data), "nothing yet")
    assert next(steps) == "nothing yet"
    assert run_to_completion(decode_in_steps(data)) == [ENTRY] * 3_000


def test_a_cheap_text_is_decoded_in_one_step() -> None:
    assert run(decode_in_steps(b'{"a":[1,2]}')) == ({"a": [1, 2]}, 1)


@table(
    "value",
    [
        "\n" * 3_000_000,
        ["é" * 2_000_000, 1],
        list(range(600_000)),
        [[0.5] * 45_000, {"a": [[]] * 50_000}],
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": {"j": {"k": {"l": {"m": [[]] * 50_000}}}}}}}}}}}}},
    ],
    ids=["a text", "a text within", "numbers", "lists", "deep lists"],
)
def test_decoding_in_steps_gives_the_same_value(value: object) -> None:
    data = msgspec.json.encode(value)
    assert exceeds_blocking_budget(data)
    assert run(decode_in_steps(data, elements=10**6))[0] == value


@table(
    "data",
    [
        b'["' + b"x" * STEPWISE_LIMIT_BYTES + b'"]',
        listed(b"[]", ELEMENTS_LIMIT + 2),
        b"[" * 100_000,
        b"[" + b"1," * 600_000 + b"]",
        b"[" + b"1," * 600_000 + b",1]",
        b"[" + b"1," * 600_000 + b"1",
        b"[" + b"1," * 600_000 + b"1]]",
    ],
    ids=["long", "many", "deep", "a comma at the end", "two commas", "no end", "two ends"],
)
def test_text_that_is_too_long_or_invalid_is_rejected(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        run(decode_in_steps(data, elements=10**6 if data.startswith(b"[1") else ELEMENTS_LIMIT))


def test_decoding_without_limits_accepts_any_length() -> None:
    data = listed(b"[]", ELEMENTS_LIMIT + 2)
    assert run(decode_unlimited_in_steps(data))[0] == [[]] * (ELEMENTS_LIMIT + 2)


@pytest.mark.parametrize("end", [b"", b",]"])
def test_a_long_malformed_list_of_numbers_is_rejected(end: bytes) -> None:
    data = b"[" + b",".join([b"1.25"] * 60_000) + end
    assert exceeds_blocking_budget(data)
    with pytest.raises(msgspec.DecodeError):
        run_to_completion(decode_in_steps(data))
