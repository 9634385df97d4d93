"""Whom a request means: the name in it, as a local model or as the upstreams that have it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from welldone.config.server import ServeSettings
from welldone.config.settings import did_you_mean
from welldone.engines.supervisor import EngineSupervisor
from welldone.gateway import routing
from welldone.gateway.backends import LocalBackend, SendRequest, UpstreamBackend
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.registry import UpstreamRegistry
from welldone.gateway.upstream import Upstream
from welldone.protocol.events import Json
from welldone.server.access.keys import ApiKeys
from welldone.server.app import RequestContext
from welldone.server.observe.metrics import Metrics
from welldone.server.requests import fields

# What a request has in common with those that should go where it goes, for the prompt cache that is there.


_SESSION_HEADERS = ("x-session-id", "x-conversation-id", "x-session-affinity")
"""Under which clients name their conversation: opencode's, llama.cpp's page, Cloudflare's."""
_PROMPT_CHARACTERS = 1_024  # characters of a text that is continued: what cache blocks are made of


def sticky_key(ctx: RequestContext, body: Json, upstreams: Sequence[Upstream]) -> str | None:
    """The text by which an upstream is chosen; None where any will do."""
    wishes = {upstream.settings.sticky for upstream in upstreams} - {"none"}
    if not wishes or len(upstreams) < 2:
        return None
    if "conversation" in wishes:
        return f"conversation {ctx.principal} {_conversation_id(ctx, body)}"  # what another client says leads nowhere
    return f"key {ctx.principal}"


def _conversation_id(ctx: RequestContext, body: Json) -> str:
    """What the client calls it, else how it begins: that stays while it grows."""
    for given in (*(ctx.request.headers.get(name) for name in _SESSION_HEADERS), body.get("prompt_cache_key")):
        if isinstance(given, str) and given:
            return given
    return hashlib.blake2b(msgspec.json.encode(_conversation_start(body)), digest_size=16).hexdigest()


def _conversation_start(body: Json) -> object:
    """All up to the first word of the user."""
    said = body.get("messages") or body.get("input")
    if not isinstance(said, list):
        return str(said or body.get("prompt"))[:_PROMPT_CHARACTERS]
    users = (place for place, one in enumerate(said) if isinstance(one, dict) and one.get("role") == "user")
    return said[: next(users, 0) + 1]


_HINT_CANDIDATES = 256  # names for a hint: a thousand take 100 ms, in which nobody else is heard
_LISTED_NAMES = 8  # names in an error: enough to see what there is


class BackendResolver:
    """Finds who answers. `gates` has those of the local models, by name."""

    def __init__(
        self,
        settings: ServeSettings,
        fleet: EngineSupervisor,
        upstreams: UpstreamRegistry,
        queues: Mapping[str, RequestQueue],
        *,
        keys: ApiKeys,
        metrics: Metrics,
        send: SendRequest,
        on_report: Callable[[Upstream, AttemptFailure | None], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._upstreams = upstreams
        self._keys = keys
        self._metrics = metrics
        self._send = send
        self._on_report = on_report
        self._local_backends = {model.name: LocalBackend(model, queues[model.name], settings) for model in fleet.models}
        self._queues = {
            upstream.name: RequestQueue(
                upstream.settings.limit, upstream.settings.queue, upstream.settings.queue_wait_s
            )
            for upstream in upstreams.all
        }
        for name, gate in self._queues.items():
            metrics.watch_upstream_queue(name, gate)

    def find(self, ctx: RequestContext, name: object) -> LocalBackend | UpstreamBackend:
        """Who answers for a name; where there is one model, it need not be named.

        Raises:
            ApiError: nobody, or not for this client.
        """
        if not isinstance(name, str | None):
            raise fields.wrong_type("model", "a string", name)
        found = self._resolve_default(ctx) if name in (None, "") else self._resolve_named(ctx, name)
        ctx.model = found.name
        return found

    def first_upstream(self, ctx: RequestContext) -> UpstreamBackend | None:
        """The first upstream, for what belongs to no model: files, and the like."""
        if not self._upstreams.all:
            return None
        return self._upstream_backend(routing.UpstreamGroup("", (routing.UpstreamModel(self._upstreams.all[0], ""),)))

    def may_use(self, ctx: RequestContext, name: str) -> bool:
        """Whether the client's key is good for a model."""
        return self._keys.may_use(ctx.principal, name)

    def _resolve_default(self, ctx: RequestContext) -> LocalBackend | UpstreamBackend:
        group = self._upstreams.sole_model()
        found: LocalBackend | UpstreamBackend | None = None
        if len(self._local_backends) == 1 and not self._upstreams.all:
            found = next(iter(self._local_backends.values()))
        elif group is not None and not self._local_backends:
            found = self._upstream_backend(group)
        if found is None:
            known = ", ".join(f"`{one}`" for one in self._visible_models(ctx)[:_LISTED_NAMES])
            message = f"You must provide a model parameter: one of {known or 'those that GET /v1/models lists'}."
            raise ApiError(400, message, param="model", code="missing_model")
        if not self.may_use(ctx, found.name):
            raise _model_not_allowed("the model of this server")
        return found

    def _resolve_named(self, ctx: RequestContext, name: object) -> LocalBackend | UpstreamBackend:
        """Who answers for this name. A name that the key is not for is a 403 whether or not it exists, and one that
        leads to a model that the key is not for does not exist: so a key learns nothing of other models."""
        found = self._look_up(ctx, name) if isinstance(name, str) else None
        if found is not None:
            return found
        ctx.log_fields["wanted"] = str(name)[:64]
        if isinstance(name, str) and not self.may_use(ctx, name):
            raise _model_not_allowed(f"the model `{name[:64]}`")
        raise self._model_not_found(ctx, name)

    def _look_up(self, ctx: RequestContext, name: str) -> LocalBackend | UpstreamBackend | None:
        found = self._upstreams.resolve(name)
        if isinstance(found, routing.UpstreamGroup):
            members = tuple(one for one in found.members if self._may_reach(ctx, name, one))
            return self._upstream_backend(msgspec.structs.replace(found, members=members)) if members else None
        model = self._fleet.find(name if found is None else found.name)
        if model is None:
            return None
        pattern = None if found is None else found.pattern
        is_allowed = self._key_covers(ctx, name, pattern) or self.may_use(ctx, model.name)
        return self._local_backends[model.name] if is_allowed else None

    def _may_reach(self, ctx: RequestContext, name: str, member: routing.UpstreamModel) -> bool:
        """Whether the key is for this name, and for what the name leads to there.

        With a pattern clients choose the name. So the key must cover the whole pattern, or be for the model that is
        asked for in the end, which must be one that the configuration, the upstream or the key names: many servers
        answer with the model that they have, whatever they are asked for.
        """
        if self._key_covers(ctx, name, member.pattern):
            return True
        is_named = member.is_configured_or_listed or member.model in (self._keys.allowed_models(ctx.principal) or ())
        return is_named and self.may_use(ctx, name) and self.may_use(ctx, member.model)

    def _key_covers(self, ctx: RequestContext, name: str, pattern: str | None) -> bool:
        """Whether the key is for the name, and for every other name that the pattern matches. Only a `*` of the key's
        pattern matches a `*`."""
        return self.may_use(ctx, name) and (pattern is None or self.may_use(ctx, pattern))

    def _upstream_backend(self, group: routing.UpstreamGroup) -> UpstreamBackend:
        return UpstreamBackend(
            group,
            self._queues,
            send=self._send,
            settings=self._settings,
            on_report=self._on_report,
            wait_for_change=self._upstreams.wait_for_change,
        )

    def _visible_models(self, ctx: RequestContext) -> list[str]:
        """The names of models that the client's key is for."""
        known = [model.name for model in self._fleet.models] + [str(one["id"]) for one in self._upstreams.list_models()]
        return [one for one in known if self.may_use(ctx, one)]

    def _model_not_found(self, ctx: RequestContext, name: object) -> ApiError:
        known = self._visible_models(ctx)
        shown = ", ".join(f"`{one}`" for one in known[:_LISTED_NAMES])
        wanted = str(name)[:64]
        hint = did_you_mean(wanted, known[:_HINT_CANDIDATES])
        message = f"The model `{wanted}` does not exist here{hint}. There is: {shown or 'none yet'}."
        more = "[routes]" if self._upstreams.all else "--alias"
        return ApiError(404, f"{message} More names: {more}.", param="model", code="model_not_found")


def _model_not_allowed(model: str) -> ApiError:
    message = f"The API key of this request may not use {model}."
    return ApiError(403, message, param="model", code="model_not_allowed")
