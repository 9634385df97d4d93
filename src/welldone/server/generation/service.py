"""How an answer is given, whatever dialect its client speaks: from an order to what is counted of it in the end."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.server import ServeSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError
from welldone.http.cooperative import run_cooperatively
from welldone.http.server import HttpResponse
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Severity
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Json, Usage
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.app import RequestContext
from welldone.server.generation.report_headers import REPORT_REQUEST_HEADER, ReportHeaders
from welldone.server.generation.response_task import ResponseTask
from welldone.server.generation.targets import sticky_key
from welldone.server.inspector.captures import CAPTURE_HEADER, CaptureStore, StreamCapture
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.recording import TraceRecorder
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest, read_body_in_steps, rename_error_param
from welldone.server.requests.sampling import UNKNOWN_ABILITIES
from welldone.server.requests.upstream_body import read_same_dialect_request, read_upstream_request

# In which field a client looks for a model's thoughts.
#
# OpenAI's API has none. DeepSeek's name, `reasoning_content`, is the one most clients know; `reasoning` is OpenRouter's,
# and vLLM's since 2026. Both at once are shown twice by some clients: so one is sent, unless the operator wants both.


REASONING_CONTENT = "reasoning_content"
REASONING = "reasoning"

_FIELDS_BY_SETTING = {
    REASONING_CONTENT: (REASONING_CONTENT,),
    REASONING: (REASONING,),
    "both": (REASONING_CONTENT, REASONING),
}

_FIELD_BY_CLIENT = (
    # The start of a User-Agent's product, in lower case, and the name that it reads.
    ("codex", REASONING),  # openai/codex, chat_completions.rs: no other name
    ("pydantic-ai", REASONING),  # looks there first
    ("openrouter", REASONING),  # its SDKs know its own API
    ("zed", REASONING_CONTENT),  # knows both, and shows both
    ("ai-sdk", REASONING_CONTENT),  # looks there first
    ("goose", REASONING_CONTENT),  # no other name
    ("langchain4j", REASONING_CONTENT),  # no other name
)
"""Clients of which it is known. Any other gets `reasoning_content`."""


def reasoning_fields_for(user_agent: str | None, setting: str) -> tuple[str, ...]:
    """The names under which a client's thoughts are sent. `setting`: reasoning_content, reasoning, both or auto."""
    fixed = _FIELDS_BY_SETTING.get(setting)
    if fixed is not None:
        return fixed
    products = (user_agent or "").lower().split()
    for product in products:
        for start, name in _FIELD_BY_CLIENT:
            if product.startswith(start):
                return (name,)
    return (REASONING_CONTENT,)


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
