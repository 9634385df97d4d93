"""Who gives an answer: the engine of a local model, or one of several upstreams. Both give a seat at which to ask."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Protocol

from welldone.config.server import ServeSettings
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED, OUTCOME_TIMEOUT, AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.routing import UpstreamGroup, UpstreamModel, choose_upstream
from welldone.gateway.upstream import Upstream
from welldone.http import client
from welldone.http.address import Address
from welldone.http.client import Exchange, ResponseReceiver
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION_HEADER

_MAX_PARALLEL_PARTS = 16  # parts of one request that an upstream is asked for side by side
_MAX_ATTEMPTS = 2  # of which the second is for another upstream, or an engine that was started again
_MAX_ATTEMPTS_DYNAMIC = 4
"""A node that dies takes several engines with it, and who is asked next may have been on it too."""
_GONE_OUTCOMES = ("lost", str(HTTPStatus.SERVICE_UNAVAILABLE.value))
"""Outcomes after which a replica may be no more: it broke off, or is about to end."""
_RETRY_AFTER_S = 1.0  # after which a client may ask again where nobody came: replicas start in seconds, or in minutes


class SendRequest(Protocol):
    """Begins an exchange, on a new connection or on one that was used before."""

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        receiver: ResponseReceiver,
        *,
        body: bytes = b"",
        accept: str = "*/*",
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
        is_fresh: bool = False,
    ) -> Exchange:
        """The exchange; the reply goes to the receiver. `is_fresh`: on a new connection in any case."""


class BackendLease(Protocol):
    """A place at which parts of an answer are asked for."""

    address: Address
    send: SendRequest
    name: str
    """Who sits there: an upstream's name, or a local model's."""
    path_prefix: str
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

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """After a trouble: whether the same may be asked here once more."""

    def report(self, failure: AttemptFailure | None) -> None:
        """A part was answered, or was not."""


class Backend(Protocol):
    """All that can answer for one model."""

    name: str
    """What the client calls it."""
    reported_model: str | None
    """The name that replies show; None: the server's own."""
    upstreams: Sequence[Upstream]
    is_third_party: bool
    """Whether what answers is not our own engine."""
    max_attempts: int
    """How often a part is asked for, at most."""

    @property
    def slots(self) -> int:
        """How many parts of one answer may be asked for at once."""

    def check_capacity(self) -> None:
        """Refuse one more than may wait.

        Raises:
            ApiError: there is no room.
        """

    def lease(self, avoid: Collection[str], sticky: str | None) -> AbstractAsyncContextManager[BackendLease]:
        """A seat, when one is free; rather not with those to avoid.

        Raises:
            ApiError: there is none.
        """

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether there is somebody else who could answer."""

    def using(self) -> AbstractContextManager[None]:
        """Counts a request for as long as it lasts."""


def upstream_headers(lease: BackendLease, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a seat is told of a client's headers, in its own dialect; what the operator has set is stronger.

    Anthropic's servers look for their key in a header of their own.
    """
    given = dict(headers)
    if ANTHROPIC_VERSION_HEADER in given and lease.address.key is not None:
        given["x-api-key"] = lease.address.key
    set_here = {name.lower() for name, _ in lease.address.headers}
    return tuple((name, value) for name, value in given.items() if name not in set_here)


def _is_local_fault(failure: AttemptFailure) -> bool:
    """Whether this machine is to blame."""
    return failure.outcome == "no_room"


class LocalLease:
    """A slot of an engine that we started."""

    upstream: Upstream | None = None
    is_gone = False  # it is started again

    def __init__(self, model: LocalModel, address: Address, waited_s: float, settings: ServeSettings) -> None:
        self._engine = model
        self.address = address
        self.send: SendRequest = client.send
        self.name = model.name
        self.path_prefix = "/v1"
        self.model = model.engine_model_name
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s
        self.idle_s = settings.idle_s

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """An engine that died is started again, and asked again."""
        if not failure.is_disconnect:
            return False
        await self._engine.wait_for_exit_notice()
        self.address = await self._engine.ensure_ready()
        return True

    def report(self, failure: AttemptFailure | None) -> None:
        """Its process is watched: who dies is noticed. Who stands still is asked whether there is anybody."""
        if failure is not None and failure.outcome == OUTCOME_TIMEOUT:
            self._engine.check_liveness(self.idle_s)


class LocalBackend:
    """A local model. Who waits for it to be loaded needs no place yet."""

    max_attempts = _MAX_ATTEMPTS

    def __init__(self, model: LocalModel, queue: RequestQueue, settings: ServeSettings) -> None:
        self.model = model
        self.name = model.name
        self.reported_model: str | None = model.name
        self.upstreams: Sequence[Upstream] = ()
        self.is_third_party = bool(model.settings.command)
        self._queue = queue
        self._settings = settings

    @property
    def slots(self) -> int:
        """The engine's own."""
        return self._queue.slots

    def check_capacity(self) -> None:
        """While a model is loaded nobody is at its gate yet: those who wait for it are bounded all the same."""
        if self.model.state is not ModelState.READY and self.model.running > self._queue.capacity:
            raise self._queue.queue_full_error()

    @asynccontextmanager
    async def lease(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[BackendLease]:
        """A slot of the engine."""
        await self.model.ensure_ready()
        async with self._queue.slot() as waited_s:
            yield LocalLease(self.model, await self.model.ensure_ready(), waited_s, self._settings)

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """There is one engine."""
        return False

    def using(self) -> AbstractContextManager[None]:
        """While a request runs, its model is not unloaded."""
        return self.model.in_use()


class UpstreamLease:
    """A place at the gate of an upstream."""

    def __init__(
        self,
        member: UpstreamModel,
        waited_s: float,
        *,
        send: SendRequest,
        settings: ServeSettings,
        on_report: Callable[[Upstream, AttemptFailure | None], None],
    ) -> None:
        upstream = member.upstream
        wanted = upstream.settings
        self.upstream: Upstream | None = upstream
        self._upstream = upstream
        self._leased_address = self.address = upstream.address
        self.send = send
        self.name = upstream.name
        self.path_prefix = ""  # the address has it
        self.model = member.model
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s if wanted.first_byte_s is None else wanted.first_byte_s
        self.idle_s = settings.idle_s if wanted.idle_s is None else wanted.idle_s
        self._has_reported = False
        self._on_report = on_report
        self._probe = upstream.breaker.begin_request()

    @property
    def is_gone(self) -> bool:
        """Whether it was a place that is now empty, in doubt, or somebody else's."""
        upstream = self._upstream
        return upstream.settings.is_dynamic and (
            not upstream.is_healthy or upstream.address is not self._leased_address
        )

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """What was never read may be said again; all else is for another upstream."""
        return failure.is_stale and not self.is_gone

    def report(self, failure: AttemptFailure | None) -> None:
        """What the breaker and the counts hear. Who has come to a place since is not to blame for who was there."""
        self._has_reported = True
        if self._upstream.address is not self._leased_address:
            self._on_report(self._upstream, failure)
            return
        if failure is None or not failure.is_server_fault:
            self._upstream.breaker.record_success()
        elif not failure.is_stale:
            self._upstream.breaker.record_failure(self._probe)
            if self._upstream.settings.is_dynamic and (failure.is_disconnect or failure.outcome in _GONE_OUTCOMES):
                self._upstream.mark_unhealthy()  # others of its kind are there, or soon will be
        self._record_result(failure)
        if failure is not None and failure.error.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._upstream.start_cooldown(failure.error.retry_after_s or 1.0)
        self._on_report(self._upstream, failure)

    def _record_result(self, failure: AttemptFailure | None) -> None:
        """Tell the upstream how a request ended. One that is the client's own fault shows neither."""
        if failure is None:
            self._upstream.record_request(None)
        elif failure.error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not (
            failure.is_stale or _is_local_fault(failure)
        ):
            self._upstream.record_request(failure.outcome)

    def release(self) -> None:
        """The seat is given back, perhaps since the client left before it was answered."""
        if not self._has_reported:
            self._upstream.breaker.cancel_request(self._probe)
            self._on_report(self._upstream, CLIENT_DISCONNECTED)


class UpstreamBackend:
    """The upstreams that have a model."""

    def __init__(
        self,
        group: UpstreamGroup,
        queues: Mapping[str, RequestQueue],
        *,
        send: SendRequest,
        settings: ServeSettings,
        on_report: Callable[[Upstream, AttemptFailure | None], None],
        wait_for_change: Callable[[float], Awaitable[None]],
    ) -> None:
        self.name = group.name
        self.members = group.members
        self.upstreams: Sequence[Upstream] = [member.upstream for member in group.members]
        self.is_third_party = True
        is_mapped = any(member.model != group.name for member in group.members)
        # OpenAI tells by it which version answered; with others it may be the path of a file.
        is_telling = not is_mapped and all(upstream.kind == "openai" for upstream in self.upstreams)
        self.reported_model = None if is_telling else group.name
        self._queues = queues
        self._send = send
        self._settings = settings
        self._on_report = on_report
        self._wait_for_change = wait_for_change
        self._is_dynamic = any(upstream.settings.is_dynamic for upstream in self.upstreams)
        self.max_attempts = _MAX_ATTEMPTS_DYNAMIC if self._is_dynamic else _MAX_ATTEMPTS

    @property
    def slots(self) -> int:
        """A bounded part of what they take."""
        return min(_MAX_PARALLEL_PARTS, max(self._queues[upstream.name].slots for upstream in self.upstreams))

    def check_capacity(self) -> None:
        """Each has a gate of its own, which says so itself."""

    @asynccontextmanager
    async def lease(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[BackendLease]:
        """A place at the upstream that is best now; where its queue is full, at the next."""
        came_s = await self._wait_for_replica() if self._is_dynamic else 0.0
        full: set[str] = set()
        while True:
            member = choose_upstream(self.members, avoid_upstreams={*avoid, *full}, sticky_key=sticky)
            upstream, gate = member.upstream, self._queues[member.upstream.name]
            if gate.is_full and upstream.name not in full and self.has_alternative({*avoid, *full, upstream.name}):
                full.add(upstream.name)
                continue
            break
        upstream.running += 1  # who waits at its gate counts as well: the next one goes where fewer do
        try:
            async with gate.slot() as waited_s:
                seat = UpstreamLease(
                    member, came_s + waited_s, send=self._send, settings=self._settings, on_report=self._on_report
                )
                try:
                    yield seat
                finally:
                    seat.release()
        finally:
            upstream.running -= 1

    async def _wait_for_replica(self) -> float:
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
                raise ApiError(503, message, code="model_unavailable", retry_after_s=_RETRY_AFTER_S)
            await self._wait_for_change(left_s)
        return time.monotonic() - began

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether one is well that was not tried."""
        return any(upstream.name not in avoid and upstream.is_available for upstream in self.upstreams)

    def using(self) -> AbstractContextManager[None]:
        """Nothing is unloaded here."""
        return nullcontext()
