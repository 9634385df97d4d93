"""The test of the built package finds the Pythons of the machine, and requires the oldest supported one."""

import sys
import tomllib

import pytest

from tools import package


def test_the_running_python_is_found_and_an_unknown_one_is_not() -> None:
    major, minor = sys.version_info[:2]
    assert package.find_python(f"{major}.{minor}") == sys.executable
    assert package.find_python("3.99") is None


def test_the_oldest_python_is_the_one_that_the_package_requires() -> None:
    project = tomllib.loads((package.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={package.VERSIONS[0]}"


def test_a_program_that_fails_ends_the_test_with_its_output() -> None:
    with pytest.raises(SystemExit, match=r"exit code 3\nreason"):
        package._run(sys.executable, "-c", "print('reason'); exit(3)")
