"""Documents by how well they go with a query."""

from typing import Any

import pytest

from tests.live.raw import Json, ask
from tests.live.server import Running

DOCUMENTS = ["the stock market fell today", "the cat sat on the mat", "hello world"]


def rank(server: Running, path: str = "/v1/rerank", **fields: object) -> Json:
    """The reply to a request."""
    body = {"model": "ranking", "query": "what is a cat", "documents": DOCUMENTS, **fields}
    return ask(server, path, body).ok()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_all_documents_are_ranked_the_best_first(zoo: Running, path: str) -> None:
    reply = rank(zoo, path)
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in reply["results"]) == [0, 1, 2]
    assert len(set(scores)) == 3
    assert reply["model"] == "ranking"
    assert reply["usage"]["total_tokens"] > 0
    assert all("document" not in one for one in reply["results"])


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_the_best_ones_are_the_same_as_of_all(zoo: Running, count: int) -> None:
    assert rank(zoo, top_n=count)["results"] == rank(zoo)["results"][:count]


@pytest.mark.parametrize("documents", [DOCUMENTS, [{"text": text} for text in DOCUMENTS]], ids=["texts", "objects"])
def test_documents_come_back_where_asked(zoo: Running, documents: list[Any]) -> None:
    for one in rank(zoo, documents=documents, return_documents=True, top_n=2)["results"]:
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}


@pytest.mark.parametrize(
    ("fields", "param"), [({"query": None}, "query"), ({"documents": []}, "documents"), ({"top_n": 0}, "top_n")]
)
def test_what_cannot_be_ranked_is_refused(zoo: Running, fields: Json, param: str) -> None:
    body = {"model": "ranking", "query": "cat", "documents": DOCUMENTS, **fields}
    reply = ask(zoo, "/v1/rerank", body)
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_a_model_that_embeds_does_not_rank(zoo: Running) -> None:
    reply = ask(zoo, "/v1/rerank", {"model": "embedding", "query": "cat", "documents": DOCUMENTS})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"
