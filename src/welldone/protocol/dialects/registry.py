"""Endpoints with a repairer of their own dialect, and the factory of these repairers."""

from collections.abc import Mapping

from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS, Clock
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Json

SAME_DIALECT_ENDPOINTS = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES})
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
) -> PassthroughRepairer:
    """Return the repairer for one answer of this endpoint.

    A Response repeats members of `request`; `clock` supplies its `completed_at`, `members` replace those of the server.
    """
    if endpoint is Endpoint.MESSAGES:
        return MessagesRepairer(fallback=fallback, model=model, is_stream=is_stream)
    echo: Json = {name: value for name, value in (request or {}).items() if name in RESPONSE_DEFAULTS}
    return ResponsesRepairer(
        echo=echo, fallback=fallback, model=model, is_stream=is_stream, clock=clock, members=members
    )
