"""One model and its engine: loaded when it is asked for, watched, started again when it dies.

UNLOADED -> LOADING -> READY -> RESTARTING -> READY …
               |         |          |
             FAILED   UNLOADED    FAILED        and STOPPED from everywhere, for ever
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities, read_capabilities
from welldone.engines.errors import EngineError
from welldone.engines.models.store import GgufMetadata
from welldone.engines.plan import LaunchPlan, fits_socket_path, make_plan, read_model_metadata
from welldone.engines.process import EngineProcess, OutputTail, describe_exit, is_responsive, reports_unhealthy
from welldone.http.address import Address

# How long to wait before an engine is started again.


BACKOFF_INITIAL_S = 0.2
"""A single crash should cost a client less than it notices; a small model loads in under a second."""

BACKOFF_MAX_S = 30.0
"""An engine that cannot start is tried twice a minute, which no machine feels."""

BACKOFF_RESET_S = 60.0
"""After a minute of health a death is a new one and not more of the last."""

MAX_FAILED_STARTS = 5
"""Deaths in a row without being ready, after which the engine is left alone until somebody asks. The waits make 3 s."""


class RestartBackoff:
    """Waits that double from death to death, and start anew after a time of health."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._exits = 0
        self._failed_starts = 0
        self._ready_at: float | None = None

    def record_ready(self) -> None:
        """The engine runs."""
        self._ready_at = self._clock()
        self._failed_starts = 0

    def record_exit(self) -> float:
        """The engine ended, or could not start. How long to wait now."""
        if self._ready_at is None:
            self._failed_starts += 1
        elif self._clock() - self._ready_at >= BACKOFF_RESET_S:
            self._exits = 0
        self._ready_at = None
        self._exits += 1
        return min(BACKOFF_INITIAL_S * 2.0 ** min(self._exits - 1, 16), BACKOFF_MAX_S)

    @property
    def is_exhausted(self) -> bool:
        """Whether it died too often in a row without ever being ready."""
        return self._failed_starts >= MAX_FAILED_STARTS


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


# All models of a server: found by name, loaded on demand, unloaded when idle or when room is needed.


class EngineSupervisor:
    """The models, and the private folder in which their engines listen.

    `max_loaded` bounds how many are loaded at once (0: no bound): the one that was idle for longest makes room.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        *,
        folder: Path,
        environment: Mapping[str, str],
        on_change: Callable[[LocalModel], None] = lambda _: None,
        on_line: Callable[[LocalModel, str], None] = lambda *_: None,
        max_loaded: int = 0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._on_change = on_change
        self._max_loaded = max_loaded
        self._clock = clock
        self._socket_folder: Path | None = None
        self._load_permits: set[LocalModel] = set()
        self._changed_event = asyncio.Event()
        self._idle_task: asyncio.Task[None] | None = None
        self._metadata_task: asyncio.Task[None] | None = None
        self.models = tuple(
            LocalModel(
                settings,
                self._plan,
                acquire_load_permit=self._acquire_load_permit,
                release_load_permit=self._release_load_permit,
                on_change=self._handle_change,
                on_idle=self._notify,
                on_line=on_line,
                clock=clock,
                pause=pause,
            )
            for settings in models
        )
        named = [(name, model) for model in self.models for name in (model.name, *model.settings.aliases)]
        self._models_by_name = dict(reversed(named))  # who comes first has the name

    def find(self, name: str) -> LocalModel | None:
        """The model with this name or alias."""
        return self._models_by_name.get(name)

    async def start(self) -> None:
        """Begins to load the models that are wanted at once: those marked, and a single one. Waits for none."""
        self._socket_folder = make_socket_folder(self._environment)
        self._metadata_task = asyncio.create_task(self._read_metadata(), name="facts of models")
        for model in self.models:
            if model.settings.preload or len(self.models) == 1:
                model.load()
        if any(model.settings.idle_unload_s for model in self.models):
            self._idle_task = asyncio.create_task(self._watch_idle(), name="idle models")

    async def _read_metadata(self) -> None:
        for model in self.models:
            model.metadata = await asyncio.to_thread(read_model_metadata, model.settings, self._folder)

    async def stop(self, within_s: float) -> None:
        """Ends all engines and removes the folder. Engines that do not end in time are killed."""
        if self._metadata_task is not None:
            self._metadata_task.cancel()
            await asyncio.wait({self._metadata_task})
        if self._idle_task is not None:
            self._idle_task.cancel()
            await asyncio.wait({self._idle_task})
        await asyncio.gather(*(model.stop(within_s) for model in self.models))
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def unload_idle(self) -> float | None:
        """Begins to unload the models that were idle for too long. In how many seconds the next one will be, if any."""
        waits = []
        for model in self.models:
            limit_s = model.settings.idle_unload_s
            if not (limit_s and model.is_idle):
                continue
            left_s = model.last_used + limit_s - self._clock()
            if left_s > 0:
                waits.append(left_s)
            else:
                model.start_unload()
        return min(waits, default=None)

    async def _watch_idle(self) -> None:
        while True:
            news = self._changed_event
            await _wait_event(news, self.unload_idle())

    def _plan(self, settings: ModelSettings) -> LaunchPlan:
        if self._socket_folder is None:
            raise EngineError("the server has not started", is_permanent=True)
        return make_plan(
            settings, models_folder=self._folder, socket_folder=self._socket_folder, environment=self._environment
        )

    def _handle_change(self, model: LocalModel) -> None:
        self._notify()
        self._on_change(model)

    def _notify(self) -> None:
        """Wakes all who wait for something to change. Who waits next gets an event of his own."""
        self._changed_event.set()
        self._changed_event = asyncio.Event()

    async def _acquire_load_permit(self, model: LocalModel) -> None:
        """Returns when the model may be loaded; `EngineError` if all others are busy for too long."""
        deadline = self._clock() + model.settings.queue_wait_s
        while self._max_loaded and len(self._load_permits) >= self._max_loaded:
            news, left_s = self._changed_event, deadline - self._clock()
            if left_s <= 0:
                raise EngineError("other models take all the room, and are in use", retry_after_s=1.0)
            idle = [other for other in self._load_permits if other.is_idle]
            if idle:
                await min(idle, key=lambda other: other.last_used).unload()
            else:
                await _wait_event(news, left_s)
        self._load_permits.add(model)

    def _release_load_permit(self, model: LocalModel) -> None:
        self._load_permits.discard(model)
        self._notify()


async def _wait_event(event: asyncio.Event, within_s: float | None) -> None:
    """Returns when the event comes or the time is over."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return


def make_socket_folder(environment: Mapping[str, str]) -> Path:
    """A new folder for sockets that only this user can enter. One that a killed server leaves behind does no harm."""
    places = (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # the last is short everywhere
    fitting = (place for place in places if fits_socket_path(place) and os.access(place, os.W_OK | os.X_OK))
    return Path(tempfile.mkdtemp(prefix="welldone-", dir=next(fitting, None)))
