"""Passthrough endpoints: requests are forwarded to an upstream, and replies to the client, unchanged.

The model in the body selects the upstream; endpoints without a model use the first upstream of the configuration.
Batches are not among them: they would bypass the rate limits of a key.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from welldone.config.server import ServeSettings
from welldone.core.events import Json
from welldone.gateway import error_mapping
from welldone.gateway.backends import Backend, BackendLease, LocalBackend, root_address
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED, ERROR_LIMIT_BYTES, OUTCOME_TIMEOUT, AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.http.client import Exchange
from welldone.http.connect import HttpClientError
from welldone.http.messages import HttpResponse
from welldone.http.turns import run_cooperatively
from welldone.server.context import RequestContext, Route, RouteHandler, check_encoding
from welldone.server.generation.client_stream import ClientStream, Source
from welldone.server.generation.recovery import AttemptOutput, Recovery
from welldone.server.generation.retry import RetryLoop
from welldone.server.generation.targets import BackendResolver
from welldone.server.generation.token_cost import estimate_prompt_tokens
from welldone.server.requests.upstream_body import PassthroughBody, is_multipart_form, read_upload_in_steps

_USAGE_SCAN_BYTES = 1024  # usage is at the start or at the end of a reply
_TOKENS = re.compile(rb'(?<!\\)"total_tokens"\s*:\s*(\d{1,9})\b')
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[ -~]*)?", re.ASCII)
_ACTIVE_CONTENT = re.compile("html|xml|svg|script", re.IGNORECASE)
"""Media types that a browser executes: SVG may have scripts, and XML may have stylesheets."""
_CONTENT_SECURITY_POLICY = "sandbox; default-src 'none'"
"""Without it a file opened in a browser would run scripts with the origin of the server's own pages."""
_BILLABLE_OUTCOMES = (CLIENT_DISCONNECTED.outcome, OUTCOME_TIMEOUT)
_FORWARDED_HEADERS = ("content-disposition", "openai-model", "openai-version")


LocalHandler: TypeAlias = Callable[[RequestContext, Json], Awaitable[HttpResponse | None]]
"""Handles a request for a local model, given its body."""

_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"  # OpenAI's start with `file-`
_QUERY = re.compile(r"[A-Za-z0-9_.~=&%+,:\[\]-]{0,2048}")
_KEYS_IN_QUERY = re.compile(r"(?:^|&)(?:api[-_]?key|key|access_token|token)=[^&]*", re.IGNORECASE)
"""API keys that some clients repeat in the query: upstreams must not see them."""
_API_PREFIX = "/v1"


class PassthroughEndpoint(msgspec.Struct, frozen=True):
    """A forwarded path, without `/v1`; `*` matches an id."""

    path: str
    endpoint: str
    """Name in logs and metrics."""
    methods: tuple[str, ...] = ("POST",)
    is_root: bool = False
    """Servers have the path at their root, not below `/v1`."""
    has_model: bool = True
    """The body has a `model`."""


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
"""Endpoints of OpenAI, vLLM and llama.cpp."""


@dataclass(eq=False)
class PassthroughRequest:
    """A request to forward, with all its attempts. Its reply is forwarded byte for byte.

    The client's stream is opened when the upstream's reply starts: until then another upstream can be tried.
    """

    ctx: RequestContext
    path: str
    endpoint: PassthroughEndpoint
    upload: PassthroughBody
    write_s: float
    charge_tokens: Callable[[RequestContext, int], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sources: dict[int, Source] = {}
        self._client = ClientStream(self.ctx.request, self._sources, write_s=self.write_s)
        self._reset()

    def _reset(self) -> None:
        """Start an attempt."""
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._first_bytes = self._last_bytes = b""
        self._exchange: Exchange | None = None
        self._is_finished = False
        self._error: HttpClientError | None = None
        self._last_received_at = self._loop.time()
        self._client.discard()

    async def run_attempt(self, lease: BackendLease, part: int, number: int) -> AttemptFailure | None:
        """Send the request to an upstream and forward the reply."""
        self._reset()
        self._sources[part] = self
        method, accept = self.ctx.request.method, self.ctx.request.headers.get("Accept", "")
        failure: AttemptFailure | None = CLIENT_DISCONNECTED
        try:
            self._exchange = await lease.send(
                root_address(lease.address) if self.endpoint.is_root else lease.address,
                method,
                self.path,
                self,
                body=self.upload.encode(lease.model) if method == "POST" else b"",
                accept=accept if accept.isascii() and accept.isprintable() and accept else "*/*",
                content_type=self.upload.content_type,
                own_headers=lease.trace_headers,
                is_fresh=number > 1,
            )
            failure = await self._receive_reply(lease)
        except HttpClientError as error:
            failure = error_mapping.connection_failure(error, lease.upstream)
        finally:
            if self._exchange is not None:
                self._exchange.close()
                self._exchange = None  # a reference cycle would wait for the garbage collector
            self._sources.clear()
            if failure is not None and self._client.stream is not None:
                self._client.stream.abort()  # without a regular end, so that the reply does not look complete
            self._charge(failure)
        lease.report(failure)
        return failure

    def output(self, part: int, failure: AttemptFailure) -> AttemptOutput:
        """A reply is not known well enough to continue it."""
        return AttemptOutput(can_discard=self._client.stream is None)

    def recover(self, part: int, failure: AttemptFailure, recovery: Recovery) -> None:
        """Do nothing: the next attempt begins with a reset."""

    def _charge(self, failure: AttemptFailure | None) -> None:
        """Charge the tokens of the reply, or an estimate if the upstream may have worked for an incomplete one."""
        found = _TOKENS.findall(self._first_bytes) or _TOKENS.findall(self._last_bytes)
        tokens = int(found[-1]) if found else 0
        if tokens:
            self.ctx.log_fields["prompt_tokens"] = tokens
        elif (
            failure is not None
            and (self._client.stream is not None or failure.outcome in _BILLABLE_OUTCOMES)
            and self.endpoint.has_model
            and self.upload.json is not None
        ):
            tokens = estimate_prompt_tokens(self.upload.json, len(msgspec.json.encode(self.upload.json)))
        if tokens:
            self.charge_tokens(self.ctx, tokens)

    # Callbacks of the exchange.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the status and headers."""
        self._status, self._headers = status, headers
        self._client.wake()

    def data(self, data: bytes) -> None:
        """Receive bytes of the body."""
        self._last_received_at = self._loop.time()
        if self._client.stream is None:
            self._client.buffer(data)
            self._client.wake()
        else:
            self._keep_edges(data)
            self._client.stream.write(data)

    def end(self, error: HttpClientError | None) -> None:
        """Receive the end of the body."""
        self._is_finished, self._error = True, error
        self._client.wake()

    # The handler's task.

    def pause(self) -> None:
        """Stop reading from the upstream."""
        if self._exchange is not None:
            self._exchange.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._last_received_at = self._loop.time()
        if self._exchange is not None:
            self._exchange.resume_reading()

    async def _receive_reply(self, lease: BackendLease) -> AttemptFailure | None:
        while not self._status and not self._is_finished:
            if not await self._wait_for_data(lease.first_byte_s):
                return error_mapping.timeout_failure(lease.first_byte_s)
        if not self._status:
            return error_mapping.disconnect_failure(self._error or HttpClientError("no reply"), lease.upstream)
        if not 200 <= self._status < 300:
            return await self._read_error(lease)
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            return error_mapping.compressed_reply()
        if self._headers.get("content-type", "").lower().startswith("text/html"):
            return error_mapping.unrecognized_reply()
        self._keep_edges(bytes(self._client.buffered))
        await self._client.open(self._reply_headers(), status=self._status)
        while not self._is_finished:
            if self._client.is_blocked:
                if (failure := await self._client.drain()) is not None:
                    return failure
            elif not await self._wait_for_data(lease.idle_s):
                return error_mapping.timeout_failure(lease.idle_s)
        if self._error is not None:
            return error_mapping.disconnect_failure(self._error, lease.upstream, has_head=True)
        await self._client.end()
        return None

    async def _read_error(self, lease: BackendLease) -> AttemptFailure:
        until = self._loop.time() + error_mapping.ERROR_BODY_TIMEOUT_S
        while not self._is_finished and len(self._client.buffered) < ERROR_LIMIT_BYTES and until > self._loop.time():
            await self._client.wait(until - self._loop.time())
        body = bytes(self._client.buffered[:ERROR_LIMIT_BYTES])
        return error_mapping.status_failure(self._status, self._headers, body, "input", lease.upstream)

    async def _wait_for_data(self, timeout_s: float) -> bool:
        """Wait for a change. Returns False if the upstream has been silent for `timeout_s`."""
        left_s = self._last_received_at + timeout_s - self._loop.time()
        if left_s > 0:
            await self._client.wait(left_s)
        return left_s > 0

    def _reply_headers(self) -> dict[str, str]:
        media_type = self._headers.get("content-type", "")
        forwarded = {name: self._headers[name] for name in _FORWARDED_HEADERS if name in self._headers}
        is_attachment = forwarded.get("content-disposition", "").lower().startswith("attachment")
        if _ACTIVE_CONTENT.search(media_type) and not is_attachment:
            forwarded["content-disposition"] = "attachment"
        return {
            **forwarded,
            "Content-Type": media_type if _MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream",
            "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
            **self.ctx.headers,
            "X-Content-Type-Options": "nosniff",
        }

    def _keep_edges(self, data: bytes) -> None:
        """Keep the start and the end of the reply, where its usage is."""
        if (missing := _USAGE_SCAN_BYTES - len(self._first_bytes)) > 0:
            self._first_bytes += data[:missing]
        self._last_bytes = (self._last_bytes + data[-_USAGE_SCAN_BYTES:])[-_USAGE_SCAN_BYTES:]


class PassthroughApi:
    """The routes of the passthrough endpoints."""

    def __init__(
        self, settings: ServeSettings, targets: BackendResolver, *, charge_tokens: Callable[[RequestContext, int], None]
    ) -> None:
        self.settings = settings
        self._targets = targets
        self._charge_tokens = charge_tokens
        self._routes = [
            (re.compile(re.escape(endpoint.path).replace(r"\*", _ID)), self._route(endpoint, None))
            for endpoint in PASSTHROUGH_ENDPOINTS
        ]

    def find(self, path: str) -> Route | None:
        """Return the route of a path, without `/v1`, that only upstreams serve."""
        return next((route for pattern, route in self._routes if pattern.fullmatch(path)), None)

    def route_with_local(self, path: str, handler: LocalHandler) -> Route:
        """Return the route of a path that local models serve as well."""
        return self._route(next(endpoint for endpoint in PASSTHROUGH_ENDPOINTS if endpoint.path == path), handler)

    def _route(self, endpoint: PassthroughEndpoint, local: LocalHandler | None) -> Route:
        handle: RouteHandler = partial(self._handle, endpoint, local)
        return Route(endpoint.endpoint, dict.fromkeys(endpoint.methods, handle), endpoint.path, is_rate_limited=True)

    async def _handle(
        self, endpoint: PassthroughEndpoint, local: LocalHandler | None, ctx: RequestContext
    ) -> HttpResponse | None:
        if ctx.request.method == "HEAD":
            raise ApiError(405, "Method HEAD is not allowed for this path.", code="method_not_allowed")
        upload = await self._read_upload(ctx) if ctx.request.method == "POST" else PassthroughBody()
        backend = self._targets.find(ctx, upload.model) if endpoint.has_model else self._files_backend(ctx)
        if isinstance(backend, LocalBackend):
            if local is None or upload.json is None:
                raise ApiError(404, "Local models do not support this endpoint.", code="not_found")
            return await local(ctx, upload.json)
        write_s, path, attempts = self.settings.write_s, _upstream_path(ctx), RetryLoop(backend, trace=ctx.trace)
        request = PassthroughRequest(ctx, path, endpoint, upload, write_s=write_s, charge_tokens=self._charge_tokens)
        try:
            await attempts.run(request)
        except ApiError as error:
            if ctx.request.stream is None:
                raise
            ctx.log_fields["error"] = error.code
        finally:
            ctx.log_fields |= attempts.log_fields
        return None

    async def _read_upload(self, ctx: RequestContext) -> PassthroughBody:
        request, settings = ctx.request, self.settings
        check_encoding(request.headers)
        content_type = request.headers.get("Content-Type")
        limit = settings.upload_limit_bytes if is_multipart_form(content_type) else settings.body_limit_bytes
        data = await request.read_body(limit_bytes=limit, timeout_s=settings.body_s)
        return await run_cooperatively(read_upload_in_steps(data, content_type, is_browser="Origin" in request.headers))

    def _files_backend(self, ctx: RequestContext) -> Backend:
        """Return the upstream that stores files. All clients share its files, so the key must allow all models."""
        backend = self._targets.first_upstream()
        if backend is None or not self._targets.may_use(ctx, ""):
            message = "The API key of this request allows only some models, and does not allow files."
            raise ApiError(403, message, code="not_allowed")
        return backend


def _upstream_path(ctx: RequestContext) -> str:
    """Return the path without `/v1`, and the query without keys."""
    path, query = ctx.request.path.removeprefix(_API_PREFIX), _KEYS_IN_QUERY.sub("", ctx.request.query).strip("&")
    if not _QUERY.fullmatch(query):
        raise ApiError(400, "The query string has characters that cannot be forwarded.", code="invalid_query")
    return f"{path}?{query}" if query else path
