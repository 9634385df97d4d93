"""Backends: the engine of a local model, or the upstreams that serve a model. Both hand out leases for requests."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Protocol

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED, OUTCOME_NO_ROOM, OUTCOME_TIMEOUT, AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.routing import UpstreamGroup, UpstreamModel, choose_upstream
from welldone.gateway.upstream import Upstream
from welldone.http import client
from welldone.http.address import Address
from welldone.http.client import Exchange, ResponseReceiver
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION_HEADER

_MAX_PARALLEL_CHOICES = 16  # choices of one request that are requested from an upstream at once
_MAX_ATTEMPTS = 2  # the second goes to another upstream, or to the restarted engine
_MAX_ATTEMPTS_DYNAMIC = 4
"""A node that fails takes several replicas with it, and the next attempts may have gone to the same node."""
_GONE_OUTCOMES = ("lost", str(HTTPStatus.SERVICE_UNAVAILABLE.value))
"""Outcomes after which a replica may be gone: it disconnected, or is shutting down."""
_API_PREFIX = "/v1"
_RETRY_AFTER_S = 1.0  # while no replica runs: they start within seconds or minutes


class SendRequest(Protocol):
    """Starts an HTTP exchange, on a new or a pooled connection."""

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
        """Send the request; the reply goes to the receiver. `is_fresh` forces a new connection."""


class BackendLease(Protocol):
    """A leased slot at a backend, for one or more attempts."""

    address: Address
    """With the prefix of the API paths, such as `/v1`."""
    send: SendRequest
    name: str
    """Name of the upstream or local model."""
    model: str
    """Name of the model at the backend."""
    waited_s: float
    first_byte_s: float
    idle_s: float
    upstream: Upstream | None

    @property
    def is_gone(self) -> bool:
        """Whether the replica of this lease has left the cluster or is leaving it; another one takes over."""

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """After a failure: whether the same request may be sent here again."""

    def report(self, failure: AttemptFailure | None) -> None:
        """Report the result of an attempt."""


class LeaseSource(Protocol):
    """A backend, as far as the retry loop uses it."""

    max_attempts: int
    """Attempts per part of a request, at most."""

    def lease(self, avoid: Collection[str], sticky: str | None) -> AbstractAsyncContextManager[BackendLease]:
        """Wait for a slot, preferably not at the upstreams in `avoid`.

        Raises:
            ApiError: the queue is full, the wait took too long, or nothing is available.
            EngineError: the engine cannot be started.
        """

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether an available upstream is not in `avoid`."""


class Backend(LeaseSource, Protocol):
    """Everything that can answer requests for one model."""

    name: str
    """Name of the model for clients."""
    reported_model: str | None
    """Name of the model in replies; None: the one that the backend reports."""
    upstreams: Sequence[Upstream]
    is_third_party: bool
    """Whether the backend is anything but the built-in engine."""

    @property
    def slots(self) -> int:
        """Choices of one answer that may be requested at once."""

    def check_capacity(self) -> None:
        """Check that one more request may wait.

        Raises:
            ApiError: the queue is full.
        """

    def using(self) -> AbstractContextManager[None]:
        """Count a request for the duration of the context."""


def root_address(address: Address) -> Address:
    """The address of the server's root: some endpoints are there, not below `/v1`."""
    return _with_prefix(address, address.prefix.removesuffix(_API_PREFIX))


def _with_prefix(address: Address, prefix: str) -> Address:
    return msgspec.structs.replace(address, prefix=prefix)


def upstream_headers(lease: BackendLease, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The client's headers to forward, without those that the configuration sets.

    Anthropic's servers expect the key in `x-api-key`.
    """
    if not headers:
        return ()
    forwarded = dict(headers)
    if ANTHROPIC_VERSION_HEADER in forwarded and lease.address.key is not None:
        forwarded["x-api-key"] = lease.address.key
    configured = {name.lower() for name, _ in lease.address.headers}
    return tuple((name, value) for name, value in forwarded.items() if name not in configured)


class LocalLease:
    """A slot of a local model's engine."""

    upstream: Upstream | None = None
    is_gone = False  # a failed engine is restarted

    def __init__(self, model: LocalModel, address: Address, waited_s: float, settings: ServeSettings) -> None:
        self._engine = model
        self.address = _with_prefix(address, _API_PREFIX)
        self.send: SendRequest = client.send
        self.name = model.name
        self.model = model.engine_model_name
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s
        self.idle_s = settings.idle_s

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """Wait for the restart of an engine that died."""
        if not failure.is_disconnect:
            return False
        await self._engine.wait_for_exit_notice()
        self.address = _with_prefix(await self._engine.ensure_ready(), _API_PREFIX)
        return True

    def report(self, failure: AttemptFailure | None) -> None:
        """After a timeout, check that the engine still responds; its exit is noticed anyway."""
        if failure is not None and failure.outcome == OUTCOME_TIMEOUT:
            self._engine.check_liveness(self.idle_s)


class LocalBackend:
    """A local model. Requests that wait for it to load take no slot."""

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
        """The slots of the engine."""
        return self._queue.slots

    def check_capacity(self) -> None:
        """Bound the requests that wait for the model to load: they are not in the queue yet."""
        if self.model.state is not ModelState.READY and self.model.running > self._queue.capacity:
            raise self._queue.queue_full_error()

    @asynccontextmanager
    async def lease(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[BackendLease]:
        """A slot of the engine."""
        await self.model.ensure_ready()
        async with self._queue.slot() as waited_s:
            yield LocalLease(self.model, await self.model.ensure_ready(), waited_s, self._settings)

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Always False: there is one engine."""
        return False

    def using(self) -> AbstractContextManager[None]:
        """Keep the model loaded while a request runs."""
        return self.model.in_use()


class UnqueuedEngine:
    """The engine of a local model, for requests that have a slot already or need none."""

    max_attempts = _MAX_ATTEMPTS

    def __init__(self, model: LocalModel, settings: ServeSettings) -> None:
        self._model = model
        self._settings = settings

    @asynccontextmanager
    async def lease(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[BackendLease]:
        """The engine, without a slot."""
        yield LocalLease(self._model, await self._model.ensure_ready(), 0.0, self._settings)

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Always False: there is one engine."""
        return False


class UpstreamLease:
    """A slot in the queue of an upstream."""

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
        overrides = upstream.settings
        self.upstream: Upstream | None = upstream
        self._upstream = upstream
        self._leased_address = self.address = upstream.address
        self.send = send
        self.name = upstream.name
        self.model = member.model
        self.waited_s = waited_s
        self.first_byte_s = settings.first_byte_s if overrides.first_byte_s is None else overrides.first_byte_s
        self.idle_s = settings.idle_s if overrides.idle_s is None else overrides.idle_s
        self._has_reported = False
        self._on_report = on_report
        self._probe = upstream.breaker.begin_request()

    @property
    def is_gone(self) -> bool:
        """Whether the dynamic upstream is unassigned, unhealthy, or has another replica now."""
        upstream = self._upstream
        return upstream.settings.is_dynamic and (
            not upstream.is_healthy or upstream.address is not self._leased_address
        )

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """Repeat only a request that the server has never read; other failures go to another upstream."""
        return failure.is_stale and not self.is_gone

    def report(self, failure: AttemptFailure | None) -> None:
        """Update breaker, cooldown, health and metrics of the upstream."""
        self._has_reported = True
        upstream = self._upstream
        if upstream.address is self._leased_address:  # else the result belongs to a replica that is gone
            if failure is None or not failure.is_server_fault:
                upstream.breaker.record_success()
            elif not failure.is_stale:
                upstream.breaker.record_failure(self._probe)
                if upstream.settings.is_dynamic and (failure.is_disconnect or failure.outcome in _GONE_OUTCOMES):
                    upstream.mark_unhealthy()  # other replicas run or will start soon
            if failure is None:
                upstream.record_request(None)
            elif failure.error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not (
                failure.is_stale or failure.outcome == OUTCOME_NO_ROOM
            ):
                upstream.record_request(failure.outcome)
            if failure is not None and failure.error.status == HTTPStatus.TOO_MANY_REQUESTS:
                upstream.start_cooldown(failure.error.retry_after_s or 1.0)
        self._on_report(upstream, failure)

    def release(self) -> None:
        """End the lease. Without a reported result, the client has disconnected."""
        if not self._has_reported:
            self._upstream.breaker.cancel_request(self._probe)
            self._on_report(self._upstream, CLIENT_DISCONNECTED)


class UpstreamBackend:
    """The upstreams that serve a model."""

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
        # OpenAI reports the version of the model that answered; other servers may report the path of a file.
        reports_version = not is_mapped and all(upstream.kind == "openai" for upstream in self.upstreams)
        self.reported_model = None if reports_version else group.name
        self._queues = queues
        self._send = send
        self._settings = settings
        self._on_report = on_report
        self._wait_for_change = wait_for_change
        self._is_dynamic = any(upstream.settings.is_dynamic for upstream in self.upstreams)
        self.max_attempts = _MAX_ATTEMPTS_DYNAMIC if self._is_dynamic else _MAX_ATTEMPTS

    @property
    def slots(self) -> int:
        """The slots of the largest upstream, bounded."""
        return min(_MAX_PARALLEL_CHOICES, max(self._queues[upstream.name].slots for upstream in self.upstreams))

    def check_capacity(self) -> None:
        """Do nothing: the queues of the upstreams reject requests themselves."""

    @asynccontextmanager
    async def lease(self, avoid: Collection[str], sticky: str | None) -> AsyncIterator[BackendLease]:
        """A slot at the best upstream; if its queue is full, at the next best."""
        replica_wait_s = await self._wait_for_replica() if self._is_dynamic else 0.0
        full: set[str] = set()
        while True:
            member = choose_upstream(self.members, avoid_upstreams={*avoid, *full}, sticky_key=sticky)
            upstream, queue = member.upstream, self._queues[member.upstream.name]
            if queue.is_full and upstream.name not in full and self.has_alternative({*avoid, *full, upstream.name}):
                full.add(upstream.name)
                continue
            break
        upstream.running += 1  # queued requests count as load as well
        try:
            async with queue.slot() as queued_s:
                lease = UpstreamLease(
                    member,
                    replica_wait_s + queued_s,
                    send=self._send,
                    settings=self._settings,
                    on_report=self._on_report,
                )
                try:
                    yield lease
                finally:
                    lease.release()
        finally:
            upstream.running -= 1

    async def _wait_for_replica(self) -> float:
        """Wait until a replica is healthy, and return the seconds waited.

        Raises:
            ApiError: none became healthy in time.
        """
        began = time.monotonic()
        until = began + max(upstream.settings.queue_wait_s for upstream in self.upstreams)
        while not any(upstream.is_healthy for upstream in self.upstreams):  # busy replicas have queues
            left_s = until - time.monotonic()
            if left_s <= 0:
                message = "No replica of this model is running. Try again later."
                raise ApiError(503, message, code="model_unavailable", retry_after_s=_RETRY_AFTER_S)
            await self._wait_for_change(left_s)
        return time.monotonic() - began

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether an available upstream is not in `avoid`."""
        return any(upstream.name not in avoid and upstream.is_available for upstream in self.upstreams)

    def using(self) -> AbstractContextManager[None]:
        """Do nothing: upstreams are not unloaded."""
        return nullcontext()
