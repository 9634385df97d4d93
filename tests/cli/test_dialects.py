"""Captured streams of /v1/responses and /v1/messages: endpoint detected, judged, repaired within their dialect."""

import json
from pathlib import Path

import pytest

from tests.cli.run import Run

RECORDED = Path(__file__).parent.parent / "recorded_dialects"
STREAMS = sorted(path for path in RECORDED.glob("*/*.body") if path.read_bytes().startswith(b"event:"))
WHOLE = sorted(path for path in RECORDED.glob("*/*_nonstream.body"))


def _endpoint(path: Path) -> str:
    return "messages" if "messages" in path.name else "responses"


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.tier3
@pytest.mark.parametrize("path", STREAMS, ids=_name)
def test_a_repaired_stream_passes_whether_its_endpoint_is_given_or_detected(path: Path, here: Run) -> None:
    seen = here("fix", str(path))
    named = here("fix", str(path), "--endpoint", _endpoint(path))
    assert (seen.code, len(seen.out)) == (named.code, len(named.out))
    for stream in (seen.out, named.out):
        linted = here("lint", "--json", "--endpoint", _endpoint(path), stdin=stream)
        assert (linted.code, json.loads(linted.out)["findings"]) == (0, [])


@pytest.mark.tier3
@pytest.mark.parametrize("path", STREAMS, ids=_name)
def test_fix_reports_every_rule_that_lint_reports(path: Path, here: Run, tmp_path: Path) -> None:
    linted = json.loads(here("lint", str(path), "--json").out)
    report = tmp_path / "repairs.json"
    here("fix", str(path), "--report", str(report))
    repaired = {entry["rule"] for entry in json.loads(report.read_text())["repairs"]}
    assert {finding["rule"] for finding in linted["findings"]} <= repaired


@pytest.mark.parametrize("path", WHOLE, ids=_name)
def test_a_reply_that_is_not_streamed_is_repaired(path: Path, here: Run) -> None:
    fixed = here("fix", str(path))
    linted = here("lint", "--json", "--endpoint", _endpoint(path), stdin=fixed.out)
    assert (fixed.code, linted.code, json.loads(linted.out)["findings"]) == (0, 0, [])
    assert json.loads(fixed.out)["usage"]


@pytest.mark.parametrize(
    ("endpoint", "stream"),
    [
        ("responses", b'data: {"error":{"message":"no","type":"x","param":null,"code":null}}\n\n'),
        ("messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"}}\n\n'),
    ],
)
def test_a_failure_is_an_error_event_of_the_dialect_and_an_exit_code(endpoint: str, stream: bytes, here: Run) -> None:
    fixed = here("fix", "--endpoint", endpoint, stdin=stream)
    assert fixed.code == 1
    assert (b"response.failed" in fixed.out) == (endpoint == "responses")
    assert (b"event: error" in fixed.out) == (endpoint == "messages")


def test_a_reply_without_an_answer_becomes_an_error_of_the_dialect(here: Run) -> None:
    errors = {}
    for endpoint in ("responses", "messages"):
        fixed = here("fix", "--endpoint", endpoint, stdin=b'{"what":1}')
        assert fixed.code == 1
        errors[endpoint] = json.loads(fixed.out)
    assert errors["responses"]["error"].keys() == {"message", "type", "param", "code"}
    assert (errors["messages"]["type"], errors["messages"]["error"].keys()) == ("error", {"type", "message"})
