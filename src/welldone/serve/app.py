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

from welldone.net.inbound import BodyError, Call, Reply
from welldone.serve import log
from welldone.serve.bodies import Bodies
from welldone.serve.errors import ApiError, Shape
from welldone.serve.keys import ANONYMOUS, Keys
from welldone.serve.limits import Limits
from welldone.serve.log import Answered
from welldone.serve.metrics import Metrics
from welldone.serve.origins import Origins
from welldone.serve.page.recent import Recent
from welldone.wire.dialects.messages.objects import VERSION_HEADER

GONE = 499
"""The status of an answer whose client left before it had one, as nginx counts it."""
_OFTEN = ("health", "metrics", "page")  # they come every few seconds, and say nothing
_ID_LIMIT = 128  # characters of a client's own request id
_SECONDS_LIMIT = 3_600  # of Retry-After: who is told to wait longer does not


class Ask(msgspec.Struct):
    """One request on its way, and what is known of it so far."""

    call: Call
    id: str
    began: float
    headers: dict[str, str]
    """What its reply carries besides its own."""
    principal: str = ANONYMOUS
    endpoint: str = "other"
    model: str = ""
    shape: Shape = Shape.OPENAI
    """Whose errors its client knows."""
    facts: dict[str, Any] = {}
    """What else the log says of it: fields of `log.Answered`."""
    bodies: Bodies = msgspec.field(default_factory=Bodies)
    """Those of all requests."""


Action: TypeAlias = Callable[[Ask], Awaitable[Reply | None]]


class Route(msgspec.Struct, frozen=True):
    """What answers on a path."""

    endpoint: str
    actions: Mapping[str, Action]
    """By method."""
    is_open: bool = False
    """Whether it needs no key."""
    is_limited: bool = False
    """Whether it counts against the limits of a key."""
    shape: Shape = Shape.OPENAI
    """Whose path it is."""


class App:
    """The server's front. `find` gives the route of a path."""

    def __init__(
        self,
        find: Callable[[str], Route | None],
        *,
        keys: Keys,
        origins: Origins,
        limits: Limits,
        metrics: Metrics,
        connections: int,
        recent: Recent | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_draining = False
        self._connections = connections
        self._held = 0
        """Requests that are being answered, without those to /health and for the page: also a full server is well."""
        self._bodies = Bodies()
        self._find = find
        self._keys = keys
        self._origins = origins
        self._limits = limits
        self._metrics = metrics
        self._recent = recent
        self._clock = clock

    async def handle(self, call: Call) -> Reply | None:
        """Answer a request; None where the answer was streamed."""
        ask = Ask(call, _request_id(call), self._clock(), {}, bodies=self._bodies)
        ask.headers["x-request-id"] = ask.id
        route = self._find(call.path)
        ask.shape = _shape(call, route)
        if ask.shape is Shape.ANTHROPIC:
            ask.headers["request-id"] = ask.id  # where Anthropic's clients look for it
        status = GONE
        try:
            reply = await self._answer(ask, route)
            status = 200 if reply is None else reply.status
        except asyncio.CancelledError:
            self._metrics.disconnect()
            raise
        finally:
            self._note(ask, status)
        if reply is not None:
            reply.headers = {**self.head(ask), **reply.headers}
            reply.is_last = reply.is_last or self.is_draining
        return reply

    def head(self, ask: Ask) -> dict[str, str]:
        """The headers of each reply."""
        return {
            **ask.headers,
            "openai-processing-ms": str(round((self._clock() - ask.began) * 1000)),
            "X-Content-Type-Options": "nosniff",
        }

    async def _answer(self, ask: Ask, route: Route | None) -> Reply | None:
        try:
            return await self._route(ask, route)
        except ApiError as error:
            # Its frames hold the body, and often something that holds the error: a ring, which would stay for long.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            ask.facts["error"] = error.code or error.message
            if error.status >= 500:
                ask.facts["reason"] = error.message
            reply = error_reply(error, ask)
            reply.is_last = "Upgrade" in reply.headers  # what follows a handshake is not HTTP
            return reply
        except BodyError as error:
            ask.facts["error"] = error.message
            reply = error_reply(ApiError(error.status, error.message), ask)
            reply.is_last = True  # the rest of the body is not waited for
            return reply
        except Exception as error:  # noqa: BLE001 - the shell's edge: it logs, and the client gets an honest 500
            log.event(logging.ERROR, "a request failed", {"request_id": ask.id}, error=error)
            ask.facts["error"] = "internal_error"
            return error_reply(ApiError(500, "The server failed. Its log says why.", code="internal_error"), ask)

    async def _route(self, ask: Ask, route: Route | None) -> Reply | None:
        call = ask.call
        preflight = self._origins.preflight(call.method, call.headers)
        if preflight is not None:
            return Reply(204, headers=preflight)
        ask.headers |= self._origins.check(call.method, call.headers)
        if route is None or not route.is_open:
            self._origins.check_page(call.headers)
            ask.principal = await self._keys.admit(call.headers)
        if route is None:
            raise ApiError(404, _no_such(call.path), code="not_found")
        ask.endpoint = route.endpoint
        action = route.actions.get("GET" if call.method == "HEAD" else call.method)
        if action is None:
            allowed = ", ".join(route.actions)
            if "Upgrade" in call.headers:
                raise _no_upgrade(allowed)
            raise ApiError(405, f"This path takes {allowed}.", code="method_not_allowed", headers={"Allow": allowed})
        if self.is_draining and not route.is_open:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after_s=1.0)
        if route.is_open:
            return await action(ask)
        if self._held >= self._connections:
            raise _full()
        with self._holding(call):
            if route.is_limited:
                ask.headers |= await self._limits.admit(ask.principal)
            return await action(ask)

    @contextmanager
    def _holding(self, call: Call) -> Iterator[None]:
        """Count a request and its body while it is answered. What a head promises counts for nothing: it is free."""
        held = 0

        def more(count: int) -> None:
            nonlocal held
            held += count
            self._bodies.asked_bytes += count
            if self._held > 1 and self._bodies.is_full:
                raise _full()

        call.when_read = more
        self._held += 1
        try:
            yield
        finally:
            call.when_read = None
            self._held -= 1
            self._bodies.asked_bytes -= held

    def _note(self, ask: Ask, status: int) -> None:
        took_s = self._clock() - ask.began
        self._metrics.request(ask.endpoint, ask.model, status, took_s)
        if ask.endpoint in _OFTEN and status != 500:
            return
        line = Answered(
            request_id=ask.id,
            principal=ask.principal,
            method=ask.call.method,
            path=ask.call.path,
            status=status,
            duration_ms=round(took_s * 1000, 1),
            model=ask.model or None,
            has_left=status == GONE,
            **ask.facts,
        )
        log.answered(line)
        if self._recent is not None:
            self._recent.add(line)


def _no_upgrade(allowed: str) -> ApiError:
    """A WebSocket handshake where there is none. Codex retries after a 405, and falls back to HTTP at once after a 426.

    RFC 9110 §15.5.22: a 426 names the protocol to use.
    """
    message = f"This path offers no WebSocket: use HTTP/1.1. It takes {allowed}."
    return ApiError(426, message, code="upgrade_required", headers={"Upgrade": "HTTP/1.1", "Allow": allowed})


def _full() -> ApiError:
    message = "The server has as many requests as it can hold."
    return ApiError(503, message, code="server_busy", retry_after_s=1.0)


def error_reply(error: ApiError, ask: Ask | None = None) -> Reply:
    """An error as a reply; OpenAI's where it is not known who asks."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, min(_SECONDS_LIMIT, math.ceil(error.retry_after_s))))
    body = error.body() if ask is None else error.body(ask.shape, ask.id)
    return Reply(error.status, body, headers=headers)


def json_reply(value: object) -> Reply:
    """A value as a reply."""
    return Reply(200, msgspec.json.encode(value))


def error_page(status: int, message: str) -> Reply:
    """The reply where HTTP itself was broken."""
    known = status if status in (400, 408, 413) else 500 if status >= 500 else 400
    return error_reply(ApiError(known, message))


def _shape(call: Call, route: Route | None) -> Shape:
    """Whose errors the client knows, by its header or by the path that it asks."""
    if VERSION_HEADER in call.headers:
        return Shape.ANTHROPIC
    if route is not None:
        return route.shape
    return Shape.OLLAMA if call.path.startswith("/api/") else Shape.OPENAI


def _no_such(path: str) -> str:
    hint = "The base URL has /v1 twice." if path.startswith("/v1/v1/") else "See /v1/models for a start."
    return f"There is no {path[:100]} here. {hint}"


def _request_id(call: Call) -> str:
    """The client's own id where it is harmless, else a new one."""
    for name in ("x-request-id", "x-client-request-id"):
        given = call.headers.get(name, "")
        if 0 < len(given) <= _ID_LIMIT and given.isascii() and given.replace("-", "").replace("_", "").isalnum():
            return given
    return f"req_{secrets.token_hex(16)}"
