"""One run of one engine program: started, heard, ended. What happens after its death is `model`'s affair."""

import asyncio
import contextlib
import errno
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from welldone.engines.engine_config import EngineReady, EngineStartFailure
from welldone.engines.errors import EngineError
from welldone.engines.plan import LaunchPlan
from welldone.http.address import Address, is_local_failure
from welldone.http.client import HttpClientError, fetch

# Is an engine well? Asked over its HTTP, of programs that do not say it themselves.


HEALTH_PATHS = ("/health", "/v1/models")
"""llama-server, vLLM and SGLang have the first; every server with OpenAI's API has the second."""

PROBE_INTERVAL_MIN_S = 0.05
PROBE_INTERVAL_MAX_S = 1.0
"""A program that starts in a moment is noticed in a moment; one that loads for minutes is not asked too often."""

PROBE_TIMEOUT_S = 5.0
"""A well server says so in milliseconds; one that is loading may be slow."""

PROBE_REPLY_LIMIT_BYTES = 2**20
"""A list of models has some KiB."""


async def wait_until_healthy(address: Address) -> None:
    """Returns when the server says that it is well. It may never: the caller has a limit."""
    pause_s = PROBE_INTERVAL_MIN_S
    while not await is_healthy(address):
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, PROBE_INTERVAL_MAX_S)


async def is_responsive(address: Address, within_s: float) -> bool:
    """Whether the server says anything at all. llama.cpp's numbers come from the loop that computes; its health does
    not, and is well also where that loop stands still."""
    try:
        await fetch(address, "GET", "/metrics", timeout_s=within_s, limit_bytes=PROBE_REPLY_LIMIT_BYTES)
    except HttpClientError:
        return False
    return True


async def reports_unhealthy(address: Address) -> bool:
    """Whether the server says that it is not well. vLLM and SGLang do where their engine has died behind them."""
    try:
        reply = await fetch(
            address, "GET", HEALTH_PATHS[0], timeout_s=PROBE_TIMEOUT_S, limit_bytes=PROBE_REPLY_LIMIT_BYTES
        )
    except HttpClientError:
        return False
    return reply.status >= 500


async def is_healthy(address: Address) -> bool:
    """Whether the server says that it is well."""
    for path in HEALTH_PATHS:
        try:
            reply = await fetch(address, "GET", path, timeout_s=PROBE_TIMEOUT_S, limit_bytes=PROBE_REPLY_LIMIT_BYTES)
        except HttpClientError:
            return False
        if reply.status != 404:
            return reply.status == 200
    return False


# The last lines that a program wrote, within bounds, whatever it writes.


OUTPUT_LINES = 200
"""Enough for llama.cpp's reasons, and for the tracebacks of all processes of vLLM, one after the other: the first of
them has the reason, and some 160 lines may follow it."""

LINE_LIMIT_CHARS = 400
"""Characters of one line that are kept. The reason of a failure stands at its start."""

READ_BYTES = 65536
"""One pipe's worth on Linux."""


_LOG_PREFIX = re.compile(r"(\([^)]{1,64}\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]{1,64}\] +")
"""What stands before each line of vLLM's: a process, a level, a time and a place in its source."""
_ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception): \S")
_ERRORS_SHOWN = 2  # that are shown besides the last lines: the first is what went wrong, others say the same again
_LAST_LINES_SHOWN = 5


def strip_log_prefix(line: str) -> str:
    """A line without what only fills it."""
    return _LOG_PREFIX.sub("", line, count=1)


def failure_excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """What a program that failed said of it: the first errors that it named, and its last lines."""
    reasons = (
        strip_log_prefix(line) for line in lines[:-_LAST_LINES_SHOWN] if _ERROR_LINE.match(strip_log_prefix(line))
    )
    return (
        *tuple(dict.fromkeys(reasons))[:_ERRORS_SHOWN],
        *(strip_log_prefix(line) for line in lines[-_LAST_LINES_SHOWN:]),
    )


class OutputTail:
    """Lines as they come; the last ones are kept."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._partial_line = b""
        self._on_line = on_line

    def feed(self, data: bytes) -> None:
        """More bytes. A line without an end is cut where it gets too long."""
        *whole, rest = (self._partial_line + data).split(b"\n")
        for line in whole:
            self._append(line)
        if len(rest) > READ_BYTES:
            self._append(rest)
            rest = b""
        self._partial_line = rest

    def end(self) -> None:
        """The program ended: what stands without an end of line is a line too."""
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
        """What it says just now: a line that is not ended yet, such as a bar that grows, else the last one."""
        return _visible_text(self._partial_line) or (self._lines[-1] if self._lines else "")


def _visible_text(line: bytes) -> str:
    """What a terminal would show of it: a bar is written over itself, again and again."""
    last = line.rstrip().rpartition(b"\r")[2]
    return last[: LINE_LIMIT_CHARS * 4].decode(errors="replace").rstrip()[:LINE_LIMIT_CHARS]


async def drain(source: asyncio.StreamReader, output: OutputTail) -> None:
    """Reads all that comes, at once: a program that writes to a full pipe stands still."""
    while data := await source.read(READ_BYTES):
        output.feed(data)
    output.end()


_REPORT_DECODER: msgspec.json.Decoder[EngineReady | EngineStartFailure] = msgspec.json.Decoder(
    EngineReady | EngineStartFailure
)

KILL_TIMEOUT_S = 10.0
"""The kernel ends a killed process in milliseconds; one with many GiB of memory to give back takes seconds."""

EXIT_POLL_S = 1.0
"""asyncio tells of an end when the pipes are closed too. A worker that outlives its command holds them, so we look."""


class EngineProcess:
    """A child program. `start` gives it back only when it is ready to answer."""

    def __init__(self, child: asyncio.subprocess.Process, plan: LaunchPlan, output: OutputTail) -> None:
        self._child = child
        self._output = output
        self._drain_tasks: list[asyncio.Task[None]] = []
        self.plan = plan

    @classmethod
    async def start(cls, plan: LaunchPlan, *, within_s: float, output: OutputTail | None = None) -> "EngineProcess":
        """The program, ready; what it says goes to `tail`. `EngineError` if it ends or does not get ready in time; then
        nothing of it is left."""
        try:
            child = await asyncio.create_subprocess_exec(
                *plan.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=plan.environment,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
            )
        except OSError as error:
            is_full = is_local_failure(error) or error.errno == errno.EAGAIN  # the latter: too many processes
            raise EngineError(f"cannot be started: {error.strerror}", is_permanent=not is_full) from error
        process = cls(child, plan, OutputTail() if output is None else output)
        try:
            await process._wait_until_ready(within_s)
        except BaseException:  # also a cancelled start leaves nothing behind
            await process.stop(0)
            raise
        return process

    async def _wait_until_ready(self, within_s: float) -> None:
        stdin, stdout, stderr = self._child.stdin, self._child.stdout, self._child.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._start_drain(stderr)
        try:
            async with asyncio.timeout(within_s):
                if self.plan.config_line:
                    stdin.write(self.plan.config_line)
                    await self._read_report(stdout)
                    self._start_drain(stdout)
                else:
                    self._start_drain(stdout)
                    await self._probe_until_healthy()
        except TimeoutError:
            text = f"was not ready within {within_s:g} s"
            raise EngineError(text, is_permanent=True, details=self._output.lines) from None

    def _start_drain(self, source: asyncio.StreamReader) -> None:
        self._drain_tasks.append(asyncio.create_task(drain(source, self._output)))

    async def _read_report(self, stdout: asyncio.StreamReader) -> None:
        """Our own child says when it is ready."""
        line = await stdout.readline()
        if not line:
            raise await self._early_exit_error()
        match _REPORT_DECODER.decode(line):
            case EngineReady():
                return
            case EngineStartFailure(error=text):
                await self.wait_for_exit()
                await self._finish_drains()
                raise EngineError(text, is_permanent=True, details=self._output.lines)

    async def _probe_until_healthy(self) -> None:
        """A command is asked until it says that it is well."""
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
        """The error for a program that ended before it was ready."""
        code = await self.wait_for_exit()
        await self._finish_drains()
        text = f"{describe_exit(code)} before it was ready"
        if code == -signal.SIGKILL:
            # To try again would only cost the machine its memory once more.
            text += ": the machine may be out of memory; try a smaller -c, -np or model"
        return EngineError(text, is_permanent=code == -signal.SIGKILL, details=self._output.lines)

    async def _finish_drains(self) -> None:
        if self._drain_tasks:
            await asyncio.wait(self._drain_tasks, timeout=KILL_TIMEOUT_S)
        for task in self._drain_tasks:
            task.cancel()

    @property
    def pid(self) -> int:
        """The process's number; of a command, that of the program around it."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as we heard."""
        return self._child.returncode is None

    @property
    def output_lines(self) -> tuple[str, ...]:
        """Its last lines."""
        return self._output.lines

    async def wait_for_exit(self) -> int:
        """Its exit code, when it has ended; negative for a signal."""
        while self._child.returncode is None:
            await self.wait_for_exit_within(EXIT_POLL_S)
        return self._child.returncode

    async def stop(self, within_s: float) -> None:
        """Ends it: asked first, then made to. When this returns, it is gone, and so is its socket."""
        stdin = self._child.stdin
        assert stdin is not None
        if within_s > 0:
            self._send_signal(signal.SIGTERM)
            await self.wait_for_exit_within(within_s)
        stdin.close()
        if not self.plan.config_line:  # the end of its input tells a launcher to kill the command; killed, it could not
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
            try:
                self._child.send_signal(number)
            except ProcessLookupError:  # it was faster
                return

    async def wait_for_exit_within(self, seconds: float) -> None:
        """Returns when it has ended, or when the time is over."""
        if self.is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._child.wait()


def describe_exit(code: int) -> str:
    """How a program ended, in words."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        try:
            return f"was ended by {signal.Signals(number).name}"
        except ValueError:
            return f"ended with code {code}"
    return f"ended with code {code}"
