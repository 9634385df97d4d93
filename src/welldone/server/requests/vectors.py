"""Validation of `/v1/embeddings`, `/v1/rerank`, `/tokenize` and `/detokenize` for local models.

Each reader returns the fields of the request, and the engine's body.
"""

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.protocol.events import Json
from welldone.schemas import vectors as schema
from welldone.server.requests import fields, sampling

# Tokenising may exceed the context, since clients count with it; but it blocks the engine, for seconds at 4 MB.
TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Size of a text to tokenise, unless the context is larger: some chapters of a book, which take 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same in tokens of four bytes."""


def read_embeddings(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.EmbeddingsRequest, Json]:
    """Validate an embeddings request."""
    if not capabilities.embeddings:
        raise sampling.unsupported_by_model("embeddings; start it with --embeddings")
    request = fields.read_fields(body, schema.EmbeddingsRequest)
    inputs = sampling.read_prompts(request.input, "input", schema.INPUTS_LIMIT, capabilities)
    if "" in inputs:
        param = f"input[{inputs.index('')}]" if len(inputs) > 1 else "input"
        raise fields.invalid(param, "an empty string has no embedding.")
    if request.dimensions is not None and capabilities.embedding_size:
        fields.check_range(request.dimensions, 1, capabilities.embedding_size, "dimensions", "integer")
    return request, {"input": inputs, "encoding_format": "float"}


def read_rerank(body: Json, model: ModelSettings, capabilities: ModelCapabilities) -> tuple[schema.RerankRequest, Json]:
    """Validate a rerank request in the format of Jina and Cohere."""
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
    return request, {"query": request.query, "documents": documents, "top_n": top}


def read_tokenize(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.TokenizeRequest, Json]:
    """Validate a tokenize request, with llama.cpp's or vLLM's field names."""
    limit = max(TOKENIZE_LIMIT_BYTES, sampling.BYTES_PER_TOKEN * capabilities.context)
    request = fields.read_fields(body, schema.TokenizeRequest)
    param, content = ("prompt", request.prompt) if request.content is None else ("content", request.content)
    if content is None:
        raise fields.missing("content")
    if len(content) > limit or len(content.encode()) > limit:
        raise fields.invalid(param, f"text too long. Expected at most {limit} bytes.", "string_above_max_length")
    return request, fields.given(
        content=content,
        add_special=request.add_special if request.add_special_tokens is None else request.add_special_tokens,
        parse_special=request.parse_special,
        with_pieces=request.with_pieces or request.return_token_strs or None,
    )


def read_detokenize(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.DetokenizeRequest, Json]:
    """Validate a detokenize request."""
    request = fields.read_fields(body, schema.DetokenizeRequest)
    if len(request.tokens) > (limit := max(DETOKENIZE_LIMIT, capabilities.context)):
        raise fields.too_many("tokens", limit, len(request.tokens))
    tokens = sampling.check_tokens(request.tokens, "tokens", capabilities.vocabulary_size)
    return request, {"tokens": tokens}
