"""The gateway is told to end while upstreams stream: what finishes in time does, and the rest is told so."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.faults import LINUX, begin, broken_off, until_refused
from tests.live.raw import Line, judged
from tests.live.server import LIMIT_S
from tests.live.upstream import DONE, ROLE, STOP, TEXT, Upstream, gateway, upstream
from welldone.mock.script import MockChunk, MockReply

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.fixture
def behind() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_that_runs_may_finish(tmp_path: Path, number: signal.Signals) -> None:
    slow = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 20, STOP, DONE))
    with upstream(lambda seen: slow) as one, gateway(tmp_path, one.url) as server:
        with begin(server) as line, begin(server, stream=False) as whole:
            line.wait(b"Hello")
            one.until(lambda scripted: len(scripted.requests) == 2)
            server.process.send_signal(number)
            until_refused(server)
            assert judged(line.reply()).text == "Hello" * 21
            assert whole.reply().ok()["choices"][0]["message"]["content"] == "Hello" * 21
        assert server.process.wait(LIMIT_S) == 0
        assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("model", ["stalls", "silent"])
def test_what_hangs_is_told_and_the_end_comes(tmp_path: Path, behind: Upstream, model: str) -> None:
    options = ["--drain", "1", "--early", "0.1"]
    with gateway(tmp_path, behind.url, options=options) as server:
        with begin(server, model=model) as line, begin(server, model=model, stream=False) as whole:
            line.wait(b"Hello" if model == "stalls" else b"HTTP/1.1 200 OK")
            behind.until(lambda one: len(one.requests) == 2)
            server.process.terminate()
            assert broken_off(line.reply())["code"] == "shutting_down"
            reply = whole.reply()
            assert reply.status == 503
            assert reply.error()["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        behind.until(lambda one: all(seen.end == "left" for seen in one.requests))
        assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_impatient_ends_it_at_once(tmp_path: Path, behind: Upstream, number: signal.Signals) -> None:
    with gateway(tmp_path, behind.url, options=["--drain", "3600"]) as server, begin(server, model="stalls") as line:
        line.wait(b"Hello")
        server.process.send_signal(number)
        until_refused(server)
        server.process.send_signal(number)
        assert broken_off(line.reply())["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        behind.until(lambda one: one.requests[-1].end == "left")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/embeddings"])
def test_what_only_passes_through_is_broken_off_at_the_end(tmp_path: Path, behind: Upstream, path: str) -> None:
    with gateway(tmp_path, behind.url, options=["--drain", "1"]) as server:
        with Line(server, path, {"model": "stalls", "input": "Hi"}) as line:
            line.wait(b"Hello")
            server.process.terminate()
            assert line.reply().trace.complete is False
        assert server.process.wait(LIMIT_S) == 0
        assert "Traceback" not in server.log.join()
