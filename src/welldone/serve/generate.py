"""How an answer is given, whatever dialect its client speaks: from an order to what is counted of it in the end."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from welldone.engines.fleet import ModelCapabilities, LocalModel
from welldone.engines.settings import ModelSettings
from welldone.net.inbound import HttpResponse
from welldone.net.turns import run_cooperatively
from welldone.serve.answers import ResponseTask
from welldone.serve.app import RequestContext
from welldone.serve.backends import LocalBackend, UpstreamBackend
from welldone.serve.errors import ApiError
from welldone.serve.keys import ApiKeys
from welldone.serve.limits import RateLimiter
from welldone.serve.metrics import Metrics
from welldone.serve.page.tapes import CAPTURE_HEADER, CaptureStore
from welldone.serve.page.watch import StreamCapture
from welldone.serve.readers_of_reasoning import reasoning_fields_for
from welldone.serve.recording import TraceRecorder
from welldone.serve.reports import REPORT_REQUEST_HEADER, ReportHeaders
from welldone.serve.requests import ValidatedRequest, read_chat, read_completions
from welldone.serve.requests.body import read_body_in_steps
from welldone.serve.requests.foreign import read_upstream_request, read_same_dialect_request
from welldone.serve.requests.names import rename_error_param
from welldone.serve.requests.sampling import UNKNOWN_ABILITIES
from welldone.serve.settings import ServeSettings
from welldone.serve.sticky import sticky_key
from welldone.wire.dialects.dialect import Dialect
from welldone.wire.events import Json, Usage
from welldone.wire.faults.catalogue import RULES_BY_ID
from welldone.wire.faults.fault import Severity
from welldone.wire.head import Endpoint, Envelope

RequestReader: TypeAlias = Callable[[Json, ModelSettings, ModelCapabilities | None], ValidatedRequest]
"""Checks a body, and turns it into what the engine gets."""

_REQUEST_READERS: dict[Endpoint, RequestReader] = {Endpoint.CHAT: read_chat, Endpoint.COMPLETIONS: read_completions}


class GenerationRequest(msgspec.Struct, kw_only=True):
    """An answer that is wanted."""

    body: Json
    """What the server is asked, in the words of `endpoint`."""
    id: str
    """What the answer is called."""
    endpoint: Endpoint = Endpoint.CHAT
    """What the server is asked in: chat, also where the client speaks another dialect, unless the server does too."""
    dialect: Dialect | None = None
    """How the client is answered, where that is not how the server was asked."""
    field_names: Mapping[str, str] = {}
    """What the client calls fields of the body, or their beginnings, where it has other names for them."""
    echo: Json = {}
    """What a native answer repeats of its request."""
    forwarded_headers: Mapping[str, str] = {}
    """What goes on of the client's headers, to a server that speaks its dialect."""
    on_end: Callable[[Json | None], None] | None = None
    """Called at the end with the answer as an object, if its dialect has one and it came to its end."""


class ResponseGenerator(Protocol):
    """Gives answers."""

    async def read_body(self, ctx: RequestContext) -> Json:
        """The body of a request, as a JSON object."""

    async def generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        """Give an answer; None where it was streamed. ApiError where there is none, and nothing was sent."""


class GenerationService:
    """Gives answers, and counts what they cost."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        limits: RateLimiter,
        *,
        keys: ApiKeys,
        recorder: TraceRecorder | None,
        captures: CaptureStore | None = None,
        response_headers: Callable[[RequestContext], dict[str, str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.tasks: set[ResponseTask] = set()
        """Those that are being given."""
        self._settings = settings
        self._metrics = metrics
        self._limits = limits
        self._keys = keys
        self._recorder = recorder
        self._captures = captures
        self._response_headers = response_headers
        self._now = now

    async def read_body(self, ctx: RequestContext) -> Json:
        """The body of a request, as a JSON object."""
        headers = ctx.request.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        data = await ctx.request.read_body(limit_bytes=self._settings.body_limit_bytes, timeout_s=self._settings.body_s)
        return await run_cooperatively(
            read_body_in_steps(data, headers.get("Content-Type"), is_browser="Origin" in headers)
        )

    async def generate(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        """Give an answer; None where it was streamed.

        Raises:
            ApiError: there is none, and nothing was sent.
        """
        watch = self._start_capture(ctx, backend, gen_request)
        try:
            return await self._run_task(ctx, backend, gen_request, watch)
        except ApiError as error:
            rename_error_param(error, gen_request.field_names)
            if watch is not None:
                watch.request_rejected(error.body(ctx.error_format, ctx.id))
            raise
        finally:
            if watch is not None:
                watch.end()

    def _start_capture(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> StreamCapture | None:
        """What keeps the answer for the page, if that is how it was asked for."""
        if self._captures is None or (name := ctx.request.headers.get(CAPTURE_HEADER)) is None:
            return None
        return self._captures.begin(
            ctx.principal,
            name,
            endpoint=gen_request.endpoint.value,
            model=backend.name,
            is_stream=gen_request.body.get("stream") is True,
            began=ctx.started_at,
        )

    async def _run_task(
        self,
        ctx: RequestContext,
        backend: LocalBackend | UpstreamBackend,
        gen_request: GenerationRequest,
        capture: StreamCapture | None,
    ) -> HttpResponse | None:
        if gen_request.dialect is not None:
            await asyncio.sleep(0)  # the translation took a turn of its own
        reading = _request_reader(gen_request, backend)
        request = reading()
        self._limits.charge_requests(ctx.principal, len(request.bodies) - 1)
        times = self._metrics.new_stream_times()
        headers = ctx.request.headers
        is_known = not isinstance(backend, LocalBackend) or backend.model.capabilities is not None
        answer = ResponseTask(
            ctx.request,
            request,
            backend,
            reread_request=None if is_known else reading,  # what depends on the model is known only when it is loaded
            sticky=sticky_key(ctx, gen_request.body, backend.upstreams),
            envelope=Envelope(gen_request.id, int(self._now()), backend.name),
            dialect=gen_request.dialect,
            echo=gen_request.echo,
            forwarded_headers=gen_request.forwarded_headers,
            reasoning_fields=reasoning_fields_for(headers.get("User-Agent"), self._settings.reasoning),
            settings=self._settings,
            report=ReportHeaders(
                ctx.id,
                times,
                is_requested=self._settings.report or REPORT_REQUEST_HEADER in headers,
                # As in /page/api/state: upstreams are for admins, unless the operator shows them to everyone.
                shows_upstreams=self._settings.report or self._keys.is_admin(ctx.principal),
            ),
            headers=lambda: self._response_headers(ctx),
            recorder=self._recorder,
            capture=capture,
            body_budget=ctx.body_budget,
        )
        self.tasks.add(answer)
        self._metrics.start_stream(times)  # not before: what fails until here never ends
        try:
            with backend.using():
                return await answer.run()
        finally:
            self.tasks.discard(answer)
            if answer.error is None:  # a name that somebody answers for
                self._metrics.add_model(backend.name)
            self._metrics.end_stream(times, backend.name)
            self._record_usage(ctx, answer)
            if gen_request.on_end is not None:
                gen_request.on_end(answer.final)

    def _record_usage(self, ctx: RequestContext, task: ResponseTask) -> None:
        """Count what an answer cost, and what was wrong with it."""
        times, pipe = task.times, task.pipeline
        usage = pipe.usage
        mended = tuple(note.rule for note in pipe.repair_log.entries())
        if task.backend.is_third_party:
            self._metrics.count_repairs(mended)
            ctx.log_fields["mended"] = mended
        else:  # our own engine deviates in the same way in every answer: only what breaks clients is counted
            self._metrics.count_repairs(rule for rule in mended if RULES_BY_ID[rule].severity is Severity.BREAKS)
        if upstream := task.report.upstream:
            self._metrics.count_upstream_repairs(upstream, mended)
            self._metrics.observe_upstream_times(upstream, times)
            self._metrics.count_broken_json(
                upstream, content=pipe.invalid_json_count, arguments=pipe.invalid_arguments_count
            )
            ctx.log_fields |= {"upstream": upstream, "failed": tuple(task.report.failed_attempts)}
            if pipe.invalid_json_count or pipe.invalid_arguments_count:
                ctx.log_fields["broken_json"] = pipe.invalid_json_count + pipe.invalid_arguments_count
        self._limits.charge_tokens(ctx.principal, task.cost.billed_tokens(usage, is_complete=task.is_complete))
        if pipe.text_tool_calls:
            ctx.log_fields["printed_calls"] = pipe.text_tool_calls
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
        failure = pipe.failure
        if failure is not None and ctx.request.stream is not None:
            self._metrics.count_stream_failure(failure.code or failure.type)
            ctx.log_fields |= {"error": failure.code or failure.type, "reason": failure.message}


def speaks_natively(backend: LocalBackend | UpstreamBackend, endpoint: Endpoint) -> bool:
    """Whether all who answer for a model speak a dialect themselves. Our own engines are asked in chat."""
    upstreams = backend.upstreams
    return bool(upstreams) and all(endpoint.value in upstream.settings.speaks for upstream in upstreams)


def abilities_of(model: LocalModel) -> ModelCapabilities:
    """What the model can do, as far as that is known before it is loaded."""
    if model.capabilities is not None:
        return model.capabilities
    return msgspec.structs.replace(UNKNOWN_ABILITIES, kind="command") if model.settings.command else UNKNOWN_ABILITIES


def _request_reader(
    gen_request: GenerationRequest, backend: LocalBackend | UpstreamBackend
) -> Callable[[], ValidatedRequest]:
    """Reads the body for those who answer: with strict rules for our own engines, freely for upstreams."""
    body, upstreams = gen_request.body, backend.upstreams
    streams = all(upstream.settings.stream for upstream in upstreams)
    if gen_request.endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES):
        return lambda: read_same_dialect_request(body, gen_request.endpoint, supports_streaming=streams)
    if gen_request.dialect is not None and body.get("stream") is True:  # what is translated is always counted
        body = {**body, "stream_options": {"include_usage": True}}
    if isinstance(backend, LocalBackend):
        model, read = backend.model, _REQUEST_READERS[gen_request.endpoint]
        return lambda: _with_running_usage(
            gen_request, read(body, model.settings, abilities_of(model)), abilities_of(model)
        )
    # Any of the upstreams may be asked: what one of them cannot do is done here.
    if (
        _needs_early_usage(gen_request)
        and "stream_options" in body
        and all(upstream.kind == "vllm" for upstream in upstreams)
    ):
        body["stream_options"]["continuous_usage_stats"] = True
    return lambda: read_upstream_request(
        body,
        "chat" if gen_request.endpoint is Endpoint.CHAT else "completions",
        supports_n=all(upstream.supports_native_n for upstream in upstreams),
        supports_streaming=streams,
        wants_usage=all(upstream.settings.usage for upstream in upstreams),
    )


def _needs_early_usage(gen_request: GenerationRequest) -> bool:
    return gen_request.dialect is not None and gen_request.dialect.REPORTS_PROMPT_TOKENS_FIRST


def _with_running_usage(
    gen_request: GenerationRequest, request: ValidatedRequest, abilities: ModelCapabilities
) -> ValidatedRequest:
    """The same request; llama.cpp is asked to count as it goes, where that is to be known first."""
    if _needs_early_usage(gen_request) and request.is_stream and abilities.kind == "llama":
        for part in request.bodies:
            part["timings_per_token"] = True
    return request


def _cached_tokens(usage: Usage) -> int:
    """The tokens of the prompt that the engine knew from before."""
    details = usage.extra_fields.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
