"""JSON output: of lint, of rules, and the report of fix."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.cli.captures import FILES, HEAD, QUOTED, ROLES
from tests.cli.run import CommandResult, Run
from welldone.core.catalog import RULES, Kind


def _verdict(ran: CommandResult) -> dict[str, Any]:
    assert ran.err == b""
    verdict: dict[str, Any] = json.loads(ran.out)
    assert ran.code == (1 if verdict["verdict"] == "fail" else 0)
    return verdict


@pytest.mark.parametrize("name", [*(f"{name}.json" for name in QUOTED), "right.txt", "curl-raw.txt", "error-i.txt"])
def test_the_json_of_lint_has_these_fields_and_no_others(name: str, here: Run) -> None:
    verdict = _verdict(here("lint", "--json", name))
    assert list(verdict) == ["version", "verdict", "frames", "findings"]
    assert verdict["version"] == 2
    assert verdict["verdict"] in {"pass", "warn", "fail"}
    for finding in verdict["findings"]:
        names = ["rule", "severity", "frame", "byte", "observed", "expected", "affects", "cause", "kind", "form"]
        assert list(finding) == names
        assert finding["kind"] in set(Kind)
        assert finding["cause"] is None or finding["cause"] in {one["rule"] for one in verdict["findings"]}
        assert all(isinstance(finding[name], str) for name in ("rule", "severity", "observed", "expected"))
        assert all(isinstance(client, str) for client in finding["affects"])
        assert (finding["frame"] is None) == (finding["byte"] is None)


def test_the_json_of_lint_is_one_line(here: Run) -> None:
    ran = here("lint", "--json", "roles.txt")
    assert ran.out.count(b"\n") == 1
    assert ran.out.endswith(b"}\n")


GAPS = {
    "LF": ROLES,
    "CRLF": ROLES.replace(b"\n", b"\r\n"),
    "comments": ROLES.replace(b"data:", b": wait\n\ndata:"),
    "a byte-order mark": b"\xef\xbb\xbf" + ROLES,
    "wide characters": ROLES.replace(b"Hello", "Grüße 🌍".encode()),
}


@pytest.mark.parametrize("gap", GAPS)
def test_byte_is_where_the_frame_begins_in_the_body(gap: str, here: Run) -> None:
    body = GAPS[gap]
    findings = _verdict(here("lint", "--json", "--rule", "delta-role-once", stdin=body))["findings"]
    second, third = (_frame_start(body, finding["byte"]) for finding in findings)
    assert b'" world"' in second
    assert b'"stop"' in third


def _frame_start(body: bytes, byte: int) -> bytes:
    """Return the first data line from `byte` on; fails if no frame starts there."""
    assert byte == 0 or body[:byte].endswith((b"\n\n", b"\r\n\r\n"))
    return next(line for line in body[byte:].splitlines() if line.startswith(b"data:"))


def test_byte_counts_from_the_body_and_not_from_the_head(here: Run) -> None:
    starts = [0, *accumulate(len(piece) + 2 for piece in ROLES.split(b"\n\n"))]
    expected = [(2, starts[1]), (3, starts[2])]
    for name in ("roles.txt", "curl-i.txt", "curl-raw.txt"):
        findings = _verdict(here("lint", "--json", name, "--rule", "delta-role-once"))["findings"]
        assert [(finding["frame"], finding["byte"]) for finding in findings] == expected
    assert FILES["curl-i.txt"] == HEAD + ROLES


@pytest.mark.parametrize("name", QUOTED)
def test_byte_is_a_start_of_a_frame_in_every_quoted_stream(name: str, here: Run, folder: Path) -> None:
    body = (folder / f"{name}.body").read_bytes()
    starts = {finding["byte"] for finding in _verdict(here("lint", "--json", f"{name}.json"))["findings"]} - {None, 0}
    for start in starts:
        before, after = body[:start], body[start:]
        assert before.endswith(b"\n\n")
        assert after.startswith((b"data:", b"event:", b"\n"))


def test_rules_json_lists_all_rules(here: Run) -> None:
    ran = here("rules", "--json")
    assert (ran.code, ran.err) == (0, b"")
    listed = json.loads(ran.out)
    assert list(listed) == ["version", "rules"]
    assert listed["version"] == 3
    assert len(listed["rules"]) == len(RULES)
    for rule in listed["rules"]:
        assert list(rule) == [
            "id",
            "kind",
            "source",
            "section",
            "date",
            "endpoints",
            "summary",
            "forms",
            "repairability",
            "repair",
            "detection",
        ]
        assert {form["severity"] for form in rule["forms"].values()} <= {"breaks", "tolerated", "style"}
        assert rule["repairability"] in {"lossless", "partial", "report"}
        assert rule["detection"] in {"reply", "probe"}
    assert [rule["id"] for rule in listed["rules"]] == list(RULES)


@pytest.mark.parametrize(("word", "ids"), [("n", 5), ("delta-role-once", 1)])
def test_rules_json_lists_only_the_rules_of_a_family(word: str, ids: int, here: Run) -> None:
    rules = json.loads(here("rules", word, "--json").out)["rules"]
    assert len(rules) == ids
    assert all(rule["id"].startswith(word) for rule in rules)


@pytest.mark.parametrize("name", [*(f"{name}.json" for name in QUOTED), "right.txt", "cut.txt", "error.json"])
def test_a_report_of_fix_has_these_fields_and_no_others(name: str, here: Run, tmp_path: Path) -> None:
    ran = here("fix", name, "--report", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert list(report) == ["version", "error", "usage", "repairs"]
    assert report["version"] == 2
    assert (report["error"] is None) == (ran.code == 0)
    for entry in report["repairs"]:
        assert list(entry) == ["rule", "count", "frame", "byte", "observed"]
        assert f"fix: {entry['rule']} (" in ran.notes


def test_a_report_of_fix_has_the_usage_of_a_reply_that_is_not_streamed(here: Run, tmp_path: Path) -> None:
    here("fix", "whole.json", "--report", str(tmp_path / "report.json"))
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert json.loads((tmp_path / "report.json").read_bytes())["usage"] == usage


def test_a_report_of_fix_does_not_change_the_output(here: Run, tmp_path: Path) -> None:
    plain = here("fix", "roles.txt")
    assert here("fix", "roles.txt", "--report", str(tmp_path / "report.json")) == plain
