"""Server state for the page: models, upstreams, keys, recent requests and recordings.

With several workers, counts are summed over all that reply in time; health and circuit breakers of upstreams are those
of the worker that handles the request.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from welldone import __version__
from welldone.core.catalog import RULES
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.upstream import Upstream
from welldone.http.messages import HttpResponse
from welldone.server.access.limits import RateLimitStatus, UsageTotals
from welldone.server.api import models
from welldone.server.context import RequestContext, json_response
from welldone.server.inspector.downloads import DownloadView
from welldone.server.inspector.recent import RECENT_LIMIT, RecentRequest, RecentRequests
from welldone.server.observe.counters import UpstreamCounts, WindowCounts, quantile
from welldone.server.observe.metrics import TTFT_BUCKETS_S
from welldone.server.observe.workers import WorkerQuery
from welldone.server.parts import ServerParts

RECORDING_LIMIT_BYTES = 16 * 2**20
"""The longest record and body together (some 50,000 chunks): the page holds several copies in memory."""
_MODELS_LIMIT = 100  # of an upstream: some list thousands
_FAILING_STATES = (ModelState.RESTARTING, ModelState.FAILED)


def read_recording(folder: Path, name: str) -> bytes:
    """Read a recorded trace as one JSON record with `body_text`, or `body_base64` if the body is not UTF-8. Blocks.

    Raises:
        ApiError: 404 if the files do not exist, 413 if they are too long.
    """
    try:
        record, body = (_read_limited(folder / f"{name}.{kind}") for kind in ("json", "body"))
    except FileNotFoundError:
        raise recording_not_found() from None
    if len(record) + len(body) > RECORDING_LIMIT_BYTES:
        limit = f"{RECORDING_LIMIT_BYTES // 2**20} MiB"
        message = f"This recording is longer than {limit}. Open {name}.json and {name}.body in the recordings folder."
        raise ApiError(413, message, code="recording_too_long")
    fields: dict[str, Any] = msgspec.json.decode(record, type=dict[str, msgspec.Raw])  # the request may be long
    del fields["body"]  # the name of a file on the server
    try:
        fields["body_text"] = body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(body).decode()
    return msgspec.json.encode(fields)


def recording_not_found() -> ApiError:
    """Return the 404 for a recording that does not exist, or no longer exists."""
    return ApiError(404, "There is no recording of this request.", code="not_found")


def _read_limited(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(RECORDING_LIMIT_BYTES + 1)  # one more, so that the caller sees that it is too long


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A local model."""

    id: str
    state: ModelState
    error: str | None
    """Why it restarts or failed."""
    slots: int
    running: int
    waiting: int
    queue: int
    """Capacity of the queue."""
    mean_wait_s: float | None
    context: int | None
    size_bytes: int | None
    parameters: int | None
    restarts: int
    idle_s: float | None
    """Time since its last request; None unless it is loaded and idle."""
    capabilities: list[str]


class LatencyQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a latency in seconds."""

    p50: float | None
    p95: float | None
    count: int


class RuleCount(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, and how often an upstream violated it."""

    rule: str
    severity: str
    count: int


class UpstreamView(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream."""

    name: str
    kind: str | None
    is_healthy: bool
    trouble: str | None
    failing: str | None
    """How the last request failed; None unless all recent requests failed."""
    breaker: str
    running: int
    waiting: int
    limit: int
    models: list[str]
    retry_after_s: float
    ttft_s: LatencyQuantiles
    findings: list[RuleCount]
    """Most frequent first."""
    attempts: dict[str, int]
    window: WindowCounts
    """Requests of the last `WINDOW_S` seconds."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to `GET /page/api/state`."""

    version: str
    now: float
    uptime_s: float
    workers: int
    is_admin: bool
    has_metrics: bool
    """Whether the client may read `/metrics`."""
    principal: str
    is_recording: bool
    is_draining: bool
    has_key_store: bool
    """Whether the client may add and remove keys with `/keys`."""
    models: list[ModelView]
    download: DownloadView | None
    """The latest download of a model; None: the client may not start one."""
    upstreams: list[UpstreamView]
    keys: list[RateLimitStatus]
    recent: list[RecentRequest]


class WorkerCounts(msgspec.Struct, kw_only=True):
    """Counts of one worker."""

    recent: list[RecentRequest]
    spent: dict[str, UsageTotals]
    upstreams: dict[str, UpstreamCounts]

    def add(self, other: "WorkerCounts") -> None:
        """Add the counts of another worker."""
        self.recent = sorted(self.recent + other.recent, key=lambda row: row.at, reverse=True)[:RECENT_LIMIT]
        for name, spent in other.spent.items():
            self.spent[name] = self.spent.get(name, UsageTotals()).plus(spent)
        for name, counts in other.upstreams.items():  # while the workers reload, one may have more than the other
            self.upstreams[name] = self.upstreams[name].plus(counts) if name in self.upstreams else counts


@dataclass
class StateApi:
    """Handlers of the server state. `queues` has the queue of each local model by name.

    Admins see everything; others see the models that they may use, their own key and their own requests.
    """

    parts: ServerParts
    queues: Mapping[str, RequestQueue]
    recent: RecentRequests
    is_draining: Callable[[], bool]

    def __post_init__(self) -> None:
        self._started_at = time.monotonic()
        self.parts.worker_sync.register("state", self._encode_worker_counts)
        self.parts.worker_sync.register("recording", self._encode_recording_name)

    async def get_state(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/state`: everything that the client may see."""
        is_admin = self.parts.keys.is_admin(ctx.principal)
        principal = None if is_admin else ctx.principal
        counts = self._worker_counts(principal)
        for reply in await self.parts.worker_sync.gather("state", {"principal": principal}):
            counts.add(msgspec.json.decode(reply, type=WorkerCounts))
        principals = self.parts.limits.principals if principal is None else [principal]
        may_use, models = self.parts.keys.may_use, self.parts.supervisor.models
        upstreams = self.parts.upstreams.all if is_admin else ()
        downloads = None if self.parts.page is None else self.parts.page.downloads
        state = ServerState(
            version=__version__,
            now=self.parts.now(),
            uptime_s=time.monotonic() - self._started_at,
            workers=self.parts.worker_sync.count,
            is_admin=is_admin,
            has_metrics=self.parts.keys.may_read_metrics(ctx.principal),
            principal=ctx.principal,
            is_recording=self.parts.recorder is not None,
            is_draining=self.is_draining(),
            has_key_store=is_admin and self.parts.key_storage is not None,
            models=[self._model_view(one) for one in models if is_admin or may_use(ctx.principal, one.name)],
            download=downloads.view if is_admin and downloads is not None else None,
            upstreams=[
                self._upstream_view(upstream, counts.upstreams[upstream.name])
                for upstream in upstreams
                if upstream.name in counts.upstreams
            ],
            keys=[self._usage(name, counts) for name in sorted({*principals, *counts.spent})],
            recent=counts.recent if is_admin else [replace(row, upstream=None, failed=()) for row in counts.recent],
        )
        return json_response(state)

    async def get_recording(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/recordings/{request id}`: a recorded trace as one JSON record, for admins."""
        self.parts.keys.check_admin(ctx.principal)
        request_id = ctx.request.path.rpartition("/")[2]
        recorder = self.parts.recorder
        if recorder is None:
            raise recording_not_found()
        name = recorder.find(request_id)
        if name is None:  # only the worker that recorded a request has the name of its file, in the folder of all
            names = await self.parts.worker_sync.gather("recording", {"id": request_id})
            if not names:
                raise recording_not_found()
            name = names[0].decode()
        return HttpResponse(200, await asyncio.to_thread(read_recording, recorder.folder, name))

    # Exchange between workers.

    def _worker_counts(self, principal: str | None) -> WorkerCounts:
        """Return the counts of this worker, for one principal or for all."""
        spent = self.parts.limits.totals()
        rows = self.recent.rows(principal)
        if self.parts.recorder is not None:
            find = self.parts.recorder.find
            rows = [replace(row, is_recorded=find(row.request_id) is not None) for row in rows]
        return WorkerCounts(
            recent=rows,
            spent={name: spent[name] for name in spent if principal in (None, name)},
            upstreams=self.parts.metrics.upstream_counts() if principal is None else {},
        )

    async def _encode_worker_counts(self, query: WorkerQuery) -> bytes:
        return msgspec.json.encode(self._worker_counts(query.get("principal")))

    async def _encode_recording_name(self, query: WorkerQuery) -> bytes:
        name = None if self.parts.recorder is None else self.parts.recorder.find(str(query.get("id")))
        return (name or "").encode()

    # Views.

    def _usage(self, name: str, counts: WorkerCounts) -> RateLimitStatus:
        return replace(self.parts.limits.status(name), spent=counts.spent.get(name, UsageTotals()))

    def _model_view(self, model: LocalModel) -> ModelView:
        queue, listed = self.queues[model.name], models.model_object(model, 0)
        error = model.last_error if model.state in _FAILING_STATES else None
        loaded, metadata = model.capabilities, model.metadata
        return ModelView(
            id=model.name,
            state=model.state,
            error=None if error is None else error.message,
            slots=queue.slots,
            running=queue.running,
            waiting=queue.waiting,
            queue=queue.capacity - queue.slots,
            mean_wait_s=queue.mean_wait_s if queue.admitted else None,
            context=listed.get("context_length"),
            size_bytes=(loaded.size_bytes if loaded else 0) or (metadata.size_bytes if metadata else 0) or None,
            parameters=(loaded.parameters if loaded else 0) or (metadata.parameters if metadata else 0) or None,
            restarts=model.restarts,
            idle_s=time.monotonic() - model.last_used if model.is_idle else None,
            capabilities=listed.get("capabilities", []),
        )

    def _upstream_view(self, upstream: Upstream, counts: UpstreamCounts) -> UpstreamView:
        models = upstream.settings.models or tuple(model.id for model in upstream.listed_models or ())
        findings = sorted(counts.findings.items(), key=lambda pair: -pair[1])
        return UpstreamView(
            name=upstream.name,
            kind=upstream.kind or None,
            is_healthy=upstream.is_healthy,
            trouble=upstream.problem or upstream.hint,
            failing=upstream.recent_failure,
            breaker=upstream.breaker.state,
            running=counts.running,
            waiting=counts.waiting,
            # `settings.limit` is the share of one worker.
            limit=upstream.settings.limit * self.parts.worker_sync.count,
            models=list(models[:_MODELS_LIMIT]),
            retry_after_s=upstream.retry_after_s,
            ttft_s=LatencyQuantiles(
                p50=quantile(TTFT_BUCKETS_S, counts.ttft_counts, 0.5),
                p95=quantile(TTFT_BUCKETS_S, counts.ttft_counts, 0.95),
                count=sum(counts.ttft_counts),
            ),
            findings=[
                RuleCount(rule=rule, severity=RULES[rule].severity if rule in RULES else "", count=count)
                for rule, count in findings
            ],
            attempts=counts.attempts,
            window=counts.window,
        )
