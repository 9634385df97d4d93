"""Embeddings: float and base64, single and in lists, with fewer dimensions."""

import base64
import math
import struct
from typing import Any

import pytest

from tests.support.raw import Json, fetch
from tests.support.server import Running

WIDTH = 32
CAT, SAT, STOCKS = "the cat sat on the mat", "a cat sat on a mat", "stock market fell today"


def embed(
    server: Running, value: object, *, path: str = "/v1/embeddings", model: str = "embedding", **fields: object
) -> Json:
    """Request embeddings and return the body of the reply."""
    return fetch(server, path, {"model": model, "input": value, **fields}).ok()


def vectors(reply: Json) -> list[list[float]]:
    """The vectors of a reply, which must be in order."""
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert {one["object"] for one in reply["data"]} == {"embedding"}
    return [one["embedding"] for one in reply["data"]]


def similarity(one: list[float], other: list[float]) -> float:
    """Cosine similarity."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_an_embedding_has_length_one(zoo: Running, path: str) -> None:
    reply = embed(zoo, CAT, path=path)
    [vector] = vectors(reply)
    assert len(vector) == WIDTH
    assert math.hypot(*vector) == pytest.approx(1)
    assert reply["object"] == "list"
    assert reply["model"] == "embedding"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0


def test_texts_that_share_words_are_more_similar(zoo: Running) -> None:
    cat, sat, stocks = vectors(embed(zoo, [CAT, SAT, STOCKS]))
    assert similarity(cat, sat) > similarity(cat, stocks)


def test_a_list_of_texts_gives_the_same_vectors_as_single_requests(zoo: Running) -> None:
    texts = [f"{CAT} {number}" for number in range(20)]
    for text, vector in zip(texts, vectors(embed(zoo, texts)), strict=True):
        assert similarity(vectors(embed(zoo, text))[0], vector) == pytest.approx(1, abs=1e-4)


def test_base64_vectors_equal_float_vectors(zoo: Running) -> None:
    plain = vectors(embed(zoo, [CAT, STOCKS]))
    packed = [base64.b64decode(one["embedding"]) for one in embed(zoo, [CAT, STOCKS], encoding_format="base64")["data"]]
    for vector, data in zip(plain, packed, strict=True):
        assert list(struct.unpack(f"<{WIDTH}f", data)) == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize("dimensions", [1, 8, WIDTH])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_fewer_dimensions_are_the_first_ones_normalised(zoo: Running, dimensions: int, form: str) -> None:
    [full] = vectors(embed(zoo, CAT))
    cut: Any = embed(zoo, CAT, dimensions=dimensions, encoding_format=form)["data"][0]["embedding"]
    vector = list(struct.unpack(f"<{dimensions}f", base64.b64decode(cut))) if form == "base64" else cut
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    assert similarity(vector, full[:dimensions]) == pytest.approx(1, abs=1e-5)


def test_input_as_tokens_gives_the_same_vector_as_its_text(zoo: Running) -> None:
    tokens = fetch(zoo, "/tokenize", {"model": "embedding", "content": CAT, "add_special": True}).ok()["tokens"]
    [vector] = vectors(embed(zoo, tokens))
    assert similarity(vector, vectors(embed(zoo, CAT))[0]) == pytest.approx(1, abs=1e-4)
    assert len(vectors(embed(zoo, [tokens, tokens]))) == 2


def test_a_chat_model_can_offer_embeddings(zoo: Running) -> None:
    [vector] = vectors(embed(zoo, "Hello", model="both"))
    assert math.hypot(*vector) == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": CAT, "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": CAT, "encoding_format": "hex"}, "encoding_format"),
        ({"input": [10**6]}, "input"),
    ],
)
def test_invalid_input_is_rejected(zoo: Running, fields: Json, param: str) -> None:
    reply = fetch(zoo, "/v1/embeddings", {"model": "embedding", **fields})
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_a_text_over_the_context_is_rejected(zoo: Running) -> None:
    reply = fetch(zoo, "/v1/embeddings", {"model": "embedding", "input": "cat " * 600})
    assert reply.status == 400
    assert reply.error()["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("path", "body"), [("/v1/embeddings", {"input": "x"}), ("/v1/rerank", {})])
def test_a_chat_model_rejects_embeddings_and_reranking(tiny_server: Running, path: str, body: Json) -> None:
    reply = fetch(tiny_server, path, {"model": "tiny", **body})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"


@pytest.mark.parametrize("model", ["embedding", "ranking"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"})],
)
def test_an_embedding_model_rejects_chat_and_completions(zoo: Running, model: str, path: str, body: Json) -> None:
    reply = fetch(zoo, path, {"model": model, **body})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"
