"""One upstream, and how it is doing: what its requests and the looks at its health have told."""

from collections.abc import Callable, Generator

from welldone.engines.address import Address
from welldone.engines.breaker import CircuitBreaker
from welldone.engines.listed import LISTED_MODELS_LIMIT, ListedModel, detect_server_kind, parse_model_list_in_steps
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.net.address import check_path, parse_url
from welldone.net.outbound import BufferedResponse, HttpClientError
from welldone.wire.budget import run_to_completion

UNHEALTHY_AFTER_PROBES = 2
"""Looks in a row that must fail; one may be lost on the way."""

FAILING_AFTER_REQUESTS = 3
"""Requests in a row that must fail before an upstream counts as failing: one or two may be chance."""

COOLDOWN_MAX_S = 60.0
"""How long an upstream can keep itself out of the choice by `Retry-After`. OpenAI's rates are per minute."""

_AUTH_ERROR_STATUSES, _TOO_MANY_REQUESTS = (401, 403), 429
_NO_LIST_HINT = "is the path of its URL right? Where it has no list, models = names them"

_REPLICA_KIND = "llamacpp"
"""What an engine of a cluster is asked for as: as one of this machine is, so that it answers the same."""

_KINDS_WITH_NATIVE_N = {"vllm", "sglang", "openai"}
"""Servers that make several choices themselves, and well."""


class Upstream:
    """A server that somebody else runs.

    Raises:
        ValueError: an address or a path is wrong; the message is one plain sentence.
    """

    def __init__(
        self, settings: UpstreamSettings, *, clock: Callable[[], float], on_change: Callable[["Upstream"], None]
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self.address: Address = parse_url(
            settings.url,
            key=settings.key,
            ca_file=None if settings.ca_file is None else str(settings.ca_file),
            is_verified=not settings.insecure,
            headers=tuple((name, str(value)) for name, value in settings.headers.items()),
        )
        check_path(settings.health)
        self.breaker = CircuitBreaker(clock=clock, on_change=lambda: on_change(self))
        self.running = 0
        """Requests that are there or wait to go there."""
        self.is_unassigned = settings.is_dynamic
        """Whether nobody is at this place of a cluster."""
        self.is_healthy = not self.is_unassigned
        self.cooldown_until = 0.0
        self.kind = _REPLICA_KIND if settings.is_dynamic else _kind_by_host(self.address.host)
        self._clock = clock
        self._on_change = on_change
        self._failed_probes = 0
        self._failed_requests = 0  # in a row
        self._last_failure = ""
        self._was_ever_healthy = False  # it was well once
        self._health_problem: str | None = None
        self._listing_problem: str | None = None  # what is wrong with its list
        self._models: dict[str, ListedModel] | None = None

    @property
    def problem(self) -> str | None:
        """What is wrong and what to do about it, in plain words without addresses and keys."""
        return self._health_problem or self._listing_problem

    @property
    def recent_failure(self) -> str | None:
        """How the last request failed (a status or a word), while all recent ones do; None: they are answered.

        A look at its health asks for a list of models: an upstream may give that, and still answer no request.
        """
        return self._last_failure if self._failed_requests >= FAILING_AFTER_REQUESTS else None

    @property
    def listed_models(self) -> tuple[ListedModel, ...] | None:
        """The models that it lists; None: not known."""
        return None if self._models is None else tuple(self._models.values())

    def listed_model(self, name: str) -> ListedModel | None:
        """What it lists under this name."""
        return None if self._models is None else self._models.get(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody else may ever see."""
        # A header may say `Bearer` before its secret.
        words = (word for value in self.settings.headers.values() for word in (value, *value.split()))
        return (self.address.key or "", *words)

    @property
    def supports_native_n(self) -> bool:
        """Whether it is asked for several choices at once."""
        return self.settings.n == "native" or (self.settings.n == "auto" and self.kind in _KINDS_WITH_NATIVE_N)

    @property
    def is_ready(self) -> bool:
        """Whether it is well and was seen to be: before the first look nobody knows, not even which models it has."""
        return self.is_healthy and (self._was_ever_healthy or not self.settings.probe_s)

    @property
    def is_available(self) -> bool:
        """Whether a request has good hope there."""
        return self.is_healthy and self.cooldown_until <= self._clock() and self.breaker.allows_request()

    @property
    def retry_after_s(self) -> float:
        """Seconds after which it may be available again, as far as one can say."""
        until_look_s = 0.0 if self.is_healthy else self.settings.probe_s
        return max(until_look_s, self.cooldown_until - self._clock(), self.breaker.retry_after_s)

    def assign(self, address: Address | None) -> None:
        """Somebody else is at this place of a cluster now, or nobody. What was known of who was there is forgotten."""
        before = (self.is_healthy, self.problem)
        self.is_unassigned = address is None
        self.address = self.address if address is None else address
        self.is_healthy = not self.is_unassigned
        self.cooldown_until = 0.0
        self.breaker.record_success()
        self._failed_probes = self._failed_requests = 0
        self._health_problem = "nobody is at this place of the cluster now" if self.is_unassigned else None
        self._notify_if_changed(before)

    def mark_unhealthy(self) -> None:
        """It broke off, or is about to end: nobody is sent there until a look finds it well."""
        before = (self.is_healthy, self.problem)
        self.is_healthy = False
        self._failed_probes = UNHEALTHY_AFTER_PROBES
        self._notify_if_changed(before)

    def start_cooldown(self, retry_after_s: float) -> None:
        """It has too much to do, and said when to come again."""
        self.cooldown_until = max(self.cooldown_until, self._clock() + min(retry_after_s, COOLDOWN_MAX_S))

    def record_request(self, failure: str | None) -> None:
        """A request was answered there, or failed in this way."""
        was_failing = self.recent_failure is not None
        self._failed_requests = 0 if failure is None else self._failed_requests + 1
        self._last_failure = failure or ""
        if (self.recent_failure is not None) != was_failing:
            self._on_change(self)

    def record_probe(self, reply: BufferedResponse | HttpClientError) -> None:
        """A look at its health gave this. Where it never was well, what is wrong is told at once."""
        if isinstance(reply, HttpClientError) and reply.is_local_failure:
            return  # it was not looked at
        before = (self.is_healthy, self.problem)
        illness = self._check_health(reply)
        self._failed_probes = 0 if illness is None else self._failed_probes + 1
        if illness is None or self._failed_probes >= UNHEALTHY_AFTER_PROBES:
            self.is_healthy = illness is None
        if illness is None or self._failed_probes >= UNHEALTHY_AFTER_PROBES or not self._was_ever_healthy:
            self._health_problem = illness
        self._was_ever_healthy |= illness is None
        self._notify_if_changed(before)

    def record_model_list(self, reply: BufferedResponse | HttpClientError) -> None:
        """It was asked for its models. Without an answer the last list stays: a server that is away keeps its names."""
        run_to_completion(self.record_model_list_in_steps(reply))

    def record_model_list_in_steps(self, reply: BufferedResponse | HttpClientError) -> Generator[None, None, None]:
        """The same, in steps of which each takes a turn."""
        if isinstance(reply, HttpClientError) or reply.status >= 500 or reply.status == _TOO_MANY_REQUESTS:
            return
        before = (self.is_healthy, self.problem)
        found = (yield from parse_model_list_in_steps(reply.body, self.secrets)) if reply.status == 200 else None
        if found is not None:
            self._models = {model.id: model for model in found}
            if not self.settings.is_dynamic:
                self.kind = _kind_by_host(self.address.host) or detect_server_kind(found) or self.kind
        self._listing_problem = self._check_model_list(reply, found)
        self._notify_if_changed(before)

    def _notify_if_changed(self, before: tuple[bool, str | None]) -> None:
        if (self.is_healthy, self.problem) != before:
            self._on_change(self)

    def _check_health(self, reply: BufferedResponse | HttpClientError) -> str | None:
        """What makes it unhealthy. One that only refuses our key, or has no list, is well."""
        if isinstance(reply, HttpClientError):
            return f"the upstream cannot be asked: {reply}; {_unreachable_hint(str(reply))}"
        is_well = reply.status < (300 if self.settings.health else 500) or reply.status in _AUTH_ERROR_STATUSES
        return None if is_well else f"the upstream is not well (status {reply.status}): its own log may say why"

    def _check_model_list(self, reply: BufferedResponse, found: tuple[ListedModel, ...] | None) -> str | None:
        """What is wrong with the reply to a request for its models."""
        if reply.status in _AUTH_ERROR_STATUSES:
            has_key = self.settings.key is not None or self.settings.headers
            said = "refuses our key" if has_key else "wants a key: --upstream-key, or key = in the file"
            return f"the upstream {said} (status {reply.status})"
        if 300 <= reply.status < 400:
            said = "redirects are not followed: does its URL need https://, or another path?"
            return f"the upstream sends elsewhere (status {reply.status}), and {said}"
        if reply.status != 200:
            return f"the upstream lists no models (status {reply.status}); {_NO_LIST_HINT}"
        if found is None:
            what = "a web page" if reply.body.lstrip()[:1] == b"<" else "no list of models"
            return f"the upstream answers {what} where its models should be; {_NO_LIST_HINT}"
        if len(found) == LISTED_MODELS_LIMIT:
            return f"the upstream lists {LISTED_MODELS_LIMIT:,} models or more: of others, those in models = are known"
        return None if found or self.settings.models else "the upstream lists no models: it has none yet"


def _kind_by_host(host: str) -> str:
    return "openai" if host == "api.openai.com" else ""


def _unreachable_hint(reason: str) -> str:
    """What to do where there is no reply."""
    if "certificate" in reason:
        return "ca_file = names a file of certificates to trust"
    return "does it run, and is its URL right?"
