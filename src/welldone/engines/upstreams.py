"""All upstreams of a server: watched, and found by the names of their models."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from welldone.engines.address import Address
from welldone.engines.listed import ListedModel
from welldone.engines.names import Group, Local, Names
from welldone.engines.upstream import Upstream
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.net.outbound import Fetched, OutboundError, fetch
from welldone.net.turns import in_turns

LOOK_S = 5.0
"""A well server lists its models in milliseconds; a busy one may take seconds."""

REPLY_LIMIT_BYTES = 4 * 10**6
"""The longest list is OpenRouter's, with about 600 KB."""

LIST_S = 60.0
"""How often models are listed where health is looked at elsewhere: they change by hand."""

_JITTER = 0.1  # of the time between looks, so that several servers do not look all at once


class Upstreams:
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
        self.all = tuple(Upstream(wanted, clock=clock, on_change=self._changed) for wanted in settings)
        self._on_change = on_change
        self._news = asyncio.Event()
        self._local_names = frozenset(local_names)
        self._names = Names(routes, self.all, local_names)
        self._clock = clock
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._unseen = {upstream.name for upstream in self.all}
        self._all_seen = asyncio.Event()

    async def start(self) -> None:
        """Begins to look after them. Waits for none."""
        self._tasks = {
            asyncio.create_task(self._watch(upstream), name=f"health of {upstream.name}") for upstream in self.all
        }

    async def looked(self, within_s: float) -> None:
        """Returns when each was looked at once, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_seen.wait()

    async def news(self, within_s: float) -> None:
        """Returns when an upstream has become well, or is not any more, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._news.wait()

    def _changed(self, upstream: Upstream) -> None:
        """Wakes all who wait for news. Who waits next gets an event of his own."""
        self._news.set()
        self._news = asyncio.Event()
        self._on_change(upstream)

    async def stop(self) -> None:
        """Looks no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def find(self, name: str) -> Group | Local | None:
        """Who answers for the name of a model; None: nobody."""
        return self._names.find(name)

    def only(self) -> Group | None:
        """The one model that there is, under the first of its names; None: there are several, or none is known.

        A route with a pattern counts: what it leads to is served too. An upstream that has not listed its models yet
        may have any.
        """
        if self._local_names or any(one.listed is None and not one.settings.models for one in self.all):
            return None
        one: Group | None = None
        for name in self._names.exact():
            found = self._names.find(name)
            if not isinstance(found, Group) or (one is not None and found.members != one.members):
                return None
            one = one or found
        patterns = (self._names.find(pattern) for pattern in self._names.patterns)
        if any(not isinstance(found, Group) or one is None or found.members != one.members for found in patterns):
            return None
        return one

    def listing(self) -> list[dict[str, Any]]:
        """The models as clients list them; local ones only where a route names them anew."""
        objects: dict[str, dict[str, Any]] = {}
        for name in self._names.exact():
            if name not in objects and name not in self._local_names:
                found = self._names.find(name)
                if found is not None:
                    objects[name] = _listed(found).as_object(name)
        return list(objects.values())

    async def _watch(self, upstream: Upstream) -> None:
        """Looks at once, and then again and again."""
        listed_at: float | None = None
        settings = upstream.settings
        while True:
            address = upstream.address
            if settings.health and not upstream.is_vacant:
                seen = await _get(replace(address, prefix=""), settings.health)
                if upstream.address is address and not upstream.is_vacant:  # else it tells of who was there before
                    upstream.was_seen(seen)
            is_due = listed_at is None or self._clock() - listed_at >= LIST_S
            if not upstream.is_vacant and (not settings.health or upstream.listed is None or is_due):
                listed_at = self._clock()
                reply = await _get(upstream.address, "/models")
                await in_turns(upstream.being_listed(reply))
                if not settings.health:
                    upstream.was_seen(reply)
            self._unseen.discard(upstream.name)
            if not self._unseen:
                self._all_seen.set()
            if not settings.probe_s:
                return
            await self._pause(settings.probe_s * random.uniform(1 - _JITTER, 1 + _JITTER))


async def _get(address: Address, path: str) -> Fetched | OutboundError:
    """The reply, on a connection of its own: one that was kept would tell less. Or why there is none in time."""
    try:
        return await fetch(address, "GET", path, within_s=LOOK_S, limit_bytes=REPLY_LIMIT_BYTES)
    except OutboundError as error:
        return error


def _listed(found: Group | Local) -> ListedModel:
    """What is said of a model; of several upstreams the first that says something."""
    members = found.members if isinstance(found, Group) else ()
    said = (member.upstream.model(member.model) for member in members)
    return next((model for model in said if model is not None), ListedModel(found.name))
