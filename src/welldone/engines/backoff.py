"""How long to wait before an engine is started again."""

from collections.abc import Callable

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
