"""The folder in which the commands are tried, and a way to try them without a process of their own."""

from pathlib import Path

import pytest

from tests.cli.captures import save
from tests.cli.run import Ran, Run
from welldone.cli import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all captures. Tests only read it; who writes takes `tmp_path`."""
    made = tmp_path_factory.mktemp("captures")
    save(made)
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command in this process and in `folder`: ten times as fast, for where no standard input is needed."""
    monkeypatch.chdir(folder)

    def run_here(*arguments: str) -> Ran:
        code = main.run(list(arguments))
        return Ran(code, *capfdbinary.readouterr())

    return run_here
