"""Captured streams of /v1/responses and /v1/messages: known by themselves, judged, and mended within their dialect."""

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
def test_a_mended_stream_is_right_whether_its_endpoint_is_named_or_seen(path: Path, tmp_path: Path) -> None:
    seen = run("fix", str(path), cwd=tmp_path)
    named = run("fix", str(path), "--endpoint", _endpoint(path), cwd=tmp_path)
    assert (seen.code, len(seen.out)) == (named.code, len(named.out))
    for stream in (seen.out, named.out):
        told = run("lint", "--json", "--endpoint", _endpoint(path), stdin=stream, cwd=tmp_path)
        assert (told.code, json.loads(told.out)["findings"]) == (0, [])


@pytest.mark.tier3
@pytest.mark.parametrize("path", STREAMS, ids=_name)
def test_lint_and_fix_agree_on_what_was_wrong(path: Path, tmp_path: Path) -> None:
    told = json.loads(run("lint", str(path), "--json", cwd=tmp_path).out)
    report = tmp_path / "mended.json"
    run("fix", str(path), "--report", str(report), cwd=tmp_path)
    mended = {note["rule"] for note in json.loads(report.read_text())["mended"]}
    assert {finding["rule"] for finding in told["findings"]} <= mended


@pytest.mark.parametrize("path", WHOLE, ids=_name)
def test_a_whole_reply_is_mended_to_one(path: Path, tmp_path: Path) -> None:
    fixed = run("fix", str(path), cwd=tmp_path)
    told = run("lint", "--json", "--endpoint", _endpoint(path), stdin=fixed.out, cwd=tmp_path)
    assert (fixed.code, told.code, json.loads(told.out)["findings"]) == (0, 0, [])
    assert json.loads(fixed.out)["usage"]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("responses", b'data: {"error":{"message":"no","type":"x","param":null,"code":null}}\n\n'),
        ("messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"}}\n\n'),
    ],
)
def test_a_failure_is_said_in_the_dialect_and_by_the_exit_code(endpoint: str, said: bytes, tmp_path: Path) -> None:
    fixed = run("fix", "--endpoint", endpoint, stdin=said, cwd=tmp_path)
    assert fixed.code == 1
    assert (b"response.failed" in fixed.out) == (endpoint == "responses")
    assert (b"event: error" in fixed.out) == (endpoint == "messages")


def test_a_whole_reply_that_is_none_becomes_an_error_in_the_dialects_shape(tmp_path: Path) -> None:
    said = {}
    for endpoint in ("responses", "messages"):
        fixed = run("fix", "--endpoint", endpoint, stdin=b'{"what":1}', cwd=tmp_path)
        assert fixed.code == 1
        said[endpoint] = json.loads(fixed.out)
    assert said["responses"]["error"].keys() == {"message", "type", "param", "code"}
    assert (said["messages"]["type"], said["messages"]["error"].keys()) == ("error", {"type", "message"})
