"""Reasoning models: reasoning is separated from the answer and comes first."""

from typing import Any

import pytest

from tests.support.raw import CHAT, STREAM, ParsedReply, chat, fetch
from tests.support.server import Running

FIELDS: dict[str, Any] = {"model": "thinking", "seed": 4, "max_tokens": 200, "cache_prompt": False}


def order(answer: ParsedReply) -> list[str]:
    """The kinds of content in a stream, in order of first appearance."""
    keys = (key for chunk in answer.reply.chunks() for part in chunk["choices"] for key in _content_keys(part["delta"]))
    return list(dict.fromkeys(keys))


def _content_keys(delta: dict[str, Any]) -> list[str]:
    return [key for key in ("reasoning_content", "content") if delta.get(key)]


@STREAM
@pytest.mark.parametrize("seed", range(2))
def test_reasoning_is_separated_from_the_answer(zoo: Running, stream: bool, seed: int) -> None:
    answer = chat(zoo, "Hello", stream=stream, **FIELDS | {"seed": seed})
    assert answer.choice.reasoning
    assert "</think>" not in answer.choice.reasoning  # a second end tag is plain text
    assert answer.choice.finish in ("stop", "length")


@pytest.mark.tier3
@pytest.mark.parametrize("seed", range(4))
def test_reasoning_is_streamed_before_the_answer(zoo: Running, seed: int) -> None:
    answer = chat(zoo, "Hello", stream=True, **FIELDS | {"seed": seed})
    assert order(answer) in (["reasoning_content", "content"], ["reasoning_content"])


def test_reasoning_is_followed_by_an_answer_for_some_seeds(zoo: Running) -> None:
    assert any(chat(zoo, "Hello", **FIELDS | {"seed": seed}).text for seed in range(40))


def test_streamed_and_whole_reasoning_are_equal(zoo: Running) -> None:
    fields = FIELDS | {"temperature": 0}
    assert chat(zoo, "Hello", stream=True, **fields) == chat(zoo, "Hello", **fields)


@STREAM
def test_reasoning_format_none_leaves_reasoning_in_the_text(zoo: Running, stream: bool) -> None:
    answer = chat(zoo, "Hello", stream=stream, reasoning_format="none", **FIELDS)
    assert answer.choice.reasoning == ""
    assert answer.text


@STREAM
def test_truncated_reasoning_has_finish_reason_length(zoo: Running, stream: bool) -> None:
    answer = chat(zoo, "Hello", stream=stream, **FIELDS | {"max_tokens": 3})
    assert answer.choice.finish == "length"
    assert answer.counts[1] == 3


@pytest.mark.parametrize("limit", [3, 800])
def test_reasoning_tokens_are_counted(zoo: Running, limit: int) -> None:
    fields = {"model": "thinking", "seed": 4, "cache_prompt": False}
    messages = [{"role": "user", "content": "Hello"}]
    completion = fetch(zoo, CHAT, fields | {"messages": messages, "max_tokens": limit}).json()
    response = fetch(zoo, "/v1/responses", fields | {"input": "Hello", "max_output_tokens": limit}).json()
    count = completion["usage"]["completion_tokens_details"]["reasoning_tokens"]
    total = completion["usage"]["completion_tokens"]
    assert 0 < count <= total
    assert (count == total) is (completion["choices"][0]["message"]["content"] == "")
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == count


@STREAM
def test_reasoning_of_earlier_messages_is_accepted(zoo: Running, stream: bool) -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."},
        {"role": "user", "content": "And now?"},
    ]
    assert chat(zoo, messages, stream=stream, **FIELDS | {"max_tokens": 8}).counts[1] <= 8
