"""Paced upstream and stream reader in C, so that the load itself costs little CPU. Compiled on demand."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

MODEL = "paced"
_COMPILE_S, _START_S, _END_S = 60.0, 10.0, 10.0  # each takes at most a second: these limits turn a hang into a failure
_GRACE_S = 10.0  # the reader has its own limit and prints its result soon after it


class ProgramError(Exception):
    """A program does not compile, does not start, or failed."""


class ReaderResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the reader; `reader.c` prints it as JSON."""

    complete: int
    complete_between: int
    """Replies that were complete between `since` and `until` of the plan."""
    failed: int
    reasons: list[str]
    texts: int
    texts_between: int
    """Texts that arrived between `since` and `until` of the plan."""
    bytes: int
    first_s: list[float]
    """Time from the request to the first text, per stream."""
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Arguments of the reader. Times are values of `time.monotonic`."""

    streams: int
    texts: int
    start: float
    step_s: float
    """Delay between opening one stream and the next."""
    since: float
    until: float
    limit: float
    repeats: bool = False
    """Whether each connection sends the request again after a reply, until `until`."""
    is_stream: bool = True


@dataclass(frozen=True)
class Programs:
    """Paths of the compiled programs."""

    upstream: Path
    reader: Path


def compile_all(folder: Path) -> Programs:
    """Compile both programs into a folder."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ProgramError("no C compiler found: apt-get install gcc libc6-dev")
    return Programs(_compile(compiler, "upstream", folder), _compile(compiler, "reader", folder))


def _compile(compiler: str, name: str, folder: Path) -> Path:
    source, binary = Path(__file__).with_name(f"{name}.c"), folder / name
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(binary), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if result.returncode != 0:
        raise ProgramError(f"{source.name} does not compile:\n{result.stderr}")
    return binary


def pin(core: int | None) -> None:
    """Pin this process and its children to a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextmanager
def upstream(programs: Programs, *, gap_ms: float, core: int | None, is_stamped: bool = False) -> Iterator[int]:
    """Run the upstream; yields its port."""
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
    """Running reader process."""

    def __init__(self, programs: Programs, *, port: int, plan: Plan, core: int | None) -> None:
        moments = (plan.start, plan.step_s, plan.since, plan.until, plan.limit)
        self._plan = plan
        self._process = subprocess.Popen(
            [
                *(str(programs.reader), str(port), str(plan.streams), str(plan.texts), *map(repr, moments)),
                *(["repeat"] if plan.repeats else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: pin(core),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(request(port, plan.texts, is_stream=plan.is_stream))
        self._process.stdin.close()
        self._process.stdin = None

    def end(self, seconds: float) -> ReaderResult:
        """Wait for the reader, at most this long and a grace period, and return its result."""
        try:
            output, _ = self._process.communicate(timeout=seconds + _GRACE_S)
        finally:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:
            raise ProgramError(f"the reader exited with status {self._process.returncode}")
        return msgspec.json.decode(output, type=ReaderResult)


def request(port: int, texts: int, *, is_stream: bool = True) -> bytes:
    """HTTP request for a reply with this many texts, as a common client sends it."""
    stream = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    messages = [{"role": "user", "content": "Tell me a story about a cook."}]
    body = msgspec.json.encode({"model": MODEL, "messages": messages, **stream, "max_tokens": texts})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
