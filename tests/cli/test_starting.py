"""What the log and the terminal say of models that are loaded, by a clock of the test's own."""

import logging
from typing import cast

import pytest

from tests.http.aio import run
from welldone.cli.service import ModelLoadProgress
from welldone.engines.supervisor import LocalModel
from welldone.server.observe.log import Redactor

VLLM = "(EngineCore pid=7) INFO 11-16 02:01:44 [core.py:402] "


class Loading:
    """What is asked of a model."""

    name = "big"

    def __init__(self, says: str = "") -> None:
        self.says = says


class Stage:
    """Models that are loaded, and the time."""

    def __init__(self, *, is_shown: bool, secrets: tuple[str, ...] = ()) -> None:
        self.now = 0.0
        self.starting = ModelLoadProgress(Redactor(secrets), is_shown=is_shown, clock=lambda: self.now)

    def at(self, now: float) -> None:
        """It is that late, and somebody looks."""
        self.now = now
        self.starting.report()


def a_model(says: str = "") -> LocalModel:
    return cast("LocalModel", Loading(says))


def test_the_log_says_it_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stage, model = Stage(is_shown=False), a_model(f"{VLLM}compiling a graph")
        stage.starting.begin(model)
        for second in range(1801):
            stage.at(second)
        assert stage.starting.end(model) == 1800

    with caplog.at_level(logging.INFO, "welldone"):
        run(main())
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert {record.message for record in caplog.records} == {"model is loading"}
    assert [one["for_s"] for one in fields[:6]] == [10, 20, 40, 80, 140, 200]
    assert len(fields) < 40  # in half an hour
    assert fields[0] == {"model": "big", "for_s": 10, "engine": "compiling a graph"}


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ("Loading weights: 30%|###  |", "big is loading, 1 min 42 s: Loading weights: 30%|###  |"),
        (f"{VLLM}  took 1.2 s", "big is loading, 1 min 42 s: took 1.2 s"),
        ("", "big is loading, 1 min 42 s: it says nothing"),
        ("key canary-0123 \x1b[2J", "big is loading, 1 min 42 s: key [hidden] \\x1b[2J"),
    ],
)
def test_a_terminal_shows_it_in_a_line_without_secrets(
    says: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    async def main() -> None:
        stage, model = Stage(is_shown=True, secrets=("canary-0123",)), a_model(says)
        stage.starting.begin(model)
        stage.at(1.5)  # what is quick needs no word
        stage.at(101.6)
        stage.starting.end(model)

    run(main())
    assert capsys.readouterr().err == f"\r\x1b[K{shown}\r\x1b[K"


def test_of_several_the_one_that_takes_longest_has_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        stage, first, second = Stage(is_shown=True), a_model("one"), a_model("two")
        stage.starting.begin(first)
        stage.starting.begin(second)
        stage.at(5)
        stage.starting.end(first)
        stage.at(6)
        stage.starting.stop()
        assert stage.starting.end(second) is None

    run(main())
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.split("\r\x1b[K")[1:]] == ["one", "two", ""]
