"""`--record`: byte-exact traces of upstream replies for `lint`, `fix` and `mock`; and disk errors."""

import json
import resource
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import COMMAND, ENVIRONMENT
from tests.cli.run import run as command
from tests.support.faults import LINUX, chat_once, metric, start_chat
from tests.support.raw import LIMIT_S, Json, fetch
from tests.support.server import Lines, Running
from tests.support.upstream import REPLIES, Upstream, eventually, gateway, upstream
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

pytestmark = pytest.mark.tier3

DROPPED = "welldone_recordings_dropped_total"
PAUSED = "recording is paused"
RECORDED_MODELS = (
    "hello",
    "no-done",
    "no-finish",
    "bad-json",
    "error-event",
    "cut",
    "wrong-type",
    "whole",
    "limited",
    "long-line",
)
"""Correct and faulty replies of the upstream, by model name."""

CANCELLED = ("bad-json", "error-event", "long-line")
"""Replies that the gateway does not read to their end."""


@pytest.fixture
def backend() -> Iterator[Upstream]:
    with upstream() as started:
        yield started


@pytest.fixture
def server(backend: Upstream, tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path, backend.url, options=["--record", str(tmp_path / "recorded")]) as running:
        yield running
        assert running.end() == 0
        assert "Traceback" not in running.log.join()


def record(server: Running, folder: Path, model: str) -> tuple[Path, Json]:
    """Send a request, wait for its trace, and return the file and its content."""
    before = set(folder.glob("*.json"))
    with start_chat(server, model=model) as connection:
        connection.reply()
    eventually(lambda: set(folder.glob("*.json")) > before)
    (file,) = set(folder.glob("*.json")) - before
    trace: Json = json.loads(file.read_text())
    return file, trace


@pytest.mark.parametrize("model", RECORDED_MODELS)
def test_a_recording_equals_the_upstream_reply_and_lint_has_the_same_findings(
    server: Running, tmp_path: Path, model: str
) -> None:
    file, trace = record(server, tmp_path / "recorded", model)
    sent = REPLIES[model]
    body = (file.parent / trace["body"]).read_bytes()
    if model in CANCELLED:
        assert trace["body_complete"] is None
        assert sent.body.startswith(body)
    else:
        assert trace["body_complete"] is (model != "cut")
        assert body == sent.body
    assert sum(size for _, size in trace["pieces"]) == len(body)
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]
    lint = command("lint", "--json", file.name, cwd=file.parent)
    assert lint.err == b""
    is_partial = model in CANCELLED and b"\ndata: [DONE]" not in body
    expected = Trace(
        body=body[: body.rindex(b"\n\n") + 2] if is_partial else body,
        endpoint="chat",
        request=trace["request"],
        status=sent.status,
        headers=tuple((name, value) for name, value in trace["headers"]),
        complete=trace["body_complete"],
        end=None if is_partial else True,
    )
    report = json.loads(lint.out)
    assert [finding["rule"] for finding in report["findings"]] == [finding.rule for finding in judge(expected).findings]
    if model in ("no-done", "no-finish", "bad-json", "cut"):
        assert report["findings"]


def test_a_replayed_recording_gives_the_same_bytes_through_the_gateway(server: Running, tmp_path: Path) -> None:
    file, trace = record(server, tmp_path / "recorded", "no-done")
    with start_chat(server, model="no-done") as connection:
        first = connection.reply().trace.body
    arguments = [COMMAND, "mock", "--port", "0", "--trace", str(file), "--speed", "0"]
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        url = Lines(process.stdout).wait(r"on (http://127\.0\.0\.1:\d+/v1)$")[1]
        other = tmp_path / "other"
        other.mkdir()
        with gateway(other, url) as replaying, start_chat(replaying, model="no-done") as connection:
            assert connection.reply().trace.body == first
        with urllib.request.urlopen(f"{url}/chat/completions", data=b"{}", timeout=LIMIT_S) as reply:
            assert reply.read() == (file.parent / trace["body"]).read_bytes()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        process.stdout.close()


def test_fix_of_a_recording_gives_the_bytes_that_the_client_received(server: Running, tmp_path: Path) -> None:
    file, _ = record(server, tmp_path / "recorded", "no-done")
    options = {"include_usage": True}  # as in the upstream request
    with start_chat(server, model="no-done", stream_options=options) as connection:
        received = connection.reply().trace.body
    fix = command("fix", file.name, cwd=file.parent)
    assert fix.code == 0, fix.err
    # The client receives the model name of its request; the recording has that of the upstream.
    assert fix.out == received.replace(b'"model":"no-done"', b'"model":"scripted"')


@LINUX
def test_a_full_disk_is_logged_once_and_requests_still_succeed(server: Running, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    record(server, folder, "hello")
    files = set(folder.iterdir())
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for _ in range(3):
        assert chat_once(server).choice.finish == "stop"
    server.log.wait(PAUSED)
    eventually(lambda: metric(server, DROPPED) >= 1)
    for _ in range(3):
        assert chat_once(server).choice.finish == "stop"
    assert fetch(server, "/health").status == 200
    assert set(folder.iterdir()) == files
    assert server.end() == 0
    assert server.log.join().count(PAUSED) == 1


@pytest.mark.parametrize("is_file", [False, True], ids=["missing", "a file"])
def test_a_missing_folder_is_logged_once_and_requests_still_succeed(
    server: Running, tmp_path: Path, is_file: bool
) -> None:
    folder = tmp_path / "recorded"
    folder.rmdir()
    if is_file:
        folder.write_text("")
    for _ in range(3):
        assert chat_once(server).choice.finish == "stop"
    server.log.wait(PAUSED)
    assert chat_once(server).choice.finish == "stop"
    assert server.end() == 0
    assert server.log.join().count(PAUSED) == 1
