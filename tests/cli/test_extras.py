"""Without the optional packages, commands report how to install them, and help still works."""

import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import welldone
from tests.cli.run import CommandResult, run_program
from welldone.cli.main import COMMANDS, missing_dependency
from welldone.config.settings import install_advice

Start = Callable[..., CommandResult]


def start_without(folder: Path, is_absent: Callable[[str], bool]) -> Start:
    """Return how to run the command with a Python of its own, which lacks some of the installed packages."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "welldone").symlink_to(Path(welldone.__file__).parent)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not is_absent(path.name) and path.suffix != ".pth" and path.name != "welldone":
            (packages / path.name).symlink_to(path)
    python = folder / "bin" / Path(sys.executable).name
    return lambda *words, **variables: run_program(
        str(python), "-I", "-m", "welldone", *words, stdin=b"", cwd=folder, **variables
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """The command with the only package that is not optional."""
    return start_without(tmp_path_factory.mktemp("bare"), lambda name: not name.startswith("msgspec"))


def test_help_needs_no_extra(bare: Start) -> None:
    for words in (*([command] for command in COMMANDS), ["bench", "compare"], ["engine", "build"]):
        ran = bare(*words, "--help")
        assert (words, ran.code, ran.notes) == (words, 0, "")
        assert ran.out.decode().startswith(f"usage: welldone {words[0]} ")


def test_completion_scripts_have_the_options_of_every_command(bare: Start) -> None:
    script = bare("completion", "bash").out.decode()
    assert [flag for flag in ("--check-config", "--max-vus", "--vulkan") if flag not in script] == []


def test_a_server_is_asked_without_an_extra(bare: Start) -> None:
    for words in (["status", "http://127.0.0.1:1"], ["reload", "--url", "http://127.0.0.1:1"]):
        ran = bare(*words)
        assert (ran.code, ran.notes.startswith("no server answers at http://127.0.0.1:1: ")) == (3, True)


@pytest.mark.parametrize("command", ["serve", "bench"])
def test_a_command_without_its_packages_reports_how_to_install_them(command: str, bare: Start) -> None:
    ran = bare(command)
    assert (ran.code, ran.notes.count("\n")) == (2, 1)
    assert install_advice(command) in ran.notes


def test_a_usage_error_is_reported_before_a_missing_package(bare: Start) -> None:
    ran = bare("serve", "--prot", "1")
    assert ran.code == 2
    assert "--port" in ran.notes


def test_packages_that_a_model_needs_are_checked_before_the_start(tmp_path: Path) -> None:
    start = start_without(tmp_path, lambda name: name.startswith(("xllamacpp", "huggingface_hub")))
    ran = start("serve", "--check-config", "-hf", "some/model", WELLDONE_HOME=str(tmp_path))
    assert ran.code == 2
    assert ran.notes.startswith("models from the Hugging Face Hub need the package huggingface_hub: ")
    (tmp_path / "models").mkdir()
    ran = start("serve", "--check-config", "--engine", "wheel", WELLDONE_HOME=str(tmp_path))
    assert (ran.code, ran.notes) == (2, f"{missing_dependency('serve', 'xllamacpp')}\n")


def test_on_windows_the_message_names_the_supported_systems() -> None:
    assert (
        missing_dependency("serve", "uvloop", "win32")
        == "welldone serve needs Linux or macOS; on Windows it runs in WSL"
    )
