"""All models of a server: found by name, loaded on demand, unloaded when idle or when room is needed."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from welldone.engines.abilities import Abilities
from welldone.engines.address import Address
from welldone.engines.errors import EngineError
from welldone.engines.model import Model, State
from welldone.engines.plan import Plan, has_room_for_sockets, make_plan, read_facts_of
from welldone.engines.settings import ModelSettings

__all__ = ["Abilities", "Address", "EngineError", "Fleet", "Model", "State"]


class Fleet:
    """The models, and the private folder in which their engines listen.

    `max_loaded` bounds how many are loaded at once (0: no bound): the one that was idle for longest makes room.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        *,
        folder: Path,
        environment: Mapping[str, str],
        on_change: Callable[[Model], None] = lambda _: None,
        on_line: Callable[[Model, str], None] = lambda *_: None,
        max_loaded: int = 0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._on_change = on_change
        self._max_loaded = max_loaded
        self._clock = clock
        self._sockets: Path | None = None
        self._places: set[Model] = set()
        self._news = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.models = tuple(
            Model(
                settings,
                self._plan,
                take_place=self._take_place,
                leave_place=self._leave_place,
                on_change=self._changed,
                on_idle=self._tell,
                on_line=on_line,
                clock=clock,
                pause=pause,
            )
            for settings in models
        )
        named = [(name, model) for model in self.models for name in (model.name, *model.settings.aliases)]
        self._names = dict(reversed(named))  # who comes first has the name

    def find(self, name: str) -> Model | None:
        """The model with this name or alias."""
        return self._names.get(name)

    async def start(self) -> None:
        """Begins to load the models that are wanted at once: those marked, and a single one. Waits for none."""
        self._sockets = make_private_folder(self._environment)
        self._reading = asyncio.create_task(self._read_facts(), name="facts of models")
        for model in self.models:
            if model.settings.preload or len(self.models) == 1:
                model.load()
        if any(model.settings.idle_unload_s for model in self.models):
            self._timer = asyncio.create_task(self._watch_idle(), name="idle models")

    async def _read_facts(self) -> None:
        for model in self.models:
            model.facts = await asyncio.to_thread(read_facts_of, model.settings, self._folder)

    async def stop(self, within_s: float) -> None:
        """Ends all engines and removes the folder. Engines that do not end in time are killed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wait({self._timer})
        await asyncio.gather(*(model.stop(within_s) for model in self.models))
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

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
                model.begin_to_unload()
        return min(waits, default=None)

    async def _watch_idle(self) -> None:
        while True:
            news = self._news
            await _either(news, self.unload_idle())

    def _plan(self, settings: ModelSettings) -> Plan:
        if self._sockets is None:
            raise EngineError("the server has not started", is_permanent=True)
        return make_plan(settings, models=self._folder, sockets=self._sockets, environment=self._environment)

    def _changed(self, model: Model) -> None:
        self._tell()
        self._on_change(model)

    def _tell(self) -> None:
        """Wakes all who wait for something to change. Who waits next gets an event of his own."""
        self._news.set()
        self._news = asyncio.Event()

    async def _take_place(self, model: Model) -> None:
        """Returns when the model may be loaded; `EngineError` if all others are busy for too long."""
        deadline = self._clock() + model.settings.queue_wait_s
        while self._max_loaded and len(self._places) >= self._max_loaded:
            news, left_s = self._news, deadline - self._clock()
            if left_s <= 0:
                raise EngineError("other models take all the room, and are in use", retry_after_s=1.0)
            idle = [other for other in self._places if other.is_idle]
            if idle:
                await min(idle, key=lambda other: other.last_used).unload()
            else:
                await _either(news, left_s)
        self._places.add(model)

    def _leave_place(self, model: Model) -> None:
        self._places.discard(model)
        self._tell()


async def _either(event: asyncio.Event, within_s: float | None) -> None:
    """Returns when the event comes or the time is over."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return


def make_private_folder(environment: Mapping[str, str]) -> Path:
    """A new folder for sockets that only this user can enter. One that a killed server leaves behind does no harm."""
    places = (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # the last is short everywhere
    fitting = (place for place in places if has_room_for_sockets(place) and os.access(place, os.W_OK | os.X_OK))
    return Path(tempfile.mkdtemp(prefix="welldone-", dir=next(fitting, None)))
