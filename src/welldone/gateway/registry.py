"""All upstreams of a server: health probes, model lists, and resolution of model names."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from welldone.config.upstream import UpstreamSettings
from welldone.gateway.model_list import ListedModel
from welldone.gateway.routing import LocalRoute, ModelRouter, UpstreamGroup
from welldone.gateway.upstream import Upstream
from welldone.http.address import Address
from welldone.http.client import BufferedResponse, fetch
from welldone.http.connect import HttpClientError
from welldone.http.turns import run_cooperatively


class DynamicUpstreams:
    """Assigns the replicas of a cluster model to a fixed set of upstreams.

    Replicas come and go; the names of the upstreams stay, and with them queues, counters and sticky routing.
    """

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = tuple(upstreams)
        self._assignments: dict[str, tuple[Upstream, Address]] = {}  # by name of the replica

    def update_replicas(self, replicas: Mapping[str, Address]) -> None:
        """Set the running replicas. Surplus replicas stay unassigned until an upstream is free."""
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
"""An idle server lists its models in milliseconds; a busy one may take seconds."""

MODEL_LIST_LIMIT_BYTES = 4 * 10**6
"""The longest known list is OpenRouter's, with about 600 KB."""

MODEL_LIST_INTERVAL_S = 60.0
"""Interval between model lists for upstreams with a health path; models change by hand."""

_PROBE_JITTER = 0.1  # share of the probe interval, so that several servers do not probe in step


class UpstreamRegistry:
    """The upstreams, with one probe task each.

    Raises:
        ValueError: a URL or path is invalid; the message is one plain sentence.
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
        self._on_change = on_change
        self._changed_event = asyncio.Event()
        self._clock = clock
        self._pause = pause
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}
        self._unprobed: set[Upstream] = set()
        self._all_probed = asyncio.Event()
        self.all: tuple[Upstream, ...] = ()
        self._set_upstreams([self._make_upstream(upstream) for upstream in settings], routes, local_names)

    def _make_upstream(self, settings: UpstreamSettings) -> Upstream:
        return Upstream(settings, clock=self._clock, on_change=self._handle_change)

    def _set_upstreams(
        self, upstreams: Sequence[Upstream], routes: Mapping[str, Sequence[str]], local_names: Collection[str]
    ) -> None:
        self._unprobed = {upstream for upstream in upstreams if upstream not in self.all or upstream in self._unprobed}
        self.all = tuple(upstreams)
        self._local_names = frozenset(local_names)
        self._router = ModelRouter(routes, self.all, local_names)
        self.resolve: Callable[[str], UpstreamGroup | LocalRoute | None] = self._router.resolve
        if self._unprobed:
            self._all_probed.clear()

    def find(self, name: str) -> Upstream | None:
        """Return the upstream with this name."""
        return next((upstream for upstream in self.all if upstream.name == name), None)

    async def start(self) -> None:
        """Start the probe tasks, without waiting for a result."""
        for upstream in self.all:
            self._start_probes(upstream)

    def _start_probes(self, upstream: Upstream) -> None:
        probes = asyncio.create_task(self._probe_periodically(upstream), name=f"health of {upstream.name}")
        self._tasks[upstream] = probes

    def reload(
        self,
        settings: Sequence[UpstreamSettings],
        routes: Mapping[str, Sequence[str]],
        *,
        local_names: Collection[str] = (),
    ) -> None:
        """Use other upstreams and routes from now on. Requests in progress keep theirs.

        An upstream whose address and credentials stay the same keeps its health, breaker, models and load.

        Raises:
            ValueError: a URL or path is invalid; nothing has changed.
        """
        known = {upstream.name: upstream for upstream in self.all}
        new = [self._make_upstream(upstream_settings) for upstream_settings in settings]
        upstreams = []
        for made in new:
            before = known.get(made.name)
            is_same = before is not None and before.address == made.address
            upstreams.append(before if before is not None and is_same else made)
        is_changed = {used: used.settings != made.settings for used, made in zip(upstreams, new, strict=True)}
        for upstream, made in zip(upstreams, new, strict=True):
            upstream.settings = made.settings
        self._set_upstreams(upstreams, routes, local_names)
        for upstream, task in list(self._tasks.items()):
            if is_changed.get(upstream, True):  # gone, or with another interval or path of its probes
                task.cancel()
                del self._tasks[upstream]
        for upstream in self.all:
            if upstream not in self._tasks:
                self._start_probes(upstream)

    async def wait_until_probed(self, within_s: float) -> None:
        """Wait until every upstream was probed once, or until the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_probed.wait()

    async def wait_for_change(self, within_s: float) -> None:
        """Wait until the state of any upstream changes, or until the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed_event.wait()

    def _handle_change(self, upstream: Upstream) -> None:
        self._changed_event.set()
        self._changed_event = asyncio.Event()  # later callers wait for the next change
        if upstream in self.all:  # else it was removed, and its last requests are ending
            self._on_change(upstream)

    async def stop(self) -> None:
        """Cancel the probe tasks."""
        tasks = self._tasks.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def sole_model(self) -> UpstreamGroup | None:
        """The only model, under the first of its names; None if there are several or not all are known.

        Targets of routes with a pattern count. An upstream without a list could have any model.
        """
        if self._local_names or any(server.listed_models is None and not server.settings.models for server in self.all):
            return None
        names = list(self._router.exact_names())
        groups = [self._router.resolve(name) for name in (*names, *self._router.patterns)] if names else []
        sole = groups[0] if groups else None
        if not isinstance(sole, UpstreamGroup):
            return None
        is_sole = all(isinstance(group, UpstreamGroup) and group.members == sole.members for group in groups)
        return sole if is_sole else None

    def list_models(self) -> list[dict[str, Any]]:
        """The model objects of `GET /v1/models`; of local models only the names that routes add."""
        objects: dict[str, dict[str, Any]] = {}
        for name in self._router.exact_names():
            if name in objects or name in self._local_names:
                continue
            resolved = self._router.resolve(name)
            if resolved is None:
                continue
            members = resolved.members if isinstance(resolved, UpstreamGroup) else ()
            listed = (member.upstream.listed_model(member.model) for member in members)
            model = next((entry for entry in listed if entry is not None), ListedModel(resolved.name))
            objects[name] = model.as_model_object(name)
        return list(objects.values())

    async def _probe_periodically(self, upstream: Upstream) -> None:
        listed_at: float | None = None
        settings = upstream.settings
        while True:
            address = upstream.address
            if settings.health and not upstream.is_unassigned:
                reply = await _fetch_or_error(replace(address, prefix=""), settings.health)
                if upstream.address is address and not upstream.is_unassigned:  # else the reply is of another replica
                    upstream.record_probe(reply)
            is_due = listed_at is None or self._clock() - listed_at >= MODEL_LIST_INTERVAL_S
            if not upstream.is_unassigned and (not settings.health or upstream.listed_models is None or is_due):
                listed_at = self._clock()
                reply = await _fetch_or_error(upstream.address, *upstream.model_list_target)
                await run_cooperatively(upstream.record_model_list_in_steps(reply))
                if not settings.health:
                    upstream.record_probe(reply)
            self._unprobed.discard(upstream)
            if not self._unprobed:
                self._all_probed.set()
            if not settings.probe_s:
                return
            await self._pause(settings.probe_s * random.uniform(1 - _PROBE_JITTER, 1 + _PROBE_JITTER))


async def _fetch_or_error(
    address: Address, path: str, headers: tuple[tuple[str, str | None], ...] = ()
) -> BufferedResponse | HttpClientError:
    """The reply on a new connection, since a pooled one would not show whether the server accepts connections."""
    try:
        return await fetch(
            address, "GET", path, timeout_s=PROBE_TIMEOUT_S, limit_bytes=MODEL_LIST_LIMIT_BYTES, headers=headers
        )
    except HttpClientError as error:
        return error
