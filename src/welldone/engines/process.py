"""Engine process: start, readiness, health probes, captured output, and stop. Restarts are the supervisor's."""

import asyncio
import contextlib
import errno
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from welldone.config.model import ModelSettings
from welldone.core.lenient_json import parse_strict
from welldone.engines.capabilities import ModelCapabilities, parse_capabilities
from welldone.engines.cores import waiting_times
from welldone.engines.engine_config import EngineReady, EngineStartFailure
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufMetadata
from welldone.engines.plan import LaunchPlan
from welldone.http.address import Address, is_local_failure
from welldone.http.client import BufferedResponse, fetch
from welldone.http.connect import HttpClientError

HEALTH_PATHS = ("/health", "/v1/models")
"""llama-server, vLLM and SGLang have the first; every OpenAI-compatible server has the second."""

PROBE_INTERVAL_MIN_S = 0.05
PROBE_INTERVAL_MAX_S = 1.0
"""The interval grows between these: a fast start is noticed at once, a slow one is not probed too often."""

PROBE_TIMEOUT_S = 5.0
"""A healthy server answers in milliseconds; one that is loading may be slow."""

PROGRESS_TIMEOUT_S = 86_400.0
"""Older versions of llama.cpp answer after the batch that they compute: the caller watches what else they do."""

PROBE_REPLY_LIMIT_BYTES = 2**20
"""A list of models has a few KiB."""

CAPABILITIES_TIMEOUT_S = 10.0
"""The engine has just reported ready; on a busy machine a reply may still take seconds."""

CAPABILITIES_LIMIT_BYTES = 4 * 2**20
"""`/props` contains the chat template, which may be long."""


async def wait_until_healthy(address: Address) -> None:
    """Probe until the server is healthy. There is no time limit: that is the caller's."""
    interval_s = PROBE_INTERVAL_MIN_S
    while not await is_healthy(address):
        await asyncio.sleep(interval_s)
        interval_s = min(interval_s * 1.5, PROBE_INTERVAL_MAX_S)


_HAS_WORK = re.compile(rb"(?m)^llamacpp:requests_(processing|deferred) [1-9]")
_COUNTERS = re.compile(rb"(?m)^llamacpp:\w+_total \S+")


async def read_progress(address: Address, timeout_s: float) -> tuple[bytes, ...] | None:
    """Return llama.cpp's counts of tokens and batches: nothing while it has no request, None if it does not answer."""
    reply = await _probe(address, "/metrics", timeout_s)
    if reply is None:
        return None
    return tuple(_COUNTERS.findall(reply.body)) if _HAS_WORK.search(reply.body) else ()


async def has_progress(address: Address, timeout_s: float) -> bool:
    """Return whether llama.cpp makes progress within the time, or has nothing to do.

    That it answers shows nothing: versions of 2026 answer `/metrics`, and all of them `/health`, while a batch runs.
    """
    before: tuple[bytes, ...] | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while (counters := await read_progress(address, timeout_s)) is None or (
                counters and before in (None, counters)
            ):
                before = before or counters
                await asyncio.sleep(PROBE_INTERVAL_MAX_S)
            return True
    return False


async def reports_unhealthy(address: Address) -> bool:
    """Return whether the server answers with a 5xx status, as vLLM and SGLang do when their engine core has died."""
    reply = await _probe(address, HEALTH_PATHS[0])
    return reply is not None and reply.status >= 500


async def is_healthy(address: Address) -> bool:
    """Return whether the server reports that it is healthy."""
    for path in HEALTH_PATHS:
        reply = await _probe(address, path)
        if reply is None or reply.status != 404:
            return reply is not None and reply.status == 200
    return False


async def _probe(address: Address, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> BufferedResponse | None:
    """Return the reply; None if there is none."""
    with contextlib.suppress(HttpClientError):
        return await fetch(address, "GET", path, timeout_s=timeout_s, limit_bytes=PROBE_REPLY_LIMIT_BYTES)
    return None


OUTPUT_LINES = 200
"""Lines of output that are kept: enough for the tracebacks of all processes of vLLM. The first one has the reason, and
about 160 lines may follow it."""

LINE_LIMIT_CHARS = 400
"""Characters of a line that are kept. The reason of a failure is at its start."""

READ_BYTES = 65536
"""Capacity of a pipe on Linux."""

_LOG_PREFIX = re.compile(r"(\([^)]{1,64}\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]{1,64}\] +")
"""Prefix of vLLM's log lines: process, level, time and source location."""
_ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception): \S")
_ERRORS_SHOWN = 2  # in addition to the last lines: the first error is the cause, later ones repeat it
_LAST_LINES_SHOWN = 5


async def read_capabilities(
    address: Address, settings: ModelSettings, metadata: GgufMetadata | None
) -> ModelCapabilities:
    """Query the engine. Raises `EngineError` if the bundled engine does not answer; a command need not."""
    props = await _get_json(address, "/props", metadata is not None)
    model_list = await _get_json(address, "/v1/models", metadata is not None)
    return parse_capabilities(props, model_list, settings, metadata)


async def _get_json(address: Address, path: str, is_required: bool) -> dict[str, Any]:
    try:
        reply = await fetch(
            address, "GET", path, timeout_s=CAPABILITIES_TIMEOUT_S, limit_bytes=CAPABILITIES_LIMIT_BYTES
        )
        value = parse_strict(reply.body) if reply.status == 200 else None
    except HttpClientError:
        value = None
    if isinstance(value, dict):
        return value
    if is_required:
        raise EngineError("ended as soon as it was ready")
    return {}


def strip_log_prefix(line: str) -> str:
    """Remove the prefix of a log line."""
    return _LOG_PREFIX.sub("", line, count=1)


def failure_excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a failed program that explain the failure: its first errors and its last lines."""
    plain = [strip_log_prefix(line) for line in lines]
    errors = dict.fromkeys(line for line in plain[:-_LAST_LINES_SHOWN] if _ERROR_LINE.match(line))
    return (*tuple(errors)[:_ERRORS_SHOWN], *plain[-_LAST_LINES_SHOWN:])


class OutputTail:
    """The last lines of a program's output, bounded in number and length."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._partial_line = b""
        self._on_line = on_line

    def feed(self, data: bytes) -> None:
        """Add output. A line that gets too long is split."""
        *complete, rest = (self._partial_line + data).split(b"\n")
        for line in complete:
            self._append(line)
        if len(rest) > READ_BYTES:
            self._append(rest)
            rest = b""
        self._partial_line = rest

    def end(self) -> None:
        """End the output: the rest without a line end is a line too."""
        self._append(self._partial_line)
        self._partial_line = b""

    def _append(self, line: bytes) -> None:
        text = _visible_text(line)
        if not text:
            return
        self._lines.append(text)
        if self._on_line is not None:
            self._on_line(text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._lines)

    @property
    def current_line(self) -> str:
        """The unfinished line, such as a progress bar, or else the last one."""
        return _visible_text(self._partial_line) or (self._lines[-1] if self._lines else "")


def _visible_text(line: bytes) -> str:
    """Return what a terminal shows of the line: a progress bar overwrites itself after each carriage return."""
    last = line.rstrip().rpartition(b"\r")[2]
    return last[: LINE_LIMIT_CHARS * 4].decode(errors="replace").rstrip()[:LINE_LIMIT_CHARS]


async def drain(source: asyncio.StreamReader, output: OutputTail) -> None:
    """Read all output as it arrives: a program blocks when its pipe is full."""
    while data := await source.read(READ_BYTES):
        output.feed(data)
    output.end()


_REPORT_DECODER: msgspec.json.Decoder[EngineReady | EngineStartFailure] = msgspec.json.Decoder(
    EngineReady | EngineStartFailure
)

KILL_TIMEOUT_S = 10.0
"""A killed process ends in milliseconds; one with many GiB of memory to free takes seconds."""

COMMAND_SIGNAL_BASE = 128
"""`command_child` exits with this and the number of the signal that ended its command."""

EXIT_POLL_S = 1.0
"""asyncio reports an exit only when the pipes are closed, which surviving workers of a command keep open: so poll."""

LLAMA_EXIT_POLL_S = 60.0
"""llama.cpp has no workers, and each poll takes CPU time from it."""


class EngineProcess:
    """A running child process. `start` returns it when it is ready for requests."""

    def __init__(self, child: asyncio.subprocess.Process, plan: LaunchPlan, output: OutputTail) -> None:
        self._child = child
        self._output = output
        self._drain_tasks: list[asyncio.Task[None]] = []
        self.plan = plan
        self.warnings: tuple[str, ...] = ()
        """For the server's log."""

    @classmethod
    async def start(cls, plan: LaunchPlan, *, timeout_s: float, output: OutputTail | None = None) -> "EngineProcess":
        """Start the program and wait until it is ready; its output goes to `output`.

        Raises:
            EngineError: the program exited or was not ready in time. Nothing of it is left.
        """
        try:
            child = await asyncio.create_subprocess_exec(
                *plan.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=plan.environment,
                start_new_session=True,  # Ctrl-C in the terminal must reach the server only
            )
        except OSError as error:
            is_temporary = is_local_failure(error) or error.errno == errno.EAGAIN  # EAGAIN: too many processes
            raise EngineError(f"cannot be started: {error.strerror}", is_permanent=not is_temporary) from error
        else:
            process = cls(child, plan, OutputTail() if output is None else output)
            try:
                await process._wait_until_ready(timeout_s)
            except BaseException:  # also on cancellation
                await process.stop(0)
                raise
            return process
        finally:
            for path in plan.startup_files:
                path.unlink(missing_ok=True)

    async def _wait_until_ready(self, timeout_s: float) -> None:
        stdin, stdout, stderr = self._child.stdin, self._child.stdout, self._child.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._start_drain(stderr)
        try:
            async with asyncio.timeout(timeout_s):
                if self.plan.config_line:
                    stdin.write(self.plan.config_line)
                    await self._read_report(stdout)
                    self._start_drain(stdout)
                else:
                    self._start_drain(stdout)
                    await self._probe_until_healthy()
        except TimeoutError:
            text = f"was not ready within {timeout_s:g} s"
            raise EngineError(text, is_permanent=True, details=self._output.lines) from None

    def _start_drain(self, source: asyncio.StreamReader) -> None:
        self._drain_tasks.append(asyncio.create_task(drain(source, self._output)))

    async def _read_report(self, stdout: asyncio.StreamReader) -> None:
        """Wait for the report of `llama_child`."""
        line = await stdout.readline()
        if not line:
            raise await self._early_exit_error()
        match _REPORT_DECODER.decode(line):
            case EngineReady(warnings=texts):
                self.warnings = texts
            case EngineStartFailure(error=text):
                await self.wait_for_exit()
                await self._finish_drains()
                raise EngineError(text, is_permanent=True, details=self._output.lines)

    async def _probe_until_healthy(self) -> None:
        """Probe a command until it is healthy or exits."""
        healthy = asyncio.create_task(wait_until_healthy(self.plan.address))
        ended = asyncio.create_task(self.wait_for_exit())
        try:
            await asyncio.wait({healthy, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise await self._early_exit_error()
            await healthy
        finally:
            for task in (healthy, ended):
                task.cancel()
            await asyncio.wait({healthy, ended})

    async def _early_exit_error(self) -> EngineError:
        code = await self.wait_for_exit()
        await self._finish_drains()
        text = f"{describe_exit(code)} before it was ready"
        # Permanent: a retry would exhaust the memory of the machine again.
        is_killed = code == -signal.SIGKILL or (self.is_llama and code == COMMAND_SIGNAL_BASE + signal.SIGKILL)
        if is_killed:
            text += ": the machine may be out of memory; try a smaller -c, -np or model"
        elif self.is_llama and code == 1:  # llama-server: it writes the reason to its log
            text = "llama.cpp could not load it"
        is_permanent = is_killed or (self.is_llama and code == 1)
        return EngineError(text, is_permanent=is_permanent, details=self._output.lines)

    async def _finish_drains(self) -> None:
        if self._drain_tasks:
            await asyncio.wait(self._drain_tasks, timeout=KILL_TIMEOUT_S)
        for task in self._drain_tasks:
            task.cancel()

    @property
    def pid(self) -> int:
        """Process id; for a command, that of `command_child`."""
        return self._child.pid

    @property
    def is_llama(self) -> bool:
        """Whether it is llama.cpp; otherwise it is a command."""
        return self.plan.metadata is not None

    async def read_progress(self) -> tuple[bytes, ...] | None:
        """Return counters of its work, without a time limit. A command counts nothing, but may answer."""
        if self.is_llama:
            return await read_progress(self.plan.address, PROGRESS_TIMEOUT_S)
        return None if await _probe(self.plan.address, HEALTH_PATHS[0], PROGRESS_TIMEOUT_S) is None else ()

    def active_times(self) -> dict[str, float]:
        """Return for how many seconds each of its threads ran or waited for a CPU, if the system reports it."""
        return waiting_times(self.pid, with_running=True)

    @property
    def is_running(self) -> bool:
        """Whether no exit has been reported yet."""
        return self._child.returncode is None

    @property
    def output_lines(self) -> tuple[str, ...]:
        """The last lines of output."""
        return self._output.lines

    async def wait_for_exit(self) -> int:
        """Wait for the exit code; negative for a signal."""
        while self._child.returncode is None:
            await self.wait_for_exit_within(LLAMA_EXIT_POLL_S if self.is_llama else EXIT_POLL_S)
        return self._child.returncode

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, after `timeout_s` SIGKILL. On return the process has ended and its socket is removed."""
        stdin = self._child.stdin
        assert stdin is not None
        if timeout_s > 0:
            self._send_signal(signal.SIGTERM)
            await self.wait_for_exit_within(timeout_s)
        stdin.close()
        if not self.plan.config_line:  # on EOF, command_child kills the command; do not kill command_child before that
            await self.wait_for_exit_within(KILL_TIMEOUT_S)
        self._send_signal(signal.SIGKILL)
        await self.wait_for_exit_within(KILL_TIMEOUT_S)
        await self._finish_drains()
        self._remove_socket()

    def _remove_socket(self) -> None:
        if self.plan.address.socket is not None:
            Path(self.plan.address.socket).unlink(missing_ok=True)

    def _send_signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._child.send_signal(number)

    async def wait_for_exit_within(self, seconds: float) -> None:
        """Wait until the process has ended, or the time is over."""
        if self.is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._child.wait()


def describe_exit(code: int) -> str:
    """Describe an exit code: `ended with code 1`, `was ended by SIGKILL`."""
    if code < 0 or code > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code if code < 0 else code - 128).name}"
    return f"ended with code {code}"
