"""`welldone bench compare`: verdicts, warnings, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.bench.reports import HOSTILE, config, empty, record, rich, step
from welldone.bench.report import BenchRecord, BenchReport, RequestOutcome
from welldone.bench.reports import data
from welldone.cli.bench import run_compare
from welldone.cli.ui import ExitCode, UsageError

Save = Callable[[str, BenchReport], str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a report and return its path."""

    def write(name: str, report: BenchReport) -> str:
        path = tmp_path / name
        path.write_text(data.render_json(report))
        return str(path)

    return write


def _delayed(original: BenchRecord, seconds: float) -> BenchRecord:
    """Return the record with a later first token."""
    assert original.content_s is not None
    return msgspec.structs.replace(original, content_s=original.content_s + seconds)


def _report(later_s: float = 0.0, seed: int = 1, **changes: object) -> BenchReport:
    records = [_delayed(record(number, seed=seed), later_s) for number in range(50)]
    return rich(**{"steps": (step("warmup", records[:3]), step("throughput", records)), **changes})


def _words(out: str) -> dict[str, str]:
    """Return the verdict of each metric in the table."""
    rows = [line.split() for line in out.splitlines() if " to " in line]
    return {row[0]: row[-1] for row in rows}


def test_changed_metrics_have_a_verdict_and_others_have_no_difference(
    save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = save("fast.json", _report()), save("slow.json", _report(later_s=1.0, seed=2))
    assert run_compare([fast, slow]) is ExitCode.OK
    out, err = capsys.readouterr()
    words = _words(out)
    assert err == ""
    assert (words["ttft.mean"], words["ttft.p50"], words["itl.mean"]) == ("slower", "slower", "difference")
    assert "throughput\n" in out
    assert "warmup" not in out
    assert out.splitlines()[-1].startswith("B: ")
    assert max(map(len, out.splitlines())) <= 80
    assert run_compare([slow, fast]) is ExitCode.OK
    assert _words(capsys.readouterr().out)["ttft.mean"] == "faster"


@pytest.mark.parametrize(
    ("later_s", "code"), [((0.0, 1.0), ExitCode.FAILED), ((1.0, 0.0), ExitCode.OK), ((0.0, 0.0), ExitCode.OK)]
)
def test_only_a_significantly_slower_second_report_fails(
    later_s: tuple[float, float], code: ExitCode, save: Save
) -> None:
    first, second = save("a.json", _report(later_s[0])), save("b.json", _report(later_s[1]))
    assert run_compare([first, second, "--fail-on-slower"]) is code


def test_the_json_has_the_same_verdicts_as_the_table(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save("a.json", _report()), save("b.json", _report(later_s=1.0))]
    run_compare(paths)
    words = _words(capsys.readouterr().out)
    assert run_compare([*paths, "--json"]) is ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["version"] == 2
    assert {row["metric"]: row["verdict"].split()[-1] for row in shown["comparisons"]} == words
    assert {row["step"] for row in shown["comparisons"]} == {"throughput"}
    row = next(row for row in shown["comparisons"] if row["metric"] == "ttft.mean")
    assert row["ratio"] == pytest.approx(row["first"] / row["second"])
    assert row["low"] <= row["ratio"] <= row["high"] < 1


def test_fewer_complete_answers_are_worse(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    half = [record(number, outcome=RequestOutcome.OK if number % 3 else RequestOutcome.CUT) for number in range(100)]
    run_compare([save("a.json", _report()), save("b.json", _report(steps=(step("throughput", half),)))])
    assert _words(capsys.readouterr().out)["success_rate"] == "worse"


# Reports that cannot be compared.


def test_without_common_steps_there_is_nothing_to_compare(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    other = _report(steps=(step("constant@2.00req/s", [record(0)]),))
    assert run_compare([save("a.json", _report()), save("b.json", other), "--json"]) is ExitCode.NOTHING_TO_DO
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "there is nothing to compare: no step is in both reports (throughput; and constant@2.00req/s)\n"


@pytest.mark.parametrize("other", [empty(), _report(steps=(step("throughput", []),))], ids=["no steps", "no requests"])
def test_an_empty_comparison_does_not_pass(other: BenchReport, save: Save) -> None:
    assert run_compare([save("a.json", _report()), save("b.json", other), "--fail-on-slower"]) is ExitCode.NOTHING_TO_DO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not a report of this version of welldone bench"),
        (b"[]", "is not a report of this version of welldone bench"),
        (b"\xff\xfe", "is not a report of this version of welldone bench"),
        (b'{"version":1}', "is not a report of this version of welldone bench"),
        (b"[" * 100_000, "is not a report of this version of welldone bench"),
        (b'{"config":' * 100_000, "is not a report of this version of welldone bench"),
        (data.render_json(_report(version=99)).encode(), "version 99"),
        (data.render_inference_benchmarker(_report()).encode(), "is in the format of inference-benchmarker"),
    ],
    ids=["empty", "another", "no text", "a part", "deep", "deep within", "a newer one", "a peer's"],
)
def test_a_file_that_is_not_a_report_is_a_usage_error(text: bytes, message: str, save: Save, tmp_path: Path) -> None:
    good, bad = save("good.json", _report()), tmp_path / "bad.json"
    bad.write_bytes(text)
    for words in ([good, str(bad)], [str(bad), good]):
        with pytest.raises(UsageError, match=message) as caught:
            run_compare(words)
        assert "bad.json" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["a.json"], ["there/is/none.json", "nor/here.json"], ["a\0.json", "b.json"]])
def test_missing_files_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(UsageError):
        run_compare(words)


# Warnings.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "another"}, "the loads of the two reports differ in model\n"),
        ({"endpoint": "messages"}, "the loads of the two reports differ in endpoint\n"),
        ({"config": config(max_vus=3)}, "the loads of the two reports differ in max_vus\n"),
        ({"is_complete": False, "incomplete_reason": "it was stopped"}, "b.json ended early: it was stopped\n"),
    ],
)
def test_other_differences_between_the_runs_are_warned_about(
    changes: dict[str, object], message: str, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    run_compare([save("a.json", _report()), save("b.json", msgspec.structs.replace(_report(), **changes))])
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("text", HOSTILE[::4])
def test_control_characters_in_a_report_are_escaped(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files are written by hand: those of the command are sanitized already."""
    report = json.loads(data.render_json(_report(is_complete=False)))
    report["incomplete_reason"] = report["model"] = report["steps"][1]["id"] = text.encode(errors="replace").decode()
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(report))
    run_compare([str(path) for path in paths])
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
