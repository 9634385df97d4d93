"""What the parts of a server share: settings, services, and a memory budget for bodies. `Server` builds it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.supervisor import EngineSupervisor
from welldone.gateway.backends import SendRequest
from welldone.gateway.registry import UpstreamRegistry
from welldone.server.access.key_storage import KeyStorage
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.access.store import SharedStore
from welldone.server.generation.mirror import TrafficMirror
from welldone.server.inspector.assets import StaticSite
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.downloads import Downloads
from welldone.server.inspector.recent import RecentRequests
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.tracing import RequestTracer
from welldone.server.observe.workers import WorkerSync
from welldone.server.reload import ReloadResult
from welldone.stream.stream_template import TemplateCache

BODY_BUDGET_BYTES = 256 * 2**20
"""Total. A client's body takes about 1.5 times its size until its answer is complete. Another body is sent to a backend
up to half of it: sixteen clients with n = 16 and 4 MB each then take 200 MB."""
_POLL_S = 0.01  # servers accept a body within milliseconds


class BodyHolder(Protocol):
    """An attempt that sends a body to a backend."""

    @property
    def pending_body_bytes(self) -> int:
        """Bytes of the body; 0 once all of it is sent."""


class BodyBudget:
    """Counts the bytes of request bodies."""

    def __init__(self) -> None:
        self.client_bytes = 0
        """Bytes of clients' bodies."""
        self._holders: set[BodyHolder] = set()
        self._lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the budget is exceeded."""
        return self.client_bytes + self._pending_bytes() > BODY_BUDGET_BYTES

    def _pending_bytes(self) -> int:
        pending = {holder: holder.pending_body_bytes for holder in self._holders}
        self._holders = {holder for holder, size in pending.items() if size}  # a body that was sent is not sent again
        return sum(pending.values())

    async def reserve(self, holder: BodyHolder) -> None:
        """Wait until the budget has room, then count the holder's body until `release`.

        The caller builds the body before its next await: the next caller then sees its size. One body is always
        admitted: otherwise clients' bodies alone could block all requests.
        """
        if self._lock.locked() or self._must_wait():
            async with self._lock:
                while self._must_wait():  # noqa: ASYNC110 - sockets have no event for this
                    await asyncio.sleep(_POLL_S)
        self._holders.add(holder)

    def _must_wait(self) -> bool:
        pending_bytes = self._pending_bytes() if self._holders else 0
        return pending_bytes > 0 and self.client_bytes + pending_bytes > BODY_BUDGET_BYTES // 2

    def release(self, holder: BodyHolder) -> None:
        """Count the holder's body no longer."""
        self._holders.discard(holder)


class InspectorServices(NamedTuple):
    """What only a server with a page has."""

    site: StaticSite
    recent: RecentRequests
    captures: CaptureStore
    downloads: Downloads | None
    """Of a server with local models."""


class ServerParts(msgspec.Struct, kw_only=True, eq=False):
    """Settings, models, access control and observation of one server process."""

    settings: ServeSettings
    """Replaced by a reload."""
    supervisor: EngineSupervisor
    upstreams: UpstreamRegistry
    metrics: Metrics
    keys: ApiKeys
    limits: RateLimiter
    send: SendRequest
    mirror: TrafficMirror
    worker_sync: WorkerSync
    key_storage: KeyStorage | None = None
    body_budget: BodyBudget = msgspec.field(default_factory=BodyBudget)
    recorder: TraceRecorder | None = None
    tracer: RequestTracer | None = None
    stream_store: SharedStore | None = None
    """Where other front ends find resumable streams."""
    response_store: SharedStore | None = None
    """Where other front ends find stored responses."""
    page: InspectorServices | None = None
    reload: Callable[[], Awaitable[ReloadResult]] | None = None
    """Reads the configuration again and applies it; None if the program has no configuration to read."""
    templates: TemplateCache = msgspec.field(default_factory=TemplateCache)
    now: Callable[[], float] = time.time
