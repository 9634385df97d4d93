"""How a captured reply is mended: who does it, by what is known of it."""

from welldone.wire.asked import RequestFacts, read_request_facts, think_mode_for
from welldone.wire.dialects.natives import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.wire.events import Json
from welldone.wire.fold import BufferedPipeline
from welldone.wire.head import ID_PREFIX, Endpoint, Envelope
from welldone.wire.native import PassthroughRepairer
from welldone.wire.pipe import StreamPipeline
from welldone.wire.texts import TextMode, ThinkMode


def make_pipeline(
    endpoint: Endpoint,
    request: Json | None,
    *,
    id_stem: str,
    created: int,
    is_stream: bool,
    think: ThinkMode = "no",
    text: TextMode = "delta",
) -> StreamPipeline | BufferedPipeline | PassthroughRepairer:
    """Who mends a reply of this endpoint. `stem` and `created` are for an id and a time that the server did not say.

    `think` and `text` tell what the reply alone does not show: see `Answered.tune`.
    """
    asked = RequestFacts() if request is None else read_request_facts(request)
    fallback = Envelope(ID_PREFIX[endpoint] + id_stem, created, asked.model or "unknown")
    if endpoint in SAME_DIALECT_ENDPOINTS:
        return passthrough_repairer_for(endpoint, fallback=fallback, request=request, is_stream=is_stream)
    kind = StreamPipeline if is_stream else BufferedPipeline
    return kind(endpoint, fallback=fallback, facts=asked, think=think_mode_for(think, request or {}), text=text)
