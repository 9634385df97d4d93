"""Without the optional packages, commands report how to install them, and help still works."""

from pathlib import Path

import pytest

from tests.cli.run import run_python
from welldone.cli.main import missing_dependency

PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"httptools", "prometheus_client", "rich", "uvloop", "xllamacpp"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from welldone.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["serve", "models", "pull", "status"])
def test_help_needs_no_extra(command: str, tmp_path: Path) -> None:
    ran = run_python(PROGRAM, command, "--help", cwd=tmp_path)
    assert (ran.code, ran.notes) == (0, "")
    assert f"welldone {command}" in ran.out.decode()


@pytest.mark.parametrize("command", ["serve", "bench"])
def test_a_command_without_its_packages_reports_how_to_install_them(command: str, tmp_path: Path) -> None:
    ran = run_python(PROGRAM, command, cwd=tmp_path)
    assert (ran.code, ran.notes.count("\n")) == (2, 1)
    assert f"pip install 'welldone[{command}]'" in ran.notes
    assert f"pip install '.[{command}]'" in ran.notes


def test_a_usage_error_is_reported_before_a_missing_package(tmp_path: Path) -> None:
    ran = run_python(PROGRAM, "serve", "--prot", "1", cwd=tmp_path)
    assert ran.code == 2
    assert "--port" in ran.notes


def test_on_windows_the_message_names_the_supported_systems() -> None:
    assert (
        missing_dependency("serve", "uvloop", "win32")
        == "welldone serve needs Linux or macOS; on Windows it runs in WSL"
    )
