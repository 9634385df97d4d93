"""Texts as tokens, and back."""

import pytest

from tests.live.raw import Json, ask
from tests.live.server import Running

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
def test_a_text_comes_back_as_it_was(server: Running, prefix: str, text: str) -> None:
    cut = ask(server, f"{prefix}/tokenize", {"content": text}).ok()
    assert cut["count"] == len(cut["tokens"])
    assert ask(server, f"{prefix}/detokenize", {"tokens": cut["tokens"]}).ok()["content"] == text


@pytest.mark.parametrize("text", TEXTS[:4])
def test_the_names_of_vllm_are_known(tiny_server: Running, text: str) -> None:
    cut = ask(tiny_server, "/tokenize", {"model": "tiny", "prompt": text}).ok()
    assert cut["max_model_len"] == 2048
    assert ask(tiny_server, "/detokenize", {"model": "tiny", "tokens": cut["tokens"]}).ok()["prompt"] == text


def test_special_tokens_are_seen_where_asked(server: Running) -> None:
    assert ask(server, "/tokenize", {"content": "<|im_end|>", "parse_special": True}).ok()["count"] == 1
    assert ask(server, "/tokenize", {"content": "<|im_end|>", "parse_special": False}).ok()["count"] > 1


def test_pieces_come_with_their_tokens_where_asked(server: Running) -> None:
    cut = ask(server, "/tokenize", {"content": "Hello world", "with_pieces": True}).ok()
    assert "".join(token["piece"] for token in cut["tokens"]) == "Hello world"


def test_texts_of_tokens_stand_beside_them_in_vllms_words(server: Running) -> None:
    cut = ask(server, "/tokenize", {"prompt": "Hello wörld", "return_token_strs": True}).ok()
    assert cut["tokens"] == ask(server, "/tokenize", {"prompt": "Hello wörld"}).ok()["tokens"]
    assert len(cut["token_strs"]) == cut["count"]
    assert "".join(cut["token_strs"]).startswith("Hello w")


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
def test_what_is_neither_is_refused(server: Running, path: str, body: Json, param: str) -> None:
    reply = ask(server, path, body)
    assert reply.status == 400
    assert reply.error()["param"] == param
