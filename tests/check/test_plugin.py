"""The pytest plugin: the tests of a server check it with the fixture `welldone_check`."""

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.check.background import served, without_done
from tests.http.aio import LIMIT_S, run
from tests.table import table
from welldone.check.api import CheckFailedError, check_server
from welldone.check.report import Verdict

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "test_server.py"
# Whether or not the package was installed with its entry point: by this name, and once.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:welldone"]
PYTEST += ["-p", "welldone.check.plugin"]


def pytest_run(folder: Path, test: str) -> tuple[int, str]:
    """How a run of pytest in an empty folder ends, and what it shows."""
    (folder / "test_it.py").write_text(test, "utf-8")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*PYTEST, "test_it.py"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_example_of_the_documents_passes(tmp_path: Path) -> None:
    code, shown = pytest_run(tmp_path, EXAMPLE.read_text("utf-8"))
    assert code == 0, shown
    assert "4 passed" in shown


def test_a_wrong_server_fails_the_test_with_the_screen_of_the_check(tmp_path: Path) -> None:
    with served(without_done()) as url:
        code, shown = pytest_run(
            tmp_path, f"def test_it(welldone_check):\n    welldone_check({url!r}, only=['text'])\n"
        )
    assert code == 1
    assert "x end-done-sent  breaks  text" in shown
    assert "more    welldone rules end-done-sent" in shown
    assert "Traceback" not in shown
    assert "check_server" not in shown


def test_a_server_that_is_away_fails_the_test_in_one_line(tmp_path: Path) -> None:
    with served() as url:
        pass
    code, shown = pytest_run(tmp_path, f"def test_it(welldone_check):\n    welldone_check({url!r})\n")
    assert code == 1
    assert "welldone check: " in shown
    assert "Traceback" not in shown


def test_a_run_that_does_not_use_the_fixture_does_not_load_the_check(tmp_path: Path) -> None:
    test = (
        "import sys\n"
        "def test_it():\n"
        "    assert 'welldone.check.plugin' in sys.modules\n"
        "    assert not {'msgspec', 'welldone.check.run', 'welldone.wire'} & set(sys.modules)\n"
    )
    code, shown = pytest_run(tmp_path, test)
    assert code == 0, shown


def test_the_package_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"welldone": "welldone.check.plugin"}
    assert not any("pytest" in dependency for dependency in project["dependencies"])


def test_it_works_where_a_loop_runs() -> None:
    async def main(url: str) -> None:
        assert asyncio.get_running_loop().is_running()
        assert check_server(url, only=["text"]).verdict is Verdict.PASS

    with served() as url:
        run(main(url))


def test_rules_that_are_known_to_be_broken_may_be() -> None:
    with served(without_done()) as url:
        report = check_server(url, only=["text"], known=["end-done-sent"])
        assert report.passed
        assert set(report.findings_by_rule) == {"end-done-sent"}


def test_without_check_the_report_is_all_that_comes() -> None:
    with served(without_done("secret")) as url:
        report = check_server(url, only=["text"], api_key="secret", check=False)
    assert not report.passed
    assert report.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"only": ["text"], "skip": ["text"]}, "no probe is left"),
        ({"model": "nobody"}, "nobody"),
        ({"api_key": "wrong"}, "key"),
    ],
)
def test_what_cannot_be_checked_does_not_pass(settings: dict[str, object], said: str) -> None:
    with served(without_done("secret")) as url, pytest.raises(CheckFailedError, match=said):
        check_server(url, **{"api_key": "secret", **settings})  # type: ignore[arg-type] # one of many kinds


@table(
    ("wrong", "said"),
    [
        ({"profile": "opnai"}, "there is no profile 'opnai'"),
        ({"only": ["tex"]}, "there is no probe 'tex'"),
        ({"skip": "reasoning"}, "'reasoning' should be a list of names"),
        ({"rules": ["end-done"]}, "there is no rule 'end-done'"),
        ({"known": ["end-done"]}, "there is no rule 'end-done'"),
        ({"extra": {"stream": False}}, "stream is what the probes set themselves"),
    ],
)
def test_what_is_not_there_cannot_be_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_server("http://127.0.0.1:9/v1", **wrong)
