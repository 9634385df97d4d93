"""Snapshots of the output of commands. WELLDONE_SNAPSHOTS=1 rewrites them."""

import os
import re
import time
from pathlib import Path

import pytest

from tests.cli.captures import QUOTED
from tests.cli.run import CommandResult, Run
from welldone import __version__

SNAPSHOTS = Path(__file__).parent / "snapshots"
CASES = {
    "help": "--help",
    "no-command": "",
    "version": "--version",
    **{f"lint-{name}": f"lint {name}.json" for name in QUOTED},
    "lint-right": "lint right.txt",
    "lint-body-alone": "lint roles.txt",
    "lint-curl-i": "lint curl-i.txt",
    "lint-curl-raw": "lint curl-raw.txt",
    "lint-curl-raw-cut": "lint curl-cut.txt",
    "lint-request": "lint used.txt --request request.json",
    "lint-request-usage": "lint used.txt --request request-usage.json",
    "lint-request-and-head": "lint curl-i.txt --request request.json",
    "lint-json": "lint roles.txt --json",
    "lint-json-right": "lint right.txt --json",
    "lint-rule": "lint roles.txt --rule delta-role-once",
    "lint-rules": "lint roles.txt --rule delta-role-once --rule end-done-sent --rule sse-no-bom",
    "lint-rule-kept": "lint roles.txt --rule sse-no-bom",
    "lint-crlf": "lint crlf.txt",
    "lint-completions": "lint completions.txt",
    "lint-wrong-endpoint": "lint completions.txt --endpoint chat --rule env-object-const --rule delta-object-present",
    "lint-cut": "lint cut.txt",
    "lint-failed": "lint failed.txt",
    "lint-whole": "lint whole.json",
    "lint-whole-wrong": "lint whole-wrong.json",
    "lint-error": "lint error.json",
    "lint-error-with-head": "lint error-i.txt",
    "lint-garbage": "lint garbage.txt",
    **{f"fix-{name}": f"fix {name}.json" for name in QUOTED},
    "fix-right": "fix right.txt",
    "fix-roles": "fix roles.txt",
    "fix-calls": "fix calls.txt",
    "fix-curl-i": "fix curl-i.txt",
    "fix-curl-raw": "fix curl-raw.txt",
    "fix-completions": "fix completions.txt",
    "fix-trace": "fix trace.json",
    "fix-request": "fix used.txt --request request.json",
    "fix-request-usage": "fix roles.txt --request request-usage.json",
    "fix-crlf": "fix crlf.txt",
    "fix-cut": "fix cut.txt",
    "fix-failed": "fix failed.txt",
    "fix-whole": "fix whole.json",
    "fix-whole-wrong": "fix whole-wrong.json",
    "fix-whole-for-a-stream": "fix whole.json --request request.json",
    "fix-error": "fix error.json",
    "fix-garbage": "fix garbage.txt",
    "rules": "rules",
    "rules-tool": "rules tool",
    "rules-one": "rules delta-role-once",
}
REPORTS = {
    "report-roles": "roles.txt",
    "report-used": "used.txt",
    "report-cut": "cut.txt",
    "report-right": "right.txt",
    "report-whole-wrong": "whole-wrong.json",
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_matches_the_snapshot(name: str, here: Run) -> None:
    begun = int(time.time())
    shown = _shown(here(*CASES[name].split()), range(begun, int(time.time()) + 1))
    _compare(name, shown)


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_of_fix_matches_the_snapshot(name: str, here: Run, tmp_path: Path) -> None:
    here("fix", REPORTS[name], "--report", str(tmp_path / "report.json"))
    _compare(name, (tmp_path / "report.json").read_text("utf-8"))


def test_every_snapshot_belongs_to_a_case() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == CASES.keys() | REPORTS.keys()


def _compare(name: str, shown: str) -> None:
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("WELLDONE_SNAPSHOTS"):
        snapshot.write_bytes(shown.encode())
    assert snapshot.read_bytes().decode() == shown


def _shown(ran: CommandResult, now: range) -> str:
    """Return the output without what differs between runs: the version, generated ids, the time."""
    out = ran.out.decode("utf-8").replace(f"welldone {__version__}\n", "welldone VERSION\n")
    out = re.sub(r'"((?:chat)?cmpl-|call_)[0-9a-f]{24}', r'"\1MADE', out)
    for second in now:
        out = out.replace(f'"created":{second},', '"created":NOW,')
    return f"exit {ran.code}\n{out}--- stderr\n{ran.notes}"
