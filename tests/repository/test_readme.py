"""The commands in the README print the output shown there. `…` matches any lines, or at its end the rest of a line."""

import re
import shlex
from pathlib import Path

import pytest

from welldone.cli.main import run
from welldone.protocol.catalog import RULES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ welldone ([^\n]*)\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_examples_of_lint_fix_and_rules() -> None:
    assert {command.split()[0] for command, _ in EXAMPLES} == {"lint", "fix", "rules"}


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_command_prints_the_output_in_the_readme(
    command: str, output: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run(shlex.split(command))
    printed = capsysbinary.readouterr().out.decode()
    pattern = "".join(_pattern(line) for line in output.splitlines())
    assert re.fullmatch(pattern, printed)


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*"
    if line.endswith("…"):
        return re.escape(line[:-1]) + r".*\n"
    return re.escape(line) + r"\n"


def test_every_file_linked_in_the_documents_exists() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text("utf-8")
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / target).exists(), f"{document} names {target}"


def test_the_readme_states_the_number_of_rules() -> None:
    assert f"{len(RULES)} documented" in README
