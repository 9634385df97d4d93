"""The GitHub Action: its steps are run as a runner runs them, against a server in this process."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.check.background import served, without_done
from tests.check.test_failed_answers import MESSAGE, failing
from tests.http.aio import LIMIT_S
from welldone.check.report import Report

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
EXAMPLE: dict[Any, Any] = yaml.safe_load((ROOT / "docs" / "examples" / "check-action.yml").read_text("utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
BASH = [shutil.which("bash") or "bash", "--noprofile", "--norc", "-eo", "pipefail"]
"""The command line of a GitHub runner."""
FORMS = ("json", "xml", "md", "html", "sarif", "svg")

# Replaces the Python of the runner: `-m venv` links to this environment, and `-m pip` only records its arguments.
PYTHON = f"""#!/bin/sh
if [ "$2" = venv ]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  ln -sf "{Path(sys.executable).parent / "welldone"}" "$3/bin/welldone"
elif [ "$2" = pip ]; then
  echo "$@" > "$0.installed"
else
  exec "{sys.executable}" "$@"
fi
"""


class Runner:
    """Runs the steps of the action with the environment of a runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "temp"
        self.work = folder / "work"
        for path in (self.temp, self.work):
            path.mkdir()
        self.python = folder / "python"
        self.python.write_text(PYTHON, "utf-8")
        self.python.chmod(0o700)
        self.shown = ""

    def run(self, **inputs: str) -> int:
        """Run the action; returns its exit code."""
        given = {name: field.get("default", "") for name, field in ACTION["inputs"].items()}
        given |= {"python": str(self.python)} | {name.replace("_", "-"): value for name, value in inputs.items()}
        for step in STEPS:
            code = self._step(step, given)
            if code:
                return code
        return 0

    def _step(self, step: dict[str, Any], inputs: dict[str, str]) -> int:
        known = {f"inputs.{name}": value for name, value in inputs.items()}
        known |= {"github.action_path": str(ROOT), "runner.temp": str(self.temp)}
        env = {
            name: re.sub(r"\$\{\{ (\S+) }}", lambda found: known[found[1]], text) for name, text in step["env"].items()
        }
        script = self.folder / "step.sh"
        script.write_text(step["run"], "utf-8")
        done = subprocess.run(
            [*BASH, str(script)],
            cwd=self.work,
            env={
                "PATH": os.environ["PATH"],
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
                "GITHUB_OUTPUT": str(self.folder / "output"),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        self.shown += done.stdout + done.stderr
        return done.returncode

    @property
    def outputs(self) -> dict[str, str]:
        lines = (self.folder / "output").read_text("utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def summary(self) -> str:
        return (self.folder / "summary").read_text("utf-8")

    def report(self, folder: str = "welldone-report") -> Report:
        return msgspec.json.decode((self.work / folder / "check.json").read_bytes(), type=Report)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_a_correct_server_passes_and_every_report_is_written(runner: Runner) -> None:
    with served() as url:
        code = runner.run(url=url, args="--only text,usage\n--jobs 2\n")
    assert code == 0, runner.shown
    assert runner.outputs == {"verdict": "pass", "passed": "true"}
    assert runner.summary.startswith("<h3>welldone check passed: no rule broken</h3>")
    folder = runner.work / "welldone-report"
    assert {path.name for path in folder.iterdir()} == {"traces", *(f"check.{form}" for form in FORMS)}
    assert (folder / "traces" / "text-1.json").exists()
    installed = (runner.temp / "welldone" / "bin" / "python.installed").read_text("utf-8")
    assert installed.split()[-1] == str(ROOT)


def test_a_failing_server_ends_the_action_with_the_exit_code_of_the_check(runner: Runner) -> None:
    with served(without_done()) as url:
        assert runner.run(url=url, args="--only text", report_dir="a folder/deep") == 1
    assert runner.outputs == {"verdict": "fail", "passed": "false"}
    assert "end-done-sent" in runner.summary
    assert "end-done-sent" in runner.shown
    assert set(runner.report("a folder/deep").findings_by_rule) == {"end-done-sent"}


def test_a_server_that_fails_every_answer_ends_the_action_with_the_number_of_failures(runner: Runner) -> None:
    with served(failing(lambda _: True)) as url:
        assert runner.run(url=url, args="--only text") == 1
    assert runner.outputs == {"verdict": "error", "passed": "false"}
    line = f"failed: 4 of 4 answers ended in an error: {MESSAGE}"
    assert runner.summary.startswith(f"<h3>welldone check {line}</h3>")
    assert line in runner.shown.splitlines()


def test_every_input_is_passed_to_the_check(runner: Runner) -> None:
    with served(without_done("secret")) as url:
        given = {"url": url, "api_key": "secret", "args": "--only text", "profile": "gptel", "model": "ideal"}
        assert runner.run(**given, strict="true") == 1
        report = runner.report()
        assert (report.profile, report.is_strict, report.model) == ("gptel", True, "ideal")
        assert runner.run(**given, baseline="welldone-report/check.json", report_dir="second") == 0
    assert runner.outputs == {"verdict": "fail", "passed": "true"}
    assert "secret" not in runner.shown + runner.summary
    everything = [path for path in runner.work.rglob("*") if path.is_file()]
    assert not any(b"secret" in path.read_bytes() for path in everything)


@pytest.mark.parametrize(("args", "code"), [("", 3), ("--no-such-option", 2)])
def test_a_run_without_a_verdict_does_not_pass(runner: Runner, args: str, code: int) -> None:
    with served() as url:
        pass
    assert runner.run(url=url, args=args) == code
    assert runner.outputs == {"verdict": "", "passed": "false"}
    assert f"exit code {code}" in runner.summary


@pytest.mark.parametrize(
    "inputs",
    [
        {"model": '"; touch made; echo "'},
        {"model": "$(touch made)"},
        {"args": "--only text $(touch made) `touch made` ; touch made"},
        {"profile": "'; touch made #"},
    ],
)
def test_no_input_is_run_as_a_command(runner: Runner, inputs: dict[str, str]) -> None:
    with served() as url:
        assert runner.run(url=url, **inputs) > 1
    assert not (runner.work / "made").exists()


def test_inputs_are_passed_only_through_the_environment() -> None:
    for step in STEPS:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    used = {
        found for step in STEPS for text in step["env"].values() for found in re.findall(r"inputs\.([a-z-]+)", text)
    }
    assert used == set(ACTION["inputs"])


def test_the_example_uses_only_existing_inputs() -> None:
    steps = EXAMPLE["jobs"]["check"]["steps"]
    (ours,) = [step for step in steps if "/welldone@" in step.get("uses", "")]
    required = {name for name, field in ACTION["inputs"].items() if field.get("required")}
    assert required <= set(ours["with"]) <= set(ACTION["inputs"])
