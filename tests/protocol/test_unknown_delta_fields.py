"""Normalisation of unknown delta fields for clients that accumulate deltas."""

from typing import Any

import pytest

from tests.protocol.build import rules
from tests.table import table
from welldone.core.events import FieldLocation, UnknownFields
from welldone.core.repair import UnknownDeltaFields
from welldone.core.repair_log import RepairLog


def fit(*deltas: dict[str, Any], alone: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """Fields of each delta as sent, and the recorded rules."""
    repair_log = RepairLog()
    fields = UnknownDeltaFields(repair_log)
    fitted = [fields.normalise(UnknownFields(0, FieldLocation.DELTA, delta, alone)) for delta in deltas]
    assert [(one.location, one.in_own_chunk) for one in fitted] == [(FieldLocation.DELTA, alone)] * len(deltas)
    return [one.fields for one in fitted], rules(repair_log)


@table("value", ["a", None, True, {"a": 1}, [], [1, 2], ["a"]])
@table("alone", [False, True])
def test_fields_that_clients_can_accumulate_stay_unchanged(value: object, alone: bool) -> None:
    assert fit({"x": value}, {"x": value}, alone=alone) == ([{"x": value}] * 2, [])


@pytest.mark.parametrize("number", [0, 7, 2.5])
def test_numbers_stay_unchanged_and_are_recorded(number: float) -> None:
    assert fit({"x": number, "y": "a"}) == ([{"x": number, "y": "a"}], ["ext-number-fields"])


def test_entries_of_lists_are_numbered_across_deltas() -> None:
    fitted, recorded = fit({"x": [{"a": 1}]}, {"x": [{"a": 2}, {"a": 3, "index": "1"}, 7]}, {"x": [{"a": 4}]})
    assert fitted == [
        {"x": [{"a": 1}]},
        {"x": [{"a": 2, "index": 1}, {"a": 3, "index": 2}, 7]},
        {"x": [{"a": 4, "index": 4}]},
    ]
    assert recorded == ["ext-list-fields-indexed"]


def test_lists_with_indices_stay_unchanged() -> None:
    entries = {"x": [{"index": 0, "a": "b"}]}
    assert fit(entries, entries) == ([entries] * 2, [])


def test_entries_are_counted_per_field() -> None:
    assert fit({"x": [{"a": 1}]}, {"y": [{"a": 1}]}) == ([{"x": [{"a": 1}]}, {"y": [{"a": 1}]}], [])
