"""Entry point of all requests: access control, routing, error responses, metrics and the request log."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl

from welldone.dialects.gemini.objects import KEY_HEADER
from welldone.dialects.messages.objects import ANTHROPIC_VERSION_HEADER
from welldone.gateway.errors import ApiError, ErrorFormat, internal_error, shutting_down
from welldone.http.messages import HttpRequest, HttpResponse, RequestBodyError, RequestHeaders
from welldone.server.access.origins import OriginPolicy
from welldone.server.context import (
    RequestContext,
    Route,
    error_response,
    random_hex,
    response_headers,
    server_busy,
    upgrade_required,
)
from welldone.server.observe import log
from welldone.server.observe.log import RequestLogEntry
from welldone.server.observe.tracing import TRACEPARENT, forwarded_trace
from welldone.server.parts import ServerParts

CLIENT_CLOSED_REQUEST = 499
"""Logged status of a request whose client disconnected before the response (nginx's convention)."""
_QUIET_ENDPOINTS = ("health", "metrics", "page")  # polled every few seconds; not logged
_ID_LIMIT = 128  # characters of a client's own request id


class App:
    """Handles HTTP requests. `find_route` returns the route of a path."""

    def __init__(self, find_route: Callable[[str], Route | None], parts: ServerParts, origins: OriginPolicy) -> None:
        self.is_draining = False
        self.origins = origins
        self._active_requests = 0  # without public routes: a full server still reports its health
        self._find_route = find_route
        self._parts = parts

    async def handle(self, http_request: HttpRequest) -> HttpResponse | None:
        """Handle a request; None if the response was streamed."""
        ctx = RequestContext(http_request, _request_id(http_request), time.monotonic(), {})
        ctx.headers["x-request-id"] = ctx.id
        route = self._find_route(http_request.path)
        ctx.error_format = _error_format_for(http_request, route)
        if ctx.error_format is ErrorFormat.ANTHROPIC:
            ctx.headers["request-id"] = ctx.id  # the header that Anthropic's clients read
        if self._parts.tracer is not None:
            if route is None:
                ctx.trace = self._parts.tracer.begin(http_request, ctx.endpoint, "")
            elif route.endpoint not in _QUIET_ENDPOINTS:
                ctx.trace = self._parts.tracer.begin(http_request, route.endpoint, route.path)
        elif TRACEPARENT in http_request.headers:
            ctx.trace = forwarded_trace(http_request)
        status = CLIENT_CLOSED_REQUEST
        try:
            reply = await self._dispatch(ctx, route)
            status = ctx.stream_status if reply is None else reply.status
        except asyncio.CancelledError:
            self._parts.metrics.count_disconnect()
            raise
        except Exception as error:  # noqa: BLE001 - the outermost layer: it logs, and the client gets a 500
            reply = _failure_response(ctx, error)
            status = reply.status
        finally:
            self._log_request(ctx, status)
        if reply is not None:
            reply.headers = {**response_headers(ctx), **reply.headers}
            reply.closes_connection = reply.closes_connection or self.is_draining
        return reply

    async def _dispatch(self, ctx: RequestContext, route: Route | None) -> HttpResponse | None:
        http_request = ctx.request
        if (preflight := self.origins.preflight(http_request.method, http_request.headers)) is not None:
            return HttpResponse(204, headers=preflight)
        ctx.headers |= self.origins.check(http_request.method, http_request.headers)
        if route is None or not route.is_public:
            if "Sec-Fetch-Site" in http_request.headers:
                self.origins.check_fetch_site(http_request.headers)
            ctx.principal = await self._parts.keys.authenticate(_headers_with_key(ctx))
        if route is None:
            path = http_request.path
            hint = "The base URL has /v1 twice." if path.startswith("/v1/v1/") else "/openapi.json lists the paths."
            raise ApiError(404, f"Unknown path {path[:100]}. {hint}", code="not_found")
        ctx.endpoint = route.endpoint
        handler = route.handlers.get("GET" if http_request.method == "HEAD" else http_request.method)
        if handler is None:
            allowed = ", ".join(route.handlers)
            if "Upgrade" in http_request.headers:
                if route.socket is None or http_request.method != "GET":
                    raise upgrade_required(allowed)
                if self.is_draining:
                    raise shutting_down(retry_after_s=1.0)
                return await route.socket(ctx)
            message = f"The method {http_request.method[:20]} is not allowed for this path; use {allowed}."
            raise ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})
        if self.is_draining and not route.is_public:
            raise shutting_down(retry_after_s=1.0)
        if route.is_public:
            return await handler(ctx)
        if self._active_requests >= self._parts.settings.connections:
            raise server_busy()
        http_request.on_body_data = partial(self._count_body, ctx)
        self._active_requests += 1
        try:
            if route.is_rate_limited:
                ctx.headers |= await self._parts.limits.admit(ctx.principal)
            return await handler(ctx)
        finally:
            http_request.on_body_data = None
            self._active_requests -= 1
            self._parts.body_budget.client_bytes -= ctx.body_bytes

    def _count_body(self, ctx: RequestContext, count: int) -> None:
        """Count bytes of a body that have arrived, not its announced length."""
        ctx.body_bytes += count
        self._parts.body_budget.client_bytes += count
        if self._active_requests > 1 and self._parts.body_budget.is_full:
            raise server_busy()

    def _log_request(self, ctx: RequestContext, status: int) -> None:
        duration_s = time.monotonic() - ctx.started_at
        self._parts.metrics.count_request(ctx.endpoint, ctx.model, status, duration_s)
        if ctx.endpoint in _QUIET_ENDPOINTS and status != 500:
            return
        entry = RequestLogEntry(
            request_id=ctx.id,
            principal=ctx.principal,
            method=ctx.request.method,
            path=ctx.request.path,
            status=status,
            duration_ms=round(duration_s * 1000, 1),
            model=ctx.model or None,
            endpoint=ctx.endpoint,
            has_left=status == CLIENT_CLOSED_REQUEST,
            trace_id=None if ctx.trace is None else ctx.trace.trace_id,
            **ctx.log_fields,
        )
        log.log_request(entry)
        if ctx.trace is not None:
            ctx.trace.end_request(entry)
        if self._parts.page is not None:
            self._parts.page.recent.add(entry)


def _failure_response(ctx: RequestContext, error: Exception) -> HttpResponse:
    """Log why a request failed, and return its error response."""
    if isinstance(error, ApiError):
        # The traceback's frames reference the body and often the error itself: a cycle that would live for long.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        ctx.log_fields["error"] = error.code or error.message
        if error.status >= 500:
            ctx.log_fields["reason"] = error.message
        reply = error_response(error, ctx)
        reply.closes_connection = "Upgrade" in reply.headers  # the client may send non-HTTP data next
        return reply
    if isinstance(error, RequestBodyError):
        ctx.log_fields["error"] = error.message
        reply = error_response(ApiError(error.status, error.message), ctx)
        reply.closes_connection = True  # do not wait for the rest of the body
        return reply
    log.event(logging.ERROR, "a request failed", {"request_id": ctx.id}, error=error)
    ctx.log_fields["error"] = "internal_error"
    return error_response(internal_error(ctx.id), ctx)


def protocol_error_response(status: int, message: str) -> HttpResponse:
    """The response to a malformed HTTP request."""
    mapped = status if status in (400, 408, 413) else 500 if status >= 500 else 400
    return error_response(ApiError(mapped, message))


def _error_format_for(http_request: HttpRequest, route: Route | None) -> ErrorFormat:
    if ANTHROPIC_VERSION_HEADER in http_request.headers:
        return ErrorFormat.ANTHROPIC
    if KEY_HEADER in http_request.headers or http_request.path.startswith("/v1beta/"):
        return ErrorFormat.GEMINI
    if route is not None:
        return route.error_format
    return ErrorFormat.OLLAMA if http_request.path.startswith("/api/") else ErrorFormat.OPENAI


def _headers_with_key(ctx: RequestContext) -> Mapping[str, str]:
    """Return the headers; for Google's API with the key of the query, which no log contains."""
    headers, query = ctx.request.headers, ctx.request.query
    if ctx.error_format is not ErrorFormat.GEMINI or "key=" not in query:
        return headers
    keys = [value for name, value in parse_qsl(query) if name == "key"]
    return RequestHeaders([*headers.items(), *((KEY_HEADER, key) for key in keys)])


def _request_id(http_request: HttpRequest) -> str:
    """The client's own id if it is safe to log, else a new one."""
    for name in ("x-request-id", "x-client-request-id"):
        own = http_request.headers.get(name, "")
        if 0 < len(own) <= _ID_LIMIT and own.isascii() and own.replace("-", "").replace("_", "").isalnum():
            return own
    return f"req_{random_hex(16)}"
