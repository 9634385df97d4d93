"""Paths whose requests pass to an upstream, and whose replies come back, without a change.

The model's name in the body says which upstream is asked; what belongs to no model goes to the first one of the
configuration. Batches are not here: they would spend what a key's limits forbid.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from welldone.config.server import ServeSettings
from welldone.gateway import error_mapping
from welldone.gateway.backends import Backend, BackendLease, LocalBackend
from welldone.gateway.error_mapping import (
    CLIENT_DISCONNECTED,
    ERROR_BODY_TIMEOUT_S,
    ERROR_LIMIT_BYTES,
    AttemptFailure,
    connection_failure,
    status_failure,
    timeout_failure,
)
from welldone.gateway.errors import ApiError
from welldone.http.client import Exchange, HttpClientError
from welldone.http.cooperative import run_cooperatively
from welldone.http.server import HttpRequest, HttpResponse, StreamingResponse
from welldone.protocol.events import Json
from welldone.server.app import RequestContext, Route, RouteHandler
from welldone.server.generation.token_cost import estimate_prompt_tokens
from welldone.server.requests.upstream_body import PassthroughBody, is_multipart_form, read_upload_in_steps

# One reply of an upstream that goes to the client as it comes, byte for byte.


_USAGE_SCAN_BYTES = 1024  # at the start and at the end of a reply, where usage stands
_TOKENS = re.compile(rb'(?<!\\)"total_tokens"\s*:\s*(\d{1,9})\b')
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[ -~]*)?", re.ASCII)
_ACTIVE_CONTENT = re.compile("html|xml|svg|script", re.IGNORECASE)
"""Types that a browser runs: a picture as SVG may have scripts, and XML may say how it is made into a page."""
_CONTENT_SECURITY_POLICY = "sandbox; default-src 'none'"
"""A file that a browser opens has no origin and runs nothing: it must not act as our page, which has the same one."""
_FORWARDED_HEADERS = ("content-disposition", "openai-model", "openai-version")


class PassthroughExchange:
    """One exchange. The client's stream is opened when the upstream's reply begins, and not before: until then
    another upstream may be asked."""

    def __init__(self, http_request: HttpRequest, headers: Mapping[str, str], *, write_s: float) -> None:
        self.has_begun = False
        """Whether the client has heard something."""
        self._http_request = http_request
        self._response_headers = headers
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._buffer = bytearray()  # what came before the stream was open; or an error
        self._first_bytes = b""
        self._last_bytes = b""
        self._stream: StreamingResponse | None = None
        self._exchange: Exchange | None = None
        self._is_paused = False  # nothing is heard until the client has read
        self._is_finished = False
        self._error: HttpClientError | None = None
        self._last_received_at = 0.0

    @property
    def tokens(self) -> int:
        """What the reply says that it cost."""
        found = _TOKENS.findall(self._first_bytes) or _TOKENS.findall(self._last_bytes)
        return int(found[-1]) if found else 0

    async def run(
        self, lease: BackendLease, method: str, path: str, *, body: bytes, content_type: str, is_retry: bool = False
    ) -> AttemptFailure | None:
        """Ask, and send on what comes; what went wrong, if something did."""
        self._last_received_at = self._loop.time()
        accept = self._http_request.headers.get("Accept", "")
        accept = accept if accept.isascii() and accept.isprintable() and accept else "*/*"
        try:
            exchange = await lease.send(
                lease.address,
                method,
                path,
                self,
                body=body,
                accept=accept,
                content_type=content_type,
                is_fresh=is_retry,
            )
        except HttpClientError as error:
            return connection_failure(error)
        self._exchange = exchange
        trouble: AttemptFailure | None = CLIENT_DISCONNECTED
        try:
            trouble = await self._receive_reply(exchange, lease)
        finally:
            exchange.close()
            self._exchange = None  # it holds us: rings are left to the collector
            if trouble is not None and self._stream is not None:
                self._stream.abort()  # nobody shall take it for a whole reply
        return trouble

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self._status, self._headers = status, headers
        self._wakeup.set()

    def data(self, data: bytes) -> None:
        """More of it."""
        self._last_received_at = self._loop.time()
        if self._stream is None:
            self._buffer += data
            if len(self._buffer) >= ERROR_LIMIT_BYTES and self._exchange is not None:
                self._exchange.pause()  # more is wanted when the client's stream is open; of an error, none
            self._wakeup.set()
            return
        self._write(self._stream, data)
        if self._stream.has_backpressure:
            self._is_paused = True
            if self._exchange is not None:
                self._exchange.pause()  # now: the loop may read megabytes more before the task wakes
            self._wakeup.set()

    def end(self, error: HttpClientError | None) -> None:
        """It has ended."""
        self._is_finished, self._error = True, error
        self._wakeup.set()

    # What the handler's task does.

    async def _receive_reply(self, exchange: Exchange, lease: BackendLease) -> AttemptFailure | None:
        while not self._status and not self._is_finished:
            if not await self._wait(lease.first_byte_s):
                return timeout_failure(lease.first_byte_s)
        if not self._status:
            return self._disconnected()
        if not 200 <= self._status < 300:
            return await self._read_error(lease)
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            return AttemptFailure(error_mapping.compressed_reply(), "garbage")
        if self._headers.get("content-type", "").lower().startswith("text/html"):
            return AttemptFailure(error_mapping.unrecognized_reply(), "garbage")
        exchange.pause()
        stream = await self._http_request.start_stream(self._reply_headers(), status=self._status)
        self.has_begun = True
        self._stream = stream
        kept, self._buffer = bytes(self._buffer), bytearray()
        self._write(stream, kept)
        exchange.resume()
        return await self._forward_body(exchange, stream, lease)

    async def _forward_body(
        self, exchange: Exchange, stream: StreamingResponse, lease: BackendLease
    ) -> AttemptFailure | None:
        while not self._is_finished:
            if self._is_paused or stream.has_backpressure:
                if not self._is_paused:
                    exchange.pause()
                self._is_paused = False
                try:
                    async with asyncio.timeout(self._write_s):
                        await stream.drain()
                except TimeoutError:
                    return AttemptFailure(
                        ApiError(408, "The client does not read.", code="client_too_slow"), "left", False
                    )
                self._last_received_at = self._loop.time()  # the silence was not the upstream's
                exchange.resume()
            elif not await self._wait(lease.idle_s):
                return timeout_failure(lease.idle_s)
        if self._error is not None:
            return self._disconnected()
        await stream.end()
        return None

    async def _read_error(self, lease: BackendLease) -> AttemptFailure:
        """What an error says."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ERROR_BODY_TIMEOUT_S):
                while not self._is_finished and len(self._buffer) < ERROR_LIMIT_BYTES:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        body = bytes(self._buffer[:ERROR_LIMIT_BYTES])
        return status_failure(self._status, self._headers, body, "input", lease.upstream)

    async def _wait(self, timeout_s: float) -> bool:
        """Wait until something changes; whether the upstream is still to be waited for."""
        self._wakeup.clear()
        left_s = self._last_received_at + timeout_s - self._loop.time()
        if left_s <= 0:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wakeup.wait()
        return True

    def _reply_headers(self) -> dict[str, str]:
        kind = self._headers.get("content-type", "")
        passed = {name: self._headers[name] for name in _FORWARDED_HEADERS if name in self._headers}
        if _ACTIVE_CONTENT.search(kind) and not passed.get("content-disposition", "").lower().startswith("attachment"):
            passed["content-disposition"] = "attachment"
        kind = kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream"
        return {
            **passed,
            "Content-Type": kind,
            "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
            **self._response_headers,
        }

    def _write(self, stream: StreamingResponse, data: bytes) -> None:
        if data:
            self._first_bytes += (
                data[: _USAGE_SCAN_BYTES - len(self._first_bytes)]
                if len(self._first_bytes) < _USAGE_SCAN_BYTES
                else b""
            )
            self._last_bytes = (self._last_bytes + data[-_USAGE_SCAN_BYTES:])[-_USAGE_SCAN_BYTES:]
            stream.write(data)

    def _disconnected(self) -> AttemptFailure:
        error = self._error or HttpClientError("nothing came")
        return AttemptFailure(
            error_mapping.upstream_disconnected(str(error)), "lost", is_stale=error.is_stale, is_disconnect=True
        )


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
