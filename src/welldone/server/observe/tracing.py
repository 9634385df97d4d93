"""Distributed traces: the W3C Trace Context of a request, and what is recorded of it.

Without tracing a valid context of the client is forwarded to the upstream unchanged. `otel.py` records spans, if the
setting and the standard environment variables ask for them.
"""

import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from welldone.core.repair_log import RepairEntry
from welldone.gateway.backends import AttemptTrace, BackendLease
from welldone.http.messages import HttpRequest
from welldone.server.observe.log import RequestLogEntry

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

# W3C Trace Context §3.2: versions after 00 may have further fields.
_TRACEPARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace_id>(?!0{32})[0-9a-f]{32})-(?P<span_id>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-[!-~]*)?"
)
_TRACEPARENT_LIMIT = 256  # characters; version 00 has 55
_TRACESTATE_LIMIT = 4_096  # 32 members of 128 characters, from which on members may be dropped; at least 512
_MEMBERS_LIMIT = 32
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_*/@-]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")


class TraceContext(msgspec.Struct, frozen=True):
    """A valid trace context that a client has sent."""

    trace_id: str
    span_id: str
    flags: int
    headers: tuple[tuple[str, str], ...]
    """As they were received; `tracestate` only if it is valid too."""


def read_trace_context(request: HttpRequest) -> TraceContext | None:
    """Return the trace context of a request; None if it has none, or a malformed one."""
    values = request.header_values(TRACEPARENT)
    value = values[0].strip(" \t") if len(values) == 1 else ""
    match = _TRACEPARENT.fullmatch(value) if len(value) <= _TRACEPARENT_LIMIT else None
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    headers = [(TRACEPARENT, value)]
    state = ",".join(request.header_values(TRACESTATE)).strip(" \t")
    if _is_tracestate(state):
        headers.append((TRACESTATE, state))
    return TraceContext(match["trace_id"], match["span_id"], int(match["flags"], 16), tuple(headers))


def _is_tracestate(text: str) -> bool:
    """Whether a list of members is valid and not too long. It may have empty members, but no key twice (§3.3)."""
    if not text or len(text) > _TRACESTATE_LIMIT:
        return False
    members = [member for piece in text.split(",") if (member := piece.strip(" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    return 0 < len(keys) == len(members) <= _MEMBERS_LIMIT


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace tells about an answer: no text of it."""

    is_stream: bool
    response_model: str | None
    finish_reasons: Sequence[str]
    cached_tokens: int
    repairs: Sequence[RepairEntry]
    continuations: Sequence[tuple[str, str]]
    """Way and outcome of each."""


class RequestTrace:
    """A request in the trace of its client. Nothing is recorded: the context is forwarded."""

    is_recording = False
    """Whether `record_answer` has an effect."""

    def __init__(self, trace_id: str, headers: tuple[tuple[str, str], ...]) -> None:
        self.trace_id = trace_id
        self.headers = headers

    def begin_attempt(self, lease: BackendLease, number: int) -> AttemptTrace:
        """Start an attempt; the first at each part of the request has number 1."""
        return self

    def record_retry(self, lease: BackendLease, number: int, outcome: str) -> None:
        """Record that an attempt has failed and is repeated."""

    def record_answer(self, answer: AnswerFacts) -> None:
        """Record the answer, before the end of the request."""

    def end(self, outcome: str | None) -> None:
        """Ignore the end of an attempt."""

    def end_request(self, entry: RequestLogEntry) -> None:
        """Record the end of the request."""


def forwarded_trace(request: HttpRequest) -> RequestTrace | None:
    """Return the trace of a request without tracing; None if the client sent no valid context."""
    context = read_trace_context(request)
    return None if context is None else RequestTrace(context.trace_id, context.headers)


class RequestTracer(Protocol):
    """Records requests."""

    def begin(self, request: HttpRequest, endpoint: str, route: str) -> RequestTrace:
        """Start to record a request. `route` is empty for an unknown path."""

    def close(self) -> None:
        """Export what was recorded, for some seconds at most. Blocks."""
