"""Embeddings: as numbers and packed, one and many, cut to fewer dimensions."""

import base64
import math
import struct
from typing import Any

import pytest

from tests.live.raw import Json, ask
from tests.live.server import Running

WIDTH = 32
CAT, SAT, STOCKS = "the cat sat on the mat", "a cat sat on a mat", "stock market fell today"


def embed(
    server: Running, value: object, *, path: str = "/v1/embeddings", model: str = "embedding", **fields: object
) -> Json:
    """The reply to a request for embeddings."""
    return ask(server, path, {"model": model, "input": value, **fields}).ok()


def vectors(reply: Json) -> list[list[float]]:
    """The vectors, which are in order."""
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert {one["object"] for one in reply["data"]} == {"embedding"}
    return [one["embedding"] for one in reply["data"]]


def likeness(one: list[float], other: list[float]) -> float:
    """1 for the same direction, less for others."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_a_text_becomes_a_vector_of_length_one(zoo: Running, path: str) -> None:
    reply = embed(zoo, CAT, path=path)
    [vector] = vectors(reply)
    assert len(vector) == WIDTH
    assert math.hypot(*vector) == pytest.approx(1)
    assert reply["object"] == "list"
    assert reply["model"] == "embedding"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0


def test_texts_that_share_words_are_nearer(zoo: Running) -> None:
    cat, sat, stocks = vectors(embed(zoo, [CAT, SAT, STOCKS]))
    assert likeness(cat, sat) > likeness(cat, stocks)


def test_many_texts_are_as_each_alone(zoo: Running) -> None:
    texts = [f"{CAT} {number}" for number in range(20)]
    for text, vector in zip(texts, vectors(embed(zoo, texts)), strict=True):
        assert likeness(vectors(embed(zoo, text))[0], vector) == pytest.approx(1, abs=1e-4)


def test_packed_numbers_are_the_same(zoo: Running) -> None:
    plain = vectors(embed(zoo, [CAT, STOCKS]))
    packed = [base64.b64decode(one["embedding"]) for one in embed(zoo, [CAT, STOCKS], encoding_format="base64")["data"]]
    for vector, data in zip(plain, packed, strict=True):
        assert list(struct.unpack(f"<{WIDTH}f", data)) == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize("dimensions", [1, 8, WIDTH])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_fewer_dimensions_are_the_first_ones_of_length_one(zoo: Running, dimensions: int, form: str) -> None:
    [full] = vectors(embed(zoo, CAT))
    cut: Any = embed(zoo, CAT, dimensions=dimensions, encoding_format=form)["data"][0]["embedding"]
    vector = list(struct.unpack(f"<{dimensions}f", base64.b64decode(cut))) if form == "base64" else cut
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    assert likeness(vector, full[:dimensions]) == pytest.approx(1, abs=1e-5)


def test_tokens_are_taken_as_the_engine_reads_them(zoo: Running) -> None:
    tokens = ask(zoo, "/tokenize", {"model": "embedding", "content": CAT, "add_special": True}).ok()["tokens"]
    [vector] = vectors(embed(zoo, tokens))
    assert likeness(vector, vectors(embed(zoo, CAT))[0]) == pytest.approx(1, abs=1e-4)
    assert len(vectors(embed(zoo, [tokens, tokens]))) == 2


def test_a_chat_model_may_offer_embeddings_too(zoo: Running) -> None:
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
def test_what_has_no_embedding_is_refused(zoo: Running, fields: Json, param: str) -> None:
    reply = ask(zoo, "/v1/embeddings", {"model": "embedding", **fields})
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_a_text_that_does_not_fit_is_refused(zoo: Running) -> None:
    reply = ask(zoo, "/v1/embeddings", {"model": "embedding", "input": "cat " * 600})
    assert reply.status == 400
    assert reply.error()["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("path", "body"), [("/v1/embeddings", {"input": "x"}), ("/v1/rerank", {})])
def test_a_model_for_chat_says_that_it_cannot(tiny_server: Running, path: str, body: Json) -> None:
    reply = ask(tiny_server, path, {"model": "tiny", **body})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"


@pytest.mark.parametrize("model", ["embedding", "ranking"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"})],
)
def test_a_model_for_embeddings_does_not_chat(zoo: Running, model: str, path: str, body: Json) -> None:
    reply = ask(zoo, path, {"model": model, **body})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_by_model"
