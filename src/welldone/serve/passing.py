"""Paths whose requests pass to an upstream, and whose replies come back, without a change.

The model's name in the body says which upstream is asked; what belongs to no model goes to the first one of the
configuration. Batches are not here: they would spend what a key's limits forbid.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from welldone.net.inbound import HttpResponse
from welldone.net.turns import run_cooperatively
from welldone.serve.app import RouteHandler, RequestContext, Route
from welldone.serve.backends import Backend, LocalBackend, BackendLease
from welldone.serve.charging import estimate_prompt_tokens
from welldone.serve.errors import ApiError
from welldone.serve.relay import PassthroughExchange
from welldone.serve.requests.upload import PassthroughBody, is_multipart_form, read_upload_in_steps
from welldone.serve.settings import ServeSettings
from welldone.serve.troubles import AttemptFailure
from welldone.wire.events import Json

LocalHandler: TypeAlias = Callable[[RequestContext, Json], Awaitable[HttpResponse | None]]
"""Answers for a local model what was asked in this body."""

_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"  # OpenAI's are `file-` and some letters
_QUERY = re.compile(r"[A-Za-z0-9_.~=&%+,:\[\]-]{0,2048}")
_KEYS_IN_QUERY = re.compile(r"(?:^|&)(?:api[-_]?key|key|access_token|token)=[^&]*", re.IGNORECASE)
"""What some clients put into an address beside the header: a key, which is none of the upstream's business."""
_API_PREFIX = "/v1"


class PassthroughEndpoint(msgspec.Struct, frozen=True):
    """A path, without `/v1`; `*` stands for an id."""

    path: str
    endpoint: str
    """What it is called in logs and metrics."""
    methods: tuple[str, ...] = ("POST",)
    is_root: bool = False
    """Whether servers have it at their root, and not below `/v1`."""
    has_model: bool = True
    """Whether its body names a model."""


PASSTHROUGH_ENDPOINTS = (
    PassthroughEndpoint("/embeddings", "embeddings"),
    PassthroughEndpoint("/rerank", "rerank"),
    PassthroughEndpoint("/reranking", "rerank"),
    PassthroughEndpoint("/moderations", "moderations"),
    PassthroughEndpoint("/audio/speech", "audio"),
    PassthroughEndpoint("/audio/transcriptions", "audio"),
    PassthroughEndpoint("/audio/translations", "audio"),
    PassthroughEndpoint("/images/generations", "images"),
    PassthroughEndpoint("/images/edits", "images"),
    PassthroughEndpoint("/images/variations", "images"),
    PassthroughEndpoint("/score", "score"),
    PassthroughEndpoint("/classify", "classify", is_root=True),
    PassthroughEndpoint("/pooling", "pooling", is_root=True),
    PassthroughEndpoint("/tokenize", "tokenize", is_root=True),
    PassthroughEndpoint("/detokenize", "detokenize", is_root=True),
    PassthroughEndpoint("/files", "files", ("GET", "POST"), has_model=False),
    PassthroughEndpoint("/files/*", "files", ("GET", "DELETE"), has_model=False),
    PassthroughEndpoint("/files/*/content", "files", ("GET",), has_model=False),
)
"""All of them: OpenAI's, vLLM's and llama.cpp's."""


class PassthroughTargets(Protocol):
    """Finds who answers."""

    def find(self, ctx: RequestContext, name: object) -> Backend:
        """Who answers for a model's name; ApiError where nobody does, or not for this client."""

    def first_upstream(self, ctx: RequestContext) -> Backend | None:
        """The first upstream."""

    def may_use(self, ctx: RequestContext, name: str) -> bool:
        """Whether the client's key is good for a model; of no model: for all."""


class PassthroughApi:
    """The routes of these paths."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: PassthroughTargets,
        *,
        charge_tokens: Callable[[RequestContext, int], None],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._charge_tokens = charge_tokens
        self._routes = [(_path_pattern(way), self._route(way, None)) for way in PASSTHROUGH_ENDPOINTS]

    def find(self, path: str) -> Route | None:
        """The route of a path without its `/v1`, where only upstreams answer."""
        return next((route for pattern, route in self._routes if pattern.fullmatch(path)), None)

    def route_with_local(self, path: str, handler: LocalHandler) -> Route:
        """The route of a path on which local models answer as well."""
        return self._route(next(way for way in PASSTHROUGH_ENDPOINTS if way.path == path), handler)

    def _route(self, endpoint: PassthroughEndpoint, local: LocalHandler | None) -> Route:
        async def act(ctx: RequestContext) -> HttpResponse | None:
            return await self._handle(ctx, endpoint, local)

        actions: dict[str, RouteHandler] = dict.fromkeys(endpoint.methods, act)
        return Route(endpoint.endpoint, actions, is_rate_limited=True)

    async def _handle(
        self, ctx: RequestContext, endpoint: PassthroughEndpoint, local: LocalHandler | None
    ) -> HttpResponse | None:
        if ctx.request.method == "HEAD":
            raise ApiError(405, "This path takes no HEAD.", code="method_not_allowed")
        upload = await self._read_upload(ctx) if ctx.request.method == "POST" else PassthroughBody()
        backend = self._targets.find(ctx, upload.model) if endpoint.has_model else self._files_backend(ctx)
        if not isinstance(backend, LocalBackend):
            with backend.using():
                await self._forward(ctx, endpoint, upload, backend)
            return None
        if local is None or upload.json is None:
            raise ApiError(404, "Local models do not offer this.", code="not_found")
        return await local(ctx, upload.json)

    async def _read_upload(self, ctx: RequestContext) -> PassthroughBody:
        call, settings = ctx.request, self._settings
        if call.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        kind = call.headers.get("Content-Type")
        limit = settings.upload_limit_bytes if is_multipart_form(kind) else settings.body_limit_bytes
        data = await call.read_body(limit_bytes=limit, timeout_s=settings.body_s)
        return await run_cooperatively(read_upload_in_steps(data, kind, is_browser="Origin" in call.headers))

    def _files_backend(self, ctx: RequestContext) -> Backend:
        """Who keeps files. All who may ask see the same ones: so a key that is for some models only sees none."""
        backend = self._targets.first_upstream(ctx)
        if backend is None or not self._targets.may_use(ctx, ""):
            raise ApiError(403, "The API key of this request is for models only.", code="not_allowed")
        return backend

    async def _forward(
        self, ctx: RequestContext, endpoint: PassthroughEndpoint, upload: PassthroughBody, backend: Backend
    ) -> None:
        """Ask one upstream, and another one if nothing has gone to the client yet.

        Raises:
            ApiError: none has answered.
        """
        avoid: set[str] = set()
        for attempt in range(1, backend.max_attempts + 1):
            async with backend.lease(avoid, None) as seat:
                relay = PassthroughExchange(ctx.request, _reply_headers(ctx), write_s=self._settings.write_s)
                try:
                    trouble = await self._run_attempt(relay, seat, ctx, endpoint, upload, is_retry=attempt > 1)
                except asyncio.CancelledError:
                    if endpoint.has_model and upload.json is not None:  # the client has left, and the upstream works
                        self._charge_tokens(ctx, relay.tokens or estimate_prompt_tokens(upload.json))
                    raise
            if trouble is None or relay.has_begun:
                self._record_result(ctx, relay, trouble)
                return
            may_do_better = trouble.is_stale or seat.is_gone or backend.has_alternative({seat.name})
            if attempt == backend.max_attempts or not (trouble.is_retryable and may_do_better):
                raise trouble.error
            avoid.add(seat.name)

    async def _run_attempt(
        self,
        relay: PassthroughExchange,
        lease: BackendLease,
        ctx: RequestContext,
        endpoint: PassthroughEndpoint,
        upload: PassthroughBody,
        *,
        is_retry: bool,
    ) -> AttemptFailure | None:
        method = ctx.request.method
        if endpoint.is_root:
            root = lease.address.prefix.removesuffix(_API_PREFIX)
            lease.address = msgspec.structs.replace(lease.address, prefix=root)
        body = upload.encode(lease.model) if method == "POST" else b""
        trouble = await relay.run(
            lease, method, _upstream_path(ctx), body=body, content_type=upload.content_type, is_retry=is_retry
        )
        lease.report(trouble)
        return trouble

    def _record_result(self, ctx: RequestContext, relay: PassthroughExchange, failure: AttemptFailure | None) -> None:
        """What the log and the limits are told."""
        if failure is not None:
            ctx.log_fields["error"] = failure.error.code
        if relay.tokens:
            ctx.log_fields["prompt_tokens"] = relay.tokens
            self._charge_tokens(ctx, relay.tokens)


def _path_pattern(endpoint: PassthroughEndpoint) -> re.Pattern[str]:
    return re.compile(re.escape(endpoint.path).replace(r"\*", _ID))


def _upstream_path(ctx: RequestContext) -> str:
    """The path below the API's start, and the query of those that have one."""
    path, query = ctx.request.path.removeprefix(_API_PREFIX), _KEYS_IN_QUERY.sub("", ctx.request.query).strip("&")
    if not _QUERY.fullmatch(query):
        raise ApiError(400, "The query of this address cannot be passed on.", code="invalid_query")
    return f"{path}?{query}" if query else path


def _reply_headers(ctx: RequestContext) -> dict[str, str]:
    return {**ctx.headers, "X-Content-Type-Options": "nosniff"}
