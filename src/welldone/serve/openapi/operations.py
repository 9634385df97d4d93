"""What each path takes and gives, by method. A path has `*` where a name or an id stands, as in `serve/routes.py`."""

import msgspec

from welldone.serve.openapi.kinds import (
    ANY,
    OBJECT,
    TEXT,
    integer,
    non_nullable,
    any_of,
    component_ref,
    object_schema,
    enum_schema,
)
from welldone.serve.openapi.replies import list_reply
from welldone.serve.passing import PASSTHROUGH_ENDPOINTS
from welldone.serve.responses import SORT_ORDERS, PAGE_LIMIT
from welldone.wire.events import Json

EVENT_STREAM_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
JSON_TYPE = "application/json"


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


def _json_reply(component: str) -> Json:
    return {JSON_TYPE: component_ref(component)}


def _streamed_reply(component: str, stream_type: str = EVENT_STREAM_TYPE) -> Json:
    return {**_json_reply(component), stream_type: {"description": "Where `stream` is true"}}


_OBJECT_REPLY: Json = {JSON_TYPE: OBJECT}
_MODEL_REPLY: Json = {JSON_TYPE: any_of(component_ref("Model"), component_ref("AnthropicModel"))}
_MODELS_REPLY: Json = {
    JSON_TYPE: any_of(
        list_reply(component_ref("Model")),
        non_nullable(object_schema({"data": ANY, "has_more": ANY}, "data", "has_more")),
    )
}
_HEALTH_REPLY = _json_reply("Status")
_RERANK_OPERATION = Operation(
    "Documents by how well they fit a query", _json_reply("Ranks"), component_ref("RankRequest")
)
_MODEL_OPERATION = Operation("A model", _MODEL_REPLY)

OPERATIONS: dict[str, dict[str, Operation]] = {
    "/chat/completions": {"POST": Operation("A chat", _streamed_reply("ChatCompletion"), component_ref("ChatRequest"))},
    "/chat/completions/input_tokens": {
        "POST": Operation("The tokens of a chat's prompt", _json_reply("ResponseTokens"), component_ref("ChatRequest"))
    },
    "/completions": {
        "POST": Operation(
            "Text that goes on from a prompt", _streamed_reply("Completion"), component_ref("CompletionRequest")
        )
    },
    "/embeddings": {
        "POST": Operation("Vectors of texts", _json_reply("Embeddings"), component_ref("EmbeddingsRequest"))
    },
    "/rerank": {"POST": _RERANK_OPERATION},
    "/reranking": {"POST": _RERANK_OPERATION},
    "/tokenize": {"POST": Operation("A text as tokens", _json_reply("Tokens"), component_ref("TokensRequest"))},
    "/detokenize": {
        "POST": Operation("Tokens as a text", _json_reply("TextOfTokens"), component_ref("TextOfTokensRequest"))
    },
    "/responses": {"POST": Operation("A response", _streamed_reply("Response"), component_ref("ResponseRequest"))},
    "/responses/input_tokens": {
        "POST": Operation(
            "The tokens of a response's input", _json_reply("ResponseTokens"), component_ref("ResponseRequest")
        )
    },
    "/responses/*": {
        "GET": Operation("A response that was kept", _json_reply("Response")),
        "DELETE": Operation("The end of a response that was kept", _json_reply("ResponseDeleted")),
    },
    "/responses/*/cancel": {"POST": Operation("Ends a response in the background", _json_reply("Response"))},
    "/responses/*/input_items": {
        "GET": Operation(
            "What was said before a response",
            _json_reply("ResponseItems"),
            queries={
                "limit": non_nullable(integer(1, PAGE_LIMIT)),
                "order": non_nullable(enum_schema(SORT_ORDERS)),
                "after": TEXT,
            },
        )
    },
    "/messages": {
        "POST": Operation(
            "A chat in Anthropic's form", _streamed_reply("AnthropicMessage"), component_ref("AnthropicRequest")
        )
    },
    "/messages/count_tokens": {
        "POST": Operation(
            "The tokens that a message would take",
            _json_reply("AnthropicTokens"),
            component_ref("AnthropicTokensRequest"),
        )
    },
    "/api/chat": {
        "POST": Operation(
            "A chat in Ollama's form", _streamed_reply("OllamaChat", NDJSON_TYPE), component_ref("OllamaChatRequest")
        )
    },
    "/api/generate": {
        "POST": Operation(
            "Text in Ollama's form",
            _streamed_reply("OllamaGenerate", NDJSON_TYPE),
            component_ref("OllamaGenerateRequest"),
        )
    },
    "/api/tags": {"GET": Operation("The models, in Ollama's form", _json_reply("OllamaTags"))},
    "/api/version": {"GET": Operation("The version, in Ollama's form", _json_reply("OllamaVersion"))},
    "/models": {"GET": Operation("The models; in Anthropic's form for who sends `anthropic-version`", _MODELS_REPLY)},
    "/models/*": {"GET": _MODEL_OPERATION},
    "/models/load": {
        "GET": _MODEL_OPERATION,
        "POST": Operation(
            "Begins to load a local model. For admins", _json_reply("Done"), component_ref("LoadRequest")
        ),
    },
    "/models/unload": {
        "GET": _MODEL_OPERATION,
        "POST": Operation(
            "Unloads a local model. For admins", _json_reply("Done"), component_ref("LoadRequest"), statuses=(409,)
        ),
    },
    "/health": {"GET": Operation("Whether requests can be answered", _HEALTH_REPLY)},
    "/livez": {"GET": Operation("Whether the server runs", _HEALTH_REPLY)},
    "/readyz": {"GET": Operation("The same as `/health`", _HEALTH_REPLY)},
    "/metrics": {"GET": Operation("Figures for Prometheus", {"text/plain": TEXT})},
    "/slots": {"GET": Operation("Which slots are busy", _json_reply("Slots"))},
    "/openapi.json": {"GET": Operation("This document", _OBJECT_REPLY)},
    "/": {"GET": Operation("The page", {"text/html": TEXT})},
    "/page/assets/*": {"GET": Operation("A file of the page", {"*/*": ANY})},
    "/page/api/state": {"GET": Operation("What the page shows of the server", _OBJECT_REPLY)},
    "/page/api/recordings/*": {"GET": Operation("A recording", {"*/*": ANY})},
    "/page/api/tapes/*": {"GET": Operation("What a request of the page was answered", _OBJECT_REPLY)},
    "/page/api/rules/*": {"GET": Operation("A rule of the stream", _OBJECT_REPLY)},
    "/page/api/lint": {
        "POST": Operation("Judges a stream that was captured", _OBJECT_REPLY, non_nullable(object_schema()))
    },
}

PASSTHROUGH_OPERATIONS: dict[str, dict[str, Operation]] = {
    way.path: {
        method: Operation(
            "Passes to an upstream, whose reply comes back as it is",
            {"*/*": ANY},
            OBJECT if method == "POST" else None,
        )
        for method in way.methods
    }
    for way in PASSTHROUGH_ENDPOINTS
    if way.path not in OPERATIONS
}
"""What is there only where there are upstreams."""
