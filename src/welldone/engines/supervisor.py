"""Supervisor of local models: loads engines on demand, restarts them with backoff, and unloads idle ones.

States of a model:

    UNLOADED -> LOADING -> READY -> RESTARTING -> READY …
                   |         |          |
                 FAILED   UNLOADED    FAILED        STOPPED is final and follows any state
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.cores import CALM_NOTE, CONTENTION_NOTE, Waiting, wait_until_calm, wait_until_contended
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufMetadata
from welldone.engines.plan import LaunchPlan, fallback_warning, fits_socket_path, make_plan, read_model_metadata
from welldone.engines.process import (
    EngineProcess,
    OutputTail,
    describe_exit,
    has_progress,
    read_capabilities,
    reports_unhealthy,
)
from welldone.engines.speculation import speculation_warning
from welldone.engines.stall import StallWatch
from welldone.engines.standby import StandbyEngine
from welldone.http.address import Address

BACKOFF_INITIAL_S = 0.2
"""Delay after a failed start. It doubles with each exit; the first exit of an engine that ran has none."""

BACKOFF_MAX_S = 30.0
"""An engine that cannot start is tried twice a minute, which is a negligible load."""

BACKOFF_RESET_S = 60.0
"""After a minute of running, an exit counts as a new failure."""

MAX_FAILED_STARTS = 5
"""Failed starts in a row, after which the model is FAILED for the next delay. The delays add up to 3 s."""


class RestartBackoff:
    """Exponential backoff between restarts, reset after `BACKOFF_RESET_S` of running."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._exits = 0
        self._failed_starts = 0
        self._ready_at: float | None = None

    def record_ready(self) -> None:
        """Record that the engine is ready."""
        self._ready_at = self._clock()
        self._failed_starts = 0

    def record_exit(self) -> float:
        """Record an exit or a failed start; return the delay before the next start."""
        if self._ready_at is None:
            self._failed_starts += 1
        elif self._clock() - self._ready_at >= BACKOFF_RESET_S:
            self._exits = 0
        is_first_exit = self._exits == 0 and self._ready_at is not None
        self._ready_at = None
        self._exits += 1
        return 0.0 if is_first_exit else min(BACKOFF_INITIAL_S * 2.0 ** min(self._exits - 1, 16), BACKOFF_MAX_S)

    @property
    def is_exhausted(self) -> bool:
        """Whether too many starts in a row have failed."""
        return self._failed_starts >= MAX_FAILED_STARTS


STANDBY_DELAY_S = 2.0
"""Between a start or takeover and the load of the next standby engine: requests that wait have the CPU first."""

RETIRE_DELAY_S = 1.0
"""Before a model that is not served any more may be stopped: requests may have found it and not used it yet."""

STOP_TIMEOUT_S = 10.0
"""Between SIGTERM and SIGKILL. llama.cpp ends with its operation; a command may have work to finish."""

EXIT_NOTICE_S = 1.0
"""The exit of a child is reported in milliseconds, on a busy machine later."""

UNUSED_S = 60.0
"""Without a request for so long, a restart of the engine hurts nobody: only its prompt cache is lost."""

RELOAD_WAIT_S = 5.0
"""How long the requests of an unloaded engine wait for it to be loaded again: operators who restart an engine by an
unload and a load send them one after the other."""


class ModelState(StrEnum):
    """State of a model. LOADING and RESTARTING pass by themselves; a request loads an UNLOADED or FAILED model.

    A FAILED model that has run before is also loaded again by itself.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


_LOADED_STATES = (ModelState.LOADING, ModelState.READY, ModelState.RESTARTING)


class LocalModel:
    """A model and its engine process."""

    def __init__(self, settings: ModelSettings, supervisor: "EngineSupervisor") -> None:
        self.settings = settings
        self.state: ModelState = ModelState.UNLOADED
        self.capabilities: ModelCapabilities | None = None
        self.metadata: GgufMetadata | None = None
        """Metadata of its file, available before the model is loaded."""
        self.started_at: float | None = None
        """When it last became ready, as a Unix timestamp."""
        self.restarts: int = 0
        """Exits of an engine that was ready."""
        self.last_error: EngineError | None = None
        self.running: int = 0
        """Requests that use the model or wait for it."""
        self._supervisor = supervisor
        self._clock = supervisor.clock
        self.last_used: float = self._clock()
        self.stall_watch: StallWatch = StallWatch(supervisor.stall_s)
        self.process: EngineProcess | None = None
        self.standby: StandbyEngine = StandbyEngine(supervisor.notify, partial(supervisor.on_warning, self))
        self._output = OutputTail()
        self._backoff = RestartBackoff(self._clock)
        self._retry_at = self._clock()
        self._settled = asyncio.Event()
        self._run_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._liveness_task: asyncio.Task[None] | None = None
        self._has_contention = False
        self._contentions = 0

    @property
    def name(self) -> str:
        """The model id in the API."""
        return self.settings.name

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded and no request uses it."""
        return self.state is ModelState.READY and not self.running

    @property
    def address(self) -> Address | None:
        """Address of the engine while it is ready. Does not count as use of the model."""
        return self.process.plan.address if self.state is ModelState.READY and self.process is not None else None

    @property
    def engine_model_name(self) -> str:
        """The name of the model in requests to its engine: a command has its own."""
        if self.capabilities is not None and self.capabilities.kind == "command":
            return self.capabilities.engine_model_name or self.name
        return self.name

    @property
    def last_output_line(self) -> str:
        """The last line of the engine's output, or its progress bar."""
        return self._output.current_line

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a request: while there is one, the model is not unloaded. Enter it before `ensure_ready`."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.last_used = self._clock()
            if not self.running:
                self._supervisor.notify()

    async def ensure_ready(self) -> Address:
        """Load the model if necessary and return the engine's address. Concurrent callers share one load.

        Cancellation of a caller does not cancel the load. Raises `EngineError` if the model is not available.
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
        """Whether the engine has exited and `_watch_process` has not run yet."""
        return self.state is ModelState.READY and self.process is not None and not self.process.is_running

    async def wait_for_exit_notice(self) -> None:
        """Wait briefly for the exit of the engine. Call it after a lost connection, to tell a crash from a hiccup."""
        if self.process is not None:
            await self.process.wait_for_exit_within(EXIT_NOTICE_S)

    def check_liveness(self, timeout_s: float) -> None:
        """Stop the engine if it makes no progress within `timeout_s`; it is then restarted, as after any exit.

        Call it after a request that was silent for too long. A `command` is stopped only if it reports itself
        unhealthy: some servers process one request at a time and are merely busy.
        """
        process = self.process
        if process is not None and (self._liveness_task is None or self._liveness_task.done()):
            self._liveness_task = asyncio.create_task(self._stop_if_unresponsive(process, timeout_s))

    async def _stop_if_unresponsive(self, process: EngineProcess, timeout_s: float) -> None:
        if self.settings.command:
            is_lost, reason = await reports_unhealthy(process.plan.address), "reports that it is unhealthy"
        else:
            is_lost = not await has_progress(process.plan.address, timeout_s)
            reason = f"has made no progress for {timeout_s:g} s"
        if is_lost:
            self._supervisor.on_warning(self, f"the engine {reason}: stopping it")
            await process.stop(0)

    def load(self) -> None:
        """Start to load the model, if it is not loaded. Raises `EngineError` during the backoff and after `stop`."""
        if self.state is ModelState.STOPPED or (self.state is ModelState.FAILED and self._clock() < self._retry_at):
            raise self._unavailable_error()
        if self.state in (ModelState.UNLOADED, ModelState.FAILED):
            self._retry_at = self._clock()
            self._set_state(ModelState.LOADING)
            self._run_task = asyncio.create_task(self._run(self._stop_task), name=f"engine {self.name}")
            self._run_task.add_done_callback(self._handle_run_done)

    def restart(self, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Replace the engine by a new one, or load the model. Its requests continue at the new engine."""
        if self.state in _LOADED_STATES:
            self._start_stop(ModelState.UNLOADED, stop_timeout_s, keeps_permit=True)
        self.load()

    async def wait_for_reload(self) -> Address:
        """Like `ensure_ready`, for a request that has lost its engine: it does not load a model that was unloaded."""
        deadline = self._clock() + RELOAD_WAIT_S
        while self.state is ModelState.UNLOADED:
            if (remaining_s := deadline - self._clock()) <= 0:
                raise self._unavailable_error()
            await self._supervisor.wait_for_change(remaining_s)
        return await self.ensure_ready()

    def _unavailable_error(self) -> EngineError:
        error = self.last_error
        if self.state is not ModelState.FAILED or error is None:
            return EngineError(f"the model {self.name} has been unloaded; try again", retry_after_s=1.0)
        return EngineError(
            error.message,
            is_permanent=error.is_permanent,
            retry_after_s=max(self._retry_at - self._clock(), 0.0),
            details=error.details,
        )

    async def _run(self, previous_stop: asyncio.Task[None] | None) -> None:
        """Start the engine and restart it after each exit, until a start fails for good or the task is cancelled."""
        if previous_stop is not None:
            await asyncio.shield(previous_stop)  # its memory must be free before the next load
        try:
            await self._supervisor.acquire_load_permit(self)
        except EngineError as error:
            self._fail(error, error.retry_after_s or 0.0)
        while self.state in (ModelState.LOADING, ModelState.RESTARTING):
            try:
                self.process = await self.standby.take() or await self._start_after_backoff()
            except EngineError as error:
                self._handle_start_failure(error)
            else:
                await self._watch_process(self.process)
        if self.started_at is not None and self._backoff.is_exhausted:
            await self._load_again()

    async def _load_again(self) -> None:
        """Load a model that has run before and failed too often in a row, after its delay.

        At `max_loaded`, a request has to ask for it.
        """
        while (wait_s := self._retry_at - self._clock()) > 0:
            await self._supervisor.pause(wait_s)
        if self.state is ModelState.FAILED and self._supervisor.has_load_permit:
            self.load()

    async def _start_after_backoff(self) -> EngineProcess:
        if (wait_s := self._retry_at - self._clock()) > 0:
            await self._supervisor.pause(wait_s)
        self._output = OutputTail(self._handle_line)
        return await self._start(self._output)

    async def _start_standby(self, wait_s: float) -> EngineProcess:
        """Start the standby engine after the delay of a restart: an engine may fail again and again."""
        await self._supervisor.pause(wait_s)
        return await self._start(OutputTail(self._handle_line))

    async def _start(self, output: OutputTail) -> EngineProcess:
        excluded: set[str] = set()
        while True:
            plan = await asyncio.to_thread(
                self._supervisor.make_plan,
                self.settings,
                excluded,
                is_restart=self.state is ModelState.RESTARTING,
                has_contention=self._has_contention,
            )
            for text in plan.warnings:
                self._supervisor.on_warning(self, text)
            try:
                return await self._start_plan(plan, output)
            except EngineError as error:
                if plan.engine is None or plan.engine.build is None or not plan.engine.is_automatic:
                    raise
                excluded.add(plan.engine.name)
                self._supervisor.on_warning(self, fallback_warning(plan.engine.name, error))

    async def _start_plan(self, plan: LaunchPlan, output: OutputTail) -> EngineProcess:
        process = await EngineProcess.start(plan, timeout_s=self.settings.load_timeout_s, output=output)
        try:
            for text in process.warnings:
                self._supervisor.on_warning(self, text)
            self.capabilities = await read_capabilities(plan.address, self.settings, plan.metadata)
        except BaseException:
            await process.stop(0)
            raise
        return process

    def _handle_line(self, line: str) -> None:
        self._supervisor.on_line(self, line)
        if self.settings.has_speculation and (text := speculation_warning(line)) is not None:
            self._supervisor.on_warning(self, text)

    def _handle_start_failure(self, error: EngineError) -> None:
        wait_s = self._backoff.record_exit()
        named = EngineError(
            f"the model {self.name} cannot be loaded: {error.message}",
            is_permanent=error.is_permanent,
            details=error.details,
        )
        # The reason of a crash may apply to the next start too: SIGKILL, a file that is being replaced.
        is_final = error.is_permanent and self.state is ModelState.LOADING
        if is_final or self._backoff.is_exhausted:
            self._fail(named, wait_s)
        else:
            self._set_error(ModelState.RESTARTING, named, wait_s)

    async def _watch_process(self, process: EngineProcess) -> None:
        """Be READY until the process exits, then RESTARTING."""
        self.started_at = time.time()
        self.last_used = self._clock()
        self._backoff.record_ready()
        self._set_state(ModelState.READY)
        if self.settings.standby:
            wait_s = max(STANDBY_DELAY_S, self._retry_at - self._clock())
            self.standby.prepare(self._start_standby(wait_s))
        tasks = [asyncio.create_task(self._adapt_waiting(process), name=f"contention {self.name}")]
        if self._supervisor.stall_s:
            tasks.append(asyncio.create_task(self._end_stalled(process), name=f"stall {self.name}"))
        try:
            code = await process.wait_for_exit()
        finally:
            for task in tasks:
                task.cancel()
        self.process = None
        self.restarts += 1
        wait_s = self._backoff.record_exit()
        text = f"the engine of the model {self.name} {describe_exit(code)}"
        self._set_error(ModelState.RESTARTING, EngineError(text, details=process.output_lines), wait_s)
        await process.stop(0)  # removes what is left: pipes, the socket, workers of a command

    async def _adapt_waiting(self, process: EngineProcess) -> None:
        """Replace an engine whose threads spin when other programs need the CPUs, and later one whose threads sleep."""
        has_contention = process.plan.waiting is Waiting.SPIN
        if not process.plan.is_watched:
            return
        if has_contention:
            await wait_until_contended(process.pid, lambda: self.running > 0, lambda: self.stall_watch.survives_restart)
        elif process.plan.waiting is Waiting.SLEEP:
            await wait_until_calm(self._contentions, self._is_unused)
        else:
            return
        if self.process is not process:
            return  # it is being stopped
        self._supervisor.on_warning(self, CONTENTION_NOTE if has_contention else CALM_NOTE)
        self.restart(stop_timeout_s=0)  # it may take seconds to the end of its operation, and has nothing to save
        self._has_contention = has_contention
        self._contentions += has_contention

    async def _end_stalled(self, process: EngineProcess) -> None:
        await self.stall_watch.wait_until_stalled(process)
        text = f"the engine has not answered or made progress for {self._supervisor.stall_s:g} s: ending it"
        self._supervisor.on_warning(self, text)
        await process.stop(0)

    def _is_unused(self) -> bool:
        return self.is_idle and self._clock() - self.last_used >= UNUSED_S

    def _fail(self, error: EngineError, wait_s: float) -> None:
        self._supervisor.release_load_permit(self)
        self._set_error(ModelState.FAILED, error, wait_s)

    def _set_error(self, state: ModelState, error: EngineError, wait_s: float) -> None:
        self.last_error = error
        self._retry_at = self._clock() + wait_s
        self._set_state(state)

    def _set_state(self, state: ModelState) -> None:
        self.state = state
        if state in (ModelState.LOADING, ModelState.RESTARTING):
            self._settled.clear()
        else:
            self._settled.set()
        self._supervisor.notify()
        self._supervisor.on_change(self)

    def _handle_run_done(self, run_task: asyncio.Task[None]) -> None:
        """Fail the model after an unexpected exception, so that no request waits; the loop's handler logs it."""
        if run_task.cancelled() or run_task is not self._run_task or (error := run_task.exception()) is None:
            return
        self._fail(EngineError(f"the model {self.name} cannot be loaded: internal error"), self._backoff.record_exit())
        asyncio.get_running_loop().call_exception_handler({"message": f"engine {self.name}", "exception": error})

    def start_unload(self) -> None:
        """Start to stop the engine, or to wait for its next start. The next `ensure_ready` loads it again."""
        if self._run_task is not None and not self._run_task.done():
            self._start_stop(ModelState.UNLOADED)

    async def unload(self) -> None:
        """Stop the engine and wait for its end."""
        self.start_unload()
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the engine for good. On return nothing of it is left."""
        if self.state is not ModelState.STOPPED:
            self._start_stop(ModelState.STOPPED, timeout_s)
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    def _start_stop(self, state: ModelState, timeout_s: float = STOP_TIMEOUT_S, *, keeps_permit: bool = False) -> None:
        if self._liveness_task is not None:
            self._liveness_task.cancel()
        run_task, self._run_task = self._run_task, None
        process, self.process = self.process, None
        self._has_contention = False
        stop = self._finish_stop(run_task, process, self._stop_task, timeout_s, keeps_permit=keeps_permit)
        self._stop_task = asyncio.create_task(stop)
        self._set_state(state)

    async def _finish_stop(
        self,
        run_task: asyncio.Task[None] | None,
        process: EngineProcess | None,
        previous_stop: asyncio.Task[None] | None,
        timeout_s: float,
        *,
        keeps_permit: bool,
    ) -> None:
        if run_task is not None:
            run_task.cancel()
            await asyncio.wait({run_task})
        await self.standby.stop()
        if process is not None:
            await process.stop(timeout_s)
        if previous_stop is not None:
            await asyncio.wait({previous_stop})
        if not keeps_permit:
            self._supervisor.release_load_permit(self)


@dataclass(eq=False)
class EngineSupervisor:
    """All local models of a server, and the private folder of their sockets.

    `max_loaded` limits how many are loaded at once (0: no limit). At the limit, the longest idle model is unloaded.
    """

    settings: Sequence[ModelSettings]
    _: KW_ONLY
    folder: Path
    environment: Mapping[str, str]
    on_change: Callable[[LocalModel], None] = lambda _: None
    on_line: Callable[[LocalModel, str], None] = lambda *_: None
    """Called for each line of output of an engine."""
    on_warning: Callable[[LocalModel, str], None] = lambda *_: None
    max_loaded: int = 0
    stall_s: float = 0.0
    """Time without an answer or progress of an engine, after which it is ended; 0: never."""
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._socket_folder: Path | None = None
        self._load_permits: set[LocalModel] = set()
        self._changed_event = asyncio.Event()
        self._idle_task: asyncio.Task[None] | None = None
        self._metadata_task: asyncio.Task[None] | None = None
        self._retired: dict[LocalModel, asyncio.Task[None]] = {}
        self._set_models([LocalModel(settings, self) for settings in self.settings])

    def _set_models(self, models: Sequence[LocalModel]) -> None:
        self.models: tuple[LocalModel, ...] = tuple(models)
        named = [(name, model) for model in self.models for name in (model.name, *model.settings.aliases)]
        self._models_by_name = dict(reversed(named))  # the first model with a name gets it

    def find(self, name: str) -> LocalModel | None:
        """Return the model with this name or alias."""
        return self._models_by_name.get(name)

    async def start(self) -> None:
        """Start to load the models with `preload`, or the only model. Does not wait for them."""
        self._socket_folder = make_socket_folder(self.environment)
        self._start_models()

    def _start_models(self) -> None:
        self._metadata_task = asyncio.create_task(self._read_metadata(), name="model metadata")
        for model in self.models:
            if (model.settings.preload or len(self.models) == 1) and model.state is ModelState.UNLOADED:
                model.load()
        if self._idle_task is None and any(model.settings.idle_unload_s for model in self.models):
            self._idle_task = asyncio.create_task(self._watch_idle(), name="idle models")

    async def _read_metadata(self) -> None:
        for model in self.models:
            if model.metadata is None:
                model.metadata = await asyncio.to_thread(read_model_metadata, model.settings, self.folder)

    def reload(self, settings: Sequence[ModelSettings], environment: Mapping[str, str], max_loaded: int) -> None:
        """Serve other models from now on.

        A model whose engine would start in the same way keeps it. The engine of another one, and of a model that is
        gone, stops when its last request has ended; until then a new engine of the same name runs beside it.
        """
        self.environment, self.max_loaded = environment, max_loaded
        known = {model.name: model for model in self.models}
        models = []
        for new_settings in settings:
            model = known.get(new_settings.name)
            if model is not None and _engine_settings(model.settings) == _engine_settings(new_settings):
                model.settings = new_settings
            else:
                model = LocalModel(new_settings, self)
            models.append(model)
        self._set_models(models)
        for model in known.values():
            if model not in self.models:
                self._retired[model] = asyncio.create_task(self._retire(model), name=f"end of {model.name}")
        if self._metadata_task is not None:
            self._metadata_task.cancel()
        self._start_models()
        self.notify()

    async def _retire(self, model: LocalModel) -> None:
        """Stop a model that is not served any more, after its last request."""
        await self.pause(RETIRE_DELAY_S)
        while model.running:
            await _wait_event(self._changed_event, None)
        await model.stop()
        del self._retired[model]

    async def stop(self, timeout_s: float) -> None:
        """Stop all engines and remove the socket folder. Engines that do not end in time are killed."""
        models = (*self.models, *self._retired)
        for task in (self._metadata_task, self._idle_task, *self._retired.values()):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await asyncio.gather(*(model.stop(timeout_s) for model in models))
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def unload_idle(self) -> float | None:
        """Start to unload models that were idle for too long; return the seconds until the next one is due, if any."""
        waits = []
        for model in self.models:
            limit_s = model.settings.idle_unload_s
            if not (limit_s and model.is_idle):
                continue
            remaining_s = model.last_used + limit_s - self.clock()
            if remaining_s > 0:
                waits.append(remaining_s)
            else:
                model.start_unload()
        return min(waits, default=None)

    async def _watch_idle(self) -> None:
        while True:
            await _wait_event(self._changed_event, self.unload_idle())

    def make_plan(
        self, settings: ModelSettings, excluded: Collection[str], *, is_restart: bool, has_contention: bool
    ) -> LaunchPlan:
        if self._socket_folder is None:
            raise EngineError("the server has not started", is_permanent=True)
        return make_plan(
            settings,
            models_folder=self.folder,
            socket_folder=self._socket_folder,
            environment=self.environment,
            excluded=excluded,
            checks_memory=not is_restart,
            has_contention=has_contention,
        )

    def notify(self) -> None:
        """Wake all tasks that wait for a change; later waiters get a new event."""
        self._changed_event.set()
        self._changed_event = asyncio.Event()

    async def wait_for_change(self, within_s: float) -> None:
        """Wait for a change of any model."""
        await _wait_event(self._changed_event, within_s)

    async def acquire_load_permit(self, model: LocalModel) -> None:
        """Wait until the model may be loaded; raise `EngineError` if all others are in use for too long."""
        deadline = self.clock() + model.settings.queue_wait_s
        while model not in self._load_permits and not self.has_load_permit:
            changed, remaining_s = self._changed_event, deadline - self.clock()
            if remaining_s <= 0:
                raise EngineError(
                    "the limit of loaded models (--max-loaded) is reached, and all of them are in use",
                    retry_after_s=1.0,
                )
            idle = [loaded_model for loaded_model in self._load_permits if loaded_model.is_idle]
            if idle:
                await min(idle, key=lambda loaded_model: loaded_model.last_used).unload()
            else:
                await _wait_event(changed, remaining_s)
        self._load_permits.add(model)

    @property
    def has_load_permit(self) -> bool:
        """Whether one more model may be loaded."""
        return not self.max_loaded or len(self._load_permits) < self.max_loaded

    def release_load_permit(self, model: LocalModel) -> None:
        self._load_permits.discard(model)
        self.notify()


_SERVER_SETTINGS = ("aliases", "defaults", "idle_unload_s", "preload", "queue", "queue_wait_s", "start_limit_s")
"""Settings of a model that do not affect how its engine is started."""


def _engine_settings(settings: ModelSettings) -> Mapping[str, object]:
    return {name: value for name, value in vars(settings).items() if name not in _SERVER_SETTINGS}


async def _wait_event(event: asyncio.Event, timeout_s: float | None) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def make_socket_folder(environment: Mapping[str, str]) -> Path:
    """Create a folder for sockets that only this user can enter. One that a killed server leaves behind is harmless."""
    parents = (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # /tmp: short on every system
    suitable = (parent for parent in parents if fits_socket_path(parent) and os.access(parent, os.W_OK | os.X_OK))
    return Path(tempfile.mkdtemp(prefix="welldone-", dir=next(suitable, None)))
