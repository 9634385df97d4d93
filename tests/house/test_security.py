"""SECURITY.md says what shows each promise: all of that is there."""

import re
from pathlib import Path

import pytest

from faults.plan import CASES
from tests.table import table

pytestmark = pytest.mark.tier2  # faults.plan imports a second of modules

ROOT = Path(__file__).parents[2]
ROWS = [
    line.rpartition(" | ")[2].rstrip(" |")
    for line in (ROOT / "SECURITY.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| who | ")
]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@table("row", ROWS)
def test_what_shows_a_promise_is_there(row: str) -> None:
    """A name without a folder is in that of the name before it."""
    folder = ROOT
    for word in re.split(r"[,;] ", row):
        if word.startswith("`make "):
            assert word.strip("`").removeprefix("make ") in TARGETS
        elif word.startswith("`"):
            assert word.strip("`") in CASES
        else:
            path = ROOT / word if "/" in word else folder / word
            assert path.exists(), word
            folder = path.parent


def test_there_are_rows() -> None:
    assert ROWS
