"""Stalls of an engine: it has requests, and no token comes for any of them.

While the engine processes a prompt, silence is normal: on a slow machine, one batch may take minutes. So an engine
stalls only if all of its requests have received text already.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

CHECKS_PER_STALL = 4
"""A stall is noticed after at most a quarter more than its time."""


class RequestProgress(Protocol):
    """What a request has received from its engine."""

    @property
    def last_received_at(self) -> float:
        """When the last bytes came, by `time.monotonic`."""

    @property
    def is_generating(self) -> bool:
        """Whether the engine has processed the prompt: text, reasoning or a tool call has come."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read from the engine, because the client is slow."""

    @property
    def survives_restart(self) -> bool:
        """Whether the answer goes on if the engine is replaced."""


class WatchedRequest(Protocol):
    """A request that an engine works on."""

    progress: RequestProgress | None
    """None for requests without a stream of tokens, such as embeddings."""


class StallWatch:
    """The requests of one engine, and a timer while there are any."""

    def __init__(self, stall_s: float, on_stall: Callable[[float], None]) -> None:
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._requests: dict[int, WatchedRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: WatchedRequest) -> None:
        """Watch a request. A `stall_s` of 0 turns the watch off."""
        self._requests[id(request)] = request
        if self._timer is None and self._stall_s:
            self._start_timer()

    def remove(self, request: WatchedRequest) -> None:
        """Watch a request no more."""
        self._requests.pop(id(request), None)

    def silence_s(self, *, now: float | None = None) -> float:
        """Return for how long no request has received anything; 0 if that is normal."""
        found = [request.progress for request in self._requests.values()]
        read = [progress for progress in found if progress is None or not progress.is_paused]
        generating = [progress.last_received_at for progress in read if progress is not None and progress.is_generating]
        if not read or len(generating) < len(read):
            return 0.0
        return (time.monotonic() if now is None else now) - max(generating)

    @property
    def survives_restart(self) -> bool:
        """Whether all requests go on if the engine is replaced. One without a stream is sent again."""
        progress = [request.progress for request in self._requests.values()]
        return all(one is None or one.survives_restart for one in progress)

    def check(self, *, now: float | None = None) -> None:
        """Report a stall."""
        silence_s = self.silence_s(now=now)
        if silence_s >= self._stall_s:
            self._on_stall(silence_s)

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stall_s / CHECKS_PER_STALL, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        if self._requests:
            self.check()
            self._start_timer()
