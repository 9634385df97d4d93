"""One run of one engine program: started, heard, ended. What happens after its death is `model`'s affair."""

import asyncio
import contextlib
import errno
import signal
from pathlib import Path

import msgspec

from welldone.engines.errors import EngineError
from welldone.engines.orders import Failed, Ready
from welldone.engines.plan import Plan
from welldone.engines.probe import until_healthy
from welldone.engines.tail import Tail, drain
from welldone.net.reasons import is_our_fault

_REPORTS: msgspec.json.Decoder[Ready | Failed] = msgspec.json.Decoder(Ready | Failed)

KILL_LIMIT_S = 10.0
"""The kernel ends a killed process in milliseconds; one with many GiB of memory to give back takes seconds."""

LOOK_S = 1.0
"""asyncio tells of an end when the pipes are closed too. A worker that outlives its command holds them, so we look."""


class Process:
    """A child program. `start` gives it back only when it is ready to answer."""

    def __init__(self, child: asyncio.subprocess.Process, plan: Plan, tail: Tail) -> None:
        self._child = child
        self._tail = tail
        self._drains: list[asyncio.Task[None]] = []
        self.plan = plan

    @classmethod
    async def start(cls, plan: Plan, *, within_s: float, tail: Tail | None = None) -> "Process":
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
            is_full = is_our_fault(error) or error.errno == errno.EAGAIN  # the latter: too many processes
            raise EngineError(f"cannot be started: {error.strerror}", is_permanent=not is_full) from error
        process = cls(child, plan, Tail() if tail is None else tail)
        try:
            await process._get_ready(within_s)
        except BaseException:  # also a cancelled start leaves nothing behind
            await process.stop(0)
            raise
        return process

    async def _get_ready(self, within_s: float) -> None:
        stdin, stdout, stderr = self._child.stdin, self._child.stdout, self._child.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._drain(stderr)
        try:
            async with asyncio.timeout(within_s):
                if self.plan.orders:
                    stdin.write(self.plan.orders)
                    await self._hear(stdout)
                    self._drain(stdout)
                else:
                    self._drain(stdout)
                    await self._probe()
        except TimeoutError:
            text = f"was not ready within {within_s:g} s"
            raise EngineError(text, is_permanent=True, details=self._tail.lines) from None

    def _drain(self, source: asyncio.StreamReader) -> None:
        self._drains.append(asyncio.create_task(drain(source, self._tail)))

    async def _hear(self, stdout: asyncio.StreamReader) -> None:
        """Our own child says when it is ready."""
        line = await stdout.readline()
        if not line:
            raise await self._death()
        match _REPORTS.decode(line):
            case Ready():
                return
            case Failed(error=text):
                await self.wait()
                await self._heard_all()
                raise EngineError(text, is_permanent=True, details=self._tail.lines)

    async def _probe(self) -> None:
        """A command is asked until it says that it is well."""
        healthy = asyncio.create_task(until_healthy(self.plan.address))
        ended = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({healthy, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise await self._death()
            await healthy
        finally:
            for task in (healthy, ended):
                task.cancel()
            await asyncio.wait({healthy, ended})

    async def _death(self) -> EngineError:
        """The error for a program that ended before it was ready."""
        code = await self.wait()
        await self._heard_all()
        text = f"{ending(code)} before it was ready"
        if code == -signal.SIGKILL:
            # To try again would only cost the machine its memory once more.
            text += ": the machine may be out of memory; try a smaller -c, -np or model"
        return EngineError(text, is_permanent=code == -signal.SIGKILL, details=self._tail.lines)

    async def _heard_all(self) -> None:
        if self._drains:
            await asyncio.wait(self._drains, timeout=KILL_LIMIT_S)
        for task in self._drains:
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
    def log(self) -> tuple[str, ...]:
        """Its last lines."""
        return self._tail.lines

    async def wait(self) -> int:
        """Its exit code, when it has ended; negative for a signal."""
        while self._child.returncode is None:
            await self.ends_within(LOOK_S)
        return self._child.returncode

    async def stop(self, within_s: float) -> None:
        """Ends it: asked first, then made to. When this returns, it is gone, and so is its socket."""
        stdin = self._child.stdin
        assert stdin is not None
        if within_s > 0:
            self._signal(signal.SIGTERM)
            await self.ends_within(within_s)
        stdin.close()
        if not self.plan.orders:  # the end of its input tells a launcher to kill the command; killed, it could not
            await self.ends_within(KILL_LIMIT_S)
        self._signal(signal.SIGKILL)
        await self.ends_within(KILL_LIMIT_S)
        await self._heard_all()
        self._remove_socket()

    def _remove_socket(self) -> None:
        if self.plan.address.socket is not None:
            Path(self.plan.address.socket).unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            try:
                self._child.send_signal(number)
            except ProcessLookupError:  # it was faster
                return

    async def ends_within(self, seconds: float) -> None:
        """Returns when it has ended, or when the time is over."""
        if self.is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._child.wait()


def ending(code: int) -> str:
    """How a program ended, in words."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        try:
            return f"was ended by {signal.Signals(number).name}"
        except ValueError:
            return f"ended with code {code}"
    return f"ended with code {code}"
