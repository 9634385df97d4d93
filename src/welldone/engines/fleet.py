"""All models of a server: found by name, loaded on demand, unloaded when idle or when room is needed."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.address import Address
from welldone.engines.errors import EngineError
from welldone.engines.model import LocalModel, ModelState
from welldone.engines.plan import LaunchPlan, fits_socket_path, make_plan, read_model_metadata
from welldone.engines.settings import ModelSettings

__all__ = ["ModelCapabilities", "Address", "EngineError", "EngineSupervisor", "LocalModel", "ModelState"]


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
