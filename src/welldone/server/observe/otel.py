"""OpenTelemetry spans of requests and of the attempts at them, exported with OTLP over HTTP.

Names follow the semantic conventions for HTTP and for generative AI; what they do not have is below `welldone.`. The
spans have no text of requests, answers or errors. The SDK reads its settings from the environment (`OTEL_*`). A thread
of the SDK exports the spans, and drops them if the collector does not keep up.
"""

import logging
import re
import threading
import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

import welldone
from welldone.core.catalog import RULES
from welldone.gateway.backends import AttemptTrace, BackendLease
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED
from welldone.http.messages import HttpRequest
from welldone.server.context import random_hex
from welldone.server.observe import log
from welldone.server.observe.log import RequestLogEntry
from welldone.server.observe.tracing import (
    TRACEPARENT,
    TRACESTATE,
    AnswerFacts,
    RequestTrace,
    TraceContext,
    read_trace_context,
)

AttributeValue = str | bool | int | float | list[str]

_CLOSE_S = 5.0
"""A collector on the same machine or network takes milliseconds. With a drain of 30 s, Kubernetes allows no more."""
_TEXT_LIMIT = 256  # characters of a path, and of a model's name in a reply; those of requests have up to 128
_REASON_LIMIT = 64  # characters; those of Anthropic and Google may be unknown words of the upstream
_REPORT_S = 60.0  # between two log lines about the export
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_OPERATIONS = {
    "/chat/completions": "chat",
    "/completions": "text_completion",
    "/responses": "chat",
    "/responses/compact": "chat",
    "/messages": "chat",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/models/*:generateContent": "generate_content",
    "/models/*:streamGenerateContent": "generate_content",
    "/embeddings": "embeddings",
}
"""`gen_ai.operation.name` by path."""
_DEFAULT_PROVIDER = "openai"
"""`gen_ai.provider.name` of servers whose kind is unknown: as clients of an OpenAI-compatible API report it."""
_PREFIXES = ("/v1/", "/v1beta/")
_ERROR_CODE = re.compile(r"[a-z0-9_.-]{1,64}")


class SpanTrace(RequestTrace):
    """The span of a request."""

    def __init__(self, tracer: Tracer, span: Span, operation: str, endpoint: str) -> None:
        context = span.get_span_context()
        super().__init__(f"{context.trace_id:032x}", ())
        self._tracer = tracer
        self._span = span
        self._operation = operation
        self._endpoint = endpoint

    @property
    def is_recording(self) -> bool:  # type: ignore[override]
        """Whether the span is sampled and has not ended: a resumable stream may go on without its request."""
        return self._span.is_recording()

    def begin_attempt(self, lease: BackendLease, number: int) -> AttemptTrace:
        """Start the span of an attempt."""
        upstream, address = lease.upstream, lease.address
        provider = "" if upstream is None else upstream.kind
        attributes: dict[str, AttributeValue] = {
            "gen_ai.provider.name": provider or _DEFAULT_PROVIDER,
            "gen_ai.request.model": lease.model,
            "server.address": address.socket or address.host,
            "welldone.upstream.name": lease.name,
            "welldone.attempt.number": number,
        }
        if self._operation:
            attributes["gen_ai.operation.name"] = self._operation
        if address.socket is None:
            attributes["server.port"] = address.port
        span = self._tracer.start_span(
            f"{self._operation or self._endpoint} {lease.model}".rstrip(),
            set_span_in_context(self._span, Context()),
            SpanKind.CLIENT,
            attributes,
        )
        return _AttemptSpan(span)

    def record_retry(self, lease: BackendLease, number: int, outcome: str) -> None:
        """Add the event of a failed attempt that is repeated."""
        if self.is_recording:
            self._span.add_event(
                "welldone.retry",
                {"welldone.upstream.name": lease.name, "welldone.attempt.number": number, "error.type": outcome},
            )

    def record_answer(self, answer: AnswerFacts) -> None:
        """Add attributes and events of an answer."""
        attributes: dict[str, AttributeValue | None] = {
            "gen_ai.request.stream": answer.is_stream,
            "gen_ai.response.model": (answer.response_model or "")[:_TEXT_LIMIT] or None,
            "gen_ai.response.finish_reasons": [reason[:_REASON_LIMIT] for reason in answer.finish_reasons],
            "gen_ai.usage.cache_read.input_tokens": answer.cached_tokens,
        }
        self._span.set_attributes({name: value for name, value in attributes.items() if value not in (None, [], 0)})
        for entry in answer.repairs:
            self._span.add_event(
                "welldone.repair",
                {
                    "welldone.rule.id": entry.rule,
                    "welldone.rule.severity": RULES[entry.rule].severity.value,
                    "welldone.repair.count": entry.count,
                },
            )
        for way, outcome in answer.continuations:
            self._span.add_event(
                "welldone.continuation", {"welldone.continuation.way": way, "welldone.continuation.outcome": outcome}
            )

    def end_request(self, entry: RequestLogEntry) -> None:
        """Add attributes of the request, and end its span."""
        if self._span.is_recording():
            self._span.set_attributes(_request_attributes(entry))
            if entry.has_failed:
                self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _request_attributes(entry: RequestLogEntry) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.request.model": entry.model,
        "gen_ai.usage.input_tokens": entry.prompt_tokens,
        "gen_ai.usage.output_tokens": entry.completion_tokens,
        "gen_ai.response.time_to_first_chunk": None if entry.ttft_ms is None else entry.ttft_ms / 1000,
        "http.response.status_code": None if entry.has_left else entry.status,
        "welldone.request.id": entry.request_id,
        "welldone.upstream.name": entry.upstream,
        "welldone.queue.duration": None if entry.queued_ms is None else entry.queued_ms / 1000,
        "welldone.client.disconnected": True if entry.has_left else None,
    }
    if entry.error is not None:  # a code, or a message that may have a text of the client
        attributes["error.type"] = entry.error if _ERROR_CODE.fullmatch(entry.error) else str(entry.status)
    return {name: value for name, value in attributes.items() if value is not None}


class _AttemptSpan:
    def __init__(self, span: Span) -> None:
        self._span: Span | None = span
        self._context = span.get_span_context()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The context of the span."""
        context = self._context
        parent = (TRACEPARENT, f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")
        state = context.trace_state.to_header()
        return (parent, (TRACESTATE, state)) if state else (parent,)

    def end(self, outcome: str | None) -> None:
        """Record the outcome, once."""
        span, self._span = self._span, None
        if span is not None:
            if outcome is not None:
                span.set_attribute("error.type", outcome)
                if outcome != CLIENT_DISCONNECTED.outcome:  # the server is not to blame
                    span.set_status(StatusCode.ERROR)
            span.end()


class OtelTracer:
    """Starts spans, and exports them until `close`."""

    def __init__(self, provider: TracerProvider, *, is_tls: bool) -> None:
        self._provider = provider
        self._scheme = "https" if is_tls else "http"
        self._tracer = provider.get_tracer("welldone", welldone.__version__)

    def begin(self, request: HttpRequest, endpoint: str, route: str) -> RequestTrace:
        """Start the span of a request."""
        method = request.method if request.method in _METHODS else "_OTHER"
        attributes: dict[str, AttributeValue] = {"http.request.method": method, "url.scheme": self._scheme}
        operation = _OPERATIONS.get(route, "") if method == "POST" else ""
        name = "HTTP" if method == "_OTHER" else method
        if operation:
            attributes["gen_ai.operation.name"] = operation
        if route:  # an unknown path may be anything
            prefix = next((candidate for candidate in _PREFIXES if request.path.startswith(candidate)), "").rstrip("/")
            route = prefix + route.replace("*", "{id}")
            attributes |= {"http.route": route, "url.path": request.path[:_TEXT_LIMIT]}
            name = f"{name} {route}"
        parent = _parent(read_trace_context(request))
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes)
        return SpanTrace(self._tracer, span, operation, endpoint)

    def close(self) -> None:
        """Export what was recorded. A collector that does not respond is given up after some seconds."""
        thread = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)


def _parent(context: TraceContext | None) -> Context:
    if context is None:
        return Context()
    state = next((value for name, value in context.headers if name == TRACESTATE), "")
    span = SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([state] if state else []),
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


def make_tracer(*, is_tls: bool) -> OtelTracer:
    """Make a tracer by the settings of the environment, which the SDK reads itself."""
    log_export_problems()
    own = {
        "service.name": "welldone",
        "service.version": welldone.__version__,
        "service.instance.id": random_hex(16),
    }
    resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTracer(provider, is_tls=is_tls)


class _ExportLog(logging.Handler):
    """Logs warnings of the SDK, at most one in a minute: an exporter without a collector has one every few seconds."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_at = 0.0
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record, or count it."""
        now = time.monotonic()
        if now < self._next_at:
            self._left_out += 1
            return
        fields: dict[str, log.FieldValue] = {"logger": record.name, "reason": record.getMessage()}
        if self._left_out:
            fields["left_out"] = self._left_out
        self._next_at, self._left_out = now + _REPORT_S, 0
        log.event(record.levelno, "OpenTelemetry has a problem", fields)


def log_export_problems() -> None:
    """Log problems of the SDK with a limited rate, instead of each of them."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [_ExportLog()]
