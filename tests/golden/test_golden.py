"""Output equals that of the golden files, or `golden/CHANGES.md` says why it does not.

CI compares a tenth of the entries, drawn anew in each run; WELLDONE_GOLDEN_SEED repeats a draw. `make golden` compares
all.
"""

import json
import os
import re
from random import Random
from typing import NamedTuple

import pytest

from tests.golden.entries import CHANGES, GOLDEN, all_digests, digest, entries

pytestmark = pytest.mark.tier2

FIRST: dict[str, str] = json.loads(GOLDEN.read_text("utf-8"))
SEED = os.environ.get("WELLDONE_GOLDEN_SEED") or str(Random().getrandbits(32))


class Change(NamedTuple):
    """A change that was accepted."""

    old: str
    new: str
    reason: str


def accepted_changes() -> dict[str, Change]:
    """The changes by the name of their entry."""
    row = re.compile(
        r"\| (?P<entry>[^|]+ > [^|]+ > [^|]+) \| (?P<old>\w{12}) \| (?P<new>\w{12}) \| (?P<reason>[^|]+) \|"
    )
    found = map(row.fullmatch, CHANGES.read_text("utf-8").splitlines())
    return {row["entry"]: Change(row["old"], row["new"], row["reason"]) for row in found if row is not None}


def differences(digests: dict[str, str]) -> list[str]:
    """A row for `CHANGES.md` for each output that has changed without one."""
    changes = accepted_changes()
    expected = FIRST | {name: change.new for name, change in changes.items()}
    return [f"| {name} | {FIRST[name]} | {now} | reason |" for name, now in digests.items() if now != expected[name]]


def test_a_tenth_of_the_output_equals_the_golden_file() -> None:
    every = list(entries())
    found = {entry.name: digest(entry) for entry in Random(SEED).sample(every, len(every) // 10)}
    assert differences(found) == [], f"WELLDONE_GOLDEN_SEED={SEED} repeats this"


@pytest.mark.tier3
def test_the_output_equals_the_golden_file() -> None:
    assert differences(all_digests()) == []


def test_the_file_has_the_digest_of_each_entry() -> None:
    assert FIRST.keys() == {entry.name for entry in entries()}


def test_each_accepted_change_is_one_of_an_entry_and_has_a_reason() -> None:
    for name, change in accepted_changes().items():
        assert change.old == FIRST[name]
        assert change.new != change.old
        assert len(change.reason.split()) > 3, name
    _header, *rows = [line for line in CHANGES.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) == len(accepted_changes()), "each row is read"
