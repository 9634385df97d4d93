"""A line in the log for each upstream whose answers were repaired in the last minutes, with the most frequent rules."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from welldone.server.observe import log
from welldone.server.observe.counters import UpstreamCounts

INTERVAL_S = 300.0
"""Short enough to see a deployment go wrong, long enough not to fill a log."""
_RULES = 3  # by name; the others are counted
_SUCCESS = "200"  # outcome of an attempt


class RepairSummary:
    """Logs what has changed since the last summary. `counts` returns the counters of all upstreams so far."""

    def __init__(self, counts: Callable[[], Mapping[str, UpstreamCounts]]) -> None:
        self._counts = counts
        self._last: Mapping[str, UpstreamCounts] = {}  # as large as the metrics: upstreams times rules
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Report from now on, in the running event loop."""
        self._last = self._counts()
        self._schedule()

    def stop(self) -> None:
        """Report no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def report(self) -> None:
        """Log a line for each upstream with repairs since the last report."""
        counts = self._counts()
        for name, now in counts.items():
            before = self._last.get(name)
            repairs = Counter(now.findings) - Counter({} if before is None else before.findings)
            if not repairs:
                continue
            answers = now.attempts.get(_SUCCESS, 0) - (0 if before is None else before.attempts.get(_SUCCESS, 0))
            fields: dict[str, log.FieldValue] = {
                "upstream": name,
                "minutes": round(INTERVAL_S / 60, 1),
                "answers": max(0, answers),  # a reload may reset the counters
                "repaired": [f"{rule}:{count}" for rule, count in repairs.most_common(_RULES)],
            }
            if len(repairs) > _RULES:
                fields["other_rules"] = len(repairs) - _RULES
            log.event(logging.INFO, "answers of an upstream were repaired", fields)
        self._last = counts

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self.report()
        self._schedule()
