"""What a run of the plan has shown, as a file: `docs/reliability.json`. The page is drawn from it."""

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
    """What came of a case, when, and on which machine."""

    outcome: Outcome
    seconds: float
    seed: int
    day: str
    machine: str


def result(outcome: Outcome, seconds: float, seed: int) -> Result:
    """A result of today, on this machine."""
    day = datetime.now(UTC).date().isoformat()
    return Result(outcome, round(seconds, 1), seed, day, machine())


def machine() -> str:
    """The machine, as far as figures depend on it."""
    kernel = platform.release().partition("-")[0]
    return (
        f"{cpu_count()} cores, {platform.machine()}, {platform.system()} {kernel}, Python {platform.python_version()}"
    )


def stored(file: Path = FILE) -> dict[str, Result]:
    """The results that are kept, by the names of their cases."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Result]) if file.exists() else {}


def store(results: dict[str, Result], file: Path = FILE) -> None:
    """Keep them."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
