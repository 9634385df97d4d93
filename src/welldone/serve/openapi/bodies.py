"""The bodies of all other requests: the dialects' own, vectors, tokens, and what admins ask for."""

from welldone.serve.openapi import chats
from welldone.serve.openapi.chats import member, several
from welldone.serve.openapi.kinds import (
    ANY,
    BOOLEAN,
    MAYBE_TEXT,
    OBJECT,
    TEXT,
    array,
    integer,
    needed,
    number,
    one_of,
    only,
    ref,
    string,
    table,
    words,
)
from welldone.serve.requests import anthropic, blocks, items, ollama, responses, sampling, tokens, tools
from welldone.serve.requests.embeddings import DIMENSIONS_LIMIT, INPUTS_LIMIT
from welldone.serve.requests.media import IMAGES_LIMIT
from welldone.serve.requests.rerank import DOCUMENTS_LIMIT, TOP_LIMIT
from welldone.serve.requests.table import ROWS, Field
from welldone.wire.events import Json

_MODEL = string(sampling.MODEL_LENGTH)
_BLOCKS = one_of(TEXT, {"type": "array", "items": ref("AnthropicBlock")})
_TEXTS = one_of(TEXT, {"type": "array", "items": ref("AnthropicBlockText")}, {"type": "null"})
_TOOLS = needed(table())
_NAMES = array(needed(string(responses.VALUE_LIMIT, 1)), len(responses.INCLUDED))

_TOOL = dict.fromkeys(("name", "description", "parameters", "strict"), ANY)
_FORMAT = dict.fromkeys(("name", "description", "schema", "strict"), ANY)

_RESPONSES: Json = {
    "input": one_of(TEXT, array(ref("ResponseItem"), items.ITEMS_LIMIT)),
    "instructions": MAYBE_TEXT,
    "previous_response_id": string(responses.VALUE_LIMIT),
    "store": BOOLEAN,
    "background": BOOLEAN,
    "tools": array(needed(table({"type": TEXT, **_TOOL}, "type")), tools.TOOLS_LIMIT),
    "tool_choice": one_of(words(tools.MODES), OBJECT),
    "parallel_tool_calls": BOOLEAN,
    "text": table(
        {
            "format": table({"type": needed(words(responses.FORMATS)), **_FORMAT}, "type"),
            "verbosity": string(responses.KEY_LIMIT),
        }
    ),
    "reasoning": table({"effort": string(responses.KEY_LIMIT), "summary": words(responses.SUMMARIES)}),
    "max_output_tokens": integer(1, responses.INT32),
    "temperature": number(ROWS["temperature"].low, ROWS["temperature"].high),
    "top_p": number(ROWS["top_p"].low, ROWS["top_p"].high),
    "top_logprobs": integer(0, sampling.TOP_LIMIT),
    "include": {**_NAMES, "items": {"enum": list(responses.INCLUDED)}},
    "stream": BOOLEAN,
    "stream_options": table({"include_obfuscation": BOOLEAN}),
    "metadata": {
        "type": ["object", "null"],
        "maxProperties": responses.PAIRS_LIMIT,
        "propertyNames": {"maxLength": responses.KEY_LIMIT},
        "additionalProperties": needed(string(responses.VALUE_LIMIT)),
    },
    "n": integer(1, 1),
}
_ANTHROPIC: Json = {
    "model": _MODEL,
    "max_tokens": integer(1, anthropic.TOKENS_LIMIT),
    "messages": {
        "type": "array",
        "minItems": 1,
        "maxItems": blocks.MESSAGES_LIMIT,
        "items": needed(
            table({"role": needed(words(blocks.ROLES)), "content": _BLOCKS}, "role", "content"),
        ),
    },
    "system": _TEXTS,
    "stream": BOOLEAN,
    "stop_sequences": array(needed(string(sampling.STOP_LENGTH, 1)), sampling.STOPS_LIMIT),
    "temperature": number(0, 1),
    "top_p": number(0, 1),
    "top_k": integer(0, anthropic.TOKENS_LIMIT),
    "metadata": table(),
    "thinking": table({"type": words(anthropic.THINKING), "budget_tokens": integer(0, anthropic.TOKENS_LIMIT)}),
    "tools": array(_TOOLS, anthropic.TOOLS_LIMIT),
    "tool_choice": table({"type": words(tuple(anthropic.CHOICES)), "disable_parallel_tool_use": BOOLEAN}),
    "output_config": table({"effort": words(anthropic.EFFORTS), "format": table()}),
    "output_format": table({"type": needed(words(("json_schema",))), "schema": needed(table())}, "type", "schema"),
}
_OLLAMA: Json = {
    "model": _MODEL,
    "stream": BOOLEAN,
    "format": one_of({"enum": ["json", "", None]}, OBJECT),
    "options": table(),
    "think": ANY,
}
_IMAGES = array({**TEXT, "minLength": 1}, IMAGES_LIMIT)


def _responses() -> Json:
    members = _members(responses.FIELDS, _RESPONSES, (None, False, 0, "", {}))
    others: Json = {"additionalProperties": True, "description": "Any other field is read as one of a chat."}
    return {**needed(table({"model": _MODEL, **members})), **others}


def _messages(*needs: str) -> Json:
    members = _members(anthropic.FIELDS, _ANTHROPIC, (None, [], {}, ""))
    return needed(table(members, "messages", *needs))


def _ollama_chat() -> Json:
    said = needed(table({"role": string(64), "content": MAYBE_TEXT, "thinking": MAYBE_TEXT, "images": _IMAGES}))
    lists = {"messages": array(said, ollama.MESSAGES_LIMIT), "tools": array(ANY, ollama.MESSAGES_LIMIT)}
    return needed(table(_OLLAMA | lists))


def _ollama_generate() -> Json:
    refused: Json = {name: only(None, False, "", 0, [], {}) for name in ollama.REFUSED}
    return needed(table({**_OLLAMA, "prompt": MAYBE_TEXT, "system": MAYBE_TEXT, "images": _IMAGES, **refused}))


def _members(rows: tuple[Field, ...], known: Json, empty: tuple[object, ...]) -> Json:
    return {row.name: member(row, known, empty) for row in rows}


_EMBEDDINGS = needed(
    table(
        {
            "model": _MODEL,
            "input": several(INPUTS_LIMIT),
            "dimensions": integer(1, DIMENSIONS_LIMIT),
            "encoding_format": words(("float", "base64")),
        },
        "input",
    )
)
_RERANK = needed(
    table(
        {
            "model": _MODEL,
            "query": TEXT,
            "documents": needed(array(one_of(TEXT, needed(table({"text": TEXT}, "text"))), DOCUMENTS_LIMIT, 1)),
            "top_n": integer(1, TOP_LIMIT),
            "return_documents": BOOLEAN,
        },
        "query",
        "documents",
    )
)
_FLAGS = dict.fromkeys((*tokens.FLAGS, "with_pieces", "return_token_strs"), BOOLEAN)
_TOKENIZE = needed(table({"model": _MODEL, "content": MAYBE_TEXT, "prompt": MAYBE_TEXT, **_FLAGS}))
_DETOKENIZE = needed(
    table(
        {
            "model": _MODEL,
            "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": sampling.TOKEN_LIMIT}},
        },
        "tokens",
    )
)
_LOADING = needed(table({"model": _MODEL, "force": BOOLEAN}))

_MESSAGE: Json = {
    "id": MAYBE_TEXT,
    "type": words(("message",)),
    "role": needed(words(items.ROLES)),
    "content": ANY,
    "status": ANY,
}
_SOURCE = needed(table({"type": TEXT, "media_type": ANY, "data": ANY, "url": ANY}, "type"))


def _item(kind: str, *optional: str, **members: Json) -> Json:
    """An item of a response's input."""
    return needed(table({"id": MAYBE_TEXT, **_typed(kind, optional, members)}, "type", *members))


def _block(kind: str, *optional: str, **members: Json) -> Json:
    """A content block of Anthropic's."""
    return needed(table(_typed(kind, (*optional, "cache_control"), members), "type", *members))


def _typed(kind: str, optional: tuple[str, ...], members: Json) -> Json:
    return {"type": {"const": kind}, **members, **dict.fromkeys(optional, ANY)}


def _named(start: str, members: Json) -> Json:
    """A component for each, and one that is any of them: generators of clients name their types after components."""
    names = {f"{start}{name}": schema for name, schema in members.items()}
    return {**names, start: one_of(*map(ref, names))}


_NAME = "smollm2-135m-instruct"
_HELLO: Json = {"messages": [{"role": "user", "content": "Hello!"}]}
EXAMPLES: Json = {
    "ChatRequest": {"model": _NAME, **_HELLO, "stream": True},
    "CompletionRequest": {"model": _NAME, "prompt": "Once upon a time", "max_tokens": 16},
    "ResponseRequest": {"model": _NAME, "input": "Hello!"},
    "AnthropicRequest": {"model": _NAME, "max_tokens": 64, **_HELLO},
    "EmbeddingsRequest": {"model": _NAME, "input": ["Hello!"]},
    "RankRequest": {"query": "Who purrs?", "documents": ["a cat", "a dog"]},
}
"""A right body, of those that people write by hand."""

COMPONENTS: Json = {
    **_named(
        "AnthropicBlock",
        {
            "Text": _block("text", "citations", text=TEXT),
            "Image": _block("image", source=_SOURCE),
            "Document": _block("document", "title", "context", "citations", source=_SOURCE),
            "SearchResult": _block("search_result", "citations", title=TEXT, source=TEXT, content=_TEXTS),
            "ToolResult": _block("tool_result", "content", "is_error", tool_use_id=TEXT),
            "ToolUse": _block("tool_use", id=TEXT, name=TEXT, input=OBJECT),
            "Thinking": _block("thinking", "signature", thinking=TEXT),
            "RedactedThinking": _block("redacted_thinking", "data"),
        },
    ),
    **_named(
        "ResponseItem",
        {
            "Message": needed(table(_MESSAGE, "role")),
            "FunctionCall": _item("function_call", "status", call_id=TEXT, name=TEXT, arguments=TEXT),
            "FunctionCallOutput": _item(
                "function_call_output", "status", call_id=TEXT, output=one_of(TEXT, {"type": "array", "items": ANY})
            ),
            "Reasoning": _item("reasoning", "summary", "content", "encrypted_content", "status"),
            "Reference": needed(table({"id": TEXT, "type": words(("item_reference",))}, "id")),
        },
    ),
    "ChatRequest": chats.body("chat"),
    "CompletionRequest": chats.body("completions"),
    "ResponseRequest": _responses(),
    "AnthropicRequest": _messages("max_tokens"),
    "AnthropicTokensRequest": _messages(),
    "OllamaChatRequest": _ollama_chat(),
    "OllamaGenerateRequest": _ollama_generate(),
    "EmbeddingsRequest": _EMBEDDINGS,
    "RankRequest": _RERANK,
    "TokensRequest": _TOKENIZE,
    "TextOfTokensRequest": _DETOKENIZE,
    "LoadRequest": _LOADING,
}
