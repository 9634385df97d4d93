"""A Redis server as a child process, on a port that stays reserved across restarts."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.server import LIMIT_S, Lines, reserved_port

WHY_MISSING = "" if shutil.which("redis-server") else "redis-server is not installed (Debian package redis-server)"
NEEDS_REDIS = pytest.mark.skipif(bool(WHY_MISSING), reason=WHY_MISSING)


class RealRedis:
    """A Redis server without persistence: it is empty after a restart."""

    def __init__(self, *options: str, password: str = "") -> None:
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._password = password
        self._reservation = reserved_port()
        self.port: int = self._reservation.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The URL with the password, as in the settings."""
        return self.url_with(self._password)

    def url_with(self, password: str) -> str:
        """The URL with any password."""
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the process and wait until it accepts connections."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        Lines(self._process.stdout).wait("Ready to accept connections")

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def suspend(self) -> None:
        """Stop the process: it accepts connections and sends nothing until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the stopped process."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the process and release the port."""
        self.kill()
        self._reservation.close()

    def command(self, *arguments: str) -> str:
        """Run a Redis command and return its output."""
        password = ["-a", self._password, "--no-auth-warning"] if self._password else []
        command = ["redis-cli", "-e", "-p", str(self.port), *password, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def real_redis(*options: str, password: str = "") -> Iterator[RealRedis]:
    """Run a Redis server, and stop it when the block ends."""
    server = RealRedis(*options, password=password)
    try:
        server.start()
        yield server
    finally:
        server.end()
