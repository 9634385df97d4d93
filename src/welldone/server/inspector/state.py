"""What the page shows of the server: its models, its upstreams, its keys, and the last requests.

Of several processes each knows a part. What is counted is the sum of all that answer; health and breakers of upstreams
are those that the process which was asked has seen.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from welldone import __version__
from welldone.engines.supervisor import EngineSupervisor, LocalModel, ModelState
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.registry import UpstreamRegistry
from welldone.gateway.upstream import Upstream
from welldone.http.server import HttpResponse
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter, RateLimitStatus, UsageTotals
from welldone.server.api import models
from welldone.server.app import RequestContext, json_response
from welldone.server.inspector.recent import RECENT_LIMIT, RecentRequest, RecentRequests
from welldone.server.observe.counters import UpstreamCounts, quantile
from welldone.server.observe.metrics import TTFT_BUCKETS_S, Metrics
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.workers import WorkerQuery, WorkerSync

# A trace on the disk as one record with its body in it.


RECORDING_LIMIT_BYTES = 16 * 2**20
"""Of a record and its body together: an answer of some 50,000 chunks. The page has to hold it several times."""


def read_recording(folder: Path, name: str) -> bytes:
    """The record of a trace, with `body_text`, or `body_base64` where the body is not text. It blocks.

    Raises:
        ApiError: 404 where the files are gone, 413 where they are too long.
    """
    try:
        record, body = (_read_limited(folder / f"{name}.{kind}") for kind in ("json", "body"))
    except FileNotFoundError:
        raise recording_not_found() from None
    if len(record) + len(body) > RECORDING_LIMIT_BYTES:
        size = f"more than {RECORDING_LIMIT_BYTES // 2**20} MiB"
        message = f"This recording has {size}. It is in the folder of recordings, in {name}.json and {name}.body."
        raise ApiError(413, message, code="recording_too_long")
    whole: dict[str, Any] = msgspec.json.decode(record, type=dict[str, msgspec.Raw])  # it may hold a long request
    del whole["body"]  # the name of a file that the client does not have
    return msgspec.json.encode(whole | _body_fields(body))


def recording_not_found() -> ApiError:
    """The error for a recording that there is not, or not any more."""
    return ApiError(404, "There is no recording of this request.", code="not_found")


def _read_limited(path: Path) -> bytes:
    """A file, and one byte more than is taken of longer ones."""
    with path.open("rb") as file:
        return file.read(RECORDING_LIMIT_BYTES + 1)


def _body_fields(body: bytes) -> dict[str, str]:
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


_MODELS_LIMIT = 100  # of an upstream: some list thousands, and nobody reads them here
_FAILING_STATES = (ModelState.RESTARTING, ModelState.FAILED)


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A local model."""

    id: str
    state: ModelState
    error: str | None
    """Why it is not there, where it should be."""
    slots: int
    running: int
    waiting: int
    queue: int
    """How many may wait."""
    mean_wait_s: float | None
    context: int | None
    size_bytes: int | None
    parameters: int | None
    restarts: int
    idle_s: float | None
    """For how long nobody has used it, where it is loaded."""
    capabilities: list[str]


class LatencyQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took."""

    p50: float | None
    p95: float | None
    count: int


class RuleCount(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, and how often it was broken."""

    rule: str
    count: int


class UpstreamView(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream."""

    name: str
    kind: str | None
    is_healthy: bool
    trouble: str | None
    failing: str | None
    """How the last request failed, while all recent ones do."""
    breaker: str
    running: int
    waiting: int
    limit: int
    models: list[str]
    retry_after_s: float
    ttft_s: LatencyQuantiles
    findings: list[RuleCount]
    """The most frequent first."""
    attempts: dict[str, int]


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    version: str
    now: float
    uptime_s: float
    workers: int
    is_admin: bool
    has_metrics: bool
    """Whether this client may read `/metrics`."""
    principal: str
    is_recording: bool
    is_draining: bool
    models: list[ModelView]
    upstreams: list[UpstreamView]
    keys: list[RateLimitStatus]
    recent: list[RecentRequest]


class WorkerCounts(msgspec.Struct, kw_only=True):
    """What one process has counted, and the others have not."""

    recent: list[RecentRequest]
    spent: dict[str, UsageTotals]
    upstreams: dict[str, UpstreamCounts]

    def add(self, other: "WorkerCounts") -> None:
        """Both together."""
        self.recent = sorted(self.recent + other.recent, key=lambda row: row.at, reverse=True)[:RECENT_LIMIT]
        for name, spent in other.spent.items():
            self.spent[name] = self.spent.get(name, UsageTotals()).plus(spent)
        self.upstreams = {name: counts.plus(other.upstreams[name]) for name, counts in self.upstreams.items()}


class StateApi:
    """Answers who asks for the state. `gates` has those of the local models, by name.

    Who is no admin sees the models that he may use, his own key and his own requests.
    """

    def __init__(
        self,
        *,
        fleet: EngineSupervisor,
        queues: Mapping[str, RequestQueue],
        upstreams: UpstreamRegistry,
        metrics: Metrics,
        limits: RateLimiter,
        keys: ApiKeys,
        recent: RecentRequests,
        recorder: TraceRecorder | None,
        worker_sync: WorkerSync | None,
        is_draining: Callable[[], bool],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._queues = queues
        self._upstreams = upstreams
        self._metrics = metrics
        self._limits = limits
        self._keys = keys
        self._recent = recent
        self._recorder = recorder
        self._worker_sync = worker_sync
        self._is_draining = is_draining
        self._now = now
        self._clock = clock
        self._started_at = clock()
        self._workers = 1 if worker_sync is None else worker_sync.count
        if worker_sync is not None:
            worker_sync.register("state", self._encode_worker_counts)
            worker_sync.register("recording", self._encode_recording_name)

    async def get_state(self, ctx: RequestContext) -> HttpResponse:
        """All that this client may see."""
        is_admin = self._keys.is_admin(ctx.principal)
        whose = None if is_admin else ctx.principal
        share = await self._all_worker_counts(whose)
        named = self._limits.principals if whose is None else [whose]
        models = [one for one in self._fleet.models if is_admin or self._keys.may_use(ctx.principal, one.name)]
        upstreams = self._upstreams.all if is_admin else ()
        state = ServerState(
            version=__version__,
            now=self._now(),
            uptime_s=self._clock() - self._started_at,
            workers=self._workers,
            is_admin=is_admin,
            has_metrics=self._keys.may_read_metrics(ctx.principal),
            principal=ctx.principal,
            is_recording=self._recorder is not None,
            is_draining=self._is_draining(),
            models=[self._model_view(model) for model in models],
            upstreams=[self._upstream_view(upstream, share.upstreams[upstream.name]) for upstream in upstreams],
            keys=[self._usage(name, share) for name in sorted({*named, *share.spent})],
            recent=share.recent if is_admin else [row.without_upstreams() for row in share.recent],
        )
        return json_response(state)

    async def get_recording(self, ctx: RequestContext) -> HttpResponse:
        """What was recorded of a request, as one record."""
        self._keys.check_admin(ctx.principal)
        request_id = ctx.request.path.rpartition("/")[2]
        name = None if self._recorder is None else await self._find_recording_name(self._recorder, request_id)
        if self._recorder is None or name is None:
            raise recording_not_found()
        return HttpResponse(200, await asyncio.to_thread(read_recording, self._recorder.folder, name))

    # What the processes tell each other.

    def _worker_counts(self, principal: str | None) -> WorkerCounts:
        """What this process has counted; of one principal only where one is given."""
        spent = self._limits.totals()
        rows = self._recent.rows(principal)
        return WorkerCounts(
            recent=rows if self._recorder is None else [self._with_recorded_flag(row, self._recorder) for row in rows],
            spent={name: spent[name] for name in spent if principal in (None, name)},
            upstreams=self._metrics.upstream_counts() if principal is None else {},
        )

    async def _encode_worker_counts(self, question: WorkerQuery) -> bytes:
        return msgspec.json.encode(self._worker_counts(question.get("principal")))

    async def _all_worker_counts(self, principal: str | None) -> WorkerCounts:
        share = self._worker_counts(principal)
        if self._worker_sync is not None:
            for answer in await self._worker_sync.gather("state", {"principal": principal}):
                share.add(msgspec.json.decode(answer, type=WorkerCounts))
        return share

    async def _encode_recording_name(self, question: WorkerQuery) -> bytes:
        name = None if self._recorder is None else self._recorder.find(str(question.get("id")))
        return (name or "").encode()

    async def _find_recording_name(self, recorder: TraceRecorder, request_id: str) -> str | None:
        """The trace of a request. All processes write into one folder; who wrote it knows its name."""
        name = recorder.find(request_id)
        if name is None and self._worker_sync is not None:
            names = await self._worker_sync.gather("recording", {"id": request_id})
            name = names[0].decode() if names else None
        return name

    # What is shown of each thing.

    def _with_recorded_flag(self, row: RecentRequest, recorder: TraceRecorder) -> RecentRequest:
        return msgspec.structs.replace(row, is_recorded=recorder.find(row.request_id) is not None)

    def _usage(self, name: str, counts: WorkerCounts) -> RateLimitStatus:
        return msgspec.structs.replace(self._limits.status(name), spent=counts.spent.get(name, UsageTotals()))

    def _model_view(self, model: LocalModel) -> ModelView:
        gate, listed = self._queues[model.name], models.model_object(model, 0)
        error = model.last_error if model.state in _FAILING_STATES else None
        abilities, facts = model.capabilities, model.metadata
        return ModelView(
            id=model.name,
            state=model.state,
            error=None if error is None else error.message,
            slots=gate.slots,
            running=gate.running,
            waiting=gate.waiting,
            queue=gate.capacity - gate.slots,
            mean_wait_s=gate.mean_wait_s if gate.admitted else None,
            context=listed.get("context_length"),
            size_bytes=(abilities.size_bytes if abilities else 0) or (facts.size_bytes if facts else 0) or None,
            parameters=(abilities.parameters if abilities else 0) or (facts.parameters if facts else 0) or None,
            restarts=model.restarts,
            idle_s=self._clock() - model.last_used if model.is_idle else None,
            capabilities=listed.get("capabilities", []),
        )

    def _upstream_view(self, upstream: Upstream, counts: UpstreamCounts) -> UpstreamView:
        models = upstream.settings.models or tuple(model.id for model in upstream.listed_models or ())
        findings = sorted(counts.findings.items(), key=lambda pair: -pair[1])
        return UpstreamView(
            name=upstream.name,
            kind=upstream.kind or None,
            is_healthy=upstream.is_healthy,
            trouble=upstream.problem,
            failing=upstream.recent_failure,
            breaker=upstream.breaker.state,
            running=counts.running,
            waiting=counts.waiting,
            # Each process has a share of it.
            limit=upstream.settings.limit * self._workers,
            models=list(models[:_MODELS_LIMIT]),
            retry_after_s=upstream.retry_after_s,
            ttft_s=LatencyQuantiles(
                p50=quantile(TTFT_BUCKETS_S, counts.ttft_counts, 0.5),
                p95=quantile(TTFT_BUCKETS_S, counts.ttft_counts, 0.95),
                count=sum(counts.ttft_counts),
            ),
            findings=[RuleCount(rule=rule, count=count) for rule, count in findings],
            attempts=counts.attempts,
        )
