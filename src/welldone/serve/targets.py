"""Whom a request means: the name in it, as a local model or as the upstreams that have it."""

from collections.abc import Callable, Mapping

import msgspec

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
from welldone.serve.requests import fields
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
        if not isinstance(name, str | None):
            raise fields.wrong_type("model", "a string", name)
        found = self._only(ask) if name in (None, "") else self._named(ask, name)
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

    def _only(self, ask: Ask) -> Local | Remote:
        group = self._upstreams.only()
        found: Local | Remote | None = None
        if len(self._local) == 1 and not self._upstreams.all:
            found = next(iter(self._local.values()))
        elif group is not None and not self._local:
            found = self._remote(group)
        if found is None:
            known = ", ".join(f"`{one}`" for one in self._known(ask)[:_SHOWN])
            message = f"You must provide a model parameter: one of {known or 'those that GET /v1/models lists'}."
            raise ApiError(400, message, param="model", code="missing_model")
        if not self.may_use(ask, found.name):
            raise _not_allowed("the model of this server")
        return found

    def _named(self, ask: Ask, name: object) -> Local | Remote:
        """Who answers for this name. A name that the key is not for is a 403 whether or not it exists, and one that
        leads to a model that the key is not for does not exist: so a key learns nothing of other models."""
        found = self._resolved(ask, name) if isinstance(name, str) else None
        if found is not None:
            return found
        ask.facts["wanted"] = str(name)[:64]
        if isinstance(name, str) and not self.may_use(ask, name):
            raise _not_allowed(f"the model `{name[:64]}`")
        raise self._unknown(ask, name)

    def _resolved(self, ask: Ask, name: str) -> Local | Remote | None:
        found = self._upstreams.find(name)
        if isinstance(found, names.Group):
            members = tuple(one for one in found.members if self._may_reach(ask, name, one))
            return self._remote(msgspec.structs.replace(found, members=members)) if members else None
        model = self._fleet.find(name if found is None else found.name)
        if model is None:
            return None
        pattern = None if found is None else found.pattern
        is_allowed = self._covers(ask, name, pattern) or self.may_use(ask, model.name)
        return self._local[model.name] if is_allowed else None

    def _may_reach(self, ask: Ask, name: str, member: names.Member) -> bool:
        """Whether the key is for this name, and for what the name leads to there.

        With a pattern clients choose the name. So the key must cover the whole pattern, or be for the model that is
        asked for in the end, which must be one that the configuration, the upstream or the key names: many servers
        answer with the model that they have, whatever they are asked for.
        """
        if self._covers(ask, name, member.pattern):
            return True
        is_named = member.is_named or member.model in (self._keys.models(ask.principal) or ())
        return is_named and self.may_use(ask, name) and self.may_use(ask, member.model)

    def _covers(self, ask: Ask, name: str, pattern: str | None) -> bool:
        """Whether the key is for the name, and for every other name that the pattern matches. Only a `*` of the key's
        pattern matches a `*`."""
        return self.may_use(ask, name) and (pattern is None or self.may_use(ask, pattern))

    def _remote(self, group: names.Group) -> Remote:
        return Remote(
            group,
            self._gates,
            send=self._send,
            settings=self._settings,
            on_report=self._on_report,
            news=self._upstreams.news,
        )

    def _known(self, ask: Ask) -> list[str]:
        """The names of models that the client's key is for."""
        known = [model.name for model in self._fleet.models] + [str(one["id"]) for one in self._upstreams.listing()]
        return [one for one in known if self.may_use(ask, one)]

    def _unknown(self, ask: Ask, name: object) -> ApiError:
        known = self._known(ask)
        shown = ", ".join(f"`{one}`" for one in known[:_SHOWN])
        wanted = str(name)[:64]
        hint = nearest(wanted, known[:_COMPARED])
        message = f"The model `{wanted}` does not exist here{hint}. There is: {shown or 'none yet'}."
        more = "[routes]" if self._upstreams.all else "--alias"
        return ApiError(404, f"{message} More names: {more}.", param="model", code="model_not_found")


def _not_allowed(what: str) -> ApiError:
    message = f"The API key of this request may not use {what}."
    return ApiError(403, message, param="model", code="model_not_allowed")
