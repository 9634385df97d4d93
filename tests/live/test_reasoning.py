"""A model that thinks first: its thoughts go apart from its answer, and before it."""

from typing import Any

import pytest

from tests.live.raw import CHAT, STREAM, Said, ask, chat
from tests.live.server import Running

FIELDS: dict[str, Any] = {"model": "thinking", "seed": 4, "max_tokens": 800, "cache_prompt": False}


def order(said: Said) -> list[str]:
    """What comes in the stream, in the order in which it begins."""
    keys = (key for chunk in said.reply.chunks() for part in chunk["choices"] for key in _said(part["delta"]))
    return list(dict.fromkeys(keys))


def _said(delta: dict[str, Any]) -> list[str]:
    return [key for key in ("reasoning_content", "content") if delta.get(key)]


@STREAM
@pytest.mark.parametrize("seed", range(4))
def test_thoughts_are_apart_from_the_answer(zoo: Running, stream: bool, seed: int) -> None:
    said = chat(zoo, "Hello", stream=stream, **FIELDS | {"seed": seed})
    assert said.one.reasoning
    assert "</think>" not in said.one.reasoning  # after the first one it is text like any other
    assert said.one.finish in ("stop", "length")


@pytest.mark.tier3
@pytest.mark.parametrize("seed", range(4))
def test_thoughts_come_before_the_answer(zoo: Running, seed: int) -> None:
    said = chat(zoo, "Hello", stream=True, **FIELDS | {"seed": seed})
    assert order(said) in (["reasoning_content", "content"], ["reasoning_content"])


def test_some_thoughts_lead_to_an_answer(zoo: Running) -> None:
    assert any(chat(zoo, "Hello", **FIELDS | {"seed": seed}).text for seed in range(40))


def test_stream_and_whole_are_the_same_thoughts_and_answer(zoo: Running) -> None:
    fields = FIELDS | {"temperature": 0}
    assert chat(zoo, "Hello", stream=True, **fields) == chat(zoo, "Hello", **fields)


@STREAM
def test_thoughts_may_be_left_in_the_text(zoo: Running, stream: bool) -> None:
    said = chat(zoo, "Hello", stream=stream, reasoning_format="none", **FIELDS)
    assert said.one.reasoning == ""
    assert said.text


@STREAM
def test_a_thought_that_is_cut_says_so(zoo: Running, stream: bool) -> None:
    said = chat(zoo, "Hello", stream=stream, **FIELDS | {"max_tokens": 3})
    assert said.one.finish == "length"
    assert said.counts[1] == 3


@pytest.mark.parametrize("most", [3, 800])
def test_reasoning_tokens_are_counted(zoo: Running, most: int) -> None:
    fields = {"model": "thinking", "seed": 4, "cache_prompt": False}
    messages = [{"role": "user", "content": "Hello"}]
    said = ask(zoo, CHAT, fields | {"messages": messages, "max_tokens": most}).json()
    response = ask(zoo, "/v1/responses", fields | {"input": "Hello", "max_output_tokens": most}).json()
    count = said["usage"]["completion_tokens_details"]["reasoning_tokens"]
    total = said["usage"]["completion_tokens"]
    assert 0 < count <= total
    assert (count == total) is (said["choices"][0]["message"]["content"] == "")
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == count


@STREAM
def test_thoughts_of_before_may_be_sent_back(zoo: Running, stream: bool) -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."},
        {"role": "user", "content": "And now?"},
    ]
    assert chat(zoo, messages, stream=stream, **FIELDS | {"max_tokens": 8}).counts[1] <= 8
