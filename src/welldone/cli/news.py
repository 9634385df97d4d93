"""What the log says of upstreams: what becomes of them."""

import logging

from welldone.cli.upstreams import redacted_url
from welldone.engines.upstream import Upstream
from welldone.serve import log


class UpstreamLog:
    """Logs what changes about upstreams. What was said already is not said again."""

    def __init__(self) -> None:
        self._last_errors: dict[str, str | None] = {}
        self._open_breakers: set[str] = set()
        self._failing: set[str] = set()

    def update(self, upstream: Upstream) -> None:
        """Something about it may have changed."""
        fields: dict[str, log.FieldValue] = {"upstream": upstream.name}
        before = self._last_errors.get(upstream.name)
        self._last_errors[upstream.name] = upstream.problem
        if upstream.problem != before:
            if upstream.problem is not None:
                log.event(logging.WARNING, upstream.problem, fields | {"url": redacted_url(upstream.settings)})
            else:
                log.event(logging.INFO, "the upstream is well again", fields)
        if upstream.recent_failure is not None and upstream.name not in self._failing:
            self._failing.add(upstream.name)
            log.event(
                logging.WARNING,
                "all recent requests to the upstream failed",
                fields | {"last": upstream.recent_failure},
            )
        is_open = upstream.breaker.opened_at is not None
        if is_open and upstream.name not in self._open_breakers:
            self._open_breakers.add(upstream.name)
            pause_s = round(upstream.breaker.retry_after_s)
            log.event(
                logging.WARNING, "the upstream failed again and again and is avoided", fields | {"for_s": pause_s}
            )
        elif not is_open and upstream.recent_failure is None and upstream.name in self._open_breakers | self._failing:
            self._open_breakers.discard(upstream.name)
            self._failing.discard(upstream.name)
            log.event(logging.INFO, "the upstream answers again", fields)
