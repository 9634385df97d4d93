"""What is said of models while they are loaded: what the engine is doing, and for how long already.

On a terminal that is a line which is written over; anywhere else a line of the log, now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from welldone.cli import show
from welldone.engines.fleet import Model
from welldone.engines.tail import bare
from welldone.serve import log
from welldone.serve.log import Redactor

_TICK_S = 1.0
_QUICK_S = 2.0  # what takes no longer needs no word
_FIRST_S, _PAUSE_S = 10.0, 60.0  # of the log: after 10, 20, 40, 80 s, and then each minute
_LETTERS = 200  # of what the engine says: what does not fit into a line helps nobody


@dataclass
class _Load:
    begun: float
    due_s: float = _FIRST_S


class Starting:
    """Tells of all loads that are under way."""

    def __init__(self, redactor: Redactor, *, is_shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._redactor = redactor
        self._is_shown = is_shown
        self._clock = clock
        self._loads: dict[Model, _Load] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, model: Model) -> None:
        """It is being loaded."""
        self._loads[model] = _Load(self._clock())
        if self._timer is None:
            self._wait()

    def end(self, model: Model) -> float | None:
        """It is not any more; how many seconds it was, if it was."""
        load = self._loads.pop(model, None)
        if load is None:
            return None
        if not self._loads:
            self.stop()
        return self._clock() - load.begun

    def stop(self) -> None:
        """Say no more of those that are loaded now."""
        self._loads.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._is_shown:
                show.over("")

    def tell(self) -> None:
        """Say what is to be said now."""
        if self._is_shown:
            self._show()
        else:
            self._log()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self.tell()
        self._wait()

    def _show(self) -> None:
        """Of the one that has been loading for longest: there is one line."""
        model, load = next(iter(self._loads.items()))
        seconds = self._clock() - load.begun
        if seconds >= _QUICK_S:
            show.over(f"{model.name} is loading, {_spelled(seconds)}: {self._gist(model)}")

    def _log(self) -> None:
        for model, load in self._loads.items():
            seconds = self._clock() - load.begun
            if seconds >= load.due_s:
                load.due_s += min(load.due_s, _PAUSE_S)
                fields: dict[str, log.Value] = {
                    "model": model.name,
                    "for_s": round(seconds),
                    "engine": self._gist(model),
                }
                log.event(logging.INFO, "model is loading", fields)

    def _gist(self, model: Model) -> str:
        return self._redactor.line_of(bare(model.says).strip(), _LETTERS) or "it says nothing"


def _spelled(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
