"""Captured streams of /v1/responses and /v1/messages: endpoint detected, judged, repaired within their dialect."""

import json
from pathlib import Path

import pytest

from tests.cli.run import run

RECORDED = Path(__file__).parent.parent / "recorded_dialects"
STREAMS = sorted(path for path in RECORDED.glob("*/*.body") if path.read_bytes().startswith(b"event:"))
WHOLE = sorted(path for path in RECORDED.glob("*/*_nonstream.body"))


def _endpoint(path: Path) -> str:
    return "messages" if "messages" in path.name else "responses"


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.tier3
@pytest.mark.parametrize("path", STREAMS, ids=_name)
def test_a_repaired_stream_passes_whether_its_endpoint_is_given_or_detected(path: Path, tmp_path: Path) -> None:
    seen = run("fix", str(path), cwd=tmp_path)
    named = run("fix", str(path), "--endpoint", _endpoint(path), cwd=tmp_path)
    assert (seen.code, len(seen.out)) == (named.code, len(named.out))
    for stream in (seen.out, named.out):
        linted = run("lint", "--json", "--endpoint", _endpoint(path), stdin=stream, cwd=tmp_path)
        assert (linted.code, json.loads(linted.out)["findings"]) == (0, [])


@pytest.mark.tier3
@pytest.mark.parametrize("path", STREAMS, ids=_name)
def test_fix_reports_every_rule_that_lint_reports(path: Path, tmp_path: Path) -> None:
    linted = json.loads(run("lint", str(path), "--json", cwd=tmp_path).out)
    report = tmp_path / "repairs.json"
    run("fix", str(path), "--report", str(report), cwd=tmp_path)
    repaired = {entry["rule"] for entry in json.loads(report.read_text())["repairs"]}
    assert {finding["rule"] for finding in linted["findings"]} <= repaired


@pytest.mark.parametrize("path", WHOLE, ids=_name)
def test_a_reply_that_is_not_streamed_is_repaired(path: Path, tmp_path: Path) -> None:
    fixed = run("fix", str(path), cwd=tmp_path)
    linted = run("lint", "--json", "--endpoint", _endpoint(path), stdin=fixed.out, cwd=tmp_path)
    assert (fixed.code, linted.code, json.loads(linted.out)["findings"]) == (0, 0, [])
    assert json.loads(fixed.out)["usage"]


@pytest.mark.parametrize(
    ("endpoint", "stream"),
    [
        ("responses", b'data: {"error":{"message":"no","type":"x","param":null,"code":null}}\n\n'),
        ("messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"}}\n\n'),
    ],
)
def test_a_failure_is_an_error_event_of_the_dialect_and_an_exit_code(
    endpoint: str, stream: bytes, tmp_path: Path
) -> None:
    fixed = run("fix", "--endpoint", endpoint, stdin=stream, cwd=tmp_path)
    assert fixed.code == 1
    assert (b"response.failed" in fixed.out) == (endpoint == "responses")
    assert (b"event: error" in fixed.out) == (endpoint == "messages")


def test_a_reply_without_an_answer_becomes_an_error_of_the_dialect(tmp_path: Path) -> None:
    errors = {}
    for endpoint in ("responses", "messages"):
        fixed = run("fix", "--endpoint", endpoint, stdin=b'{"what":1}', cwd=tmp_path)
        assert fixed.code == 1
        errors[endpoint] = json.loads(fixed.out)
    assert errors["responses"]["error"].keys() == {"message", "type", "param", "code"}
    assert (errors["messages"]["type"], errors["messages"]["error"].keys()) == ("error", {"type", "message"})
