"""Every tiny model loads in llama.cpp and behaves as specified."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.models import encoders, tiny, vision
from tests.models.engine import Engine, engine
from tests.models.fixtures import VisionModel
from tests.models.gguf_writer import Gguf, Weight
from tests.models.picture import data_url, png
from tests.models.vocabulary import Mark, Need, vocabulary
from tests.table import table
from welldone.engines.models.gguf import read_metadata

MAKERS = [
    tiny.chat_model,
    tiny.thinking_model,
    tiny.calling_model,
    tiny.broken_model,
    encoders.embedding_model,
    encoders.rerank_model,
    vision.projector,
]
SEEDS = range(12)
BROKEN = "\N{REPLACEMENT CHARACTER}"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "forecast", "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def chat_engine(tiny_model: Path) -> Iterator[Engine]:
    """The running chat model."""
    with engine(tiny_model) as running:
        yield running


@table("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_models_are_small_and_reproducible(maker: Callable[[], Gguf]) -> None:
    data = maker().data()
    assert data == maker().data()
    assert len(data) < 1_000_000


def test_the_file_has_its_metadata(tiny_model: Path) -> None:
    metadata = read_metadata(tiny_model)
    assert (metadata.name, metadata.architecture, metadata.context_length) == ("tiny", "llama", tiny.CONTEXT)
    assert metadata.chat_template == (tiny.HERE / "chat.jinja").read_text()


def test_the_vocabulary_has_every_byte_and_splits_characters() -> None:
    tokens = vocabulary().tokens
    pieces = {token.data for token in tokens if token.mark is Mark.NORMAL}
    assert {bytes([byte]) for byte in range(256)} <= pieces
    assert b"\xf0\x9f\x98" in pieces  # three of the four bytes of an emoji
    assert {token.after for token in tokens} == set(Need)
    assert len({token.data for token in tokens}) == len(tokens)


def test_tokenization_is_reversible(chat_engine: Engine) -> None:
    text = "Hello \N{GRINNING FACE} the 中文字, naïve\tcafé\N{ZERO WIDTH JOINER}\x00\x7f"
    tokens = chat_engine.post("/tokenize", {"content": text})["tokens"]
    assert chat_engine.post("/detokenize", {"tokens": tokens})["content"] == text


def test_a_chat_is_long_and_varied_with_complete_characters(chat_engine: Engine) -> None:
    choice = chat_engine.chat("hello", max_tokens=600, temperature=1, seed=1)
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert len(set(text)) > 50  # far more than any natural text of this length
    assert max(text) > "\uffff"  # emoji, of four bytes
    assert text.count(BROKEN) < len(text) / 100


def test_a_stream_has_the_text_of_the_buffered_answer(chat_engine: Engine) -> None:
    buffered = chat_engine.chat("tell me", max_tokens=200, temperature=0)["message"]["content"]
    deltas = chat_engine.deltas("tell me", max_tokens=200, temperature=0)
    assert "".join(delta.get("content") or "" for delta in deltas) == buffered
    assert len(deltas) > 100  # one per token, except for incomplete characters


def test_a_prompt_is_completed(chat_engine: Engine) -> None:
    answer = chat_engine.post("/v1/completions", {"prompt": "the world", "max_tokens": 8, "temperature": 0})
    assert answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("seed", range(3))
def test_a_grammar_enforces_json_with_an_end(chat_engine: Engine, seed: int) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": PARAMETERS}}
    choice = chat_engine.chat("hello", max_tokens=1500, temperature=1, seed=seed, response_format=response_format)
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"city", "days"}


def test_the_template_renders_tools(chat_engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "tools": TOOLS}
    prompt = chat_engine.post("/apply-template", body)["prompt"]
    assert '"name": "forecast"' in prompt
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.tier3
def test_reasoning_precedes_the_answer(tiny_thinking_model: Path) -> None:
    with engine(tiny_thinking_model) as running:
        answers = [running.deltas("hello", max_tokens=1000, temperature=1, seed=seed) for seed in SEEDS]
    kinds = [_kinds(deltas) for deltas in answers]
    assert ["reasoning_content", "content"] in kinds
    assert all(kind in (["reasoning_content"], ["reasoning_content", "content"]) for kind in kinds)


def _kinds(deltas: list[dict[str, Any]]) -> list[str]:
    """Return the types of text in the order of their first delta."""
    names = [name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    return list(dict.fromkeys(names))


@pytest.mark.tier3
def test_tool_calls_appear_within_text(tiny_calling_model: Path) -> None:
    with engine(tiny_calling_model) as running:
        choices = [running.chat("hello", max_tokens=600, temperature=1, seed=seed, tools=TOOLS) for seed in SEEDS]
    ended = [choice["message"] for choice in choices if choice["finish_reason"] == "tool_calls"]
    functions = [call["function"] for message in ended for call in message["tool_calls"]]
    assert functions
    assert any(message["content"] for message in ended)
    assert {function["name"] for function in functions} == {"forecast"}
    assert all(set(json.loads(function["arguments"])) == {"city", "days"} for function in functions)


def test_the_broken_model_generates_incomplete_characters(tiny_broken_model: Path) -> None:
    with engine(tiny_broken_model) as running:
        texts = [running.chat("hello", max_tokens=300, temperature=1, seed=seed) for seed in range(3)]
    assert all(BROKEN in choice["message"]["content"] for choice in texts)


def test_half_precision_and_another_alignment_are_supported(tmp_path: Path) -> None:
    model = tiny.chat_model()
    halves = [replace(tensor, kind=Weight.F16) if len(tensor.shape) > 1 else tensor for tensor in model.tensors]
    with engine(replace(model, tensors=halves).write(tmp_path / "half.gguf", alignment=64)) as running:
        assert running.chat("hello", max_tokens=4, temperature=0)["message"]["content"]


def test_texts_with_common_words_have_nearer_vectors(tiny_embedding_model: Path) -> None:
    texts = ["the cat sat on the mat", "a cat sat on a mat", "stock market fell today"]
    with engine(tiny_embedding_model, embedding=True, n_ctx=encoders.CONTEXT) as running:
        answer = running.post("/v1/embeddings", {"input": texts})
    first, near, far = [entry["embedding"] for entry in answer["data"]]
    assert len(first) == encoders.WIDTH
    assert math.isclose(math.hypot(*first), 1.0, abs_tol=1e-4)
    assert math.dist(first, near) < math.dist(first, far)


def test_documents_are_reranked(tiny_rerank_model: Path) -> None:
    body = {"query": "what is a cat", "documents": ["the cat sat on the mat", "stock market fell", "hello"]}
    with engine(tiny_rerank_model, embedding=True, pooling="RANK", n_ctx=encoders.CONTEXT) as running:
        results = running.post("/v1/rerank", body)["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert len({result["relevance_score"] for result in results}) == len(results)


def test_the_answer_depends_on_the_image(tiny_vision: VisionModel) -> None:
    red, blue = (_picture((255, 0, 0)), _picture((0, 0, 255)))
    with engine(tiny_vision.model, mmproj=str(tiny_vision.projector)) as running:
        answers = [running.chat(image, max_tokens=20, temperature=0)["message"] for image in (red, red, blue)]
        messages = [{"role": "user", "content": red}]
        usage = running.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})["usage"]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]
    assert usage["prompt_tokens"] > vision.PATCHES


def _picture(colour: tuple[int, int, int]) -> list[dict[str, Any]]:
    url = data_url(png(20, 10, colour))
    return [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.tier3
def test_the_default_model_answers_in_words(default_model: Path) -> None:
    with engine(default_model) as running:
        choice = running.chat("Which animal says meow?", max_tokens=40, temperature=0)
    assert len(choice["message"]["content"].split()) > 1
    assert choice["finish_reason"] in ("stop", "length")
