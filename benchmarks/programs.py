"""The ends of the way, in C so that they cost little: a paced upstream and a reader. They are compiled when needed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

MODEL = "paced"
_COMPILE_S, _START_S, _END_S = 60.0, 10.0, 10.0  # each takes a second at most: a hang is a failure
_AFTER_S = 10.0  # a reader that has its own limit prints soon after it


class ProgramError(Exception):
    """It cannot be made, or has failed; why."""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader heard."""

    whole: int
    failed: int
    why: list[str]
    texts: int
    texts_between: int
    """Between the two moments of the plan."""
    bytes: int
    first_s: list[float]
    """From the request to the first text, of each stream."""
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the reader does. Moments are those of `time.monotonic`."""

    streams: int
    texts: int
    start: float
    step_s: float
    """Between the opening of a stream and that of the next."""
    since: float
    until: float
    limit: float


@dataclass(frozen=True)
class Programs:
    """Both, compiled."""

    upstream: Path
    reader: Path


def compile_all(folder: Path) -> Programs:
    """Both programs, made in this folder."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ProgramError("there is no C compiler: apt-get install gcc libc6-dev")
    made = [_compile(compiler, name, folder) for name in ("upstream", "reader")]
    return Programs(*made)


def _compile(compiler: str, name: str, folder: Path) -> Path:
    source, made = Path(__file__).with_name(f"{name}.c"), folder / name
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(made), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if done.returncode != 0:
        raise ProgramError(f"{source.name} does not compile:\n{done.stderr}")
    return made


def pin(core: int | None) -> None:
    """This process and its children run on that core only."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextmanager
def upstream(programs: Programs, *, gap_ms: float, core: int | None, is_stamped: bool = False) -> Iterator[int]:
    """The upstream, running; its port."""
    with subprocess.Popen(
        [str(programs.upstream), str(gap_ms), *(["stamped"] if is_stamped else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: pin(core),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise ProgramError("the upstream did not start")
            yield int(line)
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S)
            finally:
                process.kill()


class Reader:
    """The reader, running."""

    def __init__(self, programs: Programs, *, port: int, plan: Plan, core: int | None) -> None:
        moments = (plan.start, plan.step_s, plan.since, plan.until, plan.limit)
        self._plan = plan
        self._process = subprocess.Popen(
            [str(programs.reader), str(port), str(plan.streams), str(plan.texts), *map(repr, moments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: pin(core),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(request(port, plan.texts))
        self._process.stdin.close()
        self._process.stdin = None

    def end(self, seconds: float) -> Heard:
        """What it heard, at most so many seconds from now."""
        try:
            heard, _ = self._process.communicate(timeout=seconds + _AFTER_S)
        finally:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:
            raise ProgramError(f"the reader ended with {self._process.returncode}")
        return msgspec.json.decode(heard, type=Heard)


def request(port: int, texts: int) -> bytes:
    """A request for so many texts, as a common client sends it."""
    body = msgspec.json.encode(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me a story about a cook."}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": texts,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
