"""Results of the fault plan: `docs/reliability.json`, from which the page is written."""

import platform
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path

import msgspec

from faults.case import Outcome

_DOCS = Path(__file__).parent.parent / "docs"
FILE = _DOCS / "reliability.json"
PAGE = _DOCS / "reliability.md"


class Result(msgspec.Struct, frozen=True):
    """The outcome of a case, with day and machine."""

    outcome: Outcome
    seconds: float
    seed: int
    day: str
    machine: str


def result(outcome: Outcome, seconds: float, seed: int) -> Result:
    """Create a result of today on this machine."""
    day = datetime.now(UTC).date().isoformat()
    return Result(outcome, round(seconds, 1), seed, day, machine())


def machine() -> str:
    """Describe the machine."""
    kernel = platform.release().partition("-")[0]
    return (
        f"{cpu_count()} cores, {platform.machine()}, {platform.system()} {kernel}, Python {platform.python_version()}"
    )


def stored(file: Path = FILE) -> dict[str, Result]:
    """Load the stored results by case name."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Result]) if file.exists() else {}


def store(results: dict[str, Result], file: Path = FILE) -> None:
    """Write the results."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
