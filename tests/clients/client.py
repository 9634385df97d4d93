"""A client program in its own process: receives jobs and sends results as JSON lines, within a timeout."""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.clients.programs.job import Job, Result
from tests.oracle import node_client

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.clients.programs"

# An answer takes seconds; the rest is for a busy machine. A client that exceeds it hangs.
LIMIT_S = 600.0
# End of standard error that is shown when a client exits early.
TAIL_CHARACTERS = 4000

# None of the user's settings, no telemetry, no network access.
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """Client program: its environment and its file."""

    name: str
    home: str
    file: str

    def why_missing(self) -> str | None:
        """Return why the program cannot run here; None if it can."""
        if self.home == "node":
            return node_client.why_missing()
        return None if (self._environment / ".ready").is_file() else "run: make clients"

    @property
    def _environment(self) -> Path:
        return ROOT / f".venv-{self.home}"

    def command(self) -> list[str]:
        """Return the command line."""
        if self.home == "node":
            return ["node", str(node_client.HOME / self.file)]
        return [str(self._environment / "bin" / "python"), "-m", f"{PROGRAMS}.loopback", f"{PROGRAMS}.{self.file}"]


class Client:
    """Running client program."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log_path = folder / "stderr"
        environment = {
            **ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LLM_USER_PATH": str(folder / "llm"),
        }
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment
            )
        self._buffer = b""
        self._was_killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the input, at which the program exits with status 0."""
        was_killed = self._was_killed
        try:
            self._process.communicate(timeout=LIMIT_S)
        finally:
            self._kill()
        assert was_killed or self._process.returncode == 0, self._end_of_log()

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def run_job(self, job: Job) -> Result:
        """Run one job and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._line())
        assert "crash" not in result, result["crash"]
        return result

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                has_more = selector.select(max(0.0, deadline - time.monotonic()))
                data = os.read(self._process.stdout.fileno(), 65536) if has_more else b""
                if not data:
                    self._kill()
                    raise AssertionError(f"{'exited' if has_more else 'no result in time'}: {self._end_of_log()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _kill(self) -> None:
        self._was_killed = True
        self._process.kill()
        self._process.wait()

    def _end_of_log(self) -> str:
        return self._log_path.read_text(errors="replace")[-TAIL_CHARACTERS:]
