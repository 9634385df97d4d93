"""The examples in the README run. In the output of a command `…` matches any lines, or at its end the rest of one."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import server_page
from tools.server_page import Checked
from welldone.check.report import Report
from welldone.cli.main import run
from welldone.core.catalog import RULES
from welldone.mock.server import BackgroundMock

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ welldone ([^\n]*)\n(.*?)```", README, re.DOTALL)
LIBRARY_EXAMPLE, PYTEST_EXAMPLE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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


def test_the_example_of_the_library_has_ten_lines_and_runs() -> None:
    assert len(LIBRARY_EXAMPLE.splitlines()) <= 10
    exec(compile(LIBRARY_EXAMPLE, "README.md", "exec"), {})


def test_the_example_for_pytest_passes_on_a_right_server(
    welldone_check: Callable[..., Report], welldone_mock: Callable[..., BackgroundMock]
) -> None:
    names: dict[str, Any] = {}
    exec(PYTEST_EXAMPLE.replace("http://127.0.0.1:8000/v1", welldone_mock().url), names)
    names["test_stream_conformance"](welldone_check)


def test_every_file_linked_in_the_documents_exists() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text("utf-8")
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / target).exists(), f"{document} names {target}"


def test_the_readme_states_the_number_of_rules() -> None:
    assert f"{len(RULES)} documented" in README


def test_the_readme_has_the_measured_numbers_of_broken_rules() -> None:
    measured = {name: _chat_result(name) for name in ("welldone", "xllamacpp", "litellm")}
    own, llama, litellm = (len(result.broken) for result in measured.values())
    (version,) = {result.tool for result in measured.values()}
    counts = f"{own} | {llama} | not measured | {litellm}, before llama.cpp"
    assert f"| chat rules broken ([`check`](docs/servers.md) {version}) | {counts} |" in README


def test_the_readme_has_the_servers_in_three_ways() -> None:
    assert server_page.overview(server_page.load_pages(ROOT / "docs" / "servers")) in README


def _chat_result(name: str) -> Checked:
    result = server_page.load_page(ROOT / "docs" / "servers" / f"{name}.json").results["chat"]
    assert isinstance(result, Checked)
    return result
