"""Shell completion: what bash, zsh and fish complete, from the scripts that the command prints."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S
from tests.engines import files
from tests.table import table
from welldone.cli.completion import SCRIPTS, command_options, command_parser
from welldone.cli.main import COMMANDS

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_welldone
printf '%s\\n' "${COMPREPLY[@]}"
"""


def shell(name: str) -> str:
    """The program of a shell."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (system package {name})")
    return found


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts, and a models folder."""
    folder = tmp_path_factory.mktemp("completion")
    for name, make in SCRIPTS.items():
        (folder / f"welldone.{name}").write_text(make() + "\n")
    (folder / "models").mkdir()
    for name in ("Small-Q4_K_M.gguf", "big-00001-of-00002.gguf"):
        (folder / "models" / name).write_bytes(files.model(10))
    return folder


def environment(folder: Path) -> dict[str, str]:
    return ENVIRONMENT | {"WELLDONE_HOME": str(folder), "PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}


@table(
    ("words", "expected"),
    [
        ("", [*COMMANDS, "--help", "--version"]),
        ("se", ["serve"]),
        ("serve --ctx", ["--ctx-size"]),
        ("serve --log-format j", ["json"]),
        ("serve --log-format = j", ["json"]),
        ("serve --log-format =", ["auto", "short", "text", "json"]),
        ("serve --port ", [""]),
        ("serve -hf ", [""]),
        ("serve -m S", ["Small-Q4_K_M", "Small-Q4_K_M.gguf"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("engine b", ["build"]),
        ("keys a", ["add"]),
        ("rules fin-alw", ["fin-always-sent"]),
        ("lint --r", ["--request", "--rule"]),
        ("check --endpoint resp", ["responses"]),
        ("nonsense --x", [""]),
    ],
)
def test_bash_completes_commands_options_and_values(words: str, expected: list[str], scripts: Path) -> None:
    command = [shell("bash"), "-c", COMPLETE, "bash", str(scripts / "welldone.bash"), "welldone", *words.split(" ")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=scripts / "models", env=environment(scripts), timeout=LIMIT_S
    )
    assert sorted(done.stdout.splitlines()) == sorted([*expected])


@pytest.mark.tier2
def test_a_tab_completes_in_an_interactive_bash(scripts: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [shell("bash"), "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(scripts) | {"TERM": "dumb", "PS1": "$ "},
        start_new_session=True,
    )
    os.close(theirs)
    # Ctrl-U deletes the completed line, so that it is not run.
    source = f"source {scripts / 'welldone.bash'}\n".encode()
    lines = [source, b"welldone serve --reasoning-format deepseek-l\t\x15exit\n"]
    seen = b""
    with watched(process):
        try:
            while piece := os.read(ours, 65536):
                seen += piece
                if lines and seen.endswith(b"$ "):
                    os.write(ours, lines.pop(0))
        except OSError:
            pass  # Linux reports EIO when the other side of a terminal is closed
    os.close(ours)
    assert b"deepseek-legacy" in seen


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_every_option_of_every_command_is_in_the_scripts(name: str, scripts: Path) -> None:
    text = (scripts / f"welldone.{name}").read_text()
    for command in COMMANDS:
        for option in command_options(command_parser(command)):
            for flag in option.flags:
                assert (flag if name != "fish" else f" {flag.lstrip('-')} ") in text


@pytest.mark.tier2
def test_fish_completes_commands_options_and_values(scripts: Path) -> None:
    def complete(words: str) -> list[str]:
        code = f"source {scripts / 'welldone.fish'}; complete -C 'welldone {words}'"
        done = subprocess.run(
            [shell("fish"), "--no-config", "-c", code],
            capture_output=True,
            text=True,
            env=environment(scripts) | {"HOME": str(scripts)},
            timeout=LIMIT_S,
        )
        assert done.stderr == ""
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert complete("se") == ["serve"]
    assert complete("serve --ctx") == ["--ctx-size"]
    assert complete("serve --log-format j") == ["json"]
    assert "Small-Q4_K_M" in complete("serve -m S")
    assert complete("rules fin-alw") == ["fin-always-sent"]


@pytest.mark.tier2
def test_zsh_reads_its_script(scripts: Path) -> None:
    code = 'autoload -Uz compinit && compinit -u -d "$1/dump" && source "$1/welldone.zsh" && echo "$_comps[welldone]"'
    done = subprocess.run(
        [shell("zsh"), "-f", "-c", code, "zsh", str(scripts)],
        capture_output=True,
        text=True,
        env=environment(scripts) | {"HOME": str(scripts)},
        timeout=LIMIT_S,
    )
    assert (done.stdout, done.stderr) == ("_welldone\n", "")


def test_the_names_of_models_are_printed(scripts: Path) -> None:
    command = [COMMAND, "completion", "--models"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(scripts), timeout=LIMIT_S)
    assert done.stdout == "Small-Q4_K_M\nbig\n"


@pytest.mark.parametrize(("words", "message"), [(["tcsh"], "invalid choice"), ([], "usage: welldone completion")])
def test_without_a_known_shell_it_is_a_usage_error(words: list[str], message: str, scripts: Path) -> None:
    done = subprocess.run([COMMAND, "completion", *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
