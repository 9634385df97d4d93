"""Requests that do harm to servers that trust them: none does any here, and a stream beside them does not notice."""

import logging
import threading
import time
from pathlib import Path

from tests.live.faults import LINUX, LONG, RESTARTS, answer, begin, engine_of, metric, small, speak
from tests.live.raw import LIMIT_S, Reply, judged
from tests.live.server import Running
from tests.serve.abuse import ABUSES, Abuse
from welldone.rules.capture import read_capture

pytestmark = LINUX
LOGGER = logging.getLogger(__name__)


class Watcher(threading.Thread):
    """A client that has one stream after the other, and notes the longest time in which nothing came."""

    def __init__(self, server: Running) -> None:
        super().__init__()
        self.replies: list[Reply] = []
        self.largest_gap_s = 0.0
        self._server = server
        self._is_ending = threading.Event()

    def run(self) -> None:
        while not self._is_ending.is_set():
            with begin(self._server, max_tokens=LONG) as line:
                last = 0.0
                while line.read():
                    now = time.monotonic()
                    self.largest_gap_s = max(self.largest_gap_s, now - (last or now))
                    last = now
                self.replies.append(line.reply())

    def end(self) -> None:
        """Let it hear its last stream to the end."""
        self._is_ending.set()
        self.join(LIMIT_S)
        assert not self.is_alive()


def send(server: Running, abuse: Abuse) -> Reply:
    """The request with exactly these bytes, and what came back."""
    lines = [
        f"POST {abuse.path} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Connection: close",
        f"Authorization: Bearer {server.key}",
        f"Content-Length: {len(abuse.body)}",
        *(f"{name}: {value}" for name, value in abuse.headers.items()),
    ]
    return Reply(read_capture(speak(server, "\r\n".join([*lines, "", ""]).encode() + abuse.body)))


def trouble(abuse: Abuse, reply: Reply) -> str | None:
    """What is wrong with the reply to it."""
    is_unknown = reply.status == 404 and b'"model":' in abuse.body  # the server looks for the model first
    if reply.status not in abuse.statuses and not is_unknown:
        return f"{abuse.name}: {reply.status} {reply.trace.body[:200]!r}"
    if reply.status >= 400 and not reply.error()["message"]:
        return f"{abuse.name}: an error without a word"
    return None


def test_no_abuse_harms_the_server_or_a_stream_beside_it(tiny_model: Path) -> None:
    with small(tiny_model, "-np", "2", "-c", "4096") as server, engine_of(server) as engine:
        watcher = Watcher(server)
        watcher.start()
        try:
            troubles = [trouble(abuse, send(server, abuse)) for abuse in ABUSES]
        finally:
            watcher.end()
        assert [found for found in troubles if found] == []
        with engine_of(server) as now:
            assert now.pid == engine.pid
        assert metric(server, RESTARTS) == 0
        assert answer(server).one.finish == "length"
        for reply in watcher.replies:
            assert judged(reply).one.finish == "length"
        # No bound is asserted: on a busy machine any would fail. `--log-cli-level=info` shows it.
        LOGGER.info("the longest silence of a stream beside %d abuses: %.3f s", len(ABUSES), watcher.largest_gap_s)
        server.process.terminate()
        assert server.process.wait(LIMIT_S) == 0
        assert "a request failed" not in server.log.join()
