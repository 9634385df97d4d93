"""A circuit breaker: a server that fails again and again is left alone for a while, and then tried with one request."""

from collections.abc import Callable
from typing import Literal

FAILURE_THRESHOLD = 5
"""Failures in a row that open it; Envoy's number."""

OPEN_S = 30.0
"""How long it is open the first time, and how much longer each time after; Envoy's number."""

OPEN_MAX_S = 300.0
"""A server that comes back is found within five minutes; Envoy's number."""


class CircuitBreaker:
    """Closed: all requests may go. Open: none should. Half-open: one may, and its end decides.

    It only advises: where there is no other server, requests go through an open one too, and a success closes it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        failure_threshold: int = FAILURE_THRESHOLD,
        open_s: float = OPEN_S,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._failure_threshold = failure_threshold
        self._open_s = open_s
        self._consecutive_failures = 0
        self._times_opened = 0
        self._probe_at: float | None = None
        self._probe_number = 0
        """The number of the last probe."""
        self.opened_at: float | None = None
        """When it was opened; None: it is closed."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """Where it stands now."""
        if self.opened_at is None:
            return "closed"
        return "open" if self.retry_after_s > 0 else "half-open"

    @property
    def retry_after_s(self) -> float:
        """Seconds until it is no longer open; 0: it is not."""
        if self.opened_at is None:
            return 0.0
        open_s = min(self._open_s * self._times_opened, OPEN_MAX_S)
        return max(0.0, self.opened_at + open_s - self._clock())

    def allows_request(self) -> bool:
        """Whether a request may go now."""
        return self.state == "closed" or (self.state == "half-open" and not self._is_probe_in_flight)

    @property
    def _is_probe_in_flight(self) -> bool:
        """Whether a probe is under way. One that tells nothing for long may never: its client may have left."""
        return self._probe_at is not None and self._clock() < self._probe_at + self._open_s

    def begin_request(self) -> int:
        """A request goes. The first one of a half-open breaker is its probe: the probe's number, or 0."""
        if self.state != "half-open" or self._is_probe_in_flight:
            return 0
        self._probe_at = self._clock()
        self._probe_number += 1
        return self._probe_number

    def cancel_request(self, probe_number: int) -> None:
        """The client of a request left, which began with this number: if that was the probe, another one may be."""
        if self._is_current_probe(probe_number):
            self._probe_at = None

    def record_success(self) -> None:
        """A request was answered: all is well, whatever was before."""
        was_closed = self.opened_at is None
        self._consecutive_failures = self._times_opened = 0
        self._probe_at = self.opened_at = None
        if not was_closed:
            self._on_change()

    def record_failure(self, probe_number: int = 0) -> None:
        """A request was not answered, which began with this number. Once it is open, only the probe decides."""
        if self.opened_at is None:
            self._consecutive_failures += 1
            if self._consecutive_failures >= self._failure_threshold:
                self._open()
        elif self._is_current_probe(probe_number):
            self._open()

    def _is_current_probe(self, probe_number: int) -> bool:
        return self._probe_at is not None and probe_number == self._probe_number

    def _open(self) -> None:
        self.opened_at = self._clock()
        self._times_opened += 1
        self._probe_at = None
        self._on_change()
