"""What is said of models while they are loaded: what the engine is doing, and for how long already.

On a terminal that is a line which is written over; anywhere else a line of the log, now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from welldone.cli import show
from welldone.engines.fleet import LocalModel
from welldone.engines.tail import strip_log_prefix
from welldone.serve import log
from welldone.serve.log import Redactor

_TICK_S = 1.0
_QUICK_S = 2.0  # what takes no longer needs no word
_FIRST_LOG_S, _MAX_LOG_INTERVAL_S = 10.0, 60.0  # of the log: after 10, 20, 40, 80 s, and then each minute
_MAX_STATUS_CHARS = 200  # of what the engine says: what does not fit into a line helps nobody


@dataclass
class _ModelLoad:
    started_at: float
    due_s: float = _FIRST_LOG_S


class ModelLoadProgress:
    """Tells of all loads that are under way."""

    def __init__(self, redactor: Redactor, *, is_shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._redactor = redactor
        self._is_shown = is_shown
        self._clock = clock
        self._loads: dict[LocalModel, _ModelLoad] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, model: LocalModel) -> None:
        """It is being loaded."""
        self._loads[model] = _ModelLoad(self._clock())
        if self._timer is None:
            self._schedule_tick()

    def end(self, model: LocalModel) -> float | None:
        """It is not any more; how many seconds it was, if it was."""
        load = self._loads.pop(model, None)
        if load is None:
            return None
        if not self._loads:
            self.stop()
        return self._clock() - load.started_at

    def stop(self) -> None:
        """Say no more of those that are loaded now."""
        self._loads.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._is_shown:
                show.overwrite_line("")

    def report(self) -> None:
        """Say what is to be said now."""
        if self._is_shown:
            self._show()
        else:
            self._log()

    def _schedule_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self.report()
        self._schedule_tick()

    def _show(self) -> None:
        """Of the one that has been loading for longest: there is one line."""
        model, load = next(iter(self._loads.items()))
        seconds = self._clock() - load.started_at
        if seconds >= _QUICK_S:
            show.overwrite_line(f"{model.name} is loading, {_format_elapsed(seconds)}: {self._engine_status(model)}")

    def _log(self) -> None:
        for model, load in self._loads.items():
            seconds = self._clock() - load.started_at
            if seconds >= load.due_s:
                load.due_s += min(load.due_s, _MAX_LOG_INTERVAL_S)
                fields: dict[str, log.FieldValue] = {
                    "model": model.name,
                    "for_s": round(seconds),
                    "engine": self._engine_status(model),
                }
                log.event(logging.INFO, "model is loading", fields)

    def _engine_status(self, model: LocalModel) -> str:
        return (
            self._redactor.line_of(strip_log_prefix(model.last_output_line).strip(), _MAX_STATUS_CHARS)
            or "it says nothing"
        )


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
