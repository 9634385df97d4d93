"""Stalls of an engine: it does not answer, or it has requests and makes no progress. Such an engine is replaced.

Silence alone is no stall. llama.cpp counts the tokens of a prompt when a batch is done, which may take minutes, and
some servers answer nothing while they work; but their threads run then, or wait for a CPU. Only if every request had
text when the silence began, threads that run prove nothing: one more token never takes so long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

CHECKS_PER_STALL = 4
"""So many checks in a row find no sign of life. An event loop that was late or suspended has made fewer checks."""

WORK_SHARE = 0.001
"""Share of the time for which the threads of a working engine are active, at least. It is 0.01 or more if the engine
waits for a slow disk; that of an idle llama.cpp on a busy machine was 0.0002."""

ENGINE_SHARE = 0.1
"""A command that has never been so active may be the client of an engine elsewhere, such as `docker run`."""

PICKUP_S = 1.0
"""Between two batches, llama.cpp takes new requests: it does that in milliseconds."""

Counters = tuple[bytes, ...]


class RequestProgress(Protocol):
    """What a request has received from its engine."""

    @property
    def last_received_at(self) -> float:
        """When the last bytes came, by `time.monotonic`; at first, when the request was sent."""

    @property
    def is_generating(self) -> bool:
        """Whether the engine has processed the prompt: text, reasoning or a tool call has come."""

    @property
    def survives_restart(self) -> bool:
        """Whether the answer goes on if the engine is replaced."""


class WatchedRequest(Protocol):
    """A request that an engine works on."""

    progress: RequestProgress | None
    """None for requests without a stream of tokens, such as embeddings."""


class WatchedEngine(Protocol):
    """A running engine."""

    @property
    def is_llama(self) -> bool:
        """Whether it is llama.cpp in a process of this machine. A command may work elsewhere, as in a container."""

    async def read_progress(self) -> Counters | None:
        """Return counters of its work: none if it has no work, or does not count it. None: it does not answer."""

    def active_times(self) -> Mapping[str, float]:
        """Return for how many seconds each thread ran or waited for a CPU; empty if the system does not report it."""


class StallWatch:
    """The requests of one engine, and the wait for its stall."""

    def __init__(self, stall_s: float) -> None:
        self._check_s = stall_s / CHECKS_PER_STALL
        self._requests: dict[int, WatchedRequest] = {}

    def add(self, request: WatchedRequest) -> None:
        """Watch a request."""
        self._requests[id(request)] = request

    def remove(self, request: WatchedRequest) -> None:
        """Watch a request no more."""
        self._requests.pop(id(request), None)

    @property
    def survives_restart(self) -> bool:
        """Whether all requests go on if the engine is replaced. One without a stream is sent again."""
        progress = [request.progress for request in self._requests.values()]
        return all(state is None or state.survives_restart for state in progress)

    async def wait_until_stalled(
        self, engine: WatchedEngine, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Return after `CHECKS_PER_STALL` checks in a row without a sign of life."""
        times = await asyncio.to_thread(engine.active_times)
        signs = LifeSigns(self._requests.values(), times, self._check_s, is_llama=engine.is_llama)
        probe: asyncio.Task[Counters | None] | None = None  # one at a time: each may occupy a thread of the engine
        silent_checks = 0
        try:
            while silent_checks < CHECKS_PER_STALL:
                if probe is None and (engine.is_llama or silent_checks):  # a command may log each probe
                    probe = asyncio.create_task(engine.read_progress())
                await pause(self._check_s)
                answer, times = None, await asyncio.to_thread(engine.active_times)
                if probe is not None and probe.done():
                    answer, probe = probe.result(), None
                silent_checks = 0 if signs.found(answer, times, time.monotonic()) else silent_checks + 1
        finally:
            if probe is not None:
                probe.cancel()


class LifeSigns:
    """Compares an engine and its requests with what they were at the last check."""

    def __init__(
        self, requests: Collection[WatchedRequest], times: Mapping[str, float], check_s: float, *, is_llama: bool
    ) -> None:
        self._requests = requests
        self._times = times
        self._check_s = check_s
        self._works_here = is_llama and bool(times)
        self._counters: Counters = ()
        self._text_at = self._proceeded_at = 0.0
        self._may_have_prompt = True

    def found(self, answer: Counters | None, times: Mapping[str, float], now: float) -> bool:
        """Return whether there was a sign of life since the last check."""
        active_s = sum(seconds - self._times.get(thread, 0.0) for thread, seconds in times.items())
        self._times, share = times, active_s / self._check_s
        self._works_here |= share >= ENGINE_SHARE
        progress = [request.progress for request in self._requests]
        received_at = (state.last_received_at for state in progress if state is not None and state.is_generating)
        text_at = max(received_at, default=0.0)
        has_proceeded = text_at > self._text_at or (answer is not None and (not answer or answer != self._counters))
        if has_proceeded:
            self._text_at, self._proceeded_at = max(text_at, self._text_at), now
            self._counters = self._counters if answer is None else answer
            self._may_have_prompt = not answer  # an engine without work begins with any prompt that comes
        # Later prompts are not in the batch that it computes since then.
        latest_s = self._proceeded_at + PICKUP_S
        self._may_have_prompt |= any(
            state is None or (not state.is_generating and state.last_received_at < latest_s) for state in progress
        )
        may_work_elsewhere = bool(progress) and not self._works_here
        return has_proceeded or (self._may_have_prompt and (share >= WORK_SHARE or may_work_elsewhere))
