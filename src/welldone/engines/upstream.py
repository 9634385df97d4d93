"""One upstream, and how it is doing: what its requests and the looks at its health have told."""

from collections.abc import Callable

from welldone.engines.address import Address
from welldone.engines.breaker import Breaker
from welldone.engines.listed import ListedModel, kind_of, read_models
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.net.address import check_path, read_url
from welldone.net.outbound import Fetched

FAILED_LOOKS = 2
"""Looks in a row that must fail; one may be lost on the way."""

COOL_LIMIT_S = 60.0
"""How long an upstream can keep itself out of the choice by `Retry-After`. OpenAI's rates are per minute."""

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
        self.is_healthy = True
        self.trouble: str | None = None
        """What is wrong, in plain words without addresses and keys."""
        self.cooling_until = 0.0
        self.kind = _kind_by_host(self.address.host)
        self._clock = clock
        self._on_change = on_change
        self._failed_looks = 0
        self._models: dict[str, ListedModel] | None = None

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
        return (self.settings.key or "", *words)

    @property
    def makes_choices(self) -> bool:
        """Whether it is asked for several choices at once."""
        return self.settings.n == "native" or (self.settings.n == "auto" and self.kind in _NATIVE)

    @property
    def is_available(self) -> bool:
        """Whether a request has good hope there."""
        return self.is_healthy and self.cooling_until <= self._clock() and self.breaker.allows()

    @property
    def retry_after_s(self) -> float:
        """Seconds after which it may be available again, as far as one can say."""
        until_look_s = 0.0 if self.is_healthy else self.settings.probe_s
        return max(until_look_s, self.cooling_until - self._clock(), self.breaker.retry_after_s)

    def refused(self, retry_after_s: float) -> None:
        """It has too much to do, and said when to come again."""
        self.cooling_until = max(self.cooling_until, self._clock() + min(retry_after_s, COOL_LIMIT_S))

    def was_seen(self, reply: Fetched | None) -> None:
        """A look at its health gave this; None: nothing in time."""
        before = (self.is_healthy, self.trouble)
        trouble, is_well = _judge(reply, is_list=not self.settings.health)
        self._failed_looks = 0 if is_well else self._failed_looks + 1
        if is_well or self._failed_looks >= FAILED_LOOKS:
            self.is_healthy, self.trouble = is_well, trouble
        if (self.is_healthy, self.trouble) != before:
            self._on_change(self)

    def was_listed(self, reply: Fetched | None) -> None:
        """It was asked for its models. Without an answer the last list stays: a server that is away keeps its names."""
        found = None if reply is None or reply.status != 200 else read_models(reply.body, self.secrets)
        if found is not None:
            self._models = {model.id: model for model in found}
            self.kind = _kind_by_host(self.address.host) or kind_of(found) or self.kind


def _kind_by_host(host: str) -> str:
    return "openai" if host == "api.openai.com" else ""


def _judge(reply: Fetched | None, *, is_list: bool) -> tuple[str | None, bool]:
    """What is wrong, and whether the server is well all the same. One that refuses our key or has no list is."""
    if reply is None:
        return "the upstream does not answer", False
    if reply.status in (401, 403):
        return "the upstream refuses our key", True
    if 200 <= reply.status < 300:
        return None, True
    if is_list and reply.status < 500:
        return f"the upstream lists no models (status {reply.status})", True
    return f"the upstream is not well (status {reply.status})", False
