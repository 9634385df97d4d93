"""Fixtures: the folder with the captures, and a runner for commands in this process."""

import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.cli.captures import save
from tests.cli.run import CommandResult, Run
from welldone.cli import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all captures. Tests only read it, and write to `tmp_path`."""
    made = tmp_path_factory.mktemp("captures")
    save(made)
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command in this process, in `folder`: ten times as fast as a process. Its standard input is a file."""
    monkeypatch.chdir(folder)

    def run_here(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> CommandResult:
        with TemporaryFile("w+") as file, monkeypatch.context() as patch:
            file.buffer.write(stdin)
            file.seek(0)
            patch.setattr(sys, "stdin", file)
            patch.chdir(cwd or Path.cwd())
            code = main.run(list(arguments))
        return CommandResult(code, *capfdbinary.readouterr())

    return run_here
