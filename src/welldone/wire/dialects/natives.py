"""Which dialects are mended within themselves, and by whom."""

from collections.abc import Mapping

from welldone.wire.dialects.messages import MessagesRepairer
from welldone.wire.dialects.responses import ResponsesRepairer
from welldone.wire.dialects.responses.objects import RESPONSE_DEFAULTS, Clock
from welldone.wire.events import Json
from welldone.wire.head import Endpoint, Envelope
from welldone.wire.native import PassthroughRepairer

SAME_DIALECT_ENDPOINTS = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints whose streams do not become events."""


def passthrough_repairer_for(
    endpoint: Endpoint,
    *,
    fallback: Envelope,
    request: Mapping[str, object] | None = None,
    model: str | None = None,
    is_stream: bool = True,
    clock: Clock | None = None,
) -> PassthroughRepairer:
    """Who mends one answer of this endpoint; `request` is what the server was asked, which a Response says again.

    `clock` gives the time of day, which a Response that was completed states.
    """
    if endpoint is Endpoint.MESSAGES:
        return MessagesRepairer(fallback=fallback, model=model, is_stream=is_stream)
    echo: Json = {name: value for name, value in (request or {}).items() if name in RESPONSE_DEFAULTS}
    return ResponsesRepairer(echo=echo, fallback=fallback, model=model, is_stream=is_stream, clock=clock)
