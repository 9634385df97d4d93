"""Progress of models that are loading, in the log and on a terminal, with a fake clock."""

import logging
from typing import cast

import pytest

from tests.http.aio import run
from welldone.cli.service import ModelLoadProgress
from welldone.engines.supervisor import LocalModel
from welldone.server.observe.log import Redactor

VLLM = "(EngineCore pid=7) INFO 11-16 02:01:44 [core.py:402] "


class FakeModel:
    """The attributes of a model that the progress reads."""

    name = "big"

    def __init__(self, last_output_line: str) -> None:
        self.last_output_line = last_output_line


class ProgressHarness:
    """A progress with a fake clock."""

    def __init__(self, *, is_shown: bool, secrets: tuple[str, ...] = ()) -> None:
        self.now = 0.0
        self.progress = ModelLoadProgress(Redactor(secrets), is_shown=is_shown, clock=lambda: self.now)

    def report_at(self, now: float) -> None:
        """Set the clock and report."""
        self.now = now
        self.progress.report()


def a_model(last_output_line: str) -> LocalModel:
    return cast("LocalModel", FakeModel(last_output_line))


def test_progress_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        harness, model = ProgressHarness(is_shown=False), a_model(f"{VLLM}compiling a graph")
        harness.progress.begin(model)
        for second in range(1801):
            harness.report_at(second)
        assert harness.progress.end(model) == 1800

    with caplog.at_level(logging.INFO, "welldone"):
        run(main())
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert {record.message for record in caplog.records} == {"model is loading"}
    assert [one["for_s"] for one in fields[:6]] == [10, 20, 40, 80, 140, 200]
    assert len(fields) < 40  # in half an hour
    assert fields[0] == {"model": "big", "for_s": 10, "engine": "compiling a graph"}


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("Loading weights: 30%|###  |", "big is loading, 1 min 42 s: Loading weights: 30%|###  |"),
        (f"{VLLM}  took 1.2 s", "big is loading, 1 min 42 s: took 1.2 s"),
        ("", "big is loading, 1 min 42 s: no output yet"),
        ("key canary-0123 \x1b[2J", "big is loading, 1 min 42 s: key [hidden] \\x1b[2J"),
    ],
)
def test_a_terminal_shows_the_progress_in_one_line_without_secrets(
    output: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    async def main() -> None:
        harness, model = ProgressHarness(is_shown=True, secrets=("canary-0123",)), a_model(output)
        harness.progress.begin(model)
        harness.report_at(1.5)  # quick loads show no progress
        harness.report_at(101.6)
        harness.progress.end(model)

    run(main())
    assert capsys.readouterr().err == f"\r\x1b[K{shown}\r\x1b[K"


def test_of_several_models_the_one_that_loads_longest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        harness, first, second = ProgressHarness(is_shown=True), a_model("one"), a_model("two")
        harness.progress.begin(first)
        harness.progress.begin(second)
        harness.report_at(5)
        harness.progress.end(first)
        harness.report_at(6)
        harness.progress.stop()
        assert harness.progress.end(second) is None

    run(main())
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.split("\r\x1b[K")[1:]] == ["one", "two", ""]
