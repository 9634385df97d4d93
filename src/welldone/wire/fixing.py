"""How a captured reply is mended: who does it, by what is known of it."""

from welldone.wire.asked import Asked, read_request, think_for
from welldone.wire.dialects.natives import NATIVE, native_for
from welldone.wire.events import Json
from welldone.wire.fold import Fold
from welldone.wire.head import ID_PREFIX, Endpoint, Head
from welldone.wire.native import Native
from welldone.wire.pipe import Pipe
from welldone.wire.texts import TextForm, Think


def pipe_for(
    endpoint: Endpoint,
    request: Json | None,
    *,
    stem: str,
    created: int,
    is_stream: bool,
    think: Think = "no",
    text: TextForm = "delta",
) -> Pipe | Fold | Native:
    """Who mends a reply of this endpoint. `stem` and `created` are for an id and a time that the server did not say.

    `think` and `text` tell what the reply alone does not show: see `Answered.tune`.
    """
    asked = Asked() if request is None else read_request(request)
    fallback = Head(ID_PREFIX[endpoint] + stem, created, asked.model or "unknown")
    if endpoint in NATIVE:
        return native_for(endpoint, fallback=fallback, request=request, is_stream=is_stream)
    kind = Pipe if is_stream else Fold
    return kind(endpoint, fallback=fallback, asked=asked, think=think_for(think, request or {}), text=text)
