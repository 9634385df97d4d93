"""Strict and lenient JSON parsers."""

import json
import math

import pytest

from tests.table import table
from welldone.core.json_budget import run_to_completion
from welldone.core.lenient_json import NOT_JSON, as_positive_int, parse_first_value, parse_lenient, parse_strict


@table(
    ("text", "value"),
    [
        (b'{"a":1}', {"a": 1}),
        (b' [1, 2.5, null, true, "x"]\n', [1, 2.5, None, True, "x"]),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'{"a":1}{"b":2}', NOT_JSON),
        (b'{"a":NaN}', NOT_JSON),
        (b'{"a":"\\ud83d"}', NOT_JSON),
        (b'{"a":"\xff"}', NOT_JSON),
        (b'{"a":"x\ny"}', NOT_JSON),
        (b"", NOT_JSON),
        (b"[DONE]", NOT_JSON),
        (b"[" * 100_000, NOT_JSON),
    ],
)
def test_the_strict_parser_accepts_only_strict_json(text: bytes, value: object) -> None:
    assert parse_strict(text) == value


@table(
    ("text", "values"),
    [
        (b"", []),
        (b" \n ", []),
        (b"hello", []),
        (b'{"a":', []),
        (b'{"a":1} and more', []),
        (b'{"a":1}', [{"a": 1}]),
        (b"\xef\xbb\xbf{}", [{}]),
        (b'{"a":1}{"b":2}', [{"a": 1}, {"b": 2}]),
        (b'{"a":1}\n, {"b":2}\t3', [{"a": 1}, {"b": 2}, 3]),
        (b'{"a":-Infinity}', [{"a": -math.inf}]),
        (b'{"a":"x\ny\x00"}', [{"a": "x\ny\x00"}]),
    ],
)
def test_text_that_is_almost_json_is_parsed(text: bytes, values: list[object]) -> None:
    assert parse_lenient(text) == values


def test_nan_is_parsed() -> None:
    (value,) = parse_lenient(b"[NaN]")
    assert isinstance(value, list)
    assert math.isnan(value[0])


@table(
    ("text", "values"),
    [
        (b"{'a': None, 'b': [True, False]}", [{"a": None, "b": [True, False]}]),
        (b"{'a': \"it's\"}", [{"a": "it's"}]),
        (b"{'a': 'it\\'s \"so\"'}", [{"a": 'it\'s "so"'}]),
        (rb"""{'a': 'x\n\t\r\\\'\"y'}""", [{"a": "x\n\t\r\\'\"y"}]),
        (rb"{'a': '\x01\xe9\u2028'}", [{"a": "\x01é\u2028"}]),
        (rb"{'a': '\q\xz'}", [{"a": "\\q\\xz"}]),
        (b'{"None": None, "b": "True"}', [{"None": None, "b": "True"}]),
        (b"{'a': 'b", []),
        (b"{'a': 'b\\", []),
        (b"{'a': \"b", []),
    ],
)
def test_the_repr_of_a_dict_is_parsed(text: bytes, values: list[object]) -> None:
    assert parse_lenient(text) == values


@table(
    ("original", "values"),
    [
        (b'{"a":1}', [{"a": 1}]),
        ('{"a":"é😀"}'.encode(), [{"a": "é😀"}]),
        (b'{"a":"it\'s"}', [{"a": "it's"}]),
        (b'{"a":"x\\ny"}', [{"a": "x\ny"}]),
        (b'{"a":"x\\\\y"}', [{"a": "x\\y"}]),
        (b'{"a":"\\t\\r\\"\\u00e9"}', [{"a": '\t\r"é'}]),
        (b'{"a":1}\n', [{"a": 1}]),
        (b'{"a":1}\r\n\r\n', [{"a": 1}]),
        (b'{"a":"\xff"}', [{"a": "\udcff"}]),
        (b"{'a': 1}", [{"a": 1}]),
        (b"hello", []),
    ],
)
def test_the_repr_of_bytes_is_parsed(original: bytes, values: list[object]) -> None:
    assert parse_lenient(repr(original).encode()) == values


@pytest.mark.parametrize("original", ["\n\t\r\\'\"", "\x00\x1f\x7f\xa0", "é漢😀\u2028"])
def test_escapes_of_repr_are_decoded(original: str) -> None:
    for pair in ({"a": original}, {"a": [original, "'"]}):
        assert parse_lenient(repr(pair).encode()) == [pair]
        assert parse_lenient(repr(json.dumps(pair, ensure_ascii=False).encode() + b"\n").encode()) == [pair]


def test_a_repr_of_bytes_with_non_ascii_characters_is_parsed() -> None:
    assert parse_lenient('b\'{"a":"😀"}\''.encode()) == [{"a": "😀"}]


def test_bytes_that_are_not_utf_8_become_lone_surrogates() -> None:
    assert parse_lenient(b'{"a":"\xf0\x9f"}') == [{"a": "\udcf0\udc9f"}]


@table(
    ("text", "found"),
    [
        (b'{"a":1}', ({"a": 1}, False)),
        (b' \n{"a":1}\n ', ({"a": 1}, False)),
        (b"\xef\xbb\xbf{}", ({}, False)),
        (b'{"a":1}data: [DONE]', ({"a": 1}, True)),
        (b"[1] [2]", ([1], True)),
        (b"data: {}", (NOT_JSON, False)),
        (b"", (NOT_JSON, False)),
        (b"{" * 100_000, (NOT_JSON, False)),
    ],
)
def test_the_first_value_is_separated_from_the_rest(text: bytes, found: tuple[object, bool]) -> None:
    assert run_to_completion(parse_first_value(text)) == found


@table(
    "text",
    [b"{" * 1_000_000, b"[" * 1_000_000, b'{"a":' * 200_000, b"{'a':" * 200_000, b"b'" + b"\\x7b" * 200_000 + b"'"],
    ids=["braces", "brackets", "objects", "dicts", "bytes"],
)
def test_hostile_nesting_is_not_json(text: bytes) -> None:
    assert parse_strict(text) is NOT_JSON
    assert parse_lenient(text) == []


@pytest.mark.no_cover
def test_a_hundred_thousand_quotes_take_linear_time() -> None:
    assert parse_lenient(b"'" * 100_000) == [""] * 50_000


def test_long_text_is_parsed_strictly_or_not_at_all() -> None:
    long = b'"' + b"x" * 200_000 + b'"'
    assert run_to_completion(parse_first_value(long)) == (long[1:-1].decode(), False)
    for malformed in (long + b" 1", b"\xff" + long):
        assert run_to_completion(parse_first_value(malformed)) == (NOT_JSON, False)
        assert parse_lenient(malformed) == []
    assert parse_strict(b"[" + b"[]," * 50_000 + b"1]") is NOT_JSON


@table(("value", "expected"), [(7, 7), (0, 0), (-1, 0), (True, 0), (2.5, 0), ("7", 0), (None, 0)])
def test_only_positive_whole_numbers_count(value: object, expected: int) -> None:
    assert as_positive_int(value) == expected
