"""The tests, make targets and fault cases that SECURITY.md names exist."""

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
def test_the_evidence_for_each_promise_exists(row: str) -> None:
    """A name without a folder is in the folder of the name before it."""
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


def test_security_md_has_rows() -> None:
    assert ROWS
