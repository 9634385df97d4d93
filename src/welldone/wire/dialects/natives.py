"""Which dialects are mended within themselves, and by whom."""

from collections.abc import Mapping

from welldone.wire.dialects.messages import MessagesNative
from welldone.wire.dialects.responses import ResponsesNative
from welldone.wire.dialects.responses.objects import DEFAULTS, Clock
from welldone.wire.events import Json
from welldone.wire.head import Endpoint, Head
from welldone.wire.native import Native

NATIVE = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints whose streams do not become events."""


def native_for(
    endpoint: Endpoint,
    *,
    fallback: Head,
    request: Mapping[str, object] | None = None,
    model: str | None = None,
    is_stream: bool = True,
    clock: Clock | None = None,
) -> Native:
    """Who mends one answer of this endpoint; `request` is what the server was asked, which a Response says again.

    `clock` gives the time of day, which a Response that was completed states.
    """
    if endpoint is Endpoint.MESSAGES:
        return MessagesNative(fallback=fallback, model=model, is_stream=is_stream)
    echo: Json = {name: value for name, value in (request or {}).items() if name in DEFAULTS}
    return ResponsesNative(echo=echo, fallback=fallback, model=model, is_stream=is_stream, clock=clock)
