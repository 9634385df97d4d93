"""What the page shows of the server: its models, its upstreams, its keys, and the last requests.

Of several processes each knows a part. What is counted is the sum of all that answer; health and breakers of upstreams
are those that the process which was asked has seen.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from welldone import __version__
from welldone.engines.fleet import Fleet, Model
from welldone.engines.fleet import State as ModelState
from welldone.engines.upstream import Upstream
from welldone.engines.upstreams import Upstreams
from welldone.net.inbound import Reply
from welldone.serve import listing
from welldone.serve.admission import Gate
from welldone.serve.app import Ask, json_reply
from welldone.serve.counts import UpstreamCounts, quantile
from welldone.serve.keys import Keys
from welldone.serve.limits import Limits, Spent, Usage
from welldone.serve.metrics import FIRST_S, Metrics
from welldone.serve.page import recordings
from welldone.serve.page.recent import LIMIT, Recent, Row
from welldone.serve.recording import Recorder
from welldone.serve.siblings import Question, Siblings

_MODELS_SHOWN = 100  # of an upstream: some list thousands, and nobody reads them here
_ILL = (ModelState.RESTARTING, ModelState.FAILED)


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


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took."""

    p50: float | None
    p95: float | None
    count: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
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
    ttft_s: Times
    findings: list[Finding]
    """The most frequent first."""
    attempts: dict[str, int]


class State(msgspec.Struct, frozen=True, kw_only=True):
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
    keys: list[Usage]
    recent: list[Row]


class Share(msgspec.Struct, kw_only=True):
    """What one process has counted, and the others have not."""

    recent: list[Row]
    spent: dict[str, Spent]
    upstreams: dict[str, UpstreamCounts]

    def add(self, other: "Share") -> None:
        """Both together."""
        self.recent = sorted(self.recent + other.recent, key=lambda row: row.at, reverse=True)[:LIMIT]
        for name, spent in other.spent.items():
            self.spent[name] = self.spent.get(name, Spent()).plus(spent)
        self.upstreams = {name: counts.plus(other.upstreams[name]) for name, counts in self.upstreams.items()}


class StateApi:
    """Answers who asks for the state. `gates` has those of the local models, by name.

    Who is no admin sees the models that he may use, his own key and his own requests.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        gates: Mapping[str, Gate],
        upstreams: Upstreams,
        metrics: Metrics,
        limits: Limits,
        keys: Keys,
        recent: Recent,
        recorder: Recorder | None,
        siblings: Siblings | None,
        is_draining: Callable[[], bool],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._gates = gates
        self._upstreams = upstreams
        self._metrics = metrics
        self._limits = limits
        self._keys = keys
        self._recent = recent
        self._recorder = recorder
        self._siblings = siblings
        self._is_draining = is_draining
        self._now = now
        self._clock = clock
        self._began = clock()
        self._workers = 1 if siblings is None else siblings.count
        if siblings is not None:
            siblings.register("state", self._tell_share)
            siblings.register("recording", self._tell_name)

    async def state(self, ask: Ask) -> Reply:
        """All that this client may see."""
        is_admin = self._keys.is_admin(ask.principal)
        whose = None if is_admin else ask.principal
        share = await self._share_of_all(whose)
        named = self._limits.principals if whose is None else [whose]
        models = [one for one in self._fleet.models if is_admin or self._keys.may_use(ask.principal, one.name)]
        upstreams = self._upstreams.all if is_admin else ()
        state = State(
            version=__version__,
            now=self._now(),
            uptime_s=self._clock() - self._began,
            workers=self._workers,
            is_admin=is_admin,
            has_metrics=self._keys.may_read_metrics(ask.principal),
            principal=ask.principal,
            is_recording=self._recorder is not None,
            is_draining=self._is_draining(),
            models=[self._model(model) for model in models],
            upstreams=[self._upstream(upstream, share.upstreams[upstream.name]) for upstream in upstreams],
            keys=[self._usage(name, share) for name in sorted({*named, *share.spent})],
            recent=share.recent if is_admin else [row.without_servers() for row in share.recent],
        )
        return json_reply(state)

    async def recording(self, ask: Ask) -> Reply:
        """What was recorded of a request, as one record."""
        self._keys.check_admin(ask.principal)
        request_id = ask.call.path.rpartition("/")[2]
        name = None if self._recorder is None else await self._name(self._recorder, request_id)
        if self._recorder is None or name is None:
            raise recordings.gone()
        return Reply(200, await asyncio.to_thread(recordings.read_recording, self._recorder.folder, name))

    # What the processes tell each other.

    def _share(self, principal: str | None) -> Share:
        """What this process has counted; of one principal only where one is given."""
        spent = self._limits.spent()
        rows = self._recent.rows(principal)
        return Share(
            recent=rows if self._recorder is None else [self._marked(row, self._recorder) for row in rows],
            spent={name: spent[name] for name in spent if principal in (None, name)},
            upstreams=self._metrics.upstream_counts() if principal is None else {},
        )

    async def _tell_share(self, question: Question) -> bytes:
        return msgspec.json.encode(self._share(question.get("principal")))

    async def _share_of_all(self, principal: str | None) -> Share:
        share = self._share(principal)
        if self._siblings is not None:
            for answer in await self._siblings.gather("state", {"principal": principal}):
                share.add(msgspec.json.decode(answer, type=Share))
        return share

    async def _tell_name(self, question: Question) -> bytes:
        name = None if self._recorder is None else self._recorder.find(str(question.get("id")))
        return (name or "").encode()

    async def _name(self, recorder: Recorder, request_id: str) -> str | None:
        """The trace of a request. All processes write into one folder; who wrote it knows its name."""
        name = recorder.find(request_id)
        if name is None and self._siblings is not None:
            names = await self._siblings.gather("recording", {"id": request_id})
            name = names[0].decode() if names else None
        return name

    # What is shown of each thing.

    def _marked(self, row: Row, recorder: Recorder) -> Row:
        return msgspec.structs.replace(row, is_recorded=recorder.find(row.request_id) is not None)

    def _usage(self, name: str, share: Share) -> Usage:
        return msgspec.structs.replace(self._limits.usage(name), spent=share.spent.get(name, Spent()))

    def _model(self, model: Model) -> ModelView:
        gate, listed = self._gates[model.name], listing.model_object(model, 0)
        error = model.last_error if model.state in _ILL else None
        abilities, facts = model.abilities, model.facts
        return ModelView(
            id=model.name,
            state=model.state,
            error=None if error is None else error.message,
            slots=gate.slots,
            running=gate.running,
            waiting=gate.waiting,
            queue=gate.room - gate.slots,
            mean_wait_s=gate.mean_wait_s if gate.admitted else None,
            context=listed.get("context_length"),
            size_bytes=(abilities.size_bytes if abilities else 0) or (facts.size_bytes if facts else 0) or None,
            parameters=(abilities.parameters if abilities else 0) or (facts.parameters if facts else 0) or None,
            restarts=model.restarts,
            idle_s=self._clock() - model.last_used if model.is_idle else None,
            capabilities=listed.get("capabilities", []),
        )

    def _upstream(self, upstream: Upstream, counts: UpstreamCounts) -> UpstreamView:
        models = upstream.settings.models or tuple(model.id for model in upstream.listed or ())
        findings = sorted(counts.findings.items(), key=lambda pair: -pair[1])
        return UpstreamView(
            name=upstream.name,
            kind=upstream.kind or None,
            is_healthy=upstream.is_healthy,
            trouble=upstream.trouble,
            failing=upstream.failing,
            breaker=upstream.breaker.state,
            running=counts.running,
            waiting=counts.waiting,
            # Each process has a share of it.
            limit=upstream.settings.limit * self._workers,
            models=list(models[:_MODELS_SHOWN]),
            retry_after_s=upstream.retry_after_s,
            ttft_s=Times(
                p50=quantile(FIRST_S, counts.first, 0.5),
                p95=quantile(FIRST_S, counts.first, 0.95),
                count=sum(counts.first),
            ),
            findings=[Finding(rule=rule, count=count) for rule, count in findings],
            attempts=counts.attempts,
        )
