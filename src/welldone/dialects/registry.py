"""The dialects, one record each. `server.requests.upstream_dialects` has the translations of their requests."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Json
from welldone.dialects.event_sink import EventSink
from welldone.dialects.gemini.objects import COUNTED_REQUEST, KEY_HEADER, method_target
from welldone.dialects.gemini.reader import GeminiEvents
from welldone.dialects.gemini.repair import GeminiRepairer
from welldone.dialects.messages.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.dialects.messages.reader import MessagesEvents
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.responses.objects import ID_PREFIX, RESPONSE_DEFAULTS
from welldone.dialects.responses.reader import ResponsesEvents
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.same_dialect import PassthroughRepairer


class Dialect(NamedTuple):
    """What is the same for all requests and answers of a dialect."""

    id_prefix: str
    """Prefix of response ids."""
    prompt_field: str
    """The field to blame for a prompt that is too long."""
    path: str
    """Path of a request for an answer; in Gemini's API the method."""
    count_path: str = ""
    """The same for a token count; empty for chat and completions, where it depends on the kind of server."""
    make_repairer: Callable[..., PassthroughRepairer] | None = None
    """Makes the repairer of an answer; None for chat and completions, which are read as events."""
    make_events: Callable[[Envelope, Endpoint], EventSink] = EventSink
    """Makes the emitter with which that repairer reads an answer for a client of chat or completions."""
    make_target: Callable[[str, Json, str], tuple[str, Json]] = lambda path, body, name: (path, {**body, "model": name})
    """Returns path and body of a request. The last argument is the upstream's name of the model."""
    count_member: str = "input_tokens"
    """Member of the reply to a token count."""
    counted_member: str = ""
    """Member of the body of a token count that has the whole request, if it is one."""
    headers: Mapping[str, str] = {}
    """Headers of each request."""
    key_header: str = ""
    """Header of the key, where a bearer token is not enough."""
    allows_bearer_token: bool = True
    models_path: str = "/models"


DIALECTS = {
    Endpoint.CHAT: Dialect("chatcmpl-", "messages", "/chat/completions"),
    Endpoint.COMPLETIONS: Dialect("cmpl-", "prompt", "/completions"),
    Endpoint.RESPONSES: Dialect(
        ID_PREFIX, "input", "/responses", "/responses/input_tokens", ResponsesRepairer, ResponsesEvents
    ),
    Endpoint.MESSAGES: Dialect(
        "msg_",
        "messages",
        "/messages",
        "/messages/count_tokens",
        MessagesRepairer,
        MessagesEvents,
        headers={ANTHROPIC_VERSION_HEADER: ANTHROPIC_VERSION},
        key_header="x-api-key",
    ),
    Endpoint.GEMINI: Dialect(
        "",
        "contents",
        "generateContent",
        "countTokens",
        GeminiRepairer,
        GeminiEvents,
        make_target=method_target,
        count_member="totalTokens",
        counted_member=COUNTED_REQUEST,
        key_header=KEY_HEADER,
        allows_bearer_token=False,  # Google's servers reject one that is not of OAuth
        models_path="/models?pageSize=1000",  # the default is 50 models
    ),
}

SAME_DIALECT_ENDPOINTS = frozenset(endpoint for endpoint, dialect in DIALECTS.items() if dialect.make_repairer)
"""Endpoints whose streams are repaired without conversion to events."""


def passthrough_repairer_for(
    endpoint: Endpoint, *, fallback: Envelope, request: Mapping[str, object] | None = None, **options: object
) -> PassthroughRepairer:
    """Return the repairer for one answer of this endpoint. `options` are those of its class."""
    dialect = DIALECTS[endpoint]
    assert dialect.make_repairer is not None
    if endpoint is Endpoint.RESPONSES and request is not None:  # a Response repeats members of its request
        options["echo"] = {name: value for name, value in request.items() if name in RESPONSE_DEFAULTS}
    return dialect.make_repairer(fallback=fallback, **options)
