"""Every request passes here: who asks, from where, for what; then its route; then what is counted and logged of it."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.http.server import HttpRequest, HttpResponse, RequestBodyError
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION_HEADER
from welldone.server.access.keys import ANONYMOUS, ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.access.origins import OriginPolicy
from welldone.server.body_budget import BodyBudget
from welldone.server.inspector.recent import RecentRequests
from welldone.server.observe import log
from welldone.server.observe.log import RequestLogEntry
from welldone.server.observe.metrics import Metrics

CLIENT_CLOSED_REQUEST = 499
"""The status of an answer whose client left before it had one, as nginx counts it."""
_QUIET_ENDPOINTS = ("health", "metrics", "page")  # they come every few seconds, and say nothing
_ID_LIMIT = 128  # characters of a client's own request id
_RETRY_AFTER_LIMIT_S = 3_600  # of Retry-After: who is told to wait longer does not


class RequestContext(msgspec.Struct):
    """One request on its way, and what is known of it so far."""

    request: HttpRequest
    id: str
    started_at: float
    headers: dict[str, str]
    """What its reply carries besides its own."""
    principal: str = ANONYMOUS
    endpoint: str = "other"
    model: str = ""
    error_format: ErrorFormat = ErrorFormat.OPENAI
    """Whose errors its client knows."""
    log_fields: dict[str, Any] = {}
    """What else the log says of it: fields of `log.Answered`."""
    body_budget: BodyBudget = msgspec.field(default_factory=BodyBudget)
    """Those of all requests."""


RouteHandler: TypeAlias = Callable[[RequestContext], Awaitable[HttpResponse | None]]


class Route(msgspec.Struct, frozen=True):
    """What answers on a path."""

    endpoint: str
    handlers: Mapping[str, RouteHandler]
    """By method."""
    is_public: bool = False
    """Whether it needs no key."""
    is_rate_limited: bool = False
    """Whether it counts against the limits of a key."""
    error_format: ErrorFormat = ErrorFormat.OPENAI
    """Whose path it is."""


class App:
    """The server's front. `find` gives the route of a path."""

    def __init__(
        self,
        find_route: Callable[[str], Route | None],
        *,
        keys: ApiKeys,
        origins: OriginPolicy,
        limits: RateLimiter,
        metrics: Metrics,
        connections: int,
        recent: RecentRequests | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_draining = False
        self._connections = connections
        self._active_requests = 0
        """Requests that are being answered, without those to /health and for the page: also a full server is well."""
        self._body_budget = BodyBudget()
        self._find_route = find_route
        self._keys = keys
        self._origins = origins
        self._limits = limits
        self._metrics = metrics
        self._recent = recent
        self._clock = clock

    async def handle(self, http_request: HttpRequest) -> HttpResponse | None:
        """Answer a request; None where the answer was streamed."""
        ask = RequestContext(http_request, _request_id(http_request), self._clock(), {}, body_budget=self._body_budget)
        ask.headers["x-request-id"] = ask.id
        route = self._find_route(http_request.path)
        ask.error_format = _error_format_for(http_request, route)
        if ask.error_format is ErrorFormat.ANTHROPIC:
            ask.headers["request-id"] = ask.id  # where Anthropic's clients look for it
        status = CLIENT_CLOSED_REQUEST
        try:
            reply = await self._respond(ask, route)
            status = 200 if reply is None else reply.status
        except asyncio.CancelledError:
            self._metrics.count_disconnect()
            raise
        finally:
            self._log_request(ask, status)
        if reply is not None:
            reply.headers = {**self.response_headers(ask), **reply.headers}
            reply.closes_connection = reply.closes_connection or self.is_draining
        return reply

    def response_headers(self, ctx: RequestContext) -> dict[str, str]:
        """The headers of each reply."""
        return {
            **ctx.headers,
            "openai-processing-ms": str(round((self._clock() - ctx.started_at) * 1000)),
            "X-Content-Type-Options": "nosniff",
        }

    async def _respond(self, ctx: RequestContext, route: Route | None) -> HttpResponse | None:
        try:
            return await self._dispatch(ctx, route)
        except ApiError as error:
            # Its frames hold the body, and often something that holds the error: a ring, which would stay for long.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            ctx.log_fields["error"] = error.code or error.message
            if error.status >= 500:
                ctx.log_fields["reason"] = error.message
            reply = error_response(error, ctx)
            reply.closes_connection = "Upgrade" in reply.headers  # what follows a handshake is not HTTP
            return reply
        except RequestBodyError as error:
            ctx.log_fields["error"] = error.message
            reply = error_response(ApiError(error.status, error.message), ctx)
            reply.closes_connection = True  # the rest of the body is not waited for
            return reply
        except Exception as error:  # noqa: BLE001 - the shell's edge: it logs, and the client gets an honest 500
            log.event(logging.ERROR, "a request failed", {"request_id": ctx.id}, error=error)
            ctx.log_fields["error"] = "internal_error"
            return error_response(ApiError(500, "The server failed. Its log says why.", code="internal_error"), ctx)

    async def _dispatch(self, ctx: RequestContext, route: Route | None) -> HttpResponse | None:
        call = ctx.request
        preflight = self._origins.preflight(call.method, call.headers)
        if preflight is not None:
            return HttpResponse(204, headers=preflight)
        ctx.headers |= self._origins.check(call.method, call.headers)
        if route is None or not route.is_public:
            self._origins.check_fetch_site(call.headers)
            ctx.principal = await self._keys.authenticate(call.headers)
        if route is None:
            raise ApiError(404, _not_found_message(call.path), code="not_found")
        ctx.endpoint = route.endpoint
        action = route.handlers.get("GET" if call.method == "HEAD" else call.method)
        if action is None:
            allowed = ", ".join(route.handlers)
            if "Upgrade" in call.headers:
                raise _upgrade_required(allowed)
            raise ApiError(405, f"This path takes {allowed}.", code="method_not_allowed", headers={"Allow": allowed})
        if self.is_draining and not route.is_public:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after_s=1.0)
        if route.is_public:
            return await action(ctx)
        if self._active_requests >= self._connections:
            raise _server_busy()
        with self._counted(call):
            if route.is_rate_limited:
                ctx.headers |= await self._limits.admit(ctx.principal)
            return await action(ctx)

    @contextmanager
    def _counted(self, http_request: HttpRequest) -> Iterator[None]:
        """Count a request and its body while it is answered. What a head promises counts for nothing: it is free."""
        held = 0

        def more(count: int) -> None:
            nonlocal held
            held += count
            self._body_budget.client_bytes += count
            if self._active_requests > 1 and self._body_budget.is_full:
                raise _server_busy()

        http_request.on_body_data = more
        self._active_requests += 1
        try:
            yield
        finally:
            http_request.on_body_data = None
            self._active_requests -= 1
            self._body_budget.client_bytes -= held

    def _log_request(self, ctx: RequestContext, status: int) -> None:
        took_s = self._clock() - ctx.started_at
        self._metrics.count_request(ctx.endpoint, ctx.model, status, took_s)
        if ctx.endpoint in _QUIET_ENDPOINTS and status != 500:
            return
        line = RequestLogEntry(
            request_id=ctx.id,
            principal=ctx.principal,
            method=ctx.request.method,
            path=ctx.request.path,
            status=status,
            duration_ms=round(took_s * 1000, 1),
            model=ctx.model or None,
            has_left=status == CLIENT_CLOSED_REQUEST,
            **ctx.log_fields,
        )
        log.log_request(line)
        if self._recent is not None:
            self._recent.add(line)


def _upgrade_required(allowed: str) -> ApiError:
    """A WebSocket handshake where there is none. Codex retries after a 405, and falls back to HTTP at once after a 426.

    RFC 9110 §15.5.22: a 426 names the protocol to use.
    """
    message = f"This path offers no WebSocket: use HTTP/1.1. It takes {allowed}."
    return ApiError(426, message, code="upgrade_required", headers={"Upgrade": "HTTP/1.1", "Allow": allowed})


def _server_busy() -> ApiError:
    message = "The server has as many requests as it can hold."
    return ApiError(503, message, code="server_busy", retry_after_s=1.0)


def error_response(error: ApiError, ctx: RequestContext | None = None) -> HttpResponse:
    """An error as a reply; OpenAI's where it is not known who asks."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, min(_RETRY_AFTER_LIMIT_S, math.ceil(error.retry_after_s))))
    body = error.body() if ctx is None else error.body(ctx.error_format, ctx.id)
    return HttpResponse(error.status, body, headers=headers)


def json_response(value: object) -> HttpResponse:
    """A value as a reply."""
    return HttpResponse(200, msgspec.json.encode(value))


def protocol_error_response(status: int, message: str) -> HttpResponse:
    """The reply where HTTP itself was broken."""
    known = status if status in (400, 408, 413) else 500 if status >= 500 else 400
    return error_response(ApiError(known, message))


def _error_format_for(http_request: HttpRequest, route: Route | None) -> ErrorFormat:
    """Whose errors the client knows, by its header or by the path that it asks."""
    if ANTHROPIC_VERSION_HEADER in http_request.headers:
        return ErrorFormat.ANTHROPIC
    if route is not None:
        return route.error_format
    return ErrorFormat.OLLAMA if http_request.path.startswith("/api/") else ErrorFormat.OPENAI


def _not_found_message(path: str) -> str:
    hint = "The base URL has /v1 twice." if path.startswith("/v1/v1/") else "See /v1/models for a start."
    return f"There is no {path[:100]} here. {hint}"


def _request_id(http_request: HttpRequest) -> str:
    """The client's own id where it is harmless, else a new one."""
    for name in ("x-request-id", "x-client-request-id"):
        given = http_request.headers.get(name, "")
        if 0 < len(given) <= _ID_LIMIT and given.isascii() and given.replace("-", "").replace("_", "").isalnum():
            return given
    return f"req_{secrets.token_hex(16)}"
