"""`/tokenize` and `/detokenize`: the bodies checked.

They count, so more than fits into the context is let through, but not without end: the engine does nothing else while
it cuts a text, and four megabytes take it seconds.
"""

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.protocol.request_facts import RequestFacts
from welldone.server.requests import fields
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.sampling import (
    BYTES_PER_TOKEN,
    UNKNOWN_ABILITIES,
    check_context_length,
    check_prompt_tokens,
    check_tokens,
    model_name,
    read_prompts,
    unsupported_by_model,
)

# `/v1/embeddings`: the body checked.


INPUTS_LIMIT = 2_048
"""OpenAI's."""
DIMENSIONS_LIMIT = 65_536  # more than any model has


def read_embeddings(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A request for embeddings, checked."""
    able = abilities or UNKNOWN_ABILITIES
    if not able.embeddings:
        raise unsupported_by_model("embeddings; it would have to be started with --embeddings")
    items = read_prompts(body, "input", INPUTS_LIMIT, able.context)
    inputs = [
        _read_input(item, f"input[{place}]" if len(items) > 1 else "input", able) for place, item in enumerate(items)
    ]
    dimensions = fields.integer(body, "dimensions", 1, able.embedding_size or DIMENSIONS_LIMIT)
    form = fields.choice(body, "encoding_format", ("float", "base64"))
    name = model_name(body)
    return ValidatedRequest(
        endpoint="embeddings",
        model=name,
        facts=RequestFacts(model=name),
        bodies=[{"input": inputs, "encoding_format": "float"}],
        prompt_count=len(inputs),
        dimensions=dimensions,
        is_base64=form == "base64",
    )


def _read_input(item: object, param: str, abilities: ModelCapabilities) -> str | list[int]:
    if isinstance(item, str):
        if not item:
            raise invalid_request(
                f"Invalid '{param}': an empty string has no embedding.", param=param, code="invalid_value"
            )
        check_context_length(len(item.encode()), abilities.context, "input")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, abilities)


# `/v1/rerank`, in the form that Jina and Cohere gave it: the body checked.


DOCUMENTS_LIMIT = 1_000
"""Cohere's."""
TOP_N_LIMIT = 2**31 - 1  # more than there may be documents is all of them; an engine's integers have 32 bits


def read_rerank(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A request to rank documents, checked."""
    able = abilities or UNKNOWN_ABILITIES
    if not able.reranking:
        raise unsupported_by_model("reranking; it would have to be started with --reranking")
    query = body.get("query")
    if not isinstance(query, str):
        raise fields.missing("query") if query is None else fields.wrong_type("query", "a string", query)
    documents = _read_documents(body)
    query_bytes = len(query.encode())
    for document in documents:
        check_context_length(query_bytes + len(document.encode()), able.context, "documents")
    top = fields.integer(body, "top_n", 1, TOP_N_LIMIT)
    name = model_name(body)
    return ValidatedRequest(
        endpoint="rerank",
        model=name,
        facts=RequestFacts(model=name),
        bodies=[{"query": query, "documents": documents, "top_n": min(top or len(documents), len(documents))}],
        documents=documents if fields.boolean(body, "return_documents") else None,
    )


def _read_documents(body: Json) -> list[str]:
    values = fields.array(body, "documents", DOCUMENTS_LIMIT)
    if values is None and "texts" in body:
        why = "is the form of text-embeddings-inference, which is not offered: send 'documents', as Jina and Cohere do."
        raise fields.unsupported("texts", why)
    if values is None:
        raise fields.missing("documents")
    if not values:
        raise invalid_request("Invalid 'documents': empty array.", param="documents", code="empty_array")
    texts = []
    for place, value in enumerate(values):
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise fields.wrong_type(f"documents[{place}]", "a string or an object with text", value)
        texts.append(text)
    return texts


TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Of a text, where the context is not larger still: some chapters of a book, which take the engine 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same, in tokens of four bytes."""

TOKENIZE_FLAGS = {"add_special": "add_special", "add_special_tokens": "add_special", "parse_special": "parse_special"}


def read_tokenize(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A text to be cut into tokens. vLLM's names are known too."""
    limit = max(TOKENIZE_LIMIT_BYTES, BYTES_PER_TOKEN * (abilities or UNKNOWN_ABILITIES).context)
    texts = {name: body[name] for name in ("content", "prompt") if body.get(name) is not None}
    if not texts:
        raise fields.missing("content")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise fields.wrong_type(name, "a string", text)
    param, content = next(iter(texts.items()))
    if len(content) > limit or len(content.encode()) > limit:
        message = f"Invalid '{param}': text too long. Expected at most {limit} bytes."
        raise invalid_request(message, param=param, code="string_above_max_length")
    engine: Json = {"content": content}
    for name, known in TOKENIZE_FLAGS.items():
        flag = fields.boolean(body, name)
        if flag is not None:
            engine[known] = flag
    has_pieces = fields.boolean(body, "with_pieces")
    has_texts = fields.boolean(body, "return_token_strs")
    if has_pieces or has_texts:
        engine["with_pieces"] = True
    request = _token_request("tokenize", body, engine)
    request.has_token_texts, request.has_pieces = has_texts is True, has_pieces is True
    return request


def read_detokenize(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """Tokens to be put together again."""
    able = abilities or UNKNOWN_ABILITIES
    tokens = fields.array(body, "tokens", max(DETOKENIZE_LIMIT, able.context))
    if tokens is None:
        raise fields.missing("tokens")
    return _token_request("detokenize", body, {"tokens": check_tokens(tokens, "tokens", able.vocabulary_size)})


def _token_request(endpoint: str, body: Json, engine_body: Json) -> ValidatedRequest:
    name = model_name(body)
    return ValidatedRequest(endpoint=endpoint, model=name, facts=RequestFacts(model=name), bodies=[engine_body])
