"""Dialects with a repairer of their own: the factories of these repairers, and of the readers that use them."""

from collections.abc import Callable, Mapping
from typing import Any

from welldone.protocol.dialects.anthropic.reader import MessagesEvents
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.dialect_reader import DialectReader
from welldone.protocol.dialects.gemini.reader import GeminiEvents
from welldone.protocol.dialects.gemini.repair import GeminiRepairer
from welldone.protocol.dialects.gemini.writer import GeminiDialect
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS, Clock
from welldone.protocol.dialects.responses.reader import ResponsesEvents
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Json
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts

SAME_DIALECT_ENDPOINTS = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.GEMINI})
"""Endpoints whose streams are repaired without conversion to events."""


def passthrough_repairer_for(
    endpoint: Endpoint,
    *,
    fallback: Envelope,
    request: Mapping[str, object] | None = None,
    model: str | None = None,
    is_stream: bool = True,
    clock: Clock | None = None,
    members: Json | None = None,
    dialect: Dialect | None = None,
) -> PassthroughRepairer:
    """Return the repairer for one answer of this endpoint.

    A Response repeats members of `request`; `clock` supplies its `completed_at`, `members` replace those of the server.
    `dialect` has the form of a Gemini stream.
    """
    if endpoint is Endpoint.GEMINI:
        form = dialect if isinstance(dialect, GeminiDialect) else None
        return GeminiRepairer(fallback=fallback, model=model, is_stream=is_stream, dialect=form)
    if endpoint is Endpoint.MESSAGES:
        return MessagesRepairer(fallback=fallback, model=model, is_stream=is_stream)
    echo: Json = {name: value for name, value in (request or {}).items() if name in RESPONSE_DEFAULTS}
    return ResponsesRepairer(
        echo=echo, fallback=fallback, model=model, is_stream=is_stream, clock=clock, members=members
    )


def dialect_reader_for(
    dialect: Endpoint, endpoint: Endpoint, *, fallback: Envelope, facts: RequestFacts, repair_log: RepairLog
) -> DialectReader:
    """Return the reader of one answer in this dialect, for a client of chat or completions (`endpoint`)."""
    make_events, make_repairer = _READERS[dialect]
    events = make_events(fallback, endpoint)
    repairer = make_repairer(fallback=fallback, output=events, repair_log=repair_log)
    return DialectReader(repairer, events, endpoint, fallback=fallback, facts=facts, repair_log=repair_log)


_READERS: dict[Endpoint, tuple[Callable[[Envelope, Endpoint], Any], Callable[..., PassthroughRepairer]]] = {
    Endpoint.MESSAGES: (MessagesEvents, MessagesRepairer),
    Endpoint.RESPONSES: (ResponsesEvents, ResponsesRepairer),
    Endpoint.GEMINI: (GeminiEvents, GeminiRepairer),
}
"""Emitter of events and repairer that drives it, by dialect."""
