"""Unknown fields of a delta, in a form that clients which add deltas up can stand."""

from typing import Any

import pytest

from tests.protocol.build import rules
from tests.table import table
from welldone.protocol.deltas import UnknownDeltaFields
from welldone.protocol.events import FieldLocation, UnknownFields
from welldone.protocol.repair_log import RepairLog


def fit(*deltas: dict[str, Any], alone: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """The fields of each delta as they are sent, and what was noted."""
    notes = RepairLog()
    fields = UnknownDeltaFields(notes)
    fitted = [fields.normalise(UnknownFields(0, FieldLocation.DELTA, delta, alone)) for delta in deltas]
    assert [(one.location, one.in_own_chunk) for one in fitted] == [(FieldLocation.DELTA, alone)] * len(deltas)
    return [one.fields for one in fitted], rules(notes)


@table("value", ["a", None, True, {"a": 1}, [], [1, 2], ["a"]])
@table("alone", [False, True])
def test_fields_that_can_be_added_up_stay_as_they_are(value: object, alone: bool) -> None:
    assert fit({"x": value}, {"x": value}, alone=alone) == ([{"x": value}] * 2, [])


@pytest.mark.parametrize("number", [0, 7, 2.5])
def test_numbers_stay_where_they_are_and_are_reported(number: float) -> None:
    assert fit({"x": number, "y": "a"}) == ([{"x": number, "y": "a"}], ["ext-number-fields"])


def test_lists_of_objects_go_on_with_their_numbers() -> None:
    fitted, noted = fit({"x": [{"a": 1}]}, {"x": [{"a": 2}, {"a": 3, "index": "1"}, 7]}, {"x": [{"a": 4}]})
    assert fitted == [
        {"x": [{"a": 1}]},
        {"x": [{"a": 2, "index": 1}, {"a": 3, "index": 2}, 7]},
        {"x": [{"a": 4, "index": 4}]},
    ]
    assert noted == ["ext-list-fields-indexed"]


def test_lists_that_are_numbered_stay_as_they_are() -> None:
    entries = {"x": [{"index": 0, "a": "b"}]}
    assert fit(entries, entries) == ([entries] * 2, [])


def test_each_field_counts_for_itself() -> None:
    assert fit({"x": [{"a": 1}]}, {"y": [{"a": 1}]}) == ([{"x": [{"a": 1}]}, {"y": [{"a": 1}]}], [])
