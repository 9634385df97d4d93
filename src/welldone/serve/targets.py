"""Whom a request means: the name in it, as a local model or as the upstreams that have it."""

from collections.abc import Callable, Mapping

from welldone.engines import names
from welldone.engines.fleet import Fleet
from welldone.engines.upstream import Upstream
from welldone.engines.upstreams import Upstreams
from welldone.net.hints import nearest
from welldone.serve.admission import Gate
from welldone.serve.app import Ask
from welldone.serve.backends import Local, Remote, Send
from welldone.serve.errors import ApiError
from welldone.serve.keys import Keys
from welldone.serve.metrics import Metrics
from welldone.serve.settings import ServeSettings
from welldone.serve.troubles import Trouble

_COMPARED = 256  # names for a hint: a thousand take 100 ms, in which nobody else is heard
_SHOWN = 8  # names in an error: enough to see what there is


class Targets:
    """Finds who answers. `gates` has those of the local models, by name."""

    def __init__(
        self,
        settings: ServeSettings,
        fleet: Fleet,
        upstreams: Upstreams,
        gates: Mapping[str, Gate],
        *,
        keys: Keys,
        metrics: Metrics,
        send: Send,
        on_report: Callable[[Upstream, Trouble | None], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._upstreams = upstreams
        self._keys = keys
        self._metrics = metrics
        self._send = send
        self._on_report = on_report
        self._local = {model.name: Local(model, gates[model.name], settings) for model in fleet.models}
        self._gates = {
            upstream.name: Gate(upstream.settings.limit, upstream.settings.queue, upstream.settings.queue_wait_s)
            for upstream in upstreams.all
        }
        for name, gate in self._gates.items():
            metrics.watch_upstream(name, gate)

    def find(self, ask: Ask, name: object) -> Local | Remote:
        """Who answers for a name; where there is one model, it need not be named.

        Raises:
            ApiError: nobody, or not for this client.
        """
        found = self._only() if name in (None, "") else self._named(name)
        if found is None:
            ask.facts["wanted"] = str(name)[:64]
            raise self._unknown(name)
        if not self.may_use(ask, found.name):
            ask.facts["wanted"] = found.name[:64]
            message = f"The API key of this request may not use the model `{found.name[:64]}`."
            raise ApiError(403, message, param="model", code="model_not_allowed")
        ask.model = found.name
        return found

    def first(self, ask: Ask) -> Remote | None:
        """The first upstream, for what belongs to no model: files, and the like."""
        if not self._upstreams.all:
            return None
        return self._remote(names.Group("", (names.Member(self._upstreams.all[0], ""),)))

    def may_use(self, ask: Ask, name: str) -> bool:
        """Whether the client's key is good for a model."""
        return self._keys.may_use(ask.principal, name)

    def _only(self) -> Local | Remote | None:
        group = self._upstreams.only()
        if len(self._local) == 1 and not self._upstreams.all:
            return next(iter(self._local.values()))
        if group is not None and not self._local:
            return self._remote(group)
        raise ApiError(400, "You must provide a model parameter.", param="model", code="missing_model")

    def _named(self, name: object) -> Local | Remote | None:
        if not isinstance(name, str):
            return None
        found = self._upstreams.find(name)
        if isinstance(found, names.Group):
            return self._remote(found)
        model = self._fleet.find(name if found is None else found.name)
        return None if model is None else self._local[model.name]

    def _remote(self, group: names.Group) -> Remote:
        return Remote(
            group,
            self._gates,
            send=self._send,
            settings=self._settings,
            on_report=self._on_report,
            news=self._upstreams.news,
        )

    def _unknown(self, name: object) -> ApiError:
        known = [model.name for model in self._fleet.models] + [str(one["id"]) for one in self._upstreams.listing()]
        shown = ", ".join(f"`{one}`" for one in known[:_SHOWN])
        wanted = str(name)[:64]
        hint = nearest(wanted, known[:_COMPARED])
        message = f"The model `{wanted}` does not exist here{hint}. There is: {shown or 'none yet'}."
        more = "[routes]" if self._upstreams.all else "--alias"
        return ApiError(404, f"{message} More names: {more}.", param="model", code="model_not_found")
