"""Who gives an answer: the engine of a local model, or one of several upstreams. Both give a seat at which to ask."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Protocol

from welldone.engines.balance import choose
from welldone.engines.fleet import Address, Model, State
from welldone.engines.names import Group, Member
from welldone.engines.upstream import Upstream
from welldone.net import outbound
from welldone.net.outbound import Exchange, Receiver
from welldone.serve.admission import Gate
from welldone.serve.errors import ApiError
from welldone.serve.settings import ServeSettings
from welldone.serve.troubles import LEFT, TIMEOUT, Trouble
from welldone.wire.dialects.messages.objects import VERSION_HEADER

_AT_ONCE = 16  # parts of one request that an upstream is asked for side by side
_ATTEMPTS = 2  # of which the second is for another upstream, or an engine that was started again
_ATTEMPTS_OF_PLACES = 4
"""A node that dies takes several engines with it, and who is asked next may have been on it too."""
_GONE = ("lost", str(HTTPStatus.SERVICE_UNAVAILABLE.value))
"""Outcomes after which a replica may be no more: it broke off, or is about to end."""
_AGAIN_S = 1.0  # after which a client may ask again where nobody came: replicas start in seconds, or in minutes


class Send(Protocol):
    """Begins an exchange, on a new connection or on one that was used before."""

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        receiver: Receiver,
        *,
        body: bytes = b"",
        accept: str = "*/*",
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
        is_fresh: bool = False,
    ) -> Exchange:
        """The exchange; the reply goes to the receiver. `is_fresh`: on a new connection in any case."""


class Seat(Protocol):
    """A place at which parts of an answer are asked for."""

    address: Address
    send: Send
    name: str
    """Who sits there: an upstream's name, or a local model's."""
    base: str
    """What stands before the paths of the API."""
    model: str
    """What the model is called there."""
    waited_s: float
    first_byte_s: float
    idle_s: float
    upstream: Upstream | None

    @property
    def is_gone(self) -> bool:
        """Whether who sat here has left a cluster, or is about to: another one takes his place."""

    async def again(self, trouble: Trouble) -> bool:
        """After a trouble: whether the same may be asked here once more."""

    def report(self, trouble: Trouble | None) -> None:
        """A part was answered, or was not."""


class Backend(Protocol):
    """All that can answer for one model."""

    name: str
    """What the client calls it."""
    shown: str | None
    """The name that replies show; None: the server's own."""
    upstreams: Sequence[Upstream]
    is_foreign: bool
    """Whether what answers is not our own engine."""
    attempts: int
    """How often a part is asked for, at most."""

    @property
    def slots(self) -> int:
        """How many parts of one answer may be asked for at once."""

    def check_room(self) -> None:
        """Refuse one more than may wait.

        Raises:
            ApiError: there is no room.
        """

    def seat(self, avoid: Collection[str], sticky: str | None) -> AbstractAsyncContextManager[Seat]:
        """A seat, when one is free; rather not with those to avoid.

        Raises:
            ApiError: there is none.
        """

    def has_another(self, avoid: Collection[str]) -> bool:
        """Whether there is somebody else who could answer."""

    def using(self) -> AbstractContextManager[None]:
        """Counts a request for as long as it lasts."""


def told(seat: Seat, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a seat is told of a client's headers, in its own dialect; what the operator has set is stronger.

    Anthropic's servers look for their key in a header of their own.
    """
    given = dict(headers)
    if VERSION_HEADER in given and seat.address.key is not None:
        given["x-api-key"] = seat.address.key
    set_here = {name.lower() for name, _ in seat.address.headers}
    return tuple((name, value) for name, value in given.items() if name not in set_here)


def _is_ours(trouble: Trouble) -> bool:
    """Whether this machine is to blame."""
    return trouble.outcome == "no_room"


class LocalSeat:
    """A slot of an engine that we started."""

    upstream: Upstream | None = None
    is_gone = False  # it is started again

    def __init__(self, model: Model, address: Address, waited_s: float, settings: ServeSettings) -> None:
        self._engine = model
        self.address = address
        self.send: Send = outbound.send
        self.name = model.name
        self.base = "/v1"
        self.model = model.inner_name
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s
        self.idle_s = settings.idle_s

    async def again(self, trouble: Trouble) -> bool:
        """An engine that died is started again, and asked again."""
        if not trouble.is_lost:
            return False
        await self._engine.check()
        self.address = await self._engine.ready()
        return True

    def report(self, trouble: Trouble | None) -> None:
        """Its process is watched: who dies is noticed. Who stands still is asked whether there is anybody."""
        if trouble is not None and trouble.outcome == TIMEOUT:
            self._engine.doubt(self.idle_s)


class Local:
    """A local model. Who waits for it to be loaded needs no place yet."""

    attempts = _ATTEMPTS

    def __init__(self, model: Model, gate: Gate, settings: ServeSettings) -> None:
        self.model = model
        self.name = model.name
        self.shown: str | None = model.name
        self.upstreams: Sequence[Upstream] = ()
        self.is_foreign = bool(model.settings.command)
        self._gate = gate
        self._settings = settings

    @property
    def slots(self) -> int:
        """The engine's own."""
        return self._gate.slots

    def check_room(self) -> None:
        """While a model is loaded nobody is at its gate yet: those who wait for it are bounded all the same."""
        if self.model.state is not State.READY and self.model.running > self._gate.room:
            raise self._gate.full()

    @asynccontextmanager
    async def seat(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[Seat]:
        """A slot of the engine."""
        await self.model.ready()
        async with self._gate.place() as waited_s:
            yield LocalSeat(self.model, await self.model.ready(), waited_s, self._settings)

    def has_another(self, avoid: Collection[str]) -> bool:
        """There is one engine."""
        return False

    def using(self) -> AbstractContextManager[None]:
        """While a request runs, its model is not unloaded."""
        return self.model.using()


class RemoteSeat:
    """A place at the gate of an upstream."""

    def __init__(
        self,
        member: Member,
        waited_s: float,
        *,
        send: Send,
        settings: ServeSettings,
        on_report: Callable[[Upstream, Trouble | None], None],
    ) -> None:
        upstream = member.upstream
        wanted = upstream.settings
        self.upstream: Upstream | None = upstream
        self._upstream = upstream
        self._asked_at = self.address = upstream.address
        self.send = send
        self.name = upstream.name
        self.base = ""  # the address has it
        self.model = member.model
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s if wanted.first_byte_s is None else wanted.first_byte_s
        self.idle_s = settings.idle_s if wanted.idle_s is None else wanted.idle_s
        self._has_reported = False
        self._on_report = on_report
        self._probe = upstream.breaker.began()

    @property
    def is_gone(self) -> bool:
        """Whether it was a place that is now empty, in doubt, or somebody else's."""
        upstream = self._upstream
        return upstream.settings.is_place and (not upstream.is_healthy or upstream.address is not self._asked_at)

    async def again(self, trouble: Trouble) -> bool:
        """What was never read may be said again; all else is for another upstream."""
        return trouble.is_stale and not self.is_gone

    def report(self, trouble: Trouble | None) -> None:
        """What the breaker and the counts hear. Who has come to a place since is not to blame for who was there."""
        self._has_reported = True
        if self._upstream.address is not self._asked_at:
            self._on_report(self._upstream, trouble)
            return
        if trouble is None or not trouble.is_fault:
            self._upstream.breaker.succeeded()
        elif not trouble.is_stale:
            self._upstream.breaker.failed(self._probe)
            if self._upstream.settings.is_place and (trouble.is_lost or trouble.outcome in _GONE):
                self._upstream.doubt()  # others of its kind are there, or soon will be
        self._count(trouble)
        if trouble is not None and trouble.error.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._upstream.refused(trouble.error.retry_after_s or 1.0)
        self._on_report(self._upstream, trouble)

    def _count(self, trouble: Trouble | None) -> None:
        """Tell the upstream how a request ended. One that is the client's own fault shows neither."""
        if trouble is None:
            self._upstream.was_answered(None)
        elif trouble.error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not (trouble.is_stale or _is_ours(trouble)):
            self._upstream.was_answered(trouble.outcome)

    def leave(self) -> None:
        """The seat is given back, perhaps since the client left before it was answered."""
        if not self._has_reported:
            self._upstream.breaker.left(self._probe)
            self._on_report(self._upstream, LEFT)


class Remote:
    """The upstreams that have a model."""

    def __init__(
        self,
        group: Group,
        gates: Mapping[str, Gate],
        *,
        send: Send,
        settings: ServeSettings,
        on_report: Callable[[Upstream, Trouble | None], None],
        news: Callable[[float], Awaitable[None]],
    ) -> None:
        self.name = group.name
        self.members = group.members
        self.upstreams: Sequence[Upstream] = [member.upstream for member in group.members]
        self.is_foreign = True
        is_mapped = any(member.model != group.name for member in group.members)
        # OpenAI tells by it which version answered; with others it may be the path of a file.
        is_telling = not is_mapped and all(upstream.kind == "openai" for upstream in self.upstreams)
        self.shown = None if is_telling else group.name
        self._gates = gates
        self._send = send
        self._settings = settings
        self._on_report = on_report
        self._news = news
        self._has_places = any(upstream.settings.is_place for upstream in self.upstreams)
        self.attempts = _ATTEMPTS_OF_PLACES if self._has_places else _ATTEMPTS

    @property
    def slots(self) -> int:
        """A bounded part of what they take."""
        return min(_AT_ONCE, max(self._gates[upstream.name].slots for upstream in self.upstreams))

    def check_room(self) -> None:
        """Each has a gate of its own, which says so itself."""

    @asynccontextmanager
    async def seat(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[Seat]:
        """A place at the upstream that is best now; where its queue is full, at the next."""
        came_s = await self._somebody() if self._has_places else 0.0
        full: set[str] = set()
        while True:
            member = choose(self.members, avoid={*avoid, *full}, sticky=sticky)
            upstream, gate = member.upstream, self._gates[member.upstream.name]
            if gate.is_full and upstream.name not in full and self.has_another({*avoid, *full, upstream.name}):
                full.add(upstream.name)
                continue
            break
        upstream.running += 1  # who waits at its gate counts as well: the next one goes where fewer do
        try:
            async with gate.place() as waited_s:
                seat = RemoteSeat(
                    member, came_s + waited_s, send=self._send, settings=self._settings, on_report=self._on_report
                )
                try:
                    yield seat
                finally:
                    seat.leave()
        finally:
            upstream.running -= 1

    async def _somebody(self) -> float:
        """Wait until somebody is there, and tell how long that took.

        Raises:
            ApiError: nobody came in time.
        """
        began = time.monotonic()
        until = began + max(upstream.settings.queue_wait_s for upstream in self.upstreams)
        while not any(upstream.is_healthy for upstream in self.upstreams):  # who is only busy says so himself
            left_s = until - time.monotonic()
            if left_s <= 0:
                message = "No replica of this model is there to answer. Try again later."
                raise ApiError(503, message, code="model_unavailable", retry_after_s=_AGAIN_S)
            await self._news(left_s)
        return time.monotonic() - began

    def has_another(self, avoid: Collection[str]) -> bool:
        """Whether one is well that was not tried."""
        return any(upstream.name not in avoid and upstream.is_available for upstream in self.upstreams)

    def using(self) -> AbstractContextManager[None]:
        """Nothing is unloaded here."""
        return nullcontext()
