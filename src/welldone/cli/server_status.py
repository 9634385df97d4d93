"""The state of a running server, from `/health` and the server view's data, or from `/metrics` if it has no page."""

import asyncio
import re
import time

import msgspec

from welldone.cli.running_server import RunningServerError, ask_server, error_field
from welldone.http.address import Address
from welldone.http.recording_client import RecordedResponse
from welldone.http.redaction import API_KEY_VARIABLE
from welldone.reporting import single_line
from welldone.server.observe.counters import WINDOW_S, WindowCounts

_TIMEOUT_S = 5.0  # the server waits up to a second for its workers
_MAX_ERRORS = 20
_MAX_MESSAGE_CHARS = 300
_MANY_FAILURES = 3
"""Failures without a success after which an upstream is failing, as in the server view."""
_ERROR_SHARE = 0.2  # as the alert WelldoneUpstreamErrors
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500

LOADED_STATE, FAILING_STATE, ERRORS_STATE = "ready", "failing", "errors"
NOT_ADMIN = "this key is not an admin key: upstreams, and models and requests of other keys are left out"
NO_PAGE = "the server has no page (--no-page): recent errors and rates of the last minutes are left out"
NO_METRICS = "this key may not read /metrics, and the server has no page (--no-page): models and upstreams are left out"


def _failure_state(requests: int, failures: int) -> str | None:
    """Return the state that follows from the requests of the last minutes; None if few of them failed."""
    if failures == requests >= _MANY_FAILURES:
        return FAILING_STATE
    return ERRORS_STATE if failures > _ERROR_SHARE * requests else None


class ModelStatus(msgspec.Struct, kw_only=True):
    """A local model and its engine."""

    id: str
    state: str
    """That of its engine; failing or errors if it is ready and requests to it failed."""
    error: str | None = None
    """Why it restarts or failed, or how its requests failed."""
    slots: int = 0
    running: int = 0
    waiting: int = 0
    queue: int = 0
    """Requests that may wait."""
    restarts: int = 0
    """Of its engine."""


class LatencyStatus(msgspec.Struct, kw_only=True):
    """Quantiles in seconds."""

    p50: float | None = None
    p95: float | None = None


class UpstreamStatus(msgspec.Struct, kw_only=True):
    """An upstream."""

    name: str
    is_healthy: bool = True
    trouble: str | None = None
    """Why it is not healthy."""
    failing: str | None = None
    """How the last request failed; None unless all recent requests failed."""
    breaker: str = "closed"
    running: int = 0
    waiting: int = 0
    limit: int = 0
    """Requests that may run at once."""
    ttft_s: LatencyStatus = msgspec.field(default_factory=LatencyStatus)
    window: WindowCounts | None = None
    state: str = ""
    """The most important of these: ok, down, failing, open or half-open (the circuit breaker), errors."""

    def __post_init__(self) -> None:
        window = self.window or WindowCounts()
        failure_state = _failure_state(window.requests, window.failures)
        self.state = (failure_state or "ok") if self.breaker == "closed" else self.breaker
        # `failing` is of one worker, the window of all.
        if self.failing is not None or failure_state == FAILING_STATE:
            self.state = FAILING_STATE
        if not self.is_healthy:
            self.state = "down"


class RequestStatus(msgspec.Struct, kw_only=True):
    """A recent request."""

    at: float
    request_id: str = ""
    status: int = 0
    path: str = ""
    model: str | None = None
    upstream: str | None = None
    error: str | None = None
    failed: tuple[str, ...] = ()
    """Failed attempts, as `UPSTREAM:OUTCOME`."""

    @property
    def is_error(self) -> bool:
        """Whether the server or an upstream failed, or the server rejected the request as busy."""
        return (
            self.status >= _SERVER_ERROR
            or self.status == _TOO_MANY_REQUESTS
            or (self.status < 400 and self.error is not None)
        )


class ServerStatus(msgspec.Struct, kw_only=True):
    """The output of `welldone status --json`."""

    version: int = 1
    url: str
    is_ready: bool
    problem: str | None
    """Why it is not ready."""
    server_version: str | None = None
    uptime_s: float | None = None
    workers: int | None = None
    models: list[ModelStatus] = []
    upstreams: list[UpstreamStatus] = []
    errors: list[RequestStatus] = []
    """Recent requests that failed, the newest first."""
    notes: list[str] = []
    """Lines about omitted parts, each with the reason."""


class _PageState(msgspec.Struct, kw_only=True):
    """What is read of the reply to `GET /page/api/state`. Servers of other versions have more or fewer fields."""

    version: str
    now: float = 0.0
    uptime_s: float
    workers: int = 1
    is_admin: bool = True
    models: list[ModelStatus] = []
    upstreams: list[UpstreamStatus] = []
    recent: list[RequestStatus] = []


async def query_status(url: str, address: Address) -> ServerStatus:
    """Read the state of a server. Raises `RunningServerError`."""
    health, reply = await asyncio.gather(_get(url, address, "/health"), _get(url, address, "/page/api/state"))
    problem = None if health.status == 200 else _message(health) or f"/health returns {health.status}"
    status = ServerStatus(url=url, is_ready=problem is None, problem=problem)
    if reply.status == 200:
        try:
            page = msgspec.json.decode(reply.body, type=_PageState)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _not_welldone(url) from None
        status.server_version, status.uptime_s, status.workers = page.version, page.uptime_s, page.workers
        status.models, status.upstreams = page.models, page.upstreams
        for model in page.models:
            _add_failures(model, [row for row in page.recent if row.model == model.id and row.at > page.now - WINDOW_S])
        status.errors = [row for row in page.recent if row.is_error][:_MAX_ERRORS]
        status.notes = [] if page.is_admin else [NOT_ADMIN]
        return status
    if reply.status == 404:  # not a welldone server, or one without a page
        reply = await _get(url, address, "/metrics")
        if reply.status == 403 and error_field(reply.body, "code") == "not_allowed":
            status.notes = [NO_METRICS]
            return status
        if reply.status == 200:
            _add_metrics(status, _read_metrics(reply.body.decode(errors="replace")))
            if status.server_version is None:
                raise _not_welldone(url)
            return status
        if reply.status == 404:
            raise _not_welldone(url)
    if reply.status == 401:
        verb = "requires a key" if address.key is None else "refuses the key"
        raise RunningServerError(f"the server at {url} {verb}: --api-key KEY, or {API_KEY_VARIABLE}")
    reason = _message(reply)
    raise RunningServerError(f"the server at {url} answers with status {reply.status}{f': {reason}' if reason else ''}")


def _add_failures(model: ModelStatus, recent: list[RequestStatus]) -> None:
    """Set the state of a model by its recent requests. A rejection of a busy server is not a failure of the model."""
    failed = [row for row in recent if row.is_error and row.status != _TOO_MANY_REQUESTS]
    state = _failure_state(len(recent), len(failed))
    if state is not None and model.state == LOADED_STATE:
        model.state = state
        model.error = (
            f"{len(failed)} of {len(recent)} recent requests failed, the last: {failed[0].error or failed[0].status}"
        )


async def _get(url: str, address: Address, path: str) -> RecordedResponse:
    return await ask_server(url, address, "GET", path, timeout_s=_TIMEOUT_S)


def _not_welldone(url: str) -> RunningServerError:
    return RunningServerError(f"the server at {url} is not welldone serve")


def _message(reply: RecordedResponse) -> str:
    return single_line(error_field(reply.body, "message"), _MAX_MESSAGE_CHARS)


# Metrics.

_SAMPLE = re.compile(r"(?m)^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_Metrics = dict[str, dict[str, float]]
"""Values by metric, and by the value of the first label."""


def _read_metrics(text: str) -> _Metrics:
    """Read the samples with at most one label that matters: model, upstream, version."""
    metrics: _Metrics = {}
    for name, labels, value in _SAMPLE.findall(text):
        pairs = dict(_LABEL.findall(labels))
        if name == "welldone_upstream_breaker_state":
            name = f"{name} {pairs.pop('state', '')}"
        first = next((pairs[label] for label in ("model", "upstream", "version") if label in pairs), "")
        metrics.setdefault(name, {})[first] = float(value)
    return metrics


def _add_metrics(status: ServerStatus, metrics: _Metrics) -> None:
    def value(metric: str, name: str = "") -> int:
        return int(metrics.get(metric, {}).get(name, 0))

    status.notes = [NO_PAGE]
    status.server_version = next(iter(metrics.get("welldone_build_info", ())), None)
    if started := value("process_start_time_seconds"):
        status.uptime_s = max(0.0, time.time() - started)
    status.models = [
        ModelStatus(
            id=name,
            state=LOADED_STATE if is_up else "not ready",
            slots=value("welldone_slots", name),
            running=value("llamacpp:requests_processing", name),
            waiting=value("welldone_queue_depth", name),
            queue=value("welldone_queue_limit", name),
            restarts=value("welldone_engine_restarts_total", name),
        )
        for name, is_up in sorted(metrics.get("welldone_engine_up", {}).items())
    ]
    breaker = "welldone_upstream_breaker_state"
    status.upstreams = [
        UpstreamStatus(
            name=name,
            is_healthy=bool(is_up),
            failing="" if value("welldone_upstream_failing", name) else None,
            breaker=next((state for state in ("open", "half-open") if value(f"{breaker} {state}", name)), "closed"),
            running=value("welldone_upstream_running", name),
            waiting=value("welldone_upstream_waiting", name),
            limit=value("welldone_upstream_slots", name),
        )
        for name, is_up in sorted(metrics.get("welldone_upstream_up", {}).items())
    ]
