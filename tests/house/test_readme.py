"""The README's commands print what it shows. A line with `…` alone stands for any lines; at its end, for its rest."""

import re
import shlex
from pathlib import Path

import pytest

from welldone.cli.main import run
from welldone.server.config import read_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ welldone ([^\n]*)\n(.*?)```", README, re.DOTALL)


def test_there_are_examples_of_every_command() -> None:
    assert {command.split()[0] for command, _ in EXAMPLES} == {"lint", "fix", "rules"}


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_command_prints_what_the_readme_shows(
    command: str, shown: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run(shlex.split(command))
    printed = capsysbinary.readouterr().out.decode()
    pattern = "".join(_pattern(line) for line in shown.splitlines())
    assert re.fullmatch(pattern, printed)


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*"
    if line.endswith("…"):
        return re.escape(line[:-1]) + r".*\n"
    return re.escape(line) + r"\n"


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text("utf-8")
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / target).exists(), f"{document} names {target}"


def test_the_configuration_that_the_documents_show_is_right(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "serve.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "welldone.toml").write_text(shown)
    config = read_config({}, {}, folder=tmp_path)
    assert [model.name for model in config.models] == ["small", "large", "native"]
    assert config.models[1].defaults == {"temperature": 0.2}
