"""One run of one engine program: started, heard, ended. What happens after its death is `model`'s affair."""

import asyncio
import contextlib
import errno
import signal
from pathlib import Path

import msgspec

from welldone.engines.errors import EngineError
from welldone.engines.orders import EngineStartFailure, EngineReady
from welldone.engines.plan import LaunchPlan
from welldone.engines.probe import wait_until_healthy
from welldone.engines.tail import OutputTail, drain
from welldone.net.reasons import is_local_failure

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
