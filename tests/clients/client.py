"""A client as a program of its own: it gets jobs as JSON lines and says what it saw, within a time limit."""

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

from tests.clients.programs.job import Job, Saw
from tests.oracle import node_client

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.clients.programs"

# An answer takes seconds. The rest is for a busy machine; who is late by then hangs.
LIMIT_S = 180.0
# What of standard error is shown when a client ends too soon.
TAIL_CHARACTERS = 4000

# Nothing of the user's own settings, and nothing that asks home.
QUIET = {
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
    """How a client is started: in which environment, by which file."""

    name: str
    home: str
    file: str

    def why_missing(self) -> str | None:
        """Why it cannot run here; None where it can."""
        if self.home == "node":
            return node_client.why_missing()
        return None if (self._environment / ".ready").is_file() else "run: make clients"

    @property
    def _environment(self) -> Path:
        return ROOT / f".venv-{self.home}"

    def command(self) -> list[str]:
        """The words that start it."""
        if self.home == "node":
            return ["node", str(node_client.HOME / self.file)]
        return [str(self._environment / "bin" / "python"), "-m", f"{PROGRAMS}.loopback", f"{PROGRAMS}.{self.file}"]


class Client:
    """One running program."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._words = folder / "stderr"
        environment = {**QUIET, "PATH": os.environ["PATH"], "HOME": str(folder), "LLM_USER_PATH": str(folder / "llm")}
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, cwd=ROOT, env=environment
            )
        self._heard = b""
        self._was_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Without more jobs it ends by itself, and well; else it is ended."""
        was_ended = self._was_ended
        try:
            self._process.communicate(timeout=LIMIT_S)
        finally:
            self._end()
        assert was_ended or self._process.returncode == 0, self._last_words()

    @property
    def is_running(self) -> bool:
        """It can be asked."""
        return self._process.poll() is None

    def ask(self, job: Job) -> Saw:
        """What the client saw."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._process.stdin.flush()
        saw: dict[str, Any] = json.loads(self._line())
        assert "crash" not in saw, saw["crash"]
        return saw

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                has_more = ready.select(max(0.0, deadline - time.monotonic()))
                piece = os.read(self._process.stdout.fileno(), 65536) if has_more else b""
                if not piece:
                    self._end()
                    raise AssertionError(f"{'ended' if has_more else 'no answer in time'}: {self._last_words()}")
                self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _end(self) -> None:
        self._was_ended = True
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        return self._words.read_text(errors="replace")[-TAIL_CHARACTERS:]
