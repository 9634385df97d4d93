"""Errors in the shapes that servers give them."""

from typing import Any

import pytest

from tests.wire.build import chunk, pack, rules
from welldone.wire.events import Failure
from welldone.wire.failures import cut_off, garbage, read_error
from welldone.wire.notes import Notes

RIGHT = {"message": "m", "type": "t", "param": "p", "code": "c"}


def read(value: dict[str, Any], data: bytes | None = None) -> tuple[Failure | None, list[str]]:
    notes = Notes()
    return read_error(value, data or pack(value), notes), rules(notes)


def test_a_right_error_is_read_as_it_is() -> None:
    assert read({"error": RIGHT}) == (Failure("m", "t", "p", "c"), [])
    assert read({"error": RIGHT | {"param": None, "code": None}}) == (Failure("m", "t"), [])


@pytest.mark.parametrize(
    ("error", "failure", "noted"),
    [
        ("boom", Failure("boom"), ["err-body-shape", "err-midstream-event"]),
        ("", Failure("unknown error"), ["err-body-shape", "err-midstream-event"]),
        (["a"], Failure('["a"]'), ["err-body-shape", "err-midstream-event"]),
        ({}, Failure("unknown error"), ["err-body-shape", "err-midstream-event"]),
        (RIGHT | {"message": 7}, Failure("7", "t", "p", "c"), ["err-midstream-event"]),
        (RIGHT | {"message": None}, Failure("unknown error", "t", "p", "c"), ["err-midstream-event"]),
        ({"message": "m"}, Failure("m"), ["err-body-shape"]),
        (RIGHT | {"code": 500}, Failure("m", "t", "p", "500"), ["err-code-string"]),
        (RIGHT | {"type": 7, "param": ["a"]}, Failure("m", "7", '["a"]', "c"), []),
        (RIGHT | {"status": [1]}, Failure("m", "t", "p", "c", {"status": [1]}), []),
        (RIGHT | {"message": "\ud83d"}, Failure("\ufffd", "t", "p", "c"), []),
    ],
)
def test_an_odd_error_is_read_as_it_was_meant(error: object, failure: Failure, noted: list[str]) -> None:
    assert read({"error": error}, b'{"error":') == (failure, noted)


def test_an_error_stands_first_and_alone() -> None:
    assert read({"error": RIGHT}, b'{ "error": {}}') == (Failure("m", "t", "p", "c"), ["err-midstream-event"])
    assert read(chunk() | {"error": RIGHT}) == (
        Failure("m", "t", "p", "c"),
        ["err-midstream-event", "err-not-with-choices"],
    )


@pytest.mark.parametrize(
    ("value", "failure"),
    [
        ({"object": "error", "message": "m", "type": "t", "code": 40}, Failure("m", "t", None, "40")),
        ({"object": "error"}, Failure("unknown error")),
        ({"message": "m", "code": 7}, Failure("m", code="7")),
        ({"message": "m", "type": "t"}, Failure("m", "t")),
        ({"message": "m", "status": 503}, Failure("m", more={"status": 503})),
        ({"detail": "d"}, Failure("d")),
        ({"detail": [{"loc": 1}]}, Failure('[{"loc":1}]')),
    ],
)
def test_a_flat_error_is_one_too(value: dict[str, Any], failure: Failure) -> None:
    assert read(value) == (failure, ["err-not-object-error"])


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"error": None},
        {"message": "m"},
        {"message": 7, "code": 7},
        {"detail": "d", "x": 1},
        {"type": "ping"},
        {"choices": [], "message": "m", "code": 7},
        chunk(),
    ],
)
def test_what_is_no_error_tells_of_none(value: dict[str, Any]) -> None:
    assert read(value) == (None, [])


def test_our_own_failures_say_whose_they_are() -> None:
    assert garbage("a stone") == Failure("the server sent a stone", "upstream_error", None, "bad_upstream_stream")
    assert cut_off("it ended") == Failure("it ended", "upstream_error", None, "incomplete_stream")
