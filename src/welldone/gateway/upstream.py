"""One upstream: its address, circuit breaker, health and list of models.

`UpstreamRegistry` probes it; `UpstreamLease` reports the results of requests. All methods belong to one event loop.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from welldone.config.upstream import UpstreamSettings
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.dialects.registry import DIALECTS
from welldone.gateway.model_list import LISTED_MODELS_LIMIT, ListedModel, detect_server_kind, parse_model_list_in_steps
from welldone.http.address import Address, check_path, parse_url
from welldone.http.client import BufferedResponse
from welldone.http.connect import HttpClientError

FAILURE_THRESHOLD = 5
"""Consecutive failures that open the breaker (Envoy's `consecutive_5xx`)."""

OPEN_S = 30.0
"""Duration of the first open period; each further one is longer by as much (Envoy's `base_ejection_time`)."""

OPEN_MAX_S = 300.0
"""Longest open period (Envoy's `max_ejection_time`)."""


@dataclass(eq=False, kw_only=True)
class CircuitBreaker:
    """Closed: requests pass. Open: requests should go elsewhere. Half-open: one probe request decides.

    It is advisory: when no other server is available, requests also pass an open breaker, and a success closes it.
    """

    clock: Callable[[], float]
    on_change: Callable[[], None] = lambda: None
    failure_threshold: int = FAILURE_THRESHOLD
    open_s: float = OPEN_S

    def __post_init__(self) -> None:
        self._consecutive_failures = 0
        self._times_opened = 0
        self._probe_at: float | None = None
        self._probe_number = 0  # of the last probe
        self.opened_at: float | None = None
        """None while it is closed."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """The current state, computed from the clock."""
        if self.opened_at is None:
            return "closed"
        return "open" if self.retry_after_s > 0 else "half-open"

    @property
    def retry_after_s(self) -> float:
        """Seconds until the breaker is half-open; 0 when it is not open."""
        if self.opened_at is None:
            return 0.0
        open_s = min(self.open_s * self._times_opened, OPEN_MAX_S)
        return max(0.0, self.opened_at + open_s - self.clock())

    def allows_request(self) -> bool:
        """Whether a request may be sent now."""
        if self.opened_at is None:
            return True
        # A probe without a result expires: it may never report one.
        is_probed = self._probe_at is not None and self.clock() < self._probe_at + self.open_s
        return self.retry_after_s <= 0 and not is_probed

    def begin_request(self) -> int:
        """Register a request. Returns the probe number if it is the probe of a half-open breaker, else 0."""
        if self.opened_at is None or not self.allows_request():
            return 0
        self._probe_at = self.clock()
        self._probe_number += 1
        return self._probe_number

    def cancel_request(self, probe_number: int) -> None:
        """Register that the client of a request disconnected. If the request was the probe, the next one becomes it."""
        if self._is_current_probe(probe_number):
            self._probe_at = None

    def record_success(self) -> None:
        """Close the breaker and reset all counts."""
        was_closed = self.opened_at is None
        self._consecutive_failures = self._times_opened = 0
        self._probe_at = self.opened_at = None
        if not was_closed:
            self.on_change()

    def record_failure(self, probe_number: int = 0) -> None:
        """Count a failed request. While the breaker is open, only the failure of the probe counts."""
        if self.opened_at is None:
            self._consecutive_failures += 1
            if self._consecutive_failures >= self.failure_threshold:
                self._open()
        elif self._is_current_probe(probe_number):
            self._open()

    def _is_current_probe(self, probe_number: int) -> bool:
        return self._probe_at is not None and probe_number == self._probe_number

    def _open(self) -> None:
        self.opened_at = self.clock()
        self._times_opened += 1
        self._probe_at = None
        self.on_change()


UNHEALTHY_AFTER_PROBES = 2
"""Consecutive failed health probes; a single one may be a lost packet."""

FAILING_AFTER_REQUESTS = 3
"""Consecutive failed requests after which an upstream is reported as failing; one or two may be chance."""

COOLDOWN_MAX_S = 60.0
"""Longest cooldown that a `Retry-After` can cause. OpenAI's rate limits are per minute."""

REMEMBERED_MODELS = 256
"""Models of one upstream of which facts are stored. Behind a pattern clients choose the names."""

_AUTH_ERROR_STATUSES, _TOO_MANY_REQUESTS = (401, 403), 429
_NO_LIST_HINT = "check the path of its URL, or name its models with models ="

OUTCOME_UNFINISHED = "unfinished"
"""Outcome (a metric label) of an answer that ended well, but without a finish reason."""

UNFINISHED_MESSAGE = re.compile(r"the upstream ended [0-9,]+ of its answers without a finish_reason; .{1,80}")
"""Matches each `unfinished_message`."""

_REPLICA_KIND = "llamacpp"
"""Cluster replicas run the same engine as local models and receive the same requests."""

_KINDS_WITH_NATIVE_N = {"vllm", "sglang", "openai"}
"""Servers whose own `n` is correct."""


def unfinished_message(count: int) -> str:
    """What happened to `count` answers of an upstream, and what to set for it."""
    ended = f"the upstream ended {count:,} of its answers without a finish_reason"
    return f'{ended}; if that is its way, set ends = "close" for it'


def dialect_headers(
    address: Address, endpoint: Endpoint, forwarded: Mapping[str, str] = {}
) -> tuple[tuple[str, str | None], ...]:
    """Return headers of a request in this dialect, forwarded ones and the key, without those that are configured."""
    dialect = DIALECTS[endpoint]
    needed: dict[str, str | None] = {**dialect.headers, **forwarded}
    if address.key is not None and dialect.key_header:
        needed[dialect.key_header] = address.key
        if not dialect.allows_bearer_token:
            needed["Authorization"] = None
    configured = {name.lower() for name, _ in address.headers}
    return tuple((name, value) for name, value in needed.items() if name.lower() not in configured)


class Upstream:
    """An OpenAI-compatible server that requests are forwarded to.

    Raises:
        ValueError: the URL or a path is invalid; the message is one plain sentence.
    """

    def __init__(
        self, settings: UpstreamSettings, *, clock: Callable[[], float], on_change: Callable[["Upstream"], None]
    ) -> None:
        self.name: str = settings.name
        self.settings = settings
        self.address: Address = parse_url(
            settings.url,
            key=settings.key,
            ca_file=None if settings.ca_file is None else str(settings.ca_file),
            is_verified=not settings.insecure,
            headers=tuple((name, str(value)) for name, value in settings.headers.items()),
        )
        check_path(settings.health)
        self.breaker: CircuitBreaker = CircuitBreaker(clock=clock, on_change=lambda: on_change(self))
        self.running = 0
        """Requests in flight or queued for this upstream."""
        self.is_unassigned: bool = settings.is_dynamic
        """Whether this is a dynamic upstream without a replica."""
        self.is_healthy: bool = not self.is_unassigned
        self.cooldown_until: float = 0.0
        self.reasoning_fields: dict[str, Sequence[str]] = {}
        """The members of a message that carried reasoning in the last answers, by model."""
        self.unfinished_count: int = 0
        """Answers that ended well, but without a finish reason."""
        self.unstreamed_models: dict[str, None] = {}
        """Models with a streamed tool call that broke off, with `stream = "auto"`."""
        self.kind: str = _REPLICA_KIND if settings.is_dynamic else _kind_by_host(self.address.host)
        self._clock = clock
        self._on_change = on_change
        self._failed_probes = 0
        self._failed_requests = 0  # in a row
        self._last_failure = ""
        self._was_ever_healthy = False
        self._health_problem: str | None = None
        self._listing_problem: str | None = None
        self._models: dict[str, ListedModel] | None = None

    @property
    def problem(self) -> str | None:
        """What is wrong and what to do, without addresses and keys; None if healthy."""
        return self._health_problem or self._listing_problem

    @property
    def hint(self) -> str | None:
        """What to set for this upstream; None if nothing."""
        hints = [unfinished_message(self.unfinished_count)] if self.unfinished_count else []
        if self.unstreamed_models and self.settings.stream == "auto":
            models = ", ".join(self.unstreamed_models)
            hints.append(
                f"a streamed answer to a request with tools broke off ({models}), and such answers are no longer "
                'requested as streams; if that is its way, set stream = "no-tools" for it'
            )
        return "; ".join(hints) or None

    def choose_form(self, model: str, body: Json) -> tuple[Json, bool]:
        """Return the request, as a stream or not, and whether a tool call that breaks off is to be recorded."""
        setting = self.settings.stream
        if setting == "true" or not body.get("stream"):
            return body, False
        has_tools = bool(body.get("tools") or body.get("functions"))
        is_watched = setting == "auto" and has_tools and model not in self.unstreamed_models
        if is_watched or (setting != "false" and not has_tools):
            return body, is_watched
        return {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}, False

    @property
    def recent_failure(self) -> str | None:
        """Outcome of the last request (a status or a word) once several in a row have failed, else None.

        A healthy upstream can fail all requests: the health probe only lists models.
        """
        return self._last_failure if self._failed_requests >= FAILING_AFTER_REQUESTS else None

    @property
    def listed_models(self) -> tuple[ListedModel, ...] | None:
        """The models of the last list; None before the first."""
        return None if self._models is None else tuple(self._models.values())

    def listed_model(self, name: str) -> ListedModel | None:
        """The listed model with this id."""
        return None if self._models is None else self._models.get(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not appear in logs or replies."""
        # The value of a header may be `Bearer SECRET`.
        words = (word for value in self.settings.headers.values() for word in (value, *value.split()))
        return (self.address.key or "", *words)

    @property
    def supports_native_n(self) -> bool:
        """Whether `n` is forwarded, instead of one request per choice."""
        if self.chat_dialect is not None:
            return False
        return self.settings.n == "native" or (self.settings.n == "auto" and self.kind in _KINDS_WITH_NATIVE_N)

    @property
    def chat_dialect(self) -> Endpoint | None:
        """The dialect to which chat requests are translated; None if it supports chat."""
        return None if self.settings.chat else Endpoint(self.settings.speaks[0])

    @property
    def model_list_target(self) -> tuple[str, tuple[tuple[str, str | None], ...]]:
        """Path of the model list, and the headers of its request, without those that are configured."""
        endpoint = self.chat_dialect or Endpoint.CHAT
        return DIALECTS[endpoint].models_path, dialect_headers(self.address, endpoint)

    @property
    def is_ready(self) -> bool:
        """Whether it is healthy and has been probed (unless probes are off); its models are unknown until then."""
        return self.is_healthy and (self._was_ever_healthy or not self.settings.probe_s)

    @property
    def is_available(self) -> bool:
        """Whether it is healthy, not cooling down, and its breaker allows a request."""
        return self.is_healthy and self.cooldown_until <= self._clock() and self.breaker.allows_request()

    @property
    def retry_after_s(self) -> float:
        """Estimated seconds until it is available."""
        until_probe_s = 0.0 if self.is_healthy else self.settings.probe_s
        return max(until_probe_s, self.cooldown_until - self._clock(), self.breaker.retry_after_s)

    def assign(self, address: Address | None) -> None:
        """Move a dynamic upstream to another replica, or to none, and reset its state."""
        before = (self.is_healthy, self.problem)
        self.is_unassigned = address is None
        self.address = self.address if address is None else address
        self.is_healthy = not self.is_unassigned
        self.cooldown_until = 0.0
        self.breaker.record_success()
        self._failed_probes = self._failed_requests = self.unfinished_count = 0
        self._health_problem = "no replica of the cluster is assigned to this upstream" if self.is_unassigned else None
        self._notify_if_changed(before)

    def mark_unhealthy(self) -> None:
        """Send no more requests until a health probe succeeds: the replica disconnected or is shutting down."""
        before = (self.is_healthy, self.problem)
        self.is_healthy = False
        self._failed_probes = UNHEALTHY_AFTER_PROBES
        self._notify_if_changed(before)

    def start_cooldown(self, retry_after_s: float) -> None:
        """Avoid the upstream for the time of its `Retry-After`."""
        self.cooldown_until = max(self.cooldown_until, self._clock() + min(retry_after_s, COOLDOWN_MAX_S))

    def record_request(self, failure: str | None) -> None:
        """Record the result of a request: None, or the outcome of its failure."""
        if failure == OUTCOME_UNFINISHED:
            self.unfinished_count += 1
            self._on_change(self)
        was_failing = self._failed_requests >= FAILING_AFTER_REQUESTS
        self._failed_requests = 0 if failure is None else self._failed_requests + 1
        self._last_failure = failure or ""
        if (self._failed_requests >= FAILING_AFTER_REQUESTS) != was_failing:
            self._on_change(self)

    def record_reasoning_fields(self, model: str, names: Sequence[str]) -> None:
        """Store how a model names its reasoning. At the limit the model with the oldest answer is dropped."""
        self.reasoning_fields.pop(model, None)  # its place is at the end
        if len(self.reasoning_fields) == REMEMBERED_MODELS:
            del self.reasoning_fields[next(iter(self.reasoning_fields))]
        self.reasoning_fields[model] = names

    def stop_tool_streams(self, model: str) -> None:
        """Request answers to requests with tools as a whole. At the limit the oldest model is dropped."""
        if model not in self.unstreamed_models:
            if len(self.unstreamed_models) == REMEMBERED_MODELS:
                del self.unstreamed_models[next(iter(self.unstreamed_models))]
            self.unstreamed_models[model] = None
            self._on_change(self)

    def record_probe(self, reply: BufferedResponse | HttpClientError) -> None:
        """Record the result of a health probe. If the upstream was never healthy, the problem is reported at once."""
        if isinstance(reply, HttpClientError) and reply.is_local_failure:
            return  # this machine failed, not the upstream
        before = (self.is_healthy, self.problem)
        problem = self._check_health(reply)
        self._failed_probes = 0 if problem is None else self._failed_probes + 1
        if problem is None or self._failed_probes >= UNHEALTHY_AFTER_PROBES:
            self.is_healthy = problem is None
        if problem is None or self._failed_probes >= UNHEALTHY_AFTER_PROBES or not self._was_ever_healthy:
            self._health_problem = problem
        self._was_ever_healthy |= problem is None
        self._notify_if_changed(before)

    def record_model_list_in_steps(self, reply: BufferedResponse | HttpClientError) -> Generator[None, None, None]:
        """Store the listed models. After an error the last list stays, so that routes survive an outage.

        Yields where the event loop may run other tasks.
        """
        if isinstance(reply, HttpClientError) or reply.status >= 500 or reply.status == _TOO_MANY_REQUESTS:
            return
        before = (self.is_healthy, self.problem)
        models = (yield from parse_model_list_in_steps(reply.body, self.secrets)) if reply.status == 200 else None
        if models is not None:
            self._models = {model.id: model for model in models}
            if not self.settings.is_dynamic:
                self.kind = _kind_by_host(self.address.host) or detect_server_kind(models) or self.kind
        self._listing_problem = self._check_model_list(reply, models)
        self._notify_if_changed(before)

    def _notify_if_changed(self, before: tuple[bool, str | None]) -> None:
        if (self.is_healthy, self.problem) != before:
            self._on_change(self)

    def _check_health(self, reply: BufferedResponse | HttpClientError) -> str | None:
        """Why it is unhealthy. Upstreams that only reject the key, or have no model list, are healthy."""
        if isinstance(reply, HttpClientError):
            is_certificate = "certificate" in str(reply)
            hint = "set ca_file = to trust its certificate" if is_certificate else "check that it runs, and its URL"
            return f"the upstream cannot be reached: {reply}; {hint}"
        is_healthy = reply.status < (300 if self.settings.health else 500) or reply.status in _AUTH_ERROR_STATUSES
        return None if is_healthy else f"the upstream is unhealthy (status {reply.status}); see its log"

    def _check_model_list(self, reply: BufferedResponse, models: tuple[ListedModel, ...] | None) -> str | None:
        """What is wrong with the reply to `GET /models`."""
        if reply.status in _AUTH_ERROR_STATUSES:
            has_key = self.settings.key is not None or self.settings.headers
            problem = "rejects the key" if has_key else "requires a key: --upstream-key, or key = in the file"
            return f"the upstream {problem} (status {reply.status})"
        if 300 <= reply.status < 400:
            hint = "check whether its URL needs https:// or another path"
            return f"the upstream redirects (status {reply.status}), and redirects are not followed; {hint}"
        if reply.status != 200:
            return f"the upstream lists no models (status {reply.status}); {_NO_LIST_HINT}"
        if models is None:
            content = "a web page" if reply.body.lstrip()[:1] == b"<" else "something else"
            return f"the upstream returns {content} instead of its list of models; {_NO_LIST_HINT}"
        if len(models) == LISTED_MODELS_LIMIT:
            return f"the upstream lists {LISTED_MODELS_LIMIT:,} models or more; name further ones with models ="
        return None if models or self.settings.models else "the upstream lists no models yet"


def _kind_by_host(host: str) -> str:
    return "openai" if host == "api.openai.com" else ""
