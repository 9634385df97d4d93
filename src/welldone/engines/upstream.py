"""One upstream, and how it is doing: what its requests and the looks at its health have told."""

from collections.abc import Callable, Generator

from welldone.engines.address import Address
from welldone.engines.breaker import Breaker
from welldone.engines.listed import MODELS_LIMIT, ListedModel, kind_of, reading_models
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.net.address import check_path, read_url
from welldone.net.outbound import Fetched, OutboundError
from welldone.wire.budget import at_once

FAILED_LOOKS = 2
"""Looks in a row that must fail; one may be lost on the way."""

FAILED_REQUESTS = 3
"""Requests in a row that must fail before an upstream counts as failing: one or two may be chance."""

COOL_LIMIT_S = 60.0
"""How long an upstream can keep itself out of the choice by `Retry-After`. OpenAI's rates are per minute."""

_REFUSED, _TOO_MANY = (401, 403), 429
_NO_LIST = "is the path of its URL right? Where it has no list, models = names them"

_OURS = "llamacpp"
"""What an engine of a cluster is asked for as: as one of this machine is, so that it answers the same."""

_NATIVE = {"vllm", "sglang", "openai"}
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
        self.address: Address = read_url(
            settings.url,
            key=settings.key,
            ca_file=None if settings.ca_file is None else str(settings.ca_file),
            is_verified=not settings.insecure,
            headers=tuple((name, str(value)) for name, value in settings.headers.items()),
        )
        check_path(settings.health)
        self.breaker = Breaker(clock=clock, on_change=lambda: on_change(self))
        self.running = 0
        """Requests that are there or wait to go there."""
        self.is_vacant = settings.is_place
        """Whether nobody is at this place of a cluster."""
        self.is_healthy = not self.is_vacant
        self.cooling_until = 0.0
        self.kind = _OURS if settings.is_place else _kind_by_host(self.address.host)
        self._clock = clock
        self._on_change = on_change
        self._failed_looks = 0
        self._failed_requests = 0  # in a row
        self._last_failure = ""
        self._is_known = False  # it was well once
        self._illness: str | None = None
        self._unlisted: str | None = None  # what is wrong with its list
        self._models: dict[str, ListedModel] | None = None

    @property
    def trouble(self) -> str | None:
        """What is wrong and what to do about it, in plain words without addresses and keys."""
        return self._illness or self._unlisted

    @property
    def failing(self) -> str | None:
        """How the last request failed (a status or a word), while all recent ones do; None: they are answered.

        A look at its health asks for a list of models: an upstream may give that, and still answer no request.
        """
        return self._last_failure if self._failed_requests >= FAILED_REQUESTS else None

    @property
    def listed(self) -> tuple[ListedModel, ...] | None:
        """The models that it lists; None: not known."""
        return None if self._models is None else tuple(self._models.values())

    def model(self, name: str) -> ListedModel | None:
        """What it lists under this name."""
        return None if self._models is None else self._models.get(name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody else may ever see."""
        # A header may say `Bearer` before its secret.
        words = (word for value in self.settings.headers.values() for word in (value, *value.split()))
        return (self.address.key or "", *words)

    @property
    def makes_choices(self) -> bool:
        """Whether it is asked for several choices at once."""
        return self.settings.n == "native" or (self.settings.n == "auto" and self.kind in _NATIVE)

    @property
    def is_ready(self) -> bool:
        """Whether it is well and was seen to be: before the first look nobody knows, not even which models it has."""
        return self.is_healthy and (self._is_known or not self.settings.probe_s)

    @property
    def is_available(self) -> bool:
        """Whether a request has good hope there."""
        return self.is_healthy and self.cooling_until <= self._clock() and self.breaker.allows()

    @property
    def retry_after_s(self) -> float:
        """Seconds after which it may be available again, as far as one can say."""
        until_look_s = 0.0 if self.is_healthy else self.settings.probe_s
        return max(until_look_s, self.cooling_until - self._clock(), self.breaker.retry_after_s)

    def move(self, address: Address | None) -> None:
        """Somebody else is at this place of a cluster now, or nobody. What was known of who was there is forgotten."""
        before = (self.is_healthy, self.trouble)
        self.is_vacant = address is None
        self.address = self.address if address is None else address
        self.is_healthy = not self.is_vacant
        self.cooling_until = 0.0
        self.breaker.succeeded()
        self._failed_looks = self._failed_requests = 0
        self._illness = "nobody is at this place of the cluster now" if self.is_vacant else None
        self._tell_if_not(before)

    def doubt(self) -> None:
        """It broke off, or is about to end: nobody is sent there until a look finds it well."""
        before = (self.is_healthy, self.trouble)
        self.is_healthy = False
        self._failed_looks = FAILED_LOOKS
        self._tell_if_not(before)

    def refused(self, retry_after_s: float) -> None:
        """It has too much to do, and said when to come again."""
        self.cooling_until = max(self.cooling_until, self._clock() + min(retry_after_s, COOL_LIMIT_S))

    def was_answered(self, failure: str | None) -> None:
        """A request was answered there, or failed in this way."""
        was_failing = self.failing is not None
        self._failed_requests = 0 if failure is None else self._failed_requests + 1
        self._last_failure = failure or ""
        if (self.failing is not None) != was_failing:
            self._on_change(self)

    def was_seen(self, reply: Fetched | OutboundError) -> None:
        """A look at its health gave this. Where it never was well, what is wrong is told at once."""
        if isinstance(reply, OutboundError) and reply.is_our_fault:
            return  # it was not looked at
        before = (self.is_healthy, self.trouble)
        illness = self._illness_in(reply)
        self._failed_looks = 0 if illness is None else self._failed_looks + 1
        if illness is None or self._failed_looks >= FAILED_LOOKS:
            self.is_healthy = illness is None
        if illness is None or self._failed_looks >= FAILED_LOOKS or not self._is_known:
            self._illness = illness
        self._is_known |= illness is None
        self._tell_if_not(before)

    def was_listed(self, reply: Fetched | OutboundError) -> None:
        """It was asked for its models. Without an answer the last list stays: a server that is away keeps its names."""
        at_once(self.being_listed(reply))

    def being_listed(self, reply: Fetched | OutboundError) -> Generator[None, None, None]:
        """The same, in steps of which each takes a turn."""
        if isinstance(reply, OutboundError) or reply.status >= 500 or reply.status == _TOO_MANY:
            return
        before = (self.is_healthy, self.trouble)
        found = (yield from reading_models(reply.body, self.secrets)) if reply.status == 200 else None
        if found is not None:
            self._models = {model.id: model for model in found}
            if not self.settings.is_place:
                self.kind = _kind_by_host(self.address.host) or kind_of(found) or self.kind
        self._unlisted = self._trouble_with(reply, found)
        self._tell_if_not(before)

    def _tell_if_not(self, before: tuple[bool, str | None]) -> None:
        if (self.is_healthy, self.trouble) != before:
            self._on_change(self)

    def _illness_in(self, reply: Fetched | OutboundError) -> str | None:
        """What makes it unhealthy. One that only refuses our key, or has no list, is well."""
        if isinstance(reply, OutboundError):
            return f"the upstream cannot be asked: {reply}; {_hint(str(reply))}"
        is_well = reply.status < (300 if self.settings.health else 500) or reply.status in _REFUSED
        return None if is_well else f"the upstream is not well (status {reply.status}): its own log may say why"

    def _trouble_with(self, reply: Fetched, found: tuple[ListedModel, ...] | None) -> str | None:
        """What is wrong with the reply to a request for its models."""
        if reply.status in _REFUSED:
            has_key = self.settings.key is not None or self.settings.headers
            said = "refuses our key" if has_key else "wants a key: --upstream-key, or key = in the file"
            return f"the upstream {said} (status {reply.status})"
        if 300 <= reply.status < 400:
            said = "redirects are not followed: does its URL need https://, or another path?"
            return f"the upstream sends elsewhere (status {reply.status}), and {said}"
        if reply.status != 200:
            return f"the upstream lists no models (status {reply.status}); {_NO_LIST}"
        if found is None:
            what = "a web page" if reply.body.lstrip()[:1] == b"<" else "no list of models"
            return f"the upstream answers {what} where its models should be; {_NO_LIST}"
        if len(found) == MODELS_LIMIT:
            return f"the upstream lists {MODELS_LIMIT:,} models or more: of others, those in models = are known"
        return None if found or self.settings.models else "the upstream lists no models: it has none yet"


def _kind_by_host(host: str) -> str:
    return "openai" if host == "api.openai.com" else ""


def _hint(reason: str) -> str:
    """What to do where there is no reply."""
    if "certificate" in reason:
        return "ca_file = names a file of certificates to trust"
    return "does it run, and is its URL right?"
