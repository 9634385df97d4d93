"""Validation of `/v1/embeddings`, `/v1/rerank`, `/tokenize` and `/detokenize` for local models."""

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.schemas import vectors as schema
from welldone.server.requests import fields, sampling
from welldone.server.requests.fields import ValidatedRequest

# Tokenising may exceed the context, since clients count with it; but it blocks the engine, for seconds at 4 MB.
TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Size of a text to tokenise, unless the context is larger: some chapters of a book, which take 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same in tokens of four bytes."""


def read_embeddings(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate an embeddings request."""
    capabilities = capabilities or sampling.UNKNOWN_CAPABILITIES
    if not capabilities.embeddings:
        raise sampling.unsupported_by_model("embeddings; start it with --embeddings")
    request = fields.read_fields(body, schema.EmbeddingsRequest)
    inputs = sampling.read_prompts(request.input, "input", schema.INPUTS_LIMIT, capabilities)
    if "" in inputs:
        param = f"input[{inputs.index('')}]" if len(inputs) > 1 else "input"
        message = f"Invalid '{param}': an empty string has no embedding."
        raise invalid_request(message, param=param, code="invalid_value")
    if request.dimensions is not None and capabilities.embedding_size:
        fields.check_range(request.dimensions, 1, capabilities.embedding_size, "dimensions", "integer")
    return ValidatedRequest(
        endpoint="embeddings",
        model=request.model,
        bodies=[{"input": inputs, "encoding_format": "float"}],
        prompt_count=len(inputs),
        dimensions=request.dimensions,
        is_base64=request.encoding_format == "base64",
    )


def read_rerank(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a rerank request in the format of Jina and Cohere."""
    capabilities = capabilities or sampling.UNKNOWN_CAPABILITIES
    if not capabilities.reranking:
        raise sampling.unsupported_by_model("reranking; start it with --reranking")
    if body.get("documents") is None and "texts" in body:
        reason = "(text-embeddings-inference) is not supported: send 'documents', as for Jina and Cohere."
        raise fields.unsupported("texts", reason)
    request = fields.read_fields(body, schema.RerankRequest)
    documents = []
    query_bytes = len(request.query.encode())
    for index, value in enumerate(request.documents):
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise fields.wrong_type(f"documents[{index}]", "a string or an object with text", value)
        sampling.check_context_length(query_bytes + len(text.encode()), capabilities.context, "documents")
        documents.append(text)
    top = min(request.top_n or len(documents), len(documents))
    return ValidatedRequest(
        endpoint="rerank",
        model=request.model,
        bodies=[{"query": request.query, "documents": documents, "top_n": top}],
        documents=documents if request.return_documents else None,
    )


def read_tokenize(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a tokenize request, with llama.cpp's or vLLM's field names."""
    limit = max(
        TOKENIZE_LIMIT_BYTES, sampling.BYTES_PER_TOKEN * (capabilities or sampling.UNKNOWN_CAPABILITIES).context
    )
    request = fields.read_fields(body, schema.TokenizeRequest)
    param, content = ("prompt", request.prompt) if request.content is None else ("content", request.content)
    if content is None:
        raise fields.missing("content")
    if len(content) > limit or len(content.encode()) > limit:
        message = f"Invalid '{param}': text too long. Expected at most {limit} bytes."
        raise invalid_request(message, param=param, code="string_above_max_length")
    engine: Json = {"content": content}
    add_special = request.add_special if request.add_special_tokens is None else request.add_special_tokens
    if add_special is not None:
        engine["add_special"] = add_special
    if request.parse_special is not None:
        engine["parse_special"] = request.parse_special
    if request.with_pieces or request.return_token_strs:
        engine["with_pieces"] = True
    return ValidatedRequest(
        endpoint="tokenize",
        model=request.model,
        bodies=[engine],
        has_token_texts=request.return_token_strs is True,
        has_pieces=request.with_pieces is True,
    )


def read_detokenize(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a detokenize request."""
    capabilities = capabilities or sampling.UNKNOWN_CAPABILITIES
    request = fields.read_fields(body, schema.DetokenizeRequest)
    if len(request.tokens) > (limit := max(DETOKENIZE_LIMIT, capabilities.context)):
        raise fields.too_many("tokens", limit, len(request.tokens))
    tokens = sampling.check_tokens(request.tokens, "tokens", capabilities.vocabulary_size)
    return ValidatedRequest(endpoint="detokenize", model=request.model, bodies=[{"tokens": tokens}])
