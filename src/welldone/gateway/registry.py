"""All upstreams of a server: watched, and found by the names of their models."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from welldone.config.upstream import UpstreamSettings
from welldone.gateway.routing import LocalRoute, ModelRouter, UpstreamGroup
from welldone.gateway.upstream import ListedModel, Upstream
from welldone.http.address import Address
from welldone.http.client import BufferedResponse, HttpClientError, fetch
from welldone.http.cooperative import run_cooperatively

# The places that a model has in a cluster. Replicas come and go, and each takes a place that is free.
#
# So all else has names that stay: gates, counts, what a conversation sticks to. A place is an upstream that moves.


class DynamicUpstreams:
    """The places of one model."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = tuple(upstreams)
        self._assignments: dict[str, tuple[Upstream, Address]] = {}
        """By the names of replicas."""

    def update_replicas(self, replicas: Mapping[str, Address]) -> None:
        """These are there now, and no others. For whom there is no place waits until one is free."""
        for name, (upstream, address) in list(self._assignments.items()):
            if replicas.get(name) != address:
                del self._assignments[name]
                upstream.assign(None)
        free = [upstream for upstream in self._upstreams if upstream.is_unassigned]
        new = [name for name in replicas if name not in self._assignments]
        for name, upstream in zip(new, free, strict=False):
            self._assignments[name] = (upstream, replicas[name])
            upstream.assign(replicas[name])


PROBE_TIMEOUT_S = 5.0
"""A well server lists its models in milliseconds; a busy one may take seconds."""

MODEL_LIST_LIMIT_BYTES = 4 * 10**6
"""The longest list is OpenRouter's, with about 600 KB."""

MODEL_LIST_INTERVAL_S = 60.0
"""How often models are listed where health is looked at elsewhere: they change by hand."""

_PROBE_JITTER = 0.1  # of the time between looks, so that several servers do not look all at once


class UpstreamRegistry:
    """The upstreams, each with a task that looks after it.

    Raises:
        ValueError: an address is wrong; the message is one plain sentence.
    """

    def __init__(
        self,
        settings: Sequence[UpstreamSettings],
        routes: Mapping[str, Sequence[str]],
        *,
        local_names: Collection[str] = (),
        on_change: Callable[[Upstream], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.all = tuple(Upstream(wanted, clock=clock, on_change=self._handle_change) for wanted in settings)
        self._on_change = on_change
        self._changed_event = asyncio.Event()
        self._local_names = frozenset(local_names)
        self._router = ModelRouter(routes, self.all, local_names)
        self._clock = clock
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._unprobed = {upstream.name for upstream in self.all}
        self._all_probed = asyncio.Event()

    async def start(self) -> None:
        """Begins to look after them. Waits for none."""
        self._tasks = {
            asyncio.create_task(self._probe_periodically(upstream), name=f"health of {upstream.name}")
            for upstream in self.all
        }

    async def wait_until_probed(self, within_s: float) -> None:
        """Returns when each was looked at once, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_probed.wait()

    async def wait_for_change(self, within_s: float) -> None:
        """Returns when an upstream has become well, or is not any more, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed_event.wait()

    def _handle_change(self, upstream: Upstream) -> None:
        """Wakes all who wait for news. Who waits next gets an event of his own."""
        self._changed_event.set()
        self._changed_event = asyncio.Event()
        self._on_change(upstream)

    async def stop(self) -> None:
        """Looks no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def resolve(self, name: str) -> UpstreamGroup | LocalRoute | None:
        """Who answers for the name of a model; None: nobody."""
        return self._router.resolve(name)

    def sole_model(self) -> UpstreamGroup | None:
        """The one model that there is, under the first of its names; None: there are several, or none is known.

        A route with a pattern counts: what it leads to is served too. An upstream that has not listed its models yet
        may have any.
        """
        if self._local_names or any(one.listed_models is None and not one.settings.models for one in self.all):
            return None
        one: UpstreamGroup | None = None
        for name in self._router.exact_names():
            found = self._router.resolve(name)
            if not isinstance(found, UpstreamGroup) or (one is not None and found.members != one.members):
                return None
            one = one or found
        patterns = (self._router.resolve(pattern) for pattern in self._router.patterns)
        if any(
            not isinstance(found, UpstreamGroup) or one is None or found.members != one.members for found in patterns
        ):
            return None
        return one

    def list_models(self) -> list[dict[str, Any]]:
        """The models as clients list them; local ones only where a route names them anew."""
        objects: dict[str, dict[str, Any]] = {}
        for name in self._router.exact_names():
            if name not in objects and name not in self._local_names:
                found = self._router.resolve(name)
                if found is not None:
                    objects[name] = _listed_model_of(found).as_model_object(name)
        return list(objects.values())

    async def _probe_periodically(self, upstream: Upstream) -> None:
        """Looks at once, and then again and again."""
        listed_at: float | None = None
        settings = upstream.settings
        while True:
            address = upstream.address
            if settings.health and not upstream.is_unassigned:
                seen = await _fetch_or_error(replace(address, prefix=""), settings.health)
                if upstream.address is address and not upstream.is_unassigned:  # else it tells of who was there before
                    upstream.record_probe(seen)
            is_due = listed_at is None or self._clock() - listed_at >= MODEL_LIST_INTERVAL_S
            if not upstream.is_unassigned and (not settings.health or upstream.listed_models is None or is_due):
                listed_at = self._clock()
                reply = await _fetch_or_error(upstream.address, "/models")
                await run_cooperatively(upstream.record_model_list_in_steps(reply))
                if not settings.health:
                    upstream.record_probe(reply)
            self._unprobed.discard(upstream.name)
            if not self._unprobed:
                self._all_probed.set()
            if not settings.probe_s:
                return
            await self._pause(settings.probe_s * random.uniform(1 - _PROBE_JITTER, 1 + _PROBE_JITTER))


async def _fetch_or_error(address: Address, path: str) -> BufferedResponse | HttpClientError:
    """The reply, on a connection of its own: one that was kept would tell less. Or why there is none in time."""
    try:
        return await fetch(address, "GET", path, timeout_s=PROBE_TIMEOUT_S, limit_bytes=MODEL_LIST_LIMIT_BYTES)
    except HttpClientError as error:
        return error


def _listed_model_of(found: UpstreamGroup | LocalRoute) -> ListedModel:
    """What is said of a model; of several upstreams the first that says something."""
    members = found.members if isinstance(found, UpstreamGroup) else ()
    said = (member.upstream.listed_model(member.model) for member in members)
    return next((model for model in said if model is not None), ListedModel(found.name))
