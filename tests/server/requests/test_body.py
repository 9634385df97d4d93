"""Decoding of request bodies, and their size limits."""

import json

import pytest

from tests.table import table
from welldone.core import json_budget
from welldone.gateway.errors import ApiError
from welldone.server.requests.fields import (
    CONTAINERS_LIMIT,
    ELEMENTS_LIMIT,
    JSON_DEPTH_LIMIT,
    STRINGS_LIMIT,
    JsonSizeLimits,
    read_body,
)

JSON = "application/json"


def nested(levels: int) -> bytes:
    """Return an object with this nesting depth."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_a_json_object_is_read() -> None:
    assert read_body(b' {"a": [1, "\xc3\xa9", null]} ', JSON) == {"a": [1, "é", None]}


@table(
    "data",
    [
        b"",
        b"  \n",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00x"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":' + b"1" * 5000 + b"}",
        b"model=x&messages=y",
    ],
)
def test_bodies_other_than_json_objects_are_rejected(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(data, JSON)
    assert caught.value.status == 400


def test_the_last_of_duplicate_keys_counts() -> None:
    assert read_body(b'{"a":1,"a":2}', JSON) == {"a": 2}


def test_nesting_is_accepted_up_to_the_limit() -> None:
    assert read_body(nested(JSON_DEPTH_LIMIT), JSON)
    with pytest.raises(ApiError, match="64 levels"):
        read_body(nested(JSON_DEPTH_LIMIT + 1), JSON)


@table(
    ("data", "is_too_deep"),
    [
        (b'["' + b"[" * 100 + b'"]', False),
        (b'["\\"' + b"[" * 100 + b'"]', False),
        (b'["\\\\",' + b"[" * 64 + b"]" * 65, True),
        (b"[]," * 1000, False),
        (b"[" * 65, True),
        (b'{"a":' * 65, True),
        (b"]" * 1000 + b"[" * 65, False),  # no JSON at all: the decoder ends at the first byte
    ],
)
def test_brackets_in_strings_do_not_count_as_nesting(data: bytes, is_too_deep: bool) -> None:
    if not is_too_deep:
        JsonSizeLimits("text").check(data)
        return
    with pytest.raises(ApiError, match="64 levels"):
        JsonSizeLimits("text").check(data)


@table(
    ("content_type", "is_browser", "is_accepted"),
    [
        ("application/json", True, True),
        ("Application/JSON; charset=utf-8", True, True),
        ("application/vnd.api+json", True, True),
        (None, False, True),
        ("", False, True),
        ("application/x-www-form-urlencoded", False, True),
        (None, True, False),
        ("application/x-www-form-urlencoded", True, False),
        ("text/plain", True, False),
        ("text/plain", False, False),
        ("multipart/form-data; boundary=x", False, False),
        ("text/json", False, False),
    ],
)
def test_a_browser_must_send_a_json_content_type(content_type: str | None, is_browser: bool, is_accepted: bool) -> None:
    if is_accepted:
        assert read_body(b"{}", content_type, is_browser=is_browser) == {}
        return
    with pytest.raises(ApiError) as caught:
        read_body(b"{}", content_type, is_browser=is_browser)
    assert caught.value.status == 415


def test_containers_are_accepted_up_to_the_limit() -> None:
    assert len(read_body(b'{"a":[' + b"[]," * (CONTAINERS_LIMIT - 3) + b"[]]}", JSON)["a"]) == CONTAINERS_LIMIT - 2
    with pytest.raises(ApiError, match=f"{CONTAINERS_LIMIT} arrays"):
        read_body(b'{"a":[' + b"[]," * (CONTAINERS_LIMIT - 2) + b"[]]}", JSON)


@pytest.mark.parametrize("end", [b'"\\""]}', b'"\\\\"]}'])
def test_strings_are_accepted_up_to_the_limit(end: bytes) -> None:
    assert len(read_body(b'{"a":[' + b'"",' * (STRINGS_LIMIT - 2) + end, JSON)["a"]) == STRINGS_LIMIT - 1
    with pytest.raises(ApiError, match=f"{STRINGS_LIMIT} keys and strings"):
        read_body(b'{"a":[' + b'"",' * (STRINGS_LIMIT - 1) + end, JSON)


def test_closing_brackets_alone_are_counted() -> None:
    with pytest.raises(ApiError, match="arrays and objects"):
        JsonSizeLimits("text").check(b"]" * (2 * CONTAINERS_LIMIT + 1))


def test_texts_that_are_checked_together_share_a_limit() -> None:
    shape = JsonSizeLimits("text")
    half = b"[" + b"[]," * (CONTAINERS_LIMIT // 2)
    shape.check(half)
    with pytest.raises(ApiError, match="arrays and objects"):
        shape.check(half)


@table(
    ("number", "count"),
    [("8.5e-323", 4096), ("1E-300", 4096), ("9007199254740993.0", 50_000), ("1e3", 50_000), ("9" * 256, 10)],
)
def test_numbers_that_are_slow_to_parse_are_limited(number: str, count: int) -> None:
    one = number.encode()
    assert len(read_body(b'{"a":[' + (one + b",") * (count - 1) + one + b"]}", JSON)["a"]) == count
    more = b"9" + one if len(one) == 256 else one + b"," + one
    with pytest.raises(ApiError, match="has a number of more than 256 digits"):
        read_body(b'{"a":[' + (one + b",") * (count - 1) + more + b"]}", JSON)


def test_numbers_in_strings_are_not_counted() -> None:
    assert read_body(b'{"a":"' + b"1e-5 " * 60_000 + b"9" * 1000 + b'"}', JSON)


def test_elements_are_limited() -> None:
    assert read_body(b'{"a":[' + b"1," * ELEMENTS_LIMIT + b"1]}", JSON)
    with pytest.raises(ApiError, match=f"{ELEMENTS_LIMIT} elements"):
        read_body(b'{"a":[' + b"1," * (ELEMENTS_LIMIT + 1) + b"1]}", JSON)


@pytest.mark.parametrize("text", ["é" * 2_000_000, "\n" * 2_000_000, "x" * 4_000_000])
def test_one_long_string_is_accepted_whatever_its_characters(text: str) -> None:
    assert read_body(json.dumps({"a": text}, ensure_ascii=False).encode(), JSON) == {"a": text}


@pytest.mark.parametrize("shift", range(4))
def test_escapes_at_a_step_boundary_do_not_end_a_string(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_budget, "_ESCAPES_STEP_BYTES", 1_000)
    text = "x" * shift + '"\\[' * 10_000
    assert read_body(json.dumps({"a": text, "b": "\\"}).encode(), None) == {"a": text, "b": "\\"}
