"""A real Redis as a child process, on a port of its own that it keeps when it goes away and comes back."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.server import LIMIT_S, Lines

NEEDS_REDIS = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="there is no redis-server (Debian has it)"
)


class RealRedis:
    """A Redis that keeps nothing on disk: when it comes back, it is empty."""

    def __init__(self, *options: str, password: str = "") -> None:
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._password = password
        # It is never listened on: it keeps the port.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address, as a setting."""
        return self.url_with(self._password)

    def url_with(self, password: str) -> str:
        """Its address with a password, right or wrong."""
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*words, *self._options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        Lines(self._process.stdout).wait("Ready to accept connections")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def hold(self) -> None:
        """It takes connections and says nothing, until `go`."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it, for good."""
        self.kill()
        self._place.close()

    def say(self, *words: str) -> str:
        """What it answers to a command."""
        key = ["-a", self._password, "--no-auth-warning"] if self._password else []
        asked = ["redis-cli", "-e", "-p", str(self.port), *key, *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def real_redis(*options: str, password: str = "") -> Iterator[RealRedis]:
    """A Redis that runs; ended at the end."""
    made = RealRedis(*options, password=password)
    try:
        made.start()
        yield made
    finally:
        made.end()
