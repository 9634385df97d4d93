"""What the parts of a server share. `Server` builds it."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.supervisor import EngineSupervisor
from welldone.gateway.backends import SendRequest
from welldone.gateway.registry import UpstreamRegistry
from welldone.protocol.stream_template import TemplateCache
from welldone.server.access.key_storage import KeyStorage
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.access.store import SharedStore
from welldone.server.body_budget import BodyBudget
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
