"""Unknown fields of a delta, in a form that clients which add deltas up can stand."""

from typing import Any

import pytest

from tests.wire.build import rules
from welldone.wire.events import Event, Extra, Place
from welldone.wire.extras import DeltaFields
from welldone.wire.notes import Notes


def fit(*deltas: dict[str, Any], alone: bool = False) -> tuple[list[list[Event]], list[str]]:
    notes = Notes()
    fields = DeltaFields(notes)
    return [fields.fit(Extra(0, Place.DELTA, delta, alone)) for delta in deltas], rules(notes)


def delta(fields: dict[str, Any], *, alone: bool = False) -> Extra:
    return Extra(0, Place.DELTA, fields, alone)


def on_top(fields: dict[str, Any], *, alone: bool = False) -> Extra:
    return Extra(0, Place.CHUNK, fields, alone)


@pytest.mark.parametrize("value", ["a", None, True, {"a": 1}, [], [1, 2], ["a"]])
def test_fields_that_can_be_added_up_stay_as_they_are(value: object) -> None:
    assert fit({"x": value}, {"x": value}) == ([[delta({"x": value})]] * 2, [])


@pytest.mark.parametrize("number", [0, 7, 2.5])
def test_numbers_move_to_the_top_of_the_chunk(number: float) -> None:
    assert fit({"x": number}) == ([[on_top({"x": number})]], ["ext-number-fields"])
    assert fit({"x": number, "y": "a"}) == ([[on_top({"x": number}), delta({"y": "a"})]], ["ext-number-fields"])


@pytest.mark.parametrize("name", ["id", "created", "usage", "index", "text"])
def test_a_number_takes_no_name_that_means_something_at_the_top(name: str) -> None:
    assert fit({name: 7}) == ([[on_top({f"delta_{name}": 7})]], ["ext-number-fields"])


def test_what_stands_alone_stays_alone_and_makes_one_chunk() -> None:
    assert fit({"x": "a"}, alone=True)[0] == [[delta({"x": "a"}, alone=True)]]
    assert fit({"x": 7}, alone=True)[0] == [[on_top({"x": 7}, alone=True)]]
    assert fit({"x": 7, "y": "a"}, alone=True)[0] == [[on_top({"x": 7}), delta({"y": "a"}, alone=True)]]


def test_lists_of_objects_go_on_with_their_numbers() -> None:
    fitted, noted = fit({"x": [{"a": 1}]}, {"x": [{"a": 2}, {"a": 3, "index": "1"}, 7]}, {"x": [{"a": 4}]})
    assert fitted == [
        [delta({"x": [{"a": 1}]})],
        [delta({"x": [{"a": 2, "index": 1}, {"a": 3, "index": 2}, 7]})],
        [delta({"x": [{"a": 4, "index": 4}]})],
    ]
    assert noted == ["ext-list-fields-indexed"]


def test_lists_that_are_numbered_stay_as_they_are() -> None:
    entries = {"x": [{"index": 0, "a": "b"}]}
    assert fit(entries, entries) == ([[delta(entries)]] * 2, [])


def test_each_field_counts_for_itself() -> None:
    fitted, noted = fit({"x": [{"a": 1}]}, {"y": [{"a": 1}]})
    assert fitted == [[delta({"x": [{"a": 1}]})], [delta({"y": [{"a": 1}]})]]
    assert noted == []
