"""Validation of `/v1/embeddings`, `/v1/rerank`, `/tokenize` and `/detokenize` for local models."""

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.protocol.request_facts import RequestFacts
from welldone.server.requests import fields
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.sampling import (
    BYTES_PER_TOKEN,
    UNKNOWN_CAPABILITIES,
    check_context_length,
    check_prompt_tokens,
    check_tokens,
    model_name,
    read_prompts,
    unsupported_by_model,
)

INPUTS_LIMIT = 2_048
"""OpenAI's limit."""
DIMENSIONS_LIMIT = 65_536  # more than any model has
DOCUMENTS_LIMIT = 1_000
"""Cohere's limit."""
TOP_N_LIMIT = 2**31 - 1  # the engine's integers have 32 bits; more than there are documents means all
# Tokenising may exceed the context, since clients count with it; but it blocks the engine, for seconds at 4 MB.
TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Size of a text to tokenise, unless the context is larger: some chapters of a book, which take 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same in tokens of four bytes."""
TOKENIZE_FLAGS = {"add_special": "add_special", "add_special_tokens": "add_special", "parse_special": "parse_special"}
"""Flags of llama.cpp and vLLM, with llama.cpp's name."""


def read_embeddings(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate an embeddings request."""
    capabilities = capabilities or UNKNOWN_CAPABILITIES
    if not capabilities.embeddings:
        raise unsupported_by_model("embeddings; start it with --embeddings")
    items = read_prompts(body, "input", INPUTS_LIMIT, capabilities.context)
    inputs = [
        _read_input(item, f"input[{index}]" if len(items) > 1 else "input", capabilities)
        for index, item in enumerate(items)
    ]
    dimensions = fields.integer(body, "dimensions", 1, capabilities.embedding_size or DIMENSIONS_LIMIT)
    encoding = fields.choice(body, "encoding_format", ("float", "base64"))
    name = model_name(body)
    return ValidatedRequest(
        endpoint="embeddings",
        model=name,
        facts=RequestFacts(model=name),
        bodies=[{"input": inputs, "encoding_format": "float"}],
        prompt_count=len(inputs),
        dimensions=dimensions,
        is_base64=encoding == "base64",
    )


def _read_input(item: object, param: str, capabilities: ModelCapabilities) -> str | list[int]:
    if isinstance(item, str):
        if not item:
            raise invalid_request(
                f"Invalid '{param}': an empty string has no embedding.", param=param, code="invalid_value"
            )
        check_context_length(len(item.encode()), capabilities.context, "input")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, capabilities)


def read_rerank(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a rerank request in the format of Jina and Cohere."""
    capabilities = capabilities or UNKNOWN_CAPABILITIES
    if not capabilities.reranking:
        raise unsupported_by_model("reranking; start it with --reranking")
    query = body.get("query")
    if not isinstance(query, str):
        raise fields.missing("query") if query is None else fields.wrong_type("query", "a string", query)
    documents = _read_documents(body)
    query_bytes = len(query.encode())
    for document in documents:
        check_context_length(query_bytes + len(document.encode()), capabilities.context, "documents")
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
        reason = "(text-embeddings-inference) is not supported: send 'documents', as for Jina and Cohere."
        raise fields.unsupported("texts", reason)
    if values is None:
        raise fields.missing("documents")
    if not values:
        raise invalid_request("Invalid 'documents': empty array.", param="documents", code="empty_array")
    texts = []
    for index, value in enumerate(values):
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise fields.wrong_type(f"documents[{index}]", "a string or an object with text", value)
        texts.append(text)
    return texts


def read_tokenize(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a tokenize request, with llama.cpp's or vLLM's field names."""
    limit = max(TOKENIZE_LIMIT_BYTES, BYTES_PER_TOKEN * (capabilities or UNKNOWN_CAPABILITIES).context)
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
    for name, engine_name in TOKENIZE_FLAGS.items():
        flag = fields.boolean(body, name)
        if flag is not None:
            engine[engine_name] = flag
    has_pieces = fields.boolean(body, "with_pieces")
    has_texts = fields.boolean(body, "return_token_strs")
    if has_pieces or has_texts:
        engine["with_pieces"] = True
    request = _token_request("tokenize", body, engine)
    request.has_token_texts, request.has_pieces = has_texts is True, has_pieces is True
    return request


def read_detokenize(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a detokenize request."""
    capabilities = capabilities or UNKNOWN_CAPABILITIES
    tokens = fields.array(body, "tokens", max(DETOKENIZE_LIMIT, capabilities.context))
    if tokens is None:
        raise fields.missing("tokens")
    return _token_request("detokenize", body, {"tokens": check_tokens(tokens, "tokens", capabilities.vocabulary_size)})


def _token_request(endpoint: str, body: Json, engine_body: Json) -> ValidatedRequest:
    name = model_name(body)
    return ValidatedRequest(endpoint=endpoint, model=name, facts=RequestFacts(model=name), bodies=[engine_body])
