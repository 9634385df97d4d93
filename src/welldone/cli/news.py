"""What the log says of upstreams: what becomes of them."""

import logging

from welldone.cli.upstreams import url_of
from welldone.engines.upstream import Upstream
from welldone.serve import log


class News:
    """Logs what changes about upstreams. What was said already is not said again."""

    def __init__(self) -> None:
        self._troubles: dict[str, str | None] = {}
        self._opened: set[str] = set()
        self._failing: set[str] = set()

    def tell(self, upstream: Upstream) -> None:
        """Something about it may have changed."""
        fields: dict[str, log.Value] = {"upstream": upstream.name}
        before = self._troubles.get(upstream.name)
        self._troubles[upstream.name] = upstream.trouble
        if upstream.trouble != before:
            if upstream.trouble is not None:
                log.event(logging.WARNING, upstream.trouble, fields | {"url": url_of(upstream.settings)})
            else:
                log.event(logging.INFO, "the upstream is well again", fields)
        if upstream.failing is not None and upstream.name not in self._failing:
            self._failing.add(upstream.name)
            log.event(
                logging.WARNING, "all recent requests to the upstream failed", fields | {"last": upstream.failing}
            )
        is_open = upstream.breaker.opened_at is not None
        if is_open and upstream.name not in self._opened:
            self._opened.add(upstream.name)
            pause_s = round(upstream.breaker.retry_after_s)
            log.event(
                logging.WARNING, "the upstream failed again and again and is avoided", fields | {"for_s": pause_s}
            )
        elif not is_open and upstream.failing is None and upstream.name in self._opened | self._failing:
            self._opened.discard(upstream.name)
            self._failing.discard(upstream.name)
            log.event(logging.INFO, "the upstream answers again", fields)
