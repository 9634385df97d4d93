"""Requests of many clients at once, and what became of each."""

import json
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.live.raw import CHAT, LIMIT_S, Json, Line, judged
from tests.live.server import Running

ON_RAY = pytest.mark.filterwarnings("ignore")
"""What the tests of this folder are marked with. Ray uses much that is deprecated."""

_PID = rb'"content":"([0-9]+)'


class Reached(Running):
    """A server that was not started here: where it is, and what to say to it."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.key = key
        self.model = ""
        self.url = f"http://127.0.0.1:{port}/v1"


@dataclass(frozen=True)
class Outcome:
    """What became of a request."""

    kind: str
    """`whole`: all of it came, and it is right. `error`: it began, and ended with an error and [DONE], as it should
    where its engine has died. All else says what is wrong."""
    engine: int = 0
    """The process that answered."""

    @property
    def is_fair(self) -> bool:
        """Whether this may happen where something dies."""
        return self.kind in ("whole", "error")


class Begun:
    """A request that is on its way. The engines of these tests say their process's number again and again."""

    def __init__(self, server: Running, *, tokens: int, stream: bool = True, says: str = "Hi", model: str = "") -> None:
        request: Json = {
            "model": model or server.model,
            "messages": [{"role": "user", "content": says}],
            "max_tokens": tokens,
            "stream": stream,
        }
        self._line = Line(server, CHAT, request)
        self.engine = 0

    def heard(self) -> int:
        """Wait for its first word; the process that says it."""
        self.engine = int(self._line.wait(_PID)[1])
        return self.engine

    def is_over(self) -> bool:
        """Whether its end has come by now."""
        while select.select([self._line.socket], [], [], 0)[0]:
            if not self._line.read():
                return True
        return False

    def outcome(self) -> Outcome:
        """Wait for its end."""
        with self._line as line:
            try:
                reply = line.reply()
            except OSError as error:
                return Outcome(f"lost: {error}, after {line.heard[-300:]!r}", self.engine)
        if reply.trace.status is None:
            return Outcome(f"lost, after {line.heard[-300:]!r}")
        if b'"error"' in reply.trace.body and reply.status == 200:
            return Outcome(_broken(reply.trace.body), self.engine)
        try:
            said = judged(reply)
        except AssertionError as error:
            return Outcome(f"not right: {reply.status} {error}", self.engine)
        return Outcome("whole", int(said.text.split()[0]))


def _broken(body: bytes) -> str:
    """How a stream ended that has an error in it."""
    events = body.decode().rstrip("\n").split("\n\n")
    if events[-1] != "data: [DONE]" or "error" not in json.loads(events[-2].removeprefix("data: ")):
        return f"an error, and no right end: {events[-2:]}"
    return "error"


class Load:
    """Clients who ask one thing after the other."""

    def __init__(self, server: Running, *, tokens: int, model: str = "") -> None:
        self.outcomes: list[Outcome] = []
        self._server, self._tokens, self._model = server, tokens, model
        self._is_over = threading.Event()
        self._news = threading.Condition()
        self._threads: list[threading.Thread] = []

    def add(self, clients: int) -> None:
        """So many more of them. Half of them want streams."""
        for number in range(clients):
            self._threads.append(threading.Thread(target=self._ask, args=(number % 2 == 0,), daemon=True))
            self._threads[-1].start()

    def wait(self, more: int) -> list[Outcome]:
        """What became of the next so many requests that end."""
        with self._news:
            before = len(self.outcomes)
            assert self._news.wait_for(lambda: len(self.outcomes) >= before + more, LIMIT_S)
            return self.outcomes[before:]

    def end(self) -> None:
        """Let them finish what they have asked."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        self._threads.clear()
        self._is_over.clear()

    def _ask(self, stream: bool) -> None:
        while not self._is_over.is_set():
            try:
                outcome = Begun(self._server, tokens=self._tokens, stream=stream, model=self._model).outcome()
            except OSError as error:
                outcome = Outcome(f"refused: {error}")
            with self._news:
                self.outcomes.append(outcome)
                self._news.notify_all()
            if not outcome.is_fair:
                return  # one is enough to fail


@contextmanager
def loaded(server: Running, clients: int, *, tokens: int, model: str = "") -> Iterator[Load]:
    """Clients who ask until the end of the block."""
    load = Load(server, tokens=tokens, model=model)
    load.add(clients)
    try:
        yield load
    finally:
        load.end()
