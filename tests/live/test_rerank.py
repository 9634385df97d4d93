"""Reranking: documents sorted by their relevance to a query."""

from typing import Any

import pytest

from tests.support.raw import Json, fetch
from tests.support.server import Running

DOCUMENTS = ["the stock market fell today", "the cat sat on the mat", "hello world"]


def rank(server: Running, path: str = "/v1/rerank", **fields: object) -> Json:
    """Request a ranking and return the body of the reply."""
    body = {"model": "ranking", "query": "what is a cat", "documents": DOCUMENTS, **fields}
    return fetch(server, path, body).ok()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_all_documents_are_returned_in_order_of_relevance(zoo: Running, path: str) -> None:
    reply = rank(zoo, path)
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in reply["results"]) == [0, 1, 2]
    assert len(set(scores)) == 3
    assert reply["model"] == "ranking"
    assert reply["usage"]["total_tokens"] > 0
    assert all("document" not in one for one in reply["results"])


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_top_n_returns_the_first_results(zoo: Running, count: int) -> None:
    assert rank(zoo, top_n=count)["results"] == rank(zoo)["results"][:count]


@pytest.mark.parametrize("documents", [DOCUMENTS, [{"text": text} for text in DOCUMENTS]], ids=["texts", "objects"])
def test_return_documents_adds_the_documents(zoo: Running, documents: list[Any]) -> None:
    for one in rank(zoo, documents=documents, return_documents=True, top_n=2)["results"]:
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}


@pytest.mark.parametrize(
    ("fields", "param"), [({"query": None}, "query"), ({"documents": []}, "documents"), ({"top_n": 0}, "top_n")]
)
def test_invalid_rerank_requests_are_rejected(zoo: Running, fields: Json, param: str) -> None:
    body = {"model": "ranking", "query": "cat", "documents": DOCUMENTS, **fields}
    reply = fetch(zoo, "/v1/rerank", body)
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_an_embedding_model_rejects_reranking(zoo: Running) -> None:
    reply = fetch(zoo, "/v1/rerank", {"model": "embedding", "query": "cat", "documents": DOCUMENTS})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"
