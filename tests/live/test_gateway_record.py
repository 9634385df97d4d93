"""`--record`: what upstreams said, byte for byte, for `lint`, `fix` and `mock`; and a disk that refuses."""

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
from tests.live.faults import LINUX, answer, begin, metric
from tests.live.raw import LIMIT_S, Json, ask
from tests.live.server import Lines, Running
from tests.live.upstream import REPLIES, Upstream, eventually, gateway, upstream
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

pytestmark = pytest.mark.tier3

LOST = "welldone_recordings_dropped_total"
PAUSED = "recording is paused"
HEARD = (
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
"""What upstreams do, right and wrong."""

GIVEN_UP = ("bad-json", "error-event", "long-line")
"""Those that the gateway does not hear to their end."""


@pytest.fixture
def behind() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


@pytest.fixture
def server(behind: Upstream, tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path, behind.url, options=["--record", str(tmp_path / "recorded")]) as running:
        yield running
        assert running.end() == 0
        assert "Traceback" not in running.log.join()


def record(server: Running, folder: Path, model: str) -> tuple[Path, Json]:
    """Ask for something; the trace of it, when it is there."""
    before = set(folder.glob("*.json"))
    with begin(server, model=model) as line:
        line.reply()
    eventually(lambda: set(folder.glob("*.json")) > before)
    (made,) = set(folder.glob("*.json")) - before
    found: Json = json.loads(made.read_text())
    return made, found


@pytest.mark.parametrize("model", HEARD)
def test_a_recording_is_what_the_upstream_sent_and_lint_says_the_same_of_both(
    server: Running, tmp_path: Path, model: str
) -> None:
    file, found = record(server, tmp_path / "recorded", model)
    sent = REPLIES[model]
    body = (file.parent / found["body"]).read_bytes()
    if model in GIVEN_UP:
        assert found["body_complete"] is None
        assert sent.body.startswith(body)
    else:
        assert found["body_complete"] is (model != "cut")
        assert body == sent.body
    assert sum(size for _, size in found["pieces"]) == len(body)
    assert file.stat().st_mode & 0o777 == 0o600
    ran = command("lint", "--json", file.name, cwd=file.parent)
    assert ran.err == b""
    is_left = model in GIVEN_UP and b"\ndata: [DONE]" not in body
    heard = Trace(
        body=body[: body.rindex(b"\n\n") + 2] if is_left else body,
        endpoint="chat",
        request=found["request"],
        status=sent.status,
        headers=tuple((name, value) for name, value in found["headers"]),
        complete=found["body_complete"],
        end=None if is_left else True,
    )
    told = json.loads(ran.out)
    assert [finding["rule"] for finding in told["findings"]] == [finding.rule for finding in judge(heard).findings]
    if model in ("no-done", "no-finish", "bad-json", "cut"):
        assert told["findings"]


def test_a_recording_is_replayed_as_it_was_and_the_gateway_makes_the_same_of_it(
    server: Running, tmp_path: Path
) -> None:
    file, found = record(server, tmp_path / "recorded", "no-done")
    with begin(server, model="no-done") as line:
        first = line.reply().trace.body
    words = [COMMAND, "mock", "--port", "0", "--trace", str(file), "--speed", "0"]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        url = Lines(process.stdout).wait(r"on (http://127\.0\.0\.1:\d+/v1)$")[1]
        other = tmp_path / "other"
        other.mkdir()
        with gateway(other, url) as again, begin(again, model="no-done") as line:
            assert line.reply().trace.body == first
        with urllib.request.urlopen(f"{url}/chat/completions", data=b"{}", timeout=LIMIT_S) as reply:
            assert reply.read() == (file.parent / found["body"]).read_bytes()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        process.stdout.close()


def test_fix_makes_of_a_recording_what_the_client_got(server: Running, tmp_path: Path) -> None:
    file, _ = record(server, tmp_path / "recorded", "no-done")
    with begin(server, model="no-done", stream_options={"include_usage": True}) as line:  # as the upstream was asked
        heard = line.reply().trace.body
    ran = command("fix", file.name, cwd=file.parent)
    assert ran.code == 0, ran.err
    # The client hears the name that it asked for; the recording has what the upstream calls itself.
    assert ran.out == heard.replace(b'"model":"no-done"', b'"model":"scripted"')


@LINUX
def test_a_disk_that_takes_no_more_is_told_once_and_the_server_goes_on(server: Running, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    record(server, folder, "hello")
    files = set(folder.iterdir())
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for _ in range(3):
        assert answer(server).one.finish == "stop"
    server.log.wait(PAUSED)
    eventually(lambda: metric(server, LOST) >= 1)
    for _ in range(3):
        assert answer(server).one.finish == "stop"
    assert ask(server, "/health").status == 200
    assert set(folder.iterdir()) == files
    assert server.end() == 0
    assert server.log.join().count(PAUSED) == 1


@pytest.mark.parametrize("is_file", [False, True], ids=["gone", "a file"])
def test_a_folder_that_is_gone_is_told_once_and_the_server_goes_on(
    server: Running, tmp_path: Path, is_file: bool
) -> None:
    folder = tmp_path / "recorded"
    folder.rmdir()
    if is_file:
        folder.write_text("")
    for _ in range(3):
        assert answer(server).one.finish == "stop"
    server.log.wait(PAUSED)
    assert answer(server).one.finish == "stop"
    assert server.end() == 0
    assert server.log.join().count(PAUSED) == 1
