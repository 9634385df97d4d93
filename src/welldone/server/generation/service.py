"""Generation of responses for all dialects: validation for the backend, the response task, logs, metrics and limits."""

import asyncio
from functools import partial

import msgspec

from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpResponse
from welldone.http.turns import run_cooperatively
from welldone.protocol import sse
from welldone.protocol.catalog import RULES, Severity
from welldone.protocol.continuation import ContinuationWay
from welldone.protocol.dialects.registry import SAME_DIALECT_ENDPOINTS
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json, Usage
from welldone.server.context import RequestContext, check_encoding
from welldone.server.generation.client_stream import ResponseState
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.response_task import ResponseTask
from welldone.server.inspector.captures import CAPTURE_HEADER, StreamCapture
from welldone.server.observe.tracing import AnswerFacts
from welldone.server.parts import ServerParts
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest, read_body_in_steps, rename_error_param
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES
from welldone.server.requests.upstream_body import read_same_dialect_request, read_upstream_request
from welldone.server.requests.upstream_dialects import check_translations
from welldone.server.resume.api import DetachedRequest, ResumeService


class GenerationService:
    """Generates responses, and records logs, metrics and token usage."""

    def __init__(self, parts: ServerParts, resume: ResumeService | None = None) -> None:
        self.tasks: set[ResponseTask] = set()
        """Responses in progress."""
        self._resume = resume
        self._parts = parts
        self._captures = None if parts.page is None else parts.page.captures

    async def read_body(self, ctx: RequestContext) -> Json:
        """Read the body of a request as a JSON object."""
        headers, settings = ctx.request.headers, self._parts.settings
        check_encoding(headers)
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
        resume = self._resume
        if resume is not None and resume.is_requested(ctx) and _is_event_stream(gen_request):
            gen_request = msgspec.structs.replace(gen_request)  # a handler that ends removes `on_end` from its own
            await resume.generate(ctx, lambda detached: self._generate(detached, backend, gen_request))
            return None
        return await self._generate(ctx, backend, gen_request)

    async def _generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
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
            request = _read_request(gen_request, backend)
            request.ignored_fields += gen_request.ignored_fields
            if request.ignored_fields:
                ctx.log_fields["ignored_fields"] = request.ignored_fields
            if len(request.bodies) > 1:
                self._parts.limits.charge_requests(ctx.principal, len(request.bodies) - 1)
            return await self._run_task(ctx, backend, gen_request, request, capture)
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
        request: ValidatedRequest,
        capture: StreamCapture | None,
    ) -> HttpResponse | None:
        model = backend.model if isinstance(backend, LocalBackend) else None
        is_known = model is None or model.capabilities is not None
        times = self._parts.metrics.begin_stream()
        task: ResponseTask | None = None
        try:
            task = ResponseTask(
                ctx,
                backend,
                gen_request,
                request,
                self._parts,
                times=times,
                # Again when the model is loaded.
                reread_request=None if is_known else partial(_read_request, gen_request, backend),
                capture=capture,
            )
            self.tasks.add(task)
            if isinstance(ctx.request, DetachedRequest):
                ctx.request.events.abort = task.abort
            if model is None:
                return await task.run()
            with model.in_use():
                return await task.run()
        finally:
            if task is not None:
                self.tasks.discard(task)
                if task.error is None:  # the model exists
                    self._parts.metrics.add_model(backend.name)
            self._parts.metrics.end_stream(times, backend.name)
            if task is not None:
                self._record_usage(ctx, task)
                if gen_request.on_end is not None:
                    gen_request.on_end(task.pipeline.final_object)

    def _record_usage(self, ctx: RequestContext, task: ResponseTask) -> None:
        """Record repairs, times, tokens and failure of a response in metrics, limits and the log."""
        times, result = task.times, task.result
        usage = result.usage
        repaired = tuple(entry.rule for entry in result.repairs) if result.repairs else ()
        if task.backend.is_third_party:
            if repaired:
                self._parts.metrics.count_repairs(repaired)
                ctx.log_fields["repaired"] = repaired
        else:  # our own engine deviates in the same way in every response: count only what breaks clients
            self._parts.metrics.count_repairs(rule for rule in repaired if RULES[rule].severity is Severity.BREAKS)
        if upstream := task.retries.upstream:
            if repaired:
                self._parts.metrics.count_upstream_repairs(upstream, repaired)
            self._parts.metrics.observe_upstream_times(upstream, times)
            ctx.log_fields |= task.retries.log_fields
            content, arguments = result.invalid_json_count, result.invalid_arguments_count
            if content or arguments:
                self._parts.metrics.count_broken_json(upstream, content=content, arguments=arguments)
                ctx.log_fields["broken_json"] = content + arguments
        self._parts.limits.charge_tokens(
            ctx.principal, task.cost.billed_tokens(usage, is_complete=task.client.state is ResponseState.COMPLETE)
        )
        self._parts.metrics.count_retries(task.retries.repeated)
        for way in task.continuations.ways:
            self._parts.metrics.count_continuation(way, task.continuation_outcome)
        for _ in range(task.continuations.abandoned_replays):
            self._parts.metrics.count_continuation(ContinuationWay.REPLAY, "differed")
        if task.continuations.ways:
            ctx.log_fields["continued"] = tuple(task.continuations.ways)
        if ctx.trace is not None and ctx.trace.is_recording:
            ctx.trace.record_answer(_answer_facts(task))
        calls = {"printed_calls": result.text_tool_calls, "converted_calls": result.converted_calls}
        ctx.log_fields |= {name: count for name, count in calls.items() if count}
        if times.ttft_s is not None:
            ctx.log_fields["ttft_ms"] = round(times.ttft_s * 1000, 1)
        if times.queued_s is not None:
            ctx.log_fields["queued_ms"] = round(times.queued_s * 1000, 1)
        if usage is not None:
            prompt_s = max(0.0, (times.ttft_s or 0.0) - (times.queued_s or 0.0))
            self._parts.metrics.count_tokens(
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
            self._parts.metrics.count_stream_failure(failure.code or failure.type)
            ctx.log_fields |= {"error": failure.code or failure.type, "reason": failure.message}


def _answer_facts(task: ResponseTask) -> AnswerFacts:
    repairs, usage = task.result.repairs, task.result.usage
    if not task.backend.is_third_party:
        repairs = [entry for entry in repairs if RULES[entry.rule].severity is Severity.BREAKS]
    return AnswerFacts(
        is_stream=task.is_stream,
        response_model=task.response_model,
        finish_reasons=task.finish_reasons,
        cached_tokens=0 if usage is None else _cached_tokens(usage),
        repairs=repairs,
        continuations=[(way, task.continuation_outcome) for way in task.continuations.ways],
    )


def _is_event_stream(gen_request: GenerationRequest) -> bool:
    """Whether the response is a stream of server-sent events: Ollama's are JSON lines."""
    dialect = gen_request.dialect
    return gen_request.body.get("stream") is True and (dialect is None or dialect.HEADERS is sse.HEADERS)


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


def _read_request(gen_request: GenerationRequest, backend: LocalBackend | UpstreamBackend) -> ValidatedRequest:
    """Validate the body: strictly for local models, leniently for upstreams."""
    body, endpoint, dialect = gen_request.body, gen_request.endpoint, gen_request.dialect
    if endpoint in SAME_DIALECT_ENDPOINTS:
        return read_same_dialect_request(body)
    if dialect is not None and body.get("stream") is True:  # the other dialects always have usage
        body = {**body, "stream_options": {"include_usage": True}}
    needs_early_usage = dialect is not None and dialect.REPORTS_PROMPT_TOKENS_FIRST
    if isinstance(backend, LocalBackend):
        capabilities = capabilities_of(backend.model)
        read = read_chat if endpoint is Endpoint.CHAT else read_completions
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


def _cached_tokens(usage: Usage) -> int:
    details = usage.extra_fields.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0
