"""Standby engine of a model: loaded while the first engine runs, so that it can take over without a load."""

import asyncio
from collections.abc import Callable, Coroutine

from welldone.engines.errors import EngineError
from welldone.engines.process import EngineProcess


class StandbyEngine:
    """At most one engine that waits for the first one to fail.

    It is not watched: one that has ended is replaced at the next takeover. The usual reason is a lack of memory, which
    another start would not cure.
    """

    def __init__(self, on_change: Callable[[], None], on_warning: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._on_warning = on_warning
        self._task: asyncio.Task[EngineProcess] | None = None

    def prepare(self, start: Coroutine[object, object, EngineProcess]) -> None:
        """Start it in the background."""
        self._task = asyncio.create_task(start, name="standby engine")
        self._task.add_done_callback(lambda _: self._on_change())

    @property
    def process(self) -> EngineProcess | None:
        """Its process, if it is ready."""
        started = _result(self._task) if self._task is not None and self._task.done() else None
        return started if started is not None and started.is_running else None

    async def take(self) -> EngineProcess | None:
        """Return its process, after its start if it has not ended yet; None if there is none that runs."""
        task, self._task = self._task, None
        if task is None:
            return None
        try:
            process = await task
        except EngineError as error:
            self._on_warning(f"the standby engine is not available: it {error.message}")
            return None
        if process.is_running:
            return process
        await process.stop(0)
        return None

    async def stop(self) -> None:
        """End it. It has no requests to finish."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if (process := _result(task)) is not None:
            await process.stop(0)


def _result(task: asyncio.Task[EngineProcess]) -> EngineProcess | None:
    """Return the process that a finished task has started."""
    return None if task.cancelled() or task.exception() is not None else task.result()
