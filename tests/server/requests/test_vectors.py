"""Validation of embeddings, rerank and token requests."""

from collections.abc import Callable

import pytest

from tests.server.requests.builders import CAPABILITIES, MODEL, Body, capabilities_with
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.api.embeddings import read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES

Reader = Callable[..., object]


@table(
    ("given", "sent"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2]], [[1], [2]]),
        (["x"] * 2048, ["x"] * 2048),
    ],
)
def test_strings_and_token_ids_are_embedded(given: object, sent: list[object]) -> None:
    _, engine = read_embeddings({"input": given, "model": "e"}, MODEL, CAPABILITIES)
    assert engine == {"input": sent, "encoding_format": "float"}


def test_encoding_and_dimensions_are_kept_for_the_reply() -> None:
    request, engine = read_embeddings(
        {"input": "a", "encoding_format": "base64", "dimensions": 576}, MODEL, CAPABILITIES
    )
    assert (request.encoding_format, request.dimensions) == ("base64", 576)
    assert engine["encoding_format"] == "float"


def test_documents_are_ranked() -> None:
    body = {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 9, "return_documents": True}
    request, engine = read_rerank(body, MODEL, CAPABILITIES)
    assert engine == {"query": "q", "documents": ["a", "b"], "top_n": 2}
    assert request.return_documents is True


@table(
    ("body", "sent"),
    [
        ({"content": ""}, {"content": ""}),
        ({"prompt": "a"}, {"content": "a"}),
        (
            {"content": "a", "add_special": True, "with_pieces": True},
            {"content": "a", "add_special": True, "with_pieces": True},
        ),
        ({"prompt": "a", "add_special_tokens": False}, {"content": "a", "add_special": False}),
        ({"content": "a", "parse_special": False}, {"content": "a", "parse_special": False}),
        ({"content": "a", "return_token_strs": True}, {"content": "a", "with_pieces": True}),
    ],
)
def test_text_is_tokenised(body: Body, sent: Body) -> None:
    assert read_tokenize(body, MODEL, CAPABILITIES)[1] == sent


def test_tokens_are_detokenised() -> None:
    assert read_detokenize({"tokens": [0, 49151]}, MODEL, CAPABILITIES)[1] == {"tokens": [0, 49151]}
    assert read_detokenize({"tokens": []}, MODEL, UNKNOWN_CAPABILITIES)[1] == {"tokens": []}


def test_the_tokenize_limit_grows_with_the_context() -> None:
    wide = capabilities_with(context=100_000)
    assert read_tokenize({"content": "x" * 2**18}, MODEL, CAPABILITIES)
    assert read_tokenize({"content": "x" * 1_600_000}, MODEL, wide)
    assert read_detokenize({"tokens": [1] * 65_536}, MODEL, UNKNOWN_CAPABILITIES)
    assert read_detokenize({"tokens": [1] * 100_000}, MODEL, wide)
    with pytest.raises(ApiError):
        read_tokenize({"content": "x" * 1_600_001}, MODEL, wide)
    with pytest.raises(ApiError):
        read_detokenize({"tokens": [1] * 100_001}, MODEL, wide)


def test_token_ids_are_embedded_up_to_the_context() -> None:
    assert read_embeddings({"input": [[1] * 4096] * 73}, MODEL, CAPABILITIES)[1]["input"] == [[1] * 4096] * 73


@table(
    ("read", "body", "param"),
    [
        (read_embeddings, {}, "input"),
        (read_embeddings, {"input": ""}, "input"),
        (read_embeddings, {"input": []}, "input"),
        (read_embeddings, {"input": ["a", ""]}, "input[1]"),
        (read_embeddings, {"input": 5}, "input"),
        (read_embeddings, {"input": ["a", 5]}, "input[1]"),
        (read_embeddings, {"input": [49152]}, "input"),
        (read_embeddings, {"input": ["x"] * 2049}, "input"),
        (read_embeddings, {"input": [1] * 4097}, "input"),
        (read_embeddings, {"input": [[1], [1] * 4097]}, "input[1]"),
        (read_embeddings, {"input": [[1] * 4000] * 76}, "input"),
        (read_embeddings, {"input": "x" * 65_537}, "input"),
        (read_embeddings, {"input": "a", "dimensions": 0}, "dimensions"),
        (read_embeddings, {"input": "a", "dimensions": 577}, "dimensions"),
        (read_embeddings, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        (read_embeddings, {"input": "a", "model": []}, "model"),
        (read_rerank, {"documents": ["a"]}, "query"),
        (read_rerank, {"query": 1, "documents": ["a"]}, "query"),
        (read_rerank, {"query": "q"}, "documents"),
        (read_rerank, {"query": "q", "texts": ["a"]}, "texts"),
        (read_rerank, {"query": "q", "documents": []}, "documents"),
        (read_rerank, {"query": "q", "documents": [1]}, "documents[0]"),
        (read_rerank, {"query": "q", "documents": [{}]}, "documents[0]"),
        (read_rerank, {"query": "q", "documents": ["x"] * 1001}, "documents"),
        (read_rerank, {"query": "q", "documents": ["x" * 65_537]}, "documents"),
        (read_rerank, {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        (read_rerank, {"query": "q", "documents": ["a"], "return_documents": 1}, "return_documents"),
        (read_tokenize, {}, "content"),
        (read_tokenize, {"content": 5}, "content"),
        (read_tokenize, {"content": "x" * (2**18 + 1)}, "content"),
        (read_tokenize, {"prompt": "é" * (2**17 + 1)}, "prompt"),
        (read_tokenize, {"content": "a", "add_special": "x"}, "add_special"),
        (read_detokenize, {}, "tokens"),
        (read_detokenize, {"tokens": "x"}, "tokens"),
        (read_detokenize, {"tokens": [1] * 65_537}, "tokens"),
        (read_detokenize, {"tokens": [49152]}, "tokens"),
        (read_detokenize, {"tokens": [-1]}, "tokens"),
        (read_detokenize, {"tokens": [1.5]}, "tokens[0]"),
    ],
)
def test_an_invalid_value_is_named(read: Reader, body: Body, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(body, MODEL, CAPABILITIES)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("read", "capability"),
    [(read_embeddings, "embeddings"), (read_rerank, "reranking")],
)
def test_a_model_of_another_kind_rejects_the_request(read: Reader, capability: str) -> None:
    with pytest.raises(ApiError) as caught:
        read({"input": "a", "query": "q", "documents": ["a"]}, MODEL, capabilities_with(**{capability: False}))
    assert caught.value.code == "unsupported_by_model"
