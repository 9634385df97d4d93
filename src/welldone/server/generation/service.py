"""Generation of responses for all dialects: validation for the backend, the response task, logs, metrics and limits."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError
from welldone.http.cooperative import run_cooperatively
from welldone.http.server import HttpResponse
from welldone.protocol.catalog import RULES, Severity
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json, Usage
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.app import RequestContext
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.report_headers import REPORT_REQUEST_HEADER, ReportHeaders
from welldone.server.generation.response_task import GenerationServices, ResponseState, ResponseTask
from welldone.server.inspector.captures import CAPTURE_HEADER, CaptureStore, StreamCapture
from welldone.server.observe.metrics import Metrics
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest, read_body_in_steps, rename_error_param
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES
from welldone.server.requests.upstream_body import read_same_dialect_request, read_upstream_request

RequestReader: TypeAlias = Callable[[Json, ModelSettings, ModelCapabilities | None], ValidatedRequest]
"""Validates a body for a local model."""

_REQUEST_READERS: dict[Endpoint, RequestReader] = {Endpoint.CHAT: read_chat, Endpoint.COMPLETIONS: read_completions}


class ResponseGenerator(Protocol):
    """Generates responses."""

    async def read_body(self, ctx: RequestContext) -> Json:
        """Read the body of a request as a JSON object."""

    async def generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        """Produce a response; returns None if it was streamed. Raises ApiError before anything was sent."""


class GenerationService:
    """Generates responses, and records logs, metrics and token usage."""

    def __init__(
        self,
        services: GenerationServices,
        metrics: Metrics,
        limits: RateLimiter,
        *,
        keys: ApiKeys,
        captures: CaptureStore | None = None,
    ) -> None:
        self.tasks: set[ResponseTask] = set()
        """Responses in progress."""
        self._services = services
        self._metrics = metrics
        self._limits = limits
        self._keys = keys
        self._captures = captures

    async def read_body(self, ctx: RequestContext) -> Json:
        """Read the body of a request as a JSON object."""
        headers = ctx.request.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body without Content-Encoding.", code="unsupported_encoding")
        settings = self._services.settings
        data = await ctx.request.read_body(limit_bytes=settings.body_limit_bytes, timeout_s=settings.body_s)
        return await run_cooperatively(
            read_body_in_steps(data, headers.get("Content-Type"), is_browser="Origin" in headers)
        )

    async def generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        """Produce a response; returns None if it was streamed.

        Raises:
            ApiError: it failed before anything was sent.
        """
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
            return await self._run_task(ctx, backend, gen_request, capture)
        except ApiError as error:
            rename_error_param(error, gen_request.field_names)
            if capture is not None:
                capture.request_rejected(error.body(ctx.error_format, ctx.id))
            raise
        finally:
            if capture is not None:
                capture.end()

    async def _run_task(
        self,
        ctx: RequestContext,
        backend: LocalBackend | UpstreamBackend,
        gen_request: GenerationRequest,
        capture: StreamCapture | None,
    ) -> HttpResponse | None:
        if gen_request.dialect is not None:
            await asyncio.sleep(0)  # translation and validation each take a turn of the event loop
        read_request = _request_reader(gen_request, backend)
        request = read_request()
        self._limits.charge_requests(ctx.principal, len(request.bodies) - 1)
        times = self._metrics.new_stream_times()
        settings = self._services.settings
        is_known = not isinstance(backend, LocalBackend) or backend.model.capabilities is not None
        task = ResponseTask(
            ctx,
            backend,
            gen_request,
            request,
            self._services,
            report=ReportHeaders(
                times,
                is_requested=settings.report or REPORT_REQUEST_HEADER in ctx.request.headers,
                # As in /page/api/state: only admins see upstreams, unless the operator shows them to everyone.
                shows_upstreams=settings.report or self._keys.is_admin(ctx.principal),
            ),
            reread_request=None if is_known else read_request,  # again when the model is loaded
            capture=capture,
        )
        self.tasks.add(task)
        self._metrics.start_stream(times)  # not earlier: a failure up to here would not call `end_stream`
        try:
            with backend.using():
                return await task.run()
        finally:
            self.tasks.discard(task)
            if task.error is None:  # the model exists
                self._metrics.add_model(backend.name)
            self._metrics.end_stream(times, backend.name)
            self._record_usage(ctx, task)
            if gen_request.on_end is not None:
                gen_request.on_end(task.final)

    def _record_usage(self, ctx: RequestContext, task: ResponseTask) -> None:
        """Record repairs, times, tokens and failure of a response in metrics, limits and the log."""
        times, result = task.times, task.pipeline.result
        usage = result.usage
        repaired = tuple(entry.rule for entry in result.repairs)
        if task.backend.is_third_party:
            self._metrics.count_repairs(repaired)
            ctx.log_fields["repaired"] = repaired
        else:  # our own engine deviates in the same way in every response: count only what breaks clients
            self._metrics.count_repairs(rule for rule in repaired if RULES[rule].severity is Severity.BREAKS)
        if upstream := task.retries.upstream:
            self._metrics.count_upstream_repairs(upstream, repaired)
            self._metrics.observe_upstream_times(upstream, times)
            self._metrics.count_broken_json(
                upstream, content=result.invalid_json_count, arguments=result.invalid_arguments_count
            )
            ctx.log_fields |= task.retries.log_fields
            if result.invalid_json_count or result.invalid_arguments_count:
                ctx.log_fields["broken_json"] = result.invalid_json_count + result.invalid_arguments_count
        self._limits.charge_tokens(
            ctx.principal, task.cost.billed_tokens(usage, is_complete=task.state is ResponseState.COMPLETE)
        )
        if result.text_tool_calls:
            ctx.log_fields["printed_calls"] = result.text_tool_calls
        ctx.log_fields |= {"ttft_ms": _milliseconds(times.ttft_s), "queued_ms": _milliseconds(times.queued_s)}
        if usage is not None:
            prompt_s = max(0.0, (times.ttft_s or 0.0) - (times.queued_s or 0.0))
            self._metrics.count_tokens(
                ctx.model,
                usage.prompt_tokens,
                usage.completion_tokens,
                cached=_cached_tokens(usage),
                prompt_s=prompt_s,
                completion_s=times.gaps_s,
            )
            ctx.log_fields |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        failure = result.failure
        if failure is not None and ctx.request.stream is not None:
            self._metrics.count_stream_failure(failure.code or failure.type)
            ctx.log_fields |= {"error": failure.code or failure.type, "reason": failure.message}


def speaks_natively(backend: LocalBackend | UpstreamBackend, endpoint: Endpoint) -> bool:
    """Whether all upstreams of a model support a dialect. Local engines support chat only."""
    upstreams = backend.upstreams
    return bool(upstreams) and all(endpoint.value in upstream.settings.speaks for upstream in upstreams)


def capabilities_of(model: LocalModel) -> ModelCapabilities:
    """Return the capabilities of a model, as far as they are known before it is loaded."""
    if model.capabilities is not None:
        return model.capabilities
    return (
        msgspec.structs.replace(UNKNOWN_CAPABILITIES, kind="command")
        if model.settings.command
        else UNKNOWN_CAPABILITIES
    )


def _request_reader(
    gen_request: GenerationRequest, backend: LocalBackend | UpstreamBackend
) -> Callable[[], ValidatedRequest]:
    """Return a function that validates the body: strictly for local models, leniently for upstreams."""
    body, upstreams = gen_request.body, backend.upstreams
    supports_streaming = all(upstream.settings.stream for upstream in upstreams)
    if gen_request.endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES):
        return lambda: read_same_dialect_request(body, gen_request.endpoint, supports_streaming=supports_streaming)
    if gen_request.dialect is not None and body.get("stream") is True:  # the other dialects always have usage
        body = {**body, "stream_options": {"include_usage": True}}
    needs_early_usage = gen_request.dialect is not None and gen_request.dialect.REPORTS_PROMPT_TOKENS_FIRST
    if isinstance(backend, LocalBackend):
        model, read = backend.model, _REQUEST_READERS[gen_request.endpoint]

        def read_local() -> ValidatedRequest:
            capabilities = capabilities_of(model)
            request = read(body, model.settings, capabilities)
            if needs_early_usage and request.is_stream and capabilities.kind == "llama":
                for engine_body in request.bodies:
                    engine_body["timings_per_token"] = True
            return request

        return read_local
    # Any of the upstreams may get the request: only features of all of them are used.
    if needs_early_usage and "stream_options" in body and all(upstream.kind == "vllm" for upstream in upstreams):
        body["stream_options"]["continuous_usage_stats"] = True
    return lambda: read_upstream_request(
        body,
        "chat" if gen_request.endpoint is Endpoint.CHAT else "completions",
        supports_n=all(upstream.supports_native_n for upstream in upstreams),
        supports_streaming=supports_streaming,
        wants_usage=all(upstream.settings.usage for upstream in upstreams),
    )


def _cached_tokens(usage: Usage) -> int:
    details = usage.extra_fields.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
