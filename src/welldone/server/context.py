"""What all handlers share: the state and id of a request, the routes, and responses without a stream."""

import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.http.messages import HttpRequest, HttpResponse
from welldone.server.access.keys import ANONYMOUS
from welldone.server.observe.tracing import RequestTrace

_POOL_BYTES = 2048
_pool = bytearray()


def random_hex(size: int) -> str:
    """Return `size` random bytes as hexadecimal digits: as hard to guess as by `secrets`, with fewer system calls."""
    if len(_pool) < size:
        _pool.extend(os.urandom(_POOL_BYTES))
    taken = bytes(_pool[-size:])
    del _pool[-size:]
    return taken.hex()


os.register_at_fork(after_in_child=_pool.clear)


_RETRY_AFTER_LIMIT_S = 3_600  # clients do not wait longer


class RequestContext(msgspec.Struct):
    """Per-request state: principal, ids, timing, log fields."""

    request: HttpRequest
    id: str
    started_at: float
    headers: dict[str, str]
    """Additional headers of the response."""
    principal: str = ANONYMOUS
    endpoint: str = "other"
    model: str = ""
    error_format: ErrorFormat = ErrorFormat.OPENAI
    log_fields: dict[str, Any] = {}
    """Further fields of `RequestLogEntry`."""
    body_bytes: int = 0
    """Received bytes of the body."""
    stream_status: int = 200
    """Status of a response that the handler sends itself."""
    trace: RequestTrace | None = None
    """Its distributed trace, if there is one."""


RouteHandler: TypeAlias = Callable[[RequestContext], Awaitable[HttpResponse | None]]


class Route(msgspec.Struct, frozen=True):
    """The handlers of a path."""

    endpoint: str
    """Label in metrics."""
    handlers: Mapping[str, RouteHandler]
    """By method."""
    path: str = ""
    """Without `/v1`; `*` is the placeholder of a name or an id."""
    is_public: bool = False
    """Whether it needs no key."""
    is_rate_limited: bool = False
    """Whether it counts against the rate limits of a key."""
    error_format: ErrorFormat = ErrorFormat.OPENAI
    socket: RouteHandler | None = None
    """Answers a WebSocket handshake. Its messages are requests of their own."""


def response_headers(ctx: RequestContext) -> dict[str, str]:
    """The common headers of all responses."""
    elapsed_ms = round((time.monotonic() - ctx.started_at) * 1000)
    return {**ctx.headers, "openai-processing-ms": str(elapsed_ms), "X-Content-Type-Options": "nosniff"}


def upgrade_required(allowed: str) -> ApiError:
    """The reply to a WebSocket handshake. Codex retries after a 405, but falls back to HTTP at once after a 426.

    RFC 9110 §15.5.22: a 426 names the protocol to use.
    """
    message = f"This path does not support WebSocket; use HTTP/1.1 with {allowed}."
    return ApiError(426, message, code="upgrade_required", headers={"Upgrade": "HTTP/1.1", "Allow": allowed})


def check_encoding(headers: Mapping[str, str]) -> None:
    """Raise `ApiError` if the body of a request is compressed."""
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "Send the body without Content-Encoding.", code="unsupported_encoding")


def server_busy() -> ApiError:
    """The error for a request beyond the limit of concurrent ones."""
    message = "The server is handling its maximum of concurrent requests. Try again later."
    return ApiError(503, message, code="server_busy", retry_after_s=1.0)


def error_response(error: ApiError, ctx: RequestContext | None = None) -> HttpResponse:
    """An error as a response, in OpenAI's format without a context."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, min(_RETRY_AFTER_LIMIT_S, math.ceil(error.retry_after_s))))
    body = error.body() if ctx is None else error.body(ctx.error_format, ctx.id)
    return HttpResponse(error.status, body, headers=headers)


def json_response(value: object) -> HttpResponse:
    """A value as a JSON response."""
    return HttpResponse(200, msgspec.json.encode(value))
