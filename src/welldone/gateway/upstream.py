"""One upstream, and how it is doing: what its requests and the looks at its health have told."""

import re
from collections.abc import Callable, Collection, Generator
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from welldone.config.upstream import UpstreamSettings
from welldone.http.address import Address, check_path, parse_url
from welldone.http.client import BufferedResponse, HttpClientError
from welldone.protocol.json_budget import decode_in_steps, run_to_completion

# A circuit breaker: a server that fails again and again is left alone for a while, and then tried with one request.


FAILURE_THRESHOLD = 5
"""Failures in a row that open it; Envoy's number."""

OPEN_S = 30.0
"""How long it is open the first time, and how much longer each time after; Envoy's number."""

OPEN_MAX_S = 300.0
"""A server that comes back is found within five minutes; Envoy's number."""


class CircuitBreaker:
    """Closed: all requests may go. Open: none should. Half-open: one may, and its end decides.

    It only advises: where there is no other server, requests go through an open one too, and a success closes it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        failure_threshold: int = FAILURE_THRESHOLD,
        open_s: float = OPEN_S,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._failure_threshold = failure_threshold
        self._open_s = open_s
        self._consecutive_failures = 0
        self._times_opened = 0
        self._probe_at: float | None = None
        self._probe_number = 0
        """The number of the last probe."""
        self.opened_at: float | None = None
        """When it was opened; None: it is closed."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """Where it stands now."""
        if self.opened_at is None:
            return "closed"
        return "open" if self.retry_after_s > 0 else "half-open"

    @property
    def retry_after_s(self) -> float:
        """Seconds until it is no longer open; 0: it is not."""
        if self.opened_at is None:
            return 0.0
        open_s = min(self._open_s * self._times_opened, OPEN_MAX_S)
        return max(0.0, self.opened_at + open_s - self._clock())

    def allows_request(self) -> bool:
        """Whether a request may go now."""
        return self.state == "closed" or (self.state == "half-open" and not self._is_probe_in_flight)

    @property
    def _is_probe_in_flight(self) -> bool:
        """Whether a probe is under way. One that tells nothing for long may never: its client may have left."""
        return self._probe_at is not None and self._clock() < self._probe_at + self._open_s

    def begin_request(self) -> int:
        """A request goes. The first one of a half-open breaker is its probe: the probe's number, or 0."""
        if self.state != "half-open" or self._is_probe_in_flight:
            return 0
        self._probe_at = self._clock()
        self._probe_number += 1
        return self._probe_number

    def cancel_request(self, probe_number: int) -> None:
        """The client of a request left, which began with this number: if that was the probe, another one may be."""
        if self._is_current_probe(probe_number):
            self._probe_at = None

    def record_success(self) -> None:
        """A request was answered: all is well, whatever was before."""
        was_closed = self.opened_at is None
        self._consecutive_failures = self._times_opened = 0
        self._probe_at = self.opened_at = None
        if not was_closed:
            self._on_change()

    def record_failure(self, probe_number: int = 0) -> None:
        """A request was not answered, which began with this number. Once it is open, only the probe decides."""
        if self.opened_at is None:
            self._consecutive_failures += 1
            if self._consecutive_failures >= self._failure_threshold:
                self._open()
        elif self._is_current_probe(probe_number):
            self._open()

    def _is_current_probe(self, probe_number: int) -> bool:
        return self._probe_at is not None and probe_number == self._probe_number

    def _open(self) -> None:
        self.opened_at = self._clock()
        self._times_opened += 1
        self._probe_at = None
        self._on_change()


# What an upstream lists as its models, without what is nobody's business: paths, addresses, command lines, keys.


LISTED_MODELS_LIMIT = 5_000
"""OpenRouter lists some hundred."""

MODEL_ID_LIMIT = 128
"""Characters of an id; as for names of local models. Ids stand in logs and labels."""

_TEXT_LIMIT = 128  # what clients read is a word or a title; longer is prose
_ITEMS_PER_STEP = 64  # models that are cleaned in one turn
_ITEMS_LIMIT = 64  # of a list or a table; OpenRouter has two dozen
_DEPTH_LIMIT = 4  # OpenRouter has two
_MIN_SECRET_LENGTH = 8  # a shorter one, such as `none`, is a common word and no secret
_PRIVATE_FIELDS = {"args", "permission", "preset"}
"""Command lines and files of llama.cpp's router, and a relic of OpenAI's first API."""
_PATH_PATTERN = re.compile(r"(^|[^\w.])[/\\~]")  # an absolute path, or an address with its ://
_KIND_BY_OWNER = {
    "vllm": "vllm",
    "llamacpp": "llamacpp",
    "sglang": "sglang",
    "welldone": "welldone",
    "library": "ollama",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}
"""Servers by the owner that they give their models."""


class ListedModel(msgspec.Struct, frozen=True):
    """A model, and what else its server says of it."""

    id: str
    extra_fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def as_model_object(self, name: str) -> dict[str, Any]:
        """The model as clients list it, under the name that they use."""
        created, owner = self.extra_fields.get("created"), self.extra_fields.get("owned_by")
        return {
            **self.extra_fields,
            "id": name,
            "object": "model",
            "created": created if isinstance(created, int) and not isinstance(created, bool) else 0,
            "owned_by": owner if isinstance(owner, str) else "upstream",
        }


def parse_model_list(body: bytes, secrets: Collection[str] = ()) -> tuple[ListedModel, ...] | None:
    """The models of a reply to `GET /v1/models`, each id once; None: it is no list. What is odd is left out."""
    return run_to_completion(parse_model_list_in_steps(body, secrets))


def parse_model_list_in_steps(
    body: bytes, secrets: Collection[str] = ()
) -> Generator[None, None, tuple[ListedModel, ...] | None]:
    """The same, in steps of which each takes a turn."""
    data = yield from _model_items(body)
    if data is None:
        return None
    secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH]
    models: dict[str, ListedModel] = {}
    for place, item in enumerate(data):
        if place % _ITEMS_PER_STEP == 0:
            yield
        name = _model_id(item) if isinstance(item, dict) else None
        if isinstance(name, str) and name not in models and _is_valid_model_id(name, secrets):
            models[name] = ListedModel(name, _without_private(item, secrets, _DEPTH_LIMIT))
            if len(models) == LISTED_MODELS_LIMIT:
                break
    return tuple(models.values())


def _model_items(body: bytes) -> Generator[None, None, list[Any] | None]:
    """The list in OpenAI's `data`, in `models` as Ollama and Gemini have it, or bare as Together has it."""
    try:
        found = yield from decode_in_steps(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if isinstance(found, dict):
        if "data" in found and found["data"] is None:  # Ollama without a model
            return []
        found = found.get("data", found.get("models"))
    return found if isinstance(found, list) else None


def _model_id(item: dict[str, Any]) -> object:
    return next((item[key] for key in ("id", "model", "name") if key in item), None)


def detect_server_kind(models: Collection[ListedModel]) -> str:
    """The kind of server that lists such models; empty: not known."""
    owners = (model.extra_fields.get("owned_by") for model in models)
    return next((_KIND_BY_OWNER[owner] for owner in owners if isinstance(owner, str) and owner in _KIND_BY_OWNER), "")


def _is_valid_model_id(name: str, secrets: Collection[str]) -> bool:
    return 0 < len(name) <= MODEL_ID_LIMIT and name.isprintable() and not _has_secret(name, secrets)


def _without_private(value: Any, secrets: Collection[str], depth: int) -> Any:  # noqa: ANN401 - JSON
    """The value without what is private in it; `UNSET`: all of it is."""
    if isinstance(value, str):
        return value if _is_public_text(value, secrets) else UNSET
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return UNSET
    if isinstance(value, list):
        items = (_without_private(item, secrets, depth - 1) for item in value[:_ITEMS_LIMIT])
        return [item for item in items if item is not UNSET]
    keys = [key for key in value if key not in _PRIVATE_FIELDS and _is_public_text(key, secrets)][:_ITEMS_LIMIT]
    table = {key: _without_private(value[key], secrets, depth - 1) for key in keys}
    return {key: item for key, item in table.items() if item is not UNSET}


def _is_public_text(text: str, secrets: Collection[str]) -> bool:
    is_word = len(text) <= _TEXT_LIMIT and text.isprintable()
    return is_word and not _PATH_PATTERN.search(text) and not _has_secret(text, secrets)


def _has_secret(text: str, secrets: Collection[str]) -> bool:
    return any(secret in text for secret in secrets)


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
