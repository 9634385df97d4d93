"""Resolution of a model name to a backend: a local model or a group of upstreams. Sticky routing keys."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from welldone.config.settings import did_you_mean
from welldone.core.events import Json
from welldone.gateway import routing
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.gateway.upstream import Upstream
from welldone.server.context import RequestContext
from welldone.server.parts import ServerParts
from welldone.server.requests import fields

_SESSION_HEADERS = ("x-session-id", "x-conversation-id", "x-session-affinity")
"""Headers with a conversation id: of opencode, llama.cpp's web UI, Cloudflare."""
_PROMPT_CHARACTERS = 1_024  # of a prompt that identify the conversation; prompt caches work in blocks
_HINT_CANDIDATES = 256  # names compared for "did you mean": a thousand block the event loop for 100 ms
_LISTED_NAMES = 8  # names in an error message
_CACHED_BACKENDS = 256  # behind a pattern clients choose the names


def sticky_key(ctx: RequestContext, body: Json, upstreams: Sequence[Upstream]) -> str | None:
    """Return the key of sticky routing: requests with the same key share an upstream and its prompt cache.

    None if any upstream will do. The principal is always part of the key, so that clients cannot steer each other.
    """
    if len(upstreams) < 2 or not (modes := {upstream.settings.sticky for upstream in upstreams} - {"none"}):
        return None
    if "conversation" in modes:
        return f"conversation {ctx.principal} {_conversation_id(ctx, body)}"
    return f"key {ctx.principal}"


def _conversation_id(ctx: RequestContext, body: Json) -> str:
    """Return the client's conversation id, or a hash of the start, which stays the same as the conversation grows."""
    for value in (*(ctx.request.headers.get(name) for name in _SESSION_HEADERS), body.get("prompt_cache_key")):
        if isinstance(value, str) and value:
            return value
    messages = body.get("messages") or body.get("input") or body.get("contents")
    start: object
    if isinstance(messages, list):  # up to the first message of the user
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        start = messages[: roles.index("user") + 1] if "user" in roles else messages[:1]
    else:
        start = str(messages or body.get("prompt"))[:_PROMPT_CHARACTERS]
    return hashlib.blake2b(msgspec.json.encode(start), digest_size=16).hexdigest()


class BackendResolver:
    """Finds the backend for a model name. `queues` has the queues of the local models by name."""

    def __init__(
        self,
        parts: ServerParts,
        queues: Mapping[str, RequestQueue],
        on_report: Callable[[Upstream, AttemptFailure | None], None],
    ) -> None:
        self._parts = parts
        self._send = parts.send
        self._on_report = on_report
        self._local_queues = queues
        self._queues: Mapping[str, RequestQueue] = {}
        self._upstream_backend = lru_cache(_CACHED_BACKENDS)(self._make_upstream_backend)
        self.reload()

    def reload(self) -> None:
        """Use the present models, upstreams and settings. Requests in progress keep their backends and queues."""
        parts, queues = self._parts, {}
        self._local_backends = {
            model.name: LocalBackend(model, self._local_queues[model.name], parts.settings)
            for model in parts.supervisor.models
        }
        for upstream in parts.upstreams.all:
            settings, queue = upstream.settings, self._queues.get(upstream.name)
            if queue is None:
                queue = RequestQueue(settings.limit, settings.queue, settings.queue_wait_s)
            else:
                queue.configure(settings.queue, settings.queue_wait_s)
                queue.resize(settings.limit)
            queues[upstream.name] = queue
        self._queues = queues
        self._upstream_backend.cache_clear()
        parts.metrics.watch_upstream_queues(queues)

    def find(self, ctx: RequestContext, name: object) -> LocalBackend | UpstreamBackend:
        """Return the backend for a model name. The name is optional if the server has one model.

        Raises:
            ApiError: the model does not exist, or the client may not use it.
        """
        if name is not None and not isinstance(name, str):
            raise fields.wrong_type("model", "a string", name)
        backend = self._resolve_named(ctx, name) if name else self._resolve_default(ctx)
        ctx.model = backend.name
        return backend

    def first_upstream(self) -> UpstreamBackend | None:
        """Return the first upstream, for endpoints without a model, such as files."""
        upstreams = self._parts.upstreams.all
        if not upstreams:
            return None
        return self._upstream_backend(routing.UpstreamGroup("", (routing.UpstreamModel(upstreams[0], ""),)))

    def may_use(self, ctx: RequestContext, name: str) -> bool:
        """Whether the client's key allows a model."""
        return self._parts.keys.may_use(ctx.principal, name)

    def _resolve_default(self, ctx: RequestContext) -> LocalBackend | UpstreamBackend:
        group = self._parts.upstreams.sole_model()
        backend: LocalBackend | UpstreamBackend | None = None
        if len(self._local_backends) == 1 and not self._parts.upstreams.all:
            backend = next(iter(self._local_backends.values()))
        elif group is not None and not self._local_backends:
            backend = self._upstream_backend(group)
        if backend is None:
            models = ", ".join(f"`{model}`" for model in self._visible_models(ctx)[:_LISTED_NAMES])
            message = f"You must provide a model parameter: one of {models or 'those that GET /v1/models lists'}."
            raise ApiError(400, message, param="model", code="missing_model")
        if not self.may_use(ctx, backend.name):
            raise _model_not_allowed("the model of this server")
        return backend

    def _resolve_named(self, ctx: RequestContext, name: str) -> LocalBackend | UpstreamBackend:
        """Return the backend for a name.

        A name that the key does not allow is a 403 whether or not it exists, and an allowed name for a model that the
        key does not allow is a 404: so clients cannot probe for other models.
        """
        backend = self._look_up(ctx, name)
        if backend is not None:
            return backend
        requested = ctx.log_fields["requested_model"] = name[:64]
        if not self.may_use(ctx, name):
            raise _model_not_allowed(f"the model `{requested}`")
        models = self._visible_models(ctx)
        available = ", ".join(f"`{model}`" for model in models[:_LISTED_NAMES])
        hint = did_you_mean(requested, models[:_HINT_CANDIDATES])
        message = f"The model `{requested}` does not exist here{hint}. There is: {available or 'none yet'}."
        setting = "[routes]" if self._parts.upstreams.all else "--alias"
        raise ApiError(404, f"{message} More names: {setting}.", param="model", code="model_not_found")

    def _look_up(self, ctx: RequestContext, name: str) -> LocalBackend | UpstreamBackend | None:
        found = self._parts.upstreams.resolve(name)
        if isinstance(found, routing.UpstreamGroup):
            if self._parts.keys.allowed_models(ctx.principal) is None:
                return self._upstream_backend(found)
            members = tuple(member for member in found.members if self._may_reach(ctx, name, member))
            return self._upstream_backend(msgspec.structs.replace(found, members=members)) if members else None
        model = self._parts.supervisor.find(name if found is None else found.name)
        if model is None:
            return None
        pattern = None if found is None else found.pattern
        is_allowed = self._key_covers(ctx, name, pattern) or self.may_use(ctx, model.name)
        return self._local_backends[model.name] if is_allowed else None

    def _may_reach(self, ctx: RequestContext, name: str, member: routing.UpstreamModel) -> bool:
        """Whether the key allows this name, and the upstream's model behind it.

        With a pattern clients choose the name. So the key must cover the whole pattern, or allow the upstream's model,
        which must be named by the configuration, the upstream or the key: many servers ignore the requested name and
        answer with the model that they have.
        """
        if self._key_covers(ctx, name, member.pattern):
            return True
        allowed = self._parts.keys.allowed_models(ctx.principal) or ()
        is_named = member.is_configured_or_listed or member.model in allowed
        return is_named and self.may_use(ctx, name) and self.may_use(ctx, member.model)

    def _key_covers(self, ctx: RequestContext, name: str, pattern: str | None) -> bool:
        """Whether the key allows the name and all other names of the pattern. A `*` matches only a `*` of the key."""
        return self.may_use(ctx, name) and (pattern is None or self.may_use(ctx, pattern))

    def _make_upstream_backend(self, group: routing.UpstreamGroup) -> UpstreamBackend:
        return UpstreamBackend(
            group,
            self._queues,
            send=self._send,
            settings=self._parts.settings,
            on_report=self._on_report,
            wait_for_change=self._parts.upstreams.wait_for_change,
        )

    def _visible_models(self, ctx: RequestContext) -> list[str]:
        """Return the names of the models that the client's key allows."""
        names = [model.name for model in self._parts.supervisor.models]
        names += [str(model["id"]) for model in self._parts.upstreams.list_models()]
        return [name for name in names if self.may_use(ctx, name)]


def _model_not_allowed(model: str) -> ApiError:
    message = f"The API key of this request may not use {model}."
    return ApiError(403, message, param="model", code="model_not_allowed")
