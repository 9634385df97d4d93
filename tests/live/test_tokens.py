"""The tokenize and detokenize endpoints."""

import pytest

from tests.support.raw import Json, fetch
from tests.support.server import Running

TEXTS = [
    "Hello, world!",
    "",
    "  spaces\n\tand lines  ",
    "Zürich \N{GRINNING FACE} 日本\u2028",
    "<|im_end|>",
    "x" * 5000,
]


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("text", TEXTS)
def test_detokenize_restores_the_text(server: Running, prefix: str, text: str) -> None:
    tokenized = fetch(server, f"{prefix}/tokenize", {"content": text}).ok()
    assert tokenized["count"] == len(tokenized["tokens"])
    assert fetch(server, f"{prefix}/detokenize", {"tokens": tokenized["tokens"]}).ok()["content"] == text


@pytest.mark.parametrize("text", TEXTS[:4])
def test_the_field_names_of_vllm_are_accepted(tiny_server: Running, text: str) -> None:
    tokenized = fetch(tiny_server, "/tokenize", {"model": "tiny", "prompt": text}).ok()
    assert tokenized["max_model_len"] == 2048
    assert fetch(tiny_server, "/detokenize", {"model": "tiny", "tokens": tokenized["tokens"]}).ok()["prompt"] == text


def test_parse_special_tokenizes_special_tokens(server: Running) -> None:
    assert fetch(server, "/tokenize", {"content": "<|im_end|>", "parse_special": True}).ok()["count"] == 1
    assert fetch(server, "/tokenize", {"content": "<|im_end|>", "parse_special": False}).ok()["count"] > 1


def test_with_pieces_returns_the_text_of_each_token(server: Running) -> None:
    tokenized = fetch(server, "/tokenize", {"content": "Hello world", "with_pieces": True}).ok()
    assert "".join(token["piece"] for token in tokenized["tokens"]) == "Hello world"


def test_return_token_strs_returns_the_text_of_each_token(server: Running) -> None:
    tokenized = fetch(server, "/tokenize", {"prompt": "Hello wörld", "return_token_strs": True}).ok()
    assert tokenized["tokens"] == fetch(server, "/tokenize", {"prompt": "Hello wörld"}).ok()["tokens"]
    assert len(tokenized["token_strs"]) == tokenized["count"]
    assert "".join(tokenized["token_strs"]).startswith("Hello w")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_invalid_tokenize_requests_are_rejected(server: Running, path: str, body: Json, param: str) -> None:
    reply = fetch(server, path, body)
    assert reply.status == 400
    assert reply.error()["param"] == param
