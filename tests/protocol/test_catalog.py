"""The files of the rule catalogue."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.table import table
from welldone.core import catalog
from welldone.core.catalog import ALL_ENDPOINTS, FAMILIES, RULES, Detection, Rule, Severity

FOLDER = Path(catalog.__file__).parent


@table("family", FAMILIES)
def test_a_file_has_the_rules_of_one_family_in_their_order(family: str) -> None:
    rows = json.loads((FOLDER / f"{family}.json").read_bytes())
    assert [row["id"] for row in rows] == [rule.id for rule in RULES.values() if rule.family == family]
    assert all(set(row["endpoints"]) <= set(ALL_ENDPOINTS) for row in rows)


def test_every_file_is_loaded() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == FAMILIES.keys() | {"settings"}


def test_a_row_is_read_with_its_types() -> None:
    rule = RULES["fin-length"]
    assert (rule.severity, rule.detection, rule.endpoints) == (Severity.BREAKS, Detection.PROBE, ("chat",))
    assert RULES["fin-own-chunk"].detection is Detection.REPLY


@table("changes", [{"severity": "fatal"}, {"affects": "every client"}, {"effects": []}, {"repair": None}])
def test_a_row_with_an_unknown_member_or_value_is_refused(changes: dict[str, object]) -> None:
    row = {**msgspec.to_builtins(RULES["fin-length"]), **changes}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(row, Rule)
