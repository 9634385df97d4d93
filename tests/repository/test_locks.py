"""Lock files keep extras: once `x` has a new release, pip refuses a pinned `x` where `x[extra]` is required."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = [*sorted((ROOT / "requirements").glob("*.txt")), ROOT / "src/welldone/engines/build_tools.txt"]
PIN = re.compile(r"^([A-Za-z0-9._-]+(?:\[[a-z0-9,-]+\])?)==", re.MULTILINE)


def _pins(lock: Path) -> dict[str, set[str]]:
    """The pinned packages with their extras. A package may be pinned once for each of several platforms."""
    pins: dict[str, set[str]] = {}
    for pin in map(Requirement, PIN.findall(lock.read_text("utf-8"))):
        pins.setdefault(canonicalize_name(pin.name), set()).update(pin.extras)
    return pins


def _installed(folders: list[str]) -> dict[str, Distribution]:
    return {canonicalize_name(found.metadata["Name"]): found for found in distributions(path=folders)}


def _missing_extras(pins: dict[str, set[str]], installed: dict[str, Distribution]) -> Iterator[str]:
    for name, extras in pins.items():
        for text in (installed[name].requires if name in installed else None) or ():
            required = Requirement(text)
            marker = required.marker
            is_needed = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if is_needed and required.extras - pins.get(canonicalize_name(required.name), set()):
                yield f"{name} requires {required}"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_each_extra_that_an_installed_package_requires(lock: Path) -> None:
    assert "--no-strip-extras" in lock.read_text("utf-8").partition("\n")[2].partition("\n")[0]
    assert list(_missing_extras(_pins(lock), _installed(sys.path))) == []


@pytest.mark.tier2
def test_the_locks_pin_each_extra_that_a_package_of_any_environment_requires() -> None:
    environments = [str(folder) for folder in ROOT.glob(".venv-*/lib/python*/site-packages")]
    if not environments:
        pytest.skip("run: make packages")
    for lock in LOCKS:
        assert list(_missing_extras(_pins(lock), _installed(environments))) == [], lock.name


def test_the_readme_names_the_pip_that_the_locks_are_resolved_with() -> None:
    (pip,) = re.findall(r"^pip==(\S+)", (ROOT / "requirements" / "pip.in").read_text("utf-8"), re.MULTILINE)
    assert f"pip {pip} or newer" in " ".join((ROOT / "README.md").read_text("utf-8").split())


def test_a_pin_without_a_required_extra_is_found() -> None:
    pins = _pins(ROOT / "requirements" / "test.txt")
    assert pins["coverage"] == {"toml"}
    (problem,) = _missing_extras(pins | {"coverage": set()}, _installed(sys.path))
    assert problem.startswith("pytest-cov requires coverage[toml]")
