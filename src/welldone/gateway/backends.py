"""Backends: the engine of a local model, or the upstreams that serve a model. Both hand out leases for requests."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, Unpack

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.builds import wheel_fingerprint
from welldone.engines.stall import RequestProgress
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED, OUTCOME_TIMEOUT, AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.routing import UpstreamGroup, UpstreamModel, choose_upstream
from welldone.gateway.upstream import Upstream
from welldone.http import client
from welldone.http.address import Address
from welldone.http.client import Exchange, RequestOptions, ResponseReceiver

_MAX_PARALLEL_CHOICES = 16  # choices of one request that are requested from an upstream at once
_MAX_ATTEMPTS = 2  # the second goes to another upstream, or to the restarted engine
_MAX_ATTEMPTS_DYNAMIC = 4
"""A node that fails takes several replicas with it, and the next attempts may have gone to the same node."""
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
        is_fresh: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Exchange:
        """Send the request; the reply goes to the receiver. `is_fresh` forces a new connection."""


class AttemptTrace(Protocol):
    """An attempt in a distributed trace."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The trace context for the server of the attempt."""

    def end(self, outcome: str | None) -> None:
        """Record the outcome of the attempt; None for success. Later calls are ignored."""


class BackendLease(msgspec.Struct, kw_only=True):
    """A leased slot at a backend, for one or more attempts. `release` ends it."""

    address: Address
    """With the prefix of the API paths, such as `/v1`."""
    send: SendRequest
    name: str
    """Name of the upstream or local model."""
    model: str
    """Name of the model at the backend."""
    first_byte_s: float
    idle_s: float
    queue: RequestQueue | None = None
    waited_s: float = 0.0
    began: float = msgspec.field(default_factory=time.monotonic)
    upstream: Upstream | None = None
    trace: AttemptTrace | None = None
    """The current attempt, if the request belongs to a trace."""

    @property
    def trace_headers(self) -> tuple[tuple[str, str], ...]:
        """The trace context of the current attempt, without headers that the configuration sets."""
        if self.trace is None:
            return ()
        configured = {name.lower() for name, _ in self.address.headers}
        return tuple([header for header in self.trace.headers if header[0] not in configured])

    @property
    def converts_json_calls(self) -> bool:
        """Whether an answer of a local model that is only the JSON of a tool call becomes that call."""
        return False

    @property
    def fingerprint(self) -> str | None:
        """The build of an engine that does not know it itself."""
        return None

    @property
    def is_gone(self) -> bool:
        """Whether the replica of this lease has left the cluster or is leaving it; another one takes over."""
        return False

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """After a failure: whether the same request may be sent here again."""
        raise NotImplementedError

    def watch(self, progress: RequestProgress) -> None:
        """Watch an attempt that receives a stream of tokens."""

    def report(self, failure: AttemptFailure | None) -> None:
        """Report the result of an attempt."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the slot."""
        if self.queue is not None:
            self.queue.release(time.monotonic() - self.began)


class Backend:
    """Everything that can answer requests for one model."""

    name: str
    """Name of the model for clients."""
    upstreams: Sequence[Upstream] = ()
    is_third_party = True
    """Whether the backend is anything but the built-in engine."""
    max_attempts = _MAX_ATTEMPTS
    """Attempts per part of a request, at most."""

    @property
    def reported_model(self) -> str | None:
        """Name of the model in replies; None: the one that the backend reports."""
        return self.name

    @property
    def slots(self) -> int:
        """Choices of one answer that may be requested at once."""
        raise NotImplementedError

    def check_capacity(self) -> None:
        """Check that one more request may wait. The queues of upstreams reject requests themselves.

        Raises:
            ApiError: the queue is full.
        """

    async def lease(self, avoid: Collection[str], sticky: str | None) -> BackendLease:
        """Wait for a slot, preferably not at the upstreams in `avoid`. The caller must `release` it.

        Raises:
            ApiError: the queue is full, the wait took too long, or nothing is available.
            EngineError: the engine cannot be started.
        """
        raise NotImplementedError

    def has_alternative(self, avoid: Collection[str]) -> bool:
        """Whether an available upstream is not in `avoid`."""
        return any(upstream.name not in avoid and upstream.is_available for upstream in self.upstreams)


def root_address(address: Address) -> Address:
    """The address of the server's root: some endpoints are there, not below `/v1`."""
    return _with_prefix(address, address.prefix.removesuffix(_API_PREFIX))


def _with_prefix(address: Address, prefix: str) -> Address:
    return msgspec.structs.replace(address, prefix=prefix)


class LocalLease(BackendLease):
    """A slot of a local model's engine, or with `queue=None` the engine without a slot."""

    engine: LocalModel
    progress: RequestProgress | None = None

    @property
    def converts_json_calls(self) -> bool:
        """By the setting, and with `auto` by the model."""
        return self.engine.capabilities is not None and self.engine.capabilities.json_tool_calls

    @property
    def fingerprint(self) -> str | None:
        """The build of the wheel."""
        engine = None if self.engine.process is None else self.engine.process.plan.engine
        return wheel_fingerprint() if engine is not None and engine.program is None else None

    def watch(self, progress: RequestProgress) -> None:
        """Tell a stall of the engine from the processing of a prompt."""
        self.progress = progress

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """Wait for the restart of an engine that died, or that an operator unloads."""
        if not failure.is_disconnect:
            return failure.has_differed
        await self.engine.wait_for_exit_notice()
        self.address: Address = _with_prefix(await self.engine.wait_for_reload(), _API_PREFIX)
        return True

    def report(self, failure: AttemptFailure | None) -> None:
        """After a timeout, check that the engine still responds; its exit is noticed anyway."""
        if failure is not None and failure.outcome == OUTCOME_TIMEOUT:
            self.engine.check_liveness(self.idle_s)

    def release(self) -> None:
        """Free the slot."""
        self.engine.stall_watch.remove(self)
        self.progress = None  # which refers to this lease
        super().release()


class UnqueuedEngine(Backend):
    """The engine of a local model, for requests that have a slot already or need none."""

    def __init__(self, model: LocalModel, settings: ServeSettings) -> None:
        self.model = model
        self.name: str = model.name
        self._settings = settings

    async def lease(self, avoid: Collection[str], sticky: str | None) -> BackendLease:
        """The engine, without a slot."""
        lease = self._make_lease(await self.model.ensure_ready())
        self.model.stall_watch.add(lease)
        return lease

    def _make_lease(self, address: Address) -> LocalLease:
        return LocalLease(
            engine=self.model,
            address=_with_prefix(address, _API_PREFIX),
            send=client.send,
            name=self.name,
            model=self.model.engine_model_name,
            first_byte_s=self._settings.first_byte_s,
            idle_s=self._settings.idle_s,
        )


class LocalBackend(UnqueuedEngine):
    """A local model. Requests that wait for it to load take no slot."""

    def __init__(self, model: LocalModel, queue: RequestQueue, settings: ServeSettings) -> None:
        super().__init__(model, settings)
        self.is_third_party: bool = bool(model.settings.command)
        self._queue = queue

    @property
    def slots(self) -> int:
        """The slots of the engine."""
        return self._queue.slots

    def check_capacity(self) -> None:
        """Bound the requests that wait for the model to load: they are not in the queue yet."""
        if self.model.state is not ModelState.READY and self.model.running > self._queue.capacity:
            raise self._queue.queue_full_error()

    async def lease(self, avoid: Collection[str], sticky: str | None) -> BackendLease:
        """A slot of the engine."""
        lease = self._make_lease(await self.model.ensure_ready())
        lease.waited_s = await self._queue.acquire()
        lease.queue, lease.began = self._queue, time.monotonic()
        try:
            lease.address = _with_prefix(await self.model.ensure_ready(), _API_PREFIX)
        except BaseException:
            lease.release()
            raise
        self.model.stall_watch.add(lease)
        return lease


class UpstreamLease(BackendLease):
    """A slot in the queue of an upstream."""

    upstream: Upstream
    leased_address: Address
    on_report: Callable[[Upstream, AttemptFailure | None], None]
    probe: int
    """Number of the breaker's probe, if this request is one."""
    has_reported: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the dynamic upstream is unassigned, unhealthy, or has another replica now."""
        upstream = self.upstream
        return upstream.settings.is_dynamic and (not upstream.is_healthy or upstream.address is not self.leased_address)

    async def prepare_retry(self, failure: AttemptFailure) -> bool:
        """Repeat only what the server has never read, or no longer streams; other failures go to another upstream."""
        return (failure.is_stale or failure.goes_unstreamed) and not self.is_gone

    def report(self, failure: AttemptFailure | None) -> None:
        """Update breaker, cooldown, health and metrics of the upstream."""
        self.has_reported = True
        upstream = self.upstream
        if upstream.address is self.leased_address:  # else the result belongs to a replica that is gone
            if failure is None or not failure.is_server_fault:
                upstream.breaker.record_success()
            elif not failure.is_stale:
                upstream.breaker.record_failure(self.probe)
                # It is gone, or shutting down.
                if upstream.settings.is_dynamic and (failure.is_disconnect or failure.outcome == "503"):
                    upstream.mark_unhealthy()  # other replicas run or will start soon
            if failure is None:
                upstream.record_request(None)
            elif failure.is_upstream_failure:
                upstream.record_request(failure.outcome)
            if failure is not None and failure.error.status == HTTPStatus.TOO_MANY_REQUESTS:
                upstream.start_cooldown(failure.error.retry_after_s or 1.0)
        self.on_report(upstream, failure)

    def release(self) -> None:
        """Free the slot. Without a reported result, the client has disconnected."""
        self.upstream.running -= 1
        assert self.queue is not None
        self.queue.release(time.monotonic() - self.began)
        if not self.has_reported:
            self.upstream.breaker.cancel_request(self.probe)
            self.on_report(self.upstream, CLIENT_DISCONNECTED)


@dataclass(eq=False)
class UpstreamBackend(Backend):
    """The upstreams that serve a model."""

    group: UpstreamGroup
    queues: Mapping[str, RequestQueue]
    send: SendRequest
    settings: ServeSettings
    on_report: Callable[[Upstream, AttemptFailure | None], None]
    wait_for_change: Callable[[float], Awaitable[None]]

    def __post_init__(self) -> None:
        self.name: str = self.group.name
        self.members: tuple[UpstreamModel, ...] = self.group.members
        self.upstreams: Sequence[Upstream] = [member.upstream for member in self.members]
        self._is_mapped = any(member.model != self.name for member in self.members)
        self._is_dynamic = any(upstream.settings.is_dynamic for upstream in self.upstreams)
        self.max_attempts = _MAX_ATTEMPTS_DYNAMIC if self._is_dynamic else _MAX_ATTEMPTS
        self.has_usage: bool = all(upstream.settings.usage for upstream in self.upstreams)

    @property
    def reported_model(self) -> str | None:
        """None for OpenAI, which reports the version of the model; other servers may report the path of a file."""
        reports_version = not self._is_mapped and {upstream.kind for upstream in self.upstreams} == {"openai"}
        return None if reports_version else self.name

    @property
    def slots(self) -> int:
        """The slots of the largest upstream, bounded."""
        return min(_MAX_PARALLEL_CHOICES, max(self.queues[upstream.name].slots for upstream in self.upstreams))

    async def lease(self, avoid: Collection[str], sticky: str | None) -> BackendLease:
        """A slot at the best upstream; if its queue is full, at the next best."""
        waited_s = await self._wait_for_replica() if self._is_dynamic else 0.0
        member = choose_upstream(self.members, avoid_upstreams=avoid, sticky_key=sticky)
        full: set[str] = set()
        while (
            self.queues[name := member.upstream.name].is_full
            and name not in full
            and self.has_alternative({*avoid, *full, name})
        ):
            full.add(name)
            member = choose_upstream(self.members, avoid_upstreams={*avoid, *full}, sticky_key=sticky)
        upstream, queue, overrides = member.upstream, self.queues[name], member.upstream.settings
        upstream.running += 1  # queued requests count as load as well
        try:
            waited_s += await queue.acquire()
        except BaseException:
            upstream.running -= 1
            raise
        return UpstreamLease(
            upstream=upstream,
            address=upstream.address,
            leased_address=upstream.address,
            send=self.send,
            name=name,
            model=member.model,
            first_byte_s=self.settings.first_byte_s if overrides.first_byte_s is None else overrides.first_byte_s,
            idle_s=self.settings.idle_s if overrides.idle_s is None else overrides.idle_s,
            queue=queue,
            waited_s=waited_s,
            on_report=self.on_report,
            probe=upstream.breaker.begin_request(),
        )

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
            await self.wait_for_change(left_s)
        return time.monotonic() - began
