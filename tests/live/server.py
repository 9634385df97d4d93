"""The real server as a child process, started as a user starts it and ended as an operator ends it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

LIMIT_S = 120.0
"""No start and no end takes that long, also on a busy machine: a hang is a failure."""
KEY = "wd-test-key-0123456789"
PATIENT = ("--early", "60")
"""On a busy machine a refusal may take longer than a second, and must have its status all the same."""


class Lines:
    """What a child says, read as it comes so that it is never held back."""

    def __init__(self, stream: IO[str]) -> None:
        self.all: list[str] = []
        self._news = threading.Condition()
        self._is_open = True
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def wait(self, pattern: str, *, seen: int = 0) -> re.Match[str]:
        """The first line from the `seen`-th on that has the pattern in it."""
        with self._news:
            while True:
                for line in self.all[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self.all)
                if not self._is_open or not self._news.wait(LIMIT_S):
                    raise AssertionError(f"never said {pattern!r}:\n" + "\n".join(self.all[-30:]))

    def join(self) -> str:
        """All of it, when the child has ended."""
        self._thread.join(LIMIT_S)
        return "\n".join(self.all)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self.all.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._is_open = False
            self._news.notify_all()


class Running:
    """A server that runs."""

    def __init__(self, process: "subprocess.Popen[str]", model: str, key: str | None) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.said = Lines(process.stdout)
        self.log = Lines(process.stderr)
        self.model = model
        self.key = key
        self.url = ""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2].removesuffix("/v1"))

    @property
    def root(self) -> str:
        """Its address without /v1."""
        return self.url.removesuffix("/v1")

    def headers(self) -> dict[str, str]:
        """The key, as a client sends it."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        self.log.join()
        return code


@contextmanager
def serving(
    arguments: Sequence[str],
    *,
    model: str = "",
    key: str | None = KEY,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    is_awaited: bool = True,
) -> Iterator[Running]:
    """A server with these options on a port of its own; ended at the end, however that comes."""
    words = [sys.executable, "-m", "welldone", "serve", "--port", "0", *arguments]
    keys = [] if key is None else ["--api-key", key]
    process = subprocess.Popen(
        [*words, *keys],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    running = Running(process, model, key)
    try:
        try:
            running.url = running.said.wait(r"""(?:on |"url":")(https?://[^\s"]+/v1)""")[1]
        except AssertionError as error:
            error.add_note("its log: " + "\n".join(running.log.all[-30:]))
            raise
        if is_awaited:
            running.log.wait("model is ready")
        yield running
    finally:
        try:
            running.end()
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def server(default_model: Path) -> Iterator[Running]:
    """The default model, with a key, as most clients meet it."""
    # One thread: several that wait for each other are ten times slower where fewer cores than threads are free.
    options = ["-t", "1", *PATIENT]
    with serving(["-m", str(default_model), "--alias", "smollm2", *options], model="smollm2") as running:
        yield running
        assert running.end() == 0


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path) -> Iterator[Running]:
    """A model of random weights: fast, and a torture for streams."""
    with serving(["-m", str(tiny_model), "--alias", "tiny", "-t", "1", "-np", "4"], model="tiny") as running:
        yield running
        assert running.end() == 0
