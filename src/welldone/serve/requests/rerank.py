"""`/v1/rerank`, in the form that Jina and Cohere gave it: the body checked."""

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import UNKNOWN_ABILITIES, unsupported_by_model, check_context_length, model_name
from welldone.wire.asked import RequestFacts
from welldone.wire.events import Json

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
