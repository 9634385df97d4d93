"""How long to wait before an engine is started again."""

from collections.abc import Callable

FIRST_S = 0.2
"""A single crash should cost a client less than it notices; a small model loads in under a second."""

LIMIT_S = 30.0
"""An engine that cannot start is tried twice a minute, which no machine feels."""

CALM_S = 60.0
"""After a minute of health a death is a new one and not more of the last."""

DEATHS = 5
"""Deaths in a row without being ready, after which the engine is left alone until somebody asks. The waits make 3 s."""


class Backoff:
    """Waits that double from death to death, and start anew after a time of health."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deaths = 0
        self._unready_deaths = 0
        self._ready_at: float | None = None

    def is_ready(self) -> None:
        """The engine runs."""
        self._ready_at = self._clock()
        self._unready_deaths = 0

    def died(self) -> float:
        """The engine ended, or could not start. How long to wait now."""
        if self._ready_at is None:
            self._unready_deaths += 1
        elif self._clock() - self._ready_at >= CALM_S:
            self._deaths = 0
        self._ready_at = None
        self._deaths += 1
        return min(FIRST_S * 2.0 ** min(self._deaths - 1, 16), LIMIT_S)

    @property
    def is_hopeless(self) -> bool:
        """Whether it died too often in a row without ever being ready."""
        return self._unready_deaths >= DEATHS
