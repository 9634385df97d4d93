"""`welldone pull`: exit codes, messages, progress."""

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, Run, run_program
from tests.engines import files, web
from tests.engines.fake_hub import FakeHub, fake_hub
from tests.engines.web import Page, Site
from welldone.cli import pull
from welldone.cli.ui import ExitCode

DATA = files.model(2000)
QUANTISATIONS = {"a-Q8_0.gguf": files.model(4000), "a-Q4_K_M.gguf": DATA}


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server."""
    with web.site() as made:
        yield made


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder."""
    monkeypatch.setenv("WELLDONE_HOME", str(tmp_path))
    return tmp_path / "models"


def test_the_path_goes_to_stdout_and_the_rest_to_stderr(here: Run, models: Path, site: Site) -> None:
    site.pages["/Small-Q4_K_M.gguf"] = Page(DATA)
    ran = here("pull", site.url("/Small-Q4_K_M.gguf"), "--sha256", files.sha256(DATA))
    assert (ran.code, ran.out.decode()) == (ExitCode.OK, f"{models / 'Small-Q4_K_M.gguf'}\n")
    assert ran.notes.splitlines() == [
        "Small-Q4_K_M.gguf: 0.0 MB, Q4_K_M, llama, 2,000 parameters, context 2,048",
        "serve it: welldone serve -m Small-Q4_K_M",
    ]


@pytest.mark.parametrize(
    ("page", "code", "words"),
    [
        (Page(status=404), ExitCode.UNREACHABLE, "was not found (404)"),
        (Page(b"<html>"), ExitCode.FAILED, "it is a web page"),
        (Page(files.model(3)), ExitCode.FAILED, "has the sha256"),
    ],
)
def test_a_failed_download_has_an_exit_code(
    page: Page, code: ExitCode, words: str, here: Run, models: Path, site: Site
) -> None:
    site.pages["/a.gguf"] = page
    ran = here("pull", site.url("/a.gguf"), "--sha256", files.sha256(DATA))
    assert (ran.code, ran.out) == (code, b"")
    assert words in ran.notes
    assert ran.notes.count("\n") == 1


def test_an_invalid_gguf_file_is_reported(here: Run, models: Path, site: Site) -> None:
    site.pages["/a.gguf"] = Page(DATA[:100])
    ran = here("pull", site.url("/a.gguf"))
    assert (ran.code, ran.out) == (ExitCode.FAILED, b"")
    assert "a.gguf was downloaded, but it is truncated" in ran.notes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "is not a model source; use default"),
        (["owner/repo/a.gguf"], "did you mean 'hf:owner/repo/a.gguf'"),
        ([], "required"),
        (["default", "--sha"], "--sha256"),
        (["https://host/a.gguf", "--sha256", "abc"], "64 hexadecimal digits"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(words: list[str], message: str, here: Run, models: Path) -> None:
    ran = here("pull", *words)
    assert (ran.code, ran.out) == (ExitCode.USAGE, b"")
    assert message in ran.notes
    assert ran.notes.count("\n") == 1


def answer(hub: FakeHub, *answers: bytes) -> tuple[int, str]:
    """Pull the repository on a terminal and type the answers; return the exit code and the output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "pull", "hf:owner/repo"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT | hub.environment | {"TERM": "dumb"},
    )
    os.close(theirs)
    seen, waiting = b"", list(answers)
    with watched(process):
        try:
            while piece := os.read(ours, 65536):
                seen += piece
                if waiting and seen.count(b"Number or name") > len(answers) - len(waiting):
                    os.write(ours, waiting.pop(0))
        except OSError:
            pass  # Linux reports EIO when the other side of a terminal is closed
        code = process.wait()
    os.close(ours)
    return code, seen.decode().replace("\r\n", "\n")


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("answers", "name"),
    [((b"\n",), "a-Q4_K_M.gguf"), ((b"2\n",), "a-Q8_0.gguf"), ((b"Q5_K_M\n", b"q8_0\n"), "a-Q8_0.gguf")],
    ids=["default", "number", "name"],
)
def test_a_terminal_asks_which_quantisation_to_download(answers: tuple[bytes, ...], name: str, tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub:
        hub.offer_repository(QUANTISATIONS)
        code, seen = answer(hub, *answers)
    assert code == ExitCode.OK
    assert "hf:owner/repo has 2 quantisations:\n   1  Q4_K_M     0.0 MB\n   2  Q8_0       0.0 MB\n" in seen
    assert "Number or name [Q4_K_M]: " in seen
    assert ("Q5_K_M is not one of them." in seen) is (len(answers) == 2)
    assert seen.endswith(f"{hub.folder / name}\n")


@pytest.mark.tier2
def test_the_end_of_input_is_no_choice(tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub:
        hub.offer_repository(QUANTISATIONS)
        code, seen = answer(hub, b"\x04")
    assert code == ExitCode.USAGE
    assert seen.endswith("choose one: welldone pull hf:owner/repo:Q4_K_M\n")


def test_without_a_terminal_the_quantisations_are_an_error_with_a_command(tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub:
        hub.offer_repository(QUANTISATIONS)
        ran = run_program(COMMAND, "pull", "hf:owner/repo", stdin=b"", cwd=tmp_path, **hub.environment)
    assert (ran.code, ran.out) == (ExitCode.USAGE, b"")
    assert ran.notes == (
        "hf:owner/repo has 2 quantisations: Q4_K_M (0.0 MB), Q8_0 (0.0 MB); "
        "choose one: welldone pull hf:owner/repo:Q4_K_M\n"
    )


def test_help_names_the_sources(here: Run, models: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        here("pull", "--help")


def test_progress_is_printed_at_most_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with pull.progress_lines(clock=lambda: now) as report:
        for done in range(1001):
            now = done / 100  # ten seconds for all
            report("a.gguf", done * 10**6, 10**9)
    shown = capsys.readouterr().err.splitlines()
    assert shown == [f"a.gguf: {tenth}0 % of 1.0 GB" for tenth in range(2, 10)]


def test_a_quick_download_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with pull.progress_lines(clock=lambda: 0.0) as report:
        for done in range(11):
            report("a.gguf", done, 10)
            report("b.gguf", done, None)
    assert capsys.readouterr().err == ""


def test_without_a_size_progress_is_printed_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with pull.progress_lines(clock=lambda: now) as report:
        for second in range(31):
            now = float(second)
            report("a.gguf", second * 10**6, None)
    assert capsys.readouterr().err.splitlines() == [f"a.gguf: {second}.0 MB" for second in (10, 20, 30)]


def test_the_part_of_an_earlier_attempt_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with pull.progress_lines(clock=lambda: now) as report:
        report("a.gguf", 75, 100)
        now = 3.0
        report("a.gguf", 76, 100)
        report("a.gguf", 81, 100)
        report("a.gguf", 100, 100)
    assert capsys.readouterr().err.splitlines() == ["a.gguf: 80 % of 0.0 MB"]


def test_the_bar_shows_bytes_and_does_not_interpret_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pull.progress_bar() as report:
        report("[red]a.gguf", 0, None)
        report("[red]a.gguf", 10**6, 2 * 10**6)
        report("[red]a.gguf", 2 * 10**6, 2 * 10**6)
    shown = capsys.readouterr().err
    assert "[red]a.gguf" in shown
    assert "2.0/2.0 MB" in shown


@pytest.mark.parametrize(("is_terminal", "is_shown"), [(True, True), (False, False), (None, False)])
def test_the_bar_is_shown_on_terminals_only(
    is_terminal: bool | None, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pull.download_progress(is_terminal=is_terminal) as report:
        report("a.gguf", 10**6, 10**6)
    assert ("1.0/1.0 MB" in capsys.readouterr().err) is is_shown
