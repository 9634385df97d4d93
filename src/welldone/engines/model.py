"""One model and its engine: loaded when it is asked for, watched, started again when it dies.

UNLOADED -> LOADING -> READY -> RESTARTING -> READY …
               |         |          |
             FAILED   UNLOADED    FAILED        and STOPPED from everywhere, for ever
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from welldone.engines.abilities import ModelCapabilities, read_capabilities
from welldone.engines.address import Address
from welldone.engines.backoff import RestartBackoff
from welldone.engines.errors import EngineError
from welldone.engines.gguf import GgufMetadata
from welldone.engines.plan import LaunchPlan
from welldone.engines.probe import is_responsive, reports_unhealthy
from welldone.engines.process import EngineProcess, describe_exit
from welldone.engines.settings import ModelSettings
from welldone.engines.tail import OutputTail

STOP_TIMEOUT_S = 10.0
"""Between SIGTERM and SIGKILL. llama.cpp ends at once; a command may have something to finish."""

EXIT_NOTICE_S = 1.0
"""The system tells of a child's death in milliseconds; on a busy machine it takes longer."""


class ModelState(StrEnum):
    """Where a model is. Waiting helps with LOADING and RESTARTING; asking helps with UNLOADED and FAILED."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class LocalModel:
    """A model that is there when it is needed. `make_plan` may block; it runs in a thread."""

    def __init__(
        self,
        settings: ModelSettings,
        make_plan: Callable[[ModelSettings], LaunchPlan],
        *,
        acquire_load_permit: Callable[["LocalModel"], Awaitable[None]],
        release_load_permit: Callable[["LocalModel"], None],
        on_change: Callable[["LocalModel"], None],
        on_idle: Callable[[], None],
        on_line: Callable[["LocalModel", str], None],
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.state = ModelState.UNLOADED
        self.capabilities: ModelCapabilities | None = None
        self.metadata: GgufMetadata | None = None
        """What its file says of itself, also before it is loaded."""
        self.started_at: float | None = None
        """When it was last ready, in seconds since 1970."""
        self.restarts = 0
        """Deaths of an engine that was ready."""
        self.last_error: EngineError | None = None
        self.running = 0
        """Requests that use it now, and those that wait for it."""
        self.last_used = clock()
        self.process: EngineProcess | None = None
        self._output = OutputTail()
        self._make_plan = make_plan
        self._acquire_load_permit = acquire_load_permit
        self._release_load_permit = release_load_permit
        self._on_change = on_change
        self._on_idle = on_idle
        self._on_line = on_line
        self._clock = clock
        self._pause = pause
        self._now = now
        self._backoff = RestartBackoff(clock)
        self._retry_at = clock()
        self._settled = asyncio.Event()
        self._run_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._liveness_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The id that clients use."""
        return self.settings.name

    @property
    def is_idle(self) -> bool:
        """Loaded, and nobody uses it."""
        return self.state is ModelState.READY and not self.running

    @property
    def address(self) -> Address | None:
        """Where the engine answers, if it does; asking for it is no use of the model."""
        return self.process.plan.address if self.state is ModelState.READY and self.process is not None else None

    @property
    def engine_model_name(self) -> str:
        """What its engine calls it: a command has a name of its own."""
        if self.capabilities is not None and self.capabilities.kind == "command":
            return self.capabilities.engine_model_name or self.name
        return self.name

    @property
    def last_output_line(self) -> str:
        """What its engine says just now: the last line, or a bar that grows."""
        return self._output.current_line

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Counts a request: while one runs, the model is not unloaded. Best entered before `ready` is awaited."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.last_used = self._clock()
            if not self.running:
                self._on_idle()

    async def ensure_ready(self) -> Address:
        """Where the engine answers. Loads the model if need be: one load, however many wait for it.

        Who is cancelled leaves the load alone. Raises `EngineError` if the model cannot be had.
        """
        with self.in_use():
            self.load()
            while self.state in (ModelState.LOADING, ModelState.RESTARTING) or self._has_exited:
                self._settled.clear()
                await self._settled.wait()
            if self.state is ModelState.READY and self.process is not None:
                return self.process.plan.address
            raise self._unavailable_error()

    @property
    def _has_exited(self) -> bool:
        """Whether the engine ended and `_watch` does not know it yet."""
        return self.state is ModelState.READY and self.process is not None and not self.process.is_running

    async def wait_for_exit_notice(self) -> None:
        """After a connection was lost: wait a moment for the news of the engine's death, if it has died."""
        if self.process is not None:
            await self.process.wait_for_exit_within(EXIT_NOTICE_S)

    def check_liveness(self, within_s: float) -> None:
        """After a request that was silent for too long: an engine that answers nobody so long is ended.

        It is then started again, as after any death. A `command` is ended only where it says itself that it is not
        well: there are servers that answer one after the other, and are only busy.
        """
        if self.process is not None and (self._liveness_task is None or self._liveness_task.done()):
            self._liveness_task = asyncio.create_task(self._stop_if_unresponsive(self.process, within_s))

    async def _stop_if_unresponsive(self, process: EngineProcess, within_s: float) -> None:
        if self.settings.command:
            is_lost, why = await reports_unhealthy(process.plan.address), "says that it is not well"
        else:
            is_lost, why = not await is_responsive(process.plan.address, within_s), f"answers nobody for {within_s:g} s"
        if is_lost:
            self._on_line(self, f"{why}: it is ended")
            await process.stop(0)

    def load(self) -> None:
        """Begins to load the model, if it is not. `EngineError` if that failed a moment ago, or it was stopped."""
        if self.state is ModelState.STOPPED or (self.state is ModelState.FAILED and self._clock() < self._retry_at):
            raise self._unavailable_error()
        if self.state in (ModelState.UNLOADED, ModelState.FAILED):
            self._set_state(ModelState.LOADING)
            self._run_task = asyncio.create_task(self._run(self._stop_task), name=f"engine {self.name}")
            self._run_task.add_done_callback(self._handle_run_done)

    def _unavailable_error(self) -> EngineError:
        """The error for somebody who asks now."""
        error = self.last_error
        if self.state is not ModelState.FAILED or error is None:
            return EngineError(f"the model {self.name} is not loaded any more", retry_after_s=1.0)
        return EngineError(
            error.message,
            is_permanent=error.is_permanent,
            retry_after_s=max(self._retry_at - self._clock(), 0.0),
            details=error.details,
        )

    async def _run(self, previous_stop: asyncio.Task[None] | None) -> None:
        """The engine's life, over all its deaths. Ends when it cannot be started; is cancelled to end it sooner."""
        if previous_stop is not None:
            await asyncio.shield(previous_stop)  # the memory that it gives back is needed
        await self._acquire_load_permit_or_fail()
        while self.state in (ModelState.LOADING, ModelState.RESTARTING):
            try:
                self.process = await self._start()
            except EngineError as error:
                self._handle_start_failure(error)
            else:
                await self._watch_process(self.process)
            if self.state is ModelState.RESTARTING:
                await self._pause(self._retry_at - self._clock())

    async def _acquire_load_permit_or_fail(self) -> None:
        try:
            await self._acquire_load_permit(self)
        except EngineError as error:
            self._fail(error, error.retry_after_s or 0.0)

    async def _start(self) -> EngineProcess:
        """A process that is ready, with `abilities` read."""
        plan = await asyncio.to_thread(self._make_plan, self.settings)
        self._output = OutputTail(lambda line: self._on_line(self, line))
        process = await EngineProcess.start(plan, within_s=self.settings.load_timeout_s, output=self._output)
        try:
            self.capabilities = await read_capabilities(plan.address, self.settings, plan.metadata)
        except BaseException:
            await process.stop(0)
            raise
        return process

    def _handle_start_failure(self, error: EngineError) -> None:
        wait_s = self._backoff.record_exit()
        named = EngineError(
            f"the model {self.name} cannot be loaded: {error.message}",
            is_permanent=error.is_permanent,
            details=error.details,
        )
        if error.is_permanent or self._backoff.is_exhausted:
            self._fail(named, wait_s)
        else:
            self._restart(named, wait_s)

    async def _watch_process(self, process: EngineProcess) -> None:
        """From ready to death."""
        self.started_at = self._now()
        self.last_used = self._clock()
        self._backoff.record_ready()
        self._set_state(ModelState.READY)
        code = await process.wait_for_exit()
        self.process = None
        self.restarts += 1
        wait_s = self._backoff.record_exit()
        text = f"the engine of the model {self.name} {describe_exit(code)}"
        self._restart(EngineError(text, details=process.output_lines), wait_s)
        await process.stop(0)  # what is left of it: pipes, a socket, a command's workers

    def _fail(self, error: EngineError, wait_s: float) -> None:
        self._record_error(error, wait_s)
        self._release_load_permit(self)
        self._set_state(ModelState.FAILED)

    def _restart(self, error: EngineError, wait_s: float) -> None:
        self._record_error(error, wait_s)
        self._set_state(ModelState.RESTARTING)

    def _record_error(self, error: EngineError, wait_s: float) -> None:
        self.last_error = error
        self._retry_at = self._clock() + wait_s

    def _set_state(self, state: ModelState) -> None:
        self.state = state
        if state in (ModelState.LOADING, ModelState.RESTARTING):
            self._settled.clear()
        else:
            self._settled.set()
        self._on_change(self)

    def _handle_run_done(self, run_task: asyncio.Task[None]) -> None:
        """A life that ends by a mistake of ours leaves nobody waiting. The loop's handler logs the mistake."""
        if run_task.cancelled() or run_task is not self._run_task or (error := run_task.exception()) is None:
            return
        self._fail(EngineError(f"the model {self.name} cannot be loaded: internal error"), self._backoff.record_exit())
        asyncio.get_running_loop().call_exception_handler({"message": f"engine {self.name}", "exception": error})

    def start_unload(self) -> None:
        """Ends the engine, soon. The next `ready` loads it again."""
        if self.state in (ModelState.LOADING, ModelState.READY, ModelState.RESTARTING):
            self._start_stop(ModelState.UNLOADED)

    async def unload(self) -> None:
        """Ends the engine, and waits for that."""
        self.start_unload()
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    async def stop(self, within_s: float = STOP_TIMEOUT_S) -> None:
        """Ends the engine for good. When this returns, nothing of it is left."""
        if self.state is not ModelState.STOPPED:
            self._start_stop(ModelState.STOPPED, within_s)
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    def _start_stop(self, state: ModelState, within_s: float = STOP_TIMEOUT_S) -> None:
        if self._liveness_task is not None:
            self._liveness_task.cancel()
        life, self._run_task = self._run_task, None
        process, self.process = self.process, None
        self._stop_task = asyncio.create_task(self._finish_stop(life, process, self._stop_task, within_s))
        self._set_state(state)

    async def _finish_stop(
        self,
        run_task: asyncio.Task[None] | None,
        process: EngineProcess | None,
        previous_stop: asyncio.Task[None] | None,
        within_s: float,
    ) -> None:
        if run_task is not None:
            run_task.cancel()
            await asyncio.wait({run_task})
        if process is not None:
            await process.stop(within_s)
        if previous_stop is not None:
            await asyncio.wait({previous_stop})
        self._release_load_permit(self)
