"""`welldone serve` as a child process, started from its command line and stopped with a signal."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

LIMIT_S = 120.0
"""Timeout for start and shutdown. Generous for a busy machine; a hang fails the test."""
KEY = "wd-test-key-0123456789"
LATE_HEADERS = ("--early", "60")
"""The head of a stream is sent late, so that an error keeps its status code even on a busy machine."""


def reserved_port() -> socket.socket:
    """A bound socket that never listens: it reserves a port for a program, also while that does not run."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


class Lines:
    """Output of a child process, read by a thread so that the pipe never fills up."""

    def __init__(self, stream: IO[str]) -> None:
        self.all: list[str] = []
        self._changed = threading.Condition()
        self._is_open = True
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def wait(self, pattern: str, *, seen: int = 0) -> re.Match[str]:
        """Wait for a line that matches the pattern, starting at line number `seen`."""
        with self._changed:
            while True:
                for line in self.all[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self.all)
                if not self._is_open or not self._changed.wait(LIMIT_S):
                    raise AssertionError(f"no line matches {pattern!r}:\n" + "\n".join(self.all[-30:]))

    def join(self) -> str:
        """Wait for the end of the output and return all of it."""
        self._thread.join(LIMIT_S)
        return "\n".join(self.all)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self.all.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._is_open = False
            self._changed.notify_all()


class Running:
    """A running `welldone serve` process with its output and address."""

    def __init__(self, process: "subprocess.Popen[str]", model: str, key: str | None) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout = Lines(process.stdout)
        self.log = Lines(process.stderr)
        self.model = model
        self.key = key
        self.url = ""

    @property
    def port(self) -> int:
        """The TCP port of the server."""
        return int(self.url.rpartition(":")[2].removesuffix("/v1"))

    @property
    def root(self) -> str:
        """The base URL without /v1."""
        return self.url.removesuffix("/v1")

    def connect(self) -> socket.socket:
        """Open a connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S)

    def headers(self) -> dict[str, str]:
        """The Authorization header; empty without a key."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, wait for the process and return its exit code."""
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
    """Run a server with these options on a free port, and stop it when the block ends."""
    command = [sys.executable, "-m", "welldone", "serve", "--port", "0", *arguments]
    key_options = [] if key is None else ["--api-key", key]
    process = subprocess.Popen(
        [*command, *key_options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    running = Running(process, model, key)
    try:
        try:
            running.url = running.stdout.wait(r"""(?:on |"url":")(https?://[^\s"]+/v1)""")[1]
        except AssertionError as error:
            error.add_note("log of the server: " + "\n".join(running.log.all[-30:]))
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
    """A server with the default model and an API key."""
    # One thread: threads of llama.cpp that wait for each other are ten times slower on a machine with few free cores.
    options = ["-t", "1", *LATE_HEADERS]
    with serving(["-m", str(default_model), "--alias", "smollm2", *options], model="smollm2") as running:
        yield running
        assert running.end() == 0


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path) -> Iterator[Running]:
    """A server with a tiny model of random weights, which is fast and produces hard cases for streams."""
    with serving(["-m", str(tiny_model), "--alias", "tiny", "-t", "1", "-np", "4"], model="tiny") as running:
        yield running
        assert running.end() == 0
