"""Load from concurrent clients, and the outcome of each request."""

import json
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.raw import CHAT, LIMIT_S, Json, RawConnection, parse_valid
from tests.support.server import Running

ON_RAY = pytest.mark.filterwarnings("ignore")
"""Mark of all Ray tests: Ray causes many deprecation warnings."""

FAST_SCALING = """[scale]
upscale_delay_s = 0.5
downscale_delay_s = 0.5
look_back_s = 1
[scale.front]
num_cpus = 0.25
"""
"""Configuration in which replicas are added and removed within seconds."""

_PID = rb'"content":"([0-9]+)'


class RemoteServer(Running):
    """A server that another process has started."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.key = key
        self.model = ""
        self.url = f"http://127.0.0.1:{port}/v1"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a request."""

    kind: str
    """`whole`: complete and correct. `error`: started, and ended with an error and [DONE], which is correct if its
    engine died. Anything else describes a violation."""
    engine: int = 0
    """The process id of the engine."""

    @property
    def is_allowed(self) -> bool:
        """Whether this is allowed when something dies."""
        return self.kind in ("whole", "error")


class PendingRequest:
    """A request in progress. The engines of these tests answer with their process id, repeatedly."""

    def __init__(
        self, server: Running, *, tokens: int, stream: bool = True, prompt: str = "Hi", model: str = ""
    ) -> None:
        request: Json = {
            "model": model or server.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": stream,
        }
        self._connection = RawConnection(server, CHAT, request)
        self.engine = 0

    def wait_for_engine(self) -> int:
        """Wait for the first token; return the process id of the engine."""
        self.engine = int(self._connection.wait(_PID)[1])
        return self.engine

    def has_ended(self) -> bool:
        """Return whether the reply has ended."""
        while select.select([self._connection.socket], [], [], 0)[0]:
            if not self._connection.read():
                return True
        return False

    def outcome(self) -> Outcome:
        """Wait for the end of the reply."""
        with self._connection as connection:
            try:
                reply = connection.reply()
            except OSError as error:
                return Outcome(f"lost: {error}, after {connection.received[-300:]!r}", self.engine)
        if reply.trace.status is None:
            return Outcome(f"lost, after {connection.received[-300:]!r}")
        if b'"error"' in reply.trace.body and reply.status == 200:
            return Outcome(_error_outcome(reply.trace.body), self.engine)
        try:
            answer = parse_valid(reply)
        except AssertionError as error:
            return Outcome(f"incorrect: {reply.status} {error}", self.engine)
        return Outcome("whole", int(answer.text.split()[0]))


def _error_outcome(body: bytes) -> str:
    """Return the outcome of a stream with an error."""
    events = body.decode().rstrip("\n").split("\n\n")
    if events[-1] != "data: [DONE]" or "error" not in json.loads(events[-2].removeprefix("data: ")):
        return f"an error without a correct end: {events[-2:]}"
    return "error"


class Load:
    """Clients that send one request after the other."""

    def __init__(self, server: Running, *, tokens: int, model: str = "") -> None:
        self.outcomes: list[Outcome] = []
        self._server, self._tokens, self._model = server, tokens, model
        self._is_stopping = threading.Event()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def add(self, clients: int) -> None:
        """Start more clients; half of them use streams."""
        for number in range(clients):
            self._threads.append(threading.Thread(target=self._send_requests, args=(number % 2 == 0,), daemon=True))
            self._threads[-1].start()

    def wait(self, count: int) -> list[Outcome]:
        """Return the outcomes of the next requests that end."""
        with self._changed:
            start = len(self.outcomes)
            assert self._changed.wait_for(lambda: len(self.outcomes) >= start + count, LIMIT_S)
            return self.outcomes[start:]

    def end(self) -> None:
        """Wait for the requests in progress, then stop the clients."""
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        self._threads.clear()
        self._is_stopping.clear()

    def _send_requests(self, stream: bool) -> None:
        while not self._is_stopping.is_set():
            try:
                outcome = PendingRequest(self._server, tokens=self._tokens, stream=stream, model=self._model).outcome()
            except OSError as error:
                outcome = Outcome(f"rejected: {error}")
            with self._changed:
                self.outcomes.append(outcome)
                self._changed.notify_all()
            if not outcome.is_allowed:
                return  # one is enough to fail the test


@contextmanager
def running_load(server: Running, clients: int, *, tokens: int, model: str = "") -> Iterator[Load]:
    """Run clients until the end of the block."""
    load = Load(server, tokens=tokens, model=model)
    load.add(clients)
    try:
        yield load
    finally:
        load.end()
