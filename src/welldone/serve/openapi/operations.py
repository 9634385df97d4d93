"""What each path takes and gives, by method. A path has `*` where a name or an id stands, as in `serve/routes.py`."""

import msgspec

from welldone.serve.openapi.kinds import ANY, OBJECT, TEXT, integer, needed, one_of, ref, table, words
from welldone.serve.openapi.replies import listed
from welldone.serve.passing import WAYS
from welldone.serve.responses import ORDERS, PAGE_LIMIT
from welldone.wire.events import Json

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
JSON = "application/json"


class Operation(msgspec.Struct, frozen=True):
    """One method of a path."""

    summary: str
    reply: Json
    """The schema of a reply, by its content type."""
    body: Json | None = None
    """The schema of the request's body, if it has one."""
    queries: Json = {}
    """The schemas of its query's fields."""
    statuses: tuple[int, ...] = ()
    """Those that only it has."""


def _json(component: str) -> Json:
    return {JSON: ref(component)}


def _streamed(component: str, stream: str = EVENTS) -> Json:
    return {**_json(component), stream: {"description": "Where `stream` is true"}}


_OBJECT: Json = {JSON: OBJECT}
_MODEL: Json = {JSON: one_of(ref("Model"), ref("AnthropicModel"))}
_MODELS: Json = {JSON: one_of(listed(ref("Model")), needed(table({"data": ANY, "has_more": ANY}, "data", "has_more")))}
_HEALTH = _json("Status")
_RANKS = Operation("Documents by how well they fit a query", _json("Ranks"), ref("RankRequest"))
_ONE = Operation("A model", _MODEL)

OPERATIONS: dict[str, dict[str, Operation]] = {
    "/chat/completions": {"POST": Operation("A chat", _streamed("ChatCompletion"), ref("ChatRequest"))},
    "/chat/completions/input_tokens": {
        "POST": Operation("The tokens of a chat's prompt", _json("ResponseTokens"), ref("ChatRequest"))
    },
    "/completions": {
        "POST": Operation("Text that goes on from a prompt", _streamed("Completion"), ref("CompletionRequest"))
    },
    "/embeddings": {"POST": Operation("Vectors of texts", _json("Embeddings"), ref("EmbeddingsRequest"))},
    "/rerank": {"POST": _RANKS},
    "/reranking": {"POST": _RANKS},
    "/tokenize": {"POST": Operation("A text as tokens", _json("Tokens"), ref("TokensRequest"))},
    "/detokenize": {"POST": Operation("Tokens as a text", _json("TextOfTokens"), ref("TextOfTokensRequest"))},
    "/responses": {"POST": Operation("A response", _streamed("Response"), ref("ResponseRequest"))},
    "/responses/input_tokens": {
        "POST": Operation("The tokens of a response's input", _json("ResponseTokens"), ref("ResponseRequest"))
    },
    "/responses/*": {
        "GET": Operation("A response that was kept", _json("Response")),
        "DELETE": Operation("The end of a response that was kept", _json("ResponseDeleted")),
    },
    "/responses/*/cancel": {"POST": Operation("Ends a response in the background", _json("Response"))},
    "/responses/*/input_items": {
        "GET": Operation(
            "What was said before a response",
            _json("ResponseItems"),
            queries={"limit": needed(integer(1, PAGE_LIMIT)), "order": needed(words(ORDERS)), "after": TEXT},
        )
    },
    "/messages": {
        "POST": Operation("A chat in Anthropic's form", _streamed("AnthropicMessage"), ref("AnthropicRequest"))
    },
    "/messages/count_tokens": {
        "POST": Operation(
            "The tokens that a message would take", _json("AnthropicTokens"), ref("AnthropicTokensRequest")
        )
    },
    "/api/chat": {
        "POST": Operation("A chat in Ollama's form", _streamed("OllamaChat", LINES), ref("OllamaChatRequest"))
    },
    "/api/generate": {
        "POST": Operation("Text in Ollama's form", _streamed("OllamaGenerate", LINES), ref("OllamaGenerateRequest"))
    },
    "/api/tags": {"GET": Operation("The models, in Ollama's form", _json("OllamaTags"))},
    "/api/version": {"GET": Operation("The version, in Ollama's form", _json("OllamaVersion"))},
    "/models": {"GET": Operation("The models; in Anthropic's form for who sends `anthropic-version`", _MODELS)},
    "/models/*": {"GET": _ONE},
    "/models/load": {
        "GET": _ONE,
        "POST": Operation("Begins to load a local model. For admins", _json("Done"), ref("LoadRequest")),
    },
    "/models/unload": {
        "GET": _ONE,
        "POST": Operation("Unloads a local model. For admins", _json("Done"), ref("LoadRequest"), statuses=(409,)),
    },
    "/health": {"GET": Operation("Whether requests can be answered", _HEALTH)},
    "/livez": {"GET": Operation("Whether the server runs", _HEALTH)},
    "/readyz": {"GET": Operation("The same as `/health`", _HEALTH)},
    "/metrics": {"GET": Operation("Figures for Prometheus", {"text/plain": TEXT})},
    "/slots": {"GET": Operation("Which slots are busy", _json("Slots"))},
    "/openapi.json": {"GET": Operation("This document", _OBJECT)},
    "/": {"GET": Operation("The page", {"text/html": TEXT})},
    "/page/assets/*": {"GET": Operation("A file of the page", {"*/*": ANY})},
    "/page/api/state": {"GET": Operation("What the page shows of the server", _OBJECT)},
    "/page/api/recordings/*": {"GET": Operation("A recording", {"*/*": ANY})},
    "/page/api/tapes/*": {"GET": Operation("What a request of the page was answered", _OBJECT)},
    "/page/api/rules/*": {"GET": Operation("A rule of the stream", _OBJECT)},
    "/page/api/lint": {"POST": Operation("Judges a stream that was captured", _OBJECT, needed(table()))},
}

PASSED: dict[str, dict[str, Operation]] = {
    way.path: {
        method: Operation(
            "Passes to an upstream, whose reply comes back as it is",
            {"*/*": ANY},
            OBJECT if method == "POST" else None,
        )
        for method in way.methods
    }
    for way in WAYS
    if way.path not in OPERATIONS
}
"""What is there only where there are upstreams."""
