"""Generation of responses for all dialects: validation for the backend, and the answer to each request."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from welldone.core import sse
from welldone.core.events import Json
from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpResponse
from welldone.http.turns import run_cooperatively
from welldone.server.context import RequestContext, check_encoding
from welldone.server.generation.accounting import Accounting
from welldone.server.generation.answer import Answer
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.inspector.captures import CAPTURE_HEADER, StreamCapture
from welldone.server.parts import ServerParts
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest, read_body_in_steps, rename_error_param
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES
from welldone.server.requests.upstream_body import read_same_dialect_request, read_upstream_request
from welldone.server.requests.upstream_dialects import check_translations
from welldone.server.resume.api import DetachedRequest, ResumeService

_LONG_BODY_BYTES = 64 * 1024
"""Longer bodies for local models are validated in a thread: one with 4,096 tool calls would hold up the event loop for
90 ms. For upstreams they are hardly validated."""
_THREAD_TURN_S = 0.0005
"""How long a thread may keep the interpreter from the event loop, which takes it again for each callback. With Python's
5 ms a stream beside eight such requests had pauses of up to 190 ms, and has 12."""
Result = TypeVar("Result")


class GenerationService:
    """Generates responses."""

    def __init__(self, parts: ServerParts, resume: ResumeService | None = None) -> None:
        self.answers: set[Answer] = set()
        """Responses in progress."""
        self._accounting = Accounting(parts.metrics, parts.limits)
        self._resume = resume
        self._parts = parts
        self._captures = None if parts.page is None else parts.page.captures
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def read_body(self, ctx: RequestContext) -> Json:
        """Read the body of a request as a JSON object."""
        headers, settings = ctx.request.headers, self._parts.settings
        check_encoding(headers)
        data = await ctx.request.read_body(limit_bytes=settings.body_limit_bytes, timeout_s=settings.body_s)
        return await run_cooperatively(
            read_body_in_steps(data, headers.get("Content-Type"), is_browser="Origin" in headers)
        )

    async def run_in_thread(self, work: Callable[[], Result]) -> Result:
        """Run work that takes tens of milliseconds, one at a time: the event loop competes with each busy thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _run_in_turns, work)

    async def generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        """Produce a response; returns None if it was streamed.

        Raises:
            ApiError: it failed before anything was sent.
        """
        resume = self._resume
        is_long = (ctx.body_bytes > _LONG_BODY_BYTES or gen_request.is_long) and isinstance(backend, LocalBackend)
        if resume is not None and resume.is_requested(ctx) and _is_event_stream(gen_request):
            gen_request = msgspec.structs.replace(gen_request)  # a handler that ends removes `on_end` from its own
            await resume.generate(ctx, lambda detached: self._generate(detached, backend, gen_request, is_long=is_long))
            return None
        return await self._generate(ctx, backend, gen_request, is_long=is_long)

    async def _validate(
        self, gen_request: GenerationRequest, backend: LocalBackend | UpstreamBackend, *, is_long: bool
    ) -> ValidatedRequest:
        read = partial(_read_request, gen_request, backend)
        return await self.run_in_thread(read) if is_long else read()

    async def _generate(
        self,
        ctx: RequestContext,
        backend: LocalBackend | UpstreamBackend,
        gen_request: GenerationRequest,
        *,
        is_long: bool,
    ) -> HttpResponse | None:
        capture: StreamCapture | None = None
        if self._captures is not None and (name := ctx.request.headers.get(CAPTURE_HEADER)) is not None:
            capture = self._captures.begin(
                ctx.principal,
                name,
                endpoint=gen_request.endpoint.value,
                model=backend.name,
                is_stream=gen_request.body.get("stream") is True,
                began=ctx.started_at,
            )
        try:
            if gen_request.dialect is not None:
                await asyncio.sleep(0)  # translation and validation each take a turn of the event loop
            model = backend.model if isinstance(backend, LocalBackend) else None
            is_known = model is None or model.capabilities is not None
            request = await self._validate(gen_request, backend, is_long=is_long)
            request.ignored_fields += gen_request.ignored_fields
            if request.ignored_fields:
                ctx.log_fields["ignored_fields"] = request.ignored_fields
            if len(request.bodies) > 1:
                self._parts.limits.charge_requests(ctx.principal, len(request.bodies) - 1)
            # Again when the model is loaded, even if that happened during the validation.
            reread = None if is_known else partial(self._validate, gen_request, backend, is_long=is_long)
            return await self._answer(ctx, backend, gen_request, request, capture, reread)
        except ApiError as error:
            rename_error_param(error, gen_request.field_names)
            if capture is not None:
                capture.request_rejected(error.body(ctx.error_format, ctx.id))
            raise
        finally:
            if capture is not None:
                capture.end()

    async def _answer(
        self,
        ctx: RequestContext,
        backend: LocalBackend | UpstreamBackend,
        gen_request: GenerationRequest,
        request: ValidatedRequest,
        capture: StreamCapture | None,
        reread: Callable[[], Awaitable[ValidatedRequest]] | None,
    ) -> HttpResponse | None:
        model = backend.model if isinstance(backend, LocalBackend) else None
        times = self._parts.metrics.begin_stream()
        answer: Answer | None = None
        try:
            answer = Answer(
                ctx,
                backend,
                gen_request,
                request,
                self._parts,
                times=times,
                reread_request=reread,
                capture=capture,
            )
            self.answers.add(answer)
            if isinstance(ctx.request, DetachedRequest):
                ctx.request.events.abort = answer.abort
            if model is None:
                return await answer.run()
            with model.in_use():
                return await answer.run()
        finally:
            if answer is not None:
                self.answers.discard(answer)
            self._accounting.end(ctx, backend.name, times, answer)
            if answer is not None and gen_request.on_end is not None:
                gen_request.on_end(answer.pipeline.current.final_object)


def _run_in_turns(work: Callable[[], Result]) -> Result:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(_THREAD_TURN_S)
    try:
        return work()
    finally:
        sys.setswitchinterval(usual_s)


def _is_event_stream(gen_request: GenerationRequest) -> bool:
    """Whether the response is a stream of server-sent events: Ollama's are JSON lines."""
    dialect = gen_request.dialect
    return gen_request.body.get("stream") is True and (dialect is None or dialect.HEADERS is sse.HEADERS)


def capabilities_of(model: LocalModel) -> ModelCapabilities:
    """Return the capabilities of a model, as far as they are known before it is loaded."""
    if model.capabilities is not None:
        return model.capabilities
    return (
        msgspec.structs.replace(UNKNOWN_CAPABILITIES, kind="command")
        if model.settings.command
        else UNKNOWN_CAPABILITIES
    )


def _read_request(gen_request: GenerationRequest, backend: LocalBackend | UpstreamBackend) -> ValidatedRequest:
    """Validate the body: strictly for local models, leniently for upstreams."""
    body, endpoint, dialect = gen_request.body, gen_request.endpoint, gen_request.dialect
    if gen_request.is_same_dialect:
        return read_same_dialect_request(body)
    if dialect is not None and body.get("stream") is True:  # the other dialects always have usage
        body = {**body, "stream_options": {"include_usage": True}}
    needs_early_usage = dialect is not None and dialect.REPORTS_PROMPT_TOKENS_FIRST
    if isinstance(backend, LocalBackend):
        capabilities = capabilities_of(backend.model)
        read = read_chat if endpoint.is_chat else read_completions
        request = read(body, backend.model.settings, capabilities)
        if needs_early_usage and request.is_stream and capabilities.kind == "llama":
            for engine_body in request.bodies:
                engine_body["timings_per_token"] = True
        return request
    # Any of the upstreams may get the request: only features of all of them are used.
    if needs_early_usage and "stream_options" in body and {upstream.kind for upstream in backend.upstreams} == {"vllm"}:
        body["stream_options"]["continuous_usage_stats"] = True
    request = read_upstream_request(
        body,
        endpoint,
        supports_n=all(upstream.supports_native_n for upstream in backend.upstreams),
        wants_usage=backend.has_usage,
    )
    dialects = {upstream.chat_dialect for upstream in backend.upstreams if upstream.chat_dialect is not None}
    if dialects:
        check_translations(request, dialects, endpoint)
    return request
