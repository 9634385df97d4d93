"""Chat completions of the real engine: request fields that control the answer, with and without streaming."""

import re
from typing import Any

import pytest

from tests.support.raw import STREAM, chat, fetch
from tests.support.server import Running
from welldone.engines.builds import llama_version_of, wheel_version

ODD = 'Tell me about \N{GRINNING FACE} and\u2028 "quotes" \\ data: [DONE]'
# Without the prompt cache the engine computes bit-identical results each time.
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "cache_prompt": False}


@STREAM
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_chat_works_with_and_without_the_v1_prefix(tiny_server: Running, path: str, stream: bool) -> None:
    answer = chat(tiny_server, "Hello", path=path, stream=stream, max_tokens=16)
    assert answer.text
    assert answer.choice.role == "assistant"
    assert answer.choice.finish == "length"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")


@STREAM
def test_the_default_model_answers_with_several_words(server: Running, stream: bool) -> None:
    question = "What is the capital of France?"
    answer = chat(server, question, stream=stream, temperature=0, max_tokens=12)
    assert len(answer.text.split()) > 1
    assert answer.choice.finish in ("stop", "length")


@pytest.mark.parametrize("prompt", ["Hello", ODD, "x" * 300])
def test_streamed_and_whole_answers_of_the_tiny_model_are_equal(tiny_server: Running, prompt: str) -> None:
    fields = GREEDY | {"max_tokens": 200}
    whole = chat(tiny_server, prompt, **fields)
    assert chat(tiny_server, prompt, stream=True, **fields) == whole
    assert whole.counts[1] == 200


def test_streamed_and_whole_answers_of_the_default_model_are_equal(server: Running) -> None:
    fields = GREEDY | {"max_tokens": 8}
    assert chat(server, "Name a colour.", stream=True, **fields) == chat(server, "Name a colour.", **fields)


@STREAM
def test_incomplete_utf8_characters_are_replaced(zoo: Running, stream: bool) -> None:
    answer = chat(zoo, "Hello", model="broken", stream=stream, temperature=1, seed=7, max_tokens=400)
    assert "\N{REPLACEMENT CHARACTER}" in answer.text


@pytest.mark.parametrize(
    ("options", "has_usage"), [({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)]
)
def test_usage_is_streamed_only_with_include_usage(
    tiny_server: Running, options: dict[str, bool], has_usage: bool
) -> None:
    answer = chat(tiny_server, "Hello", stream=True, stream_options=options, max_tokens=5)
    assert (answer.usage is not None) == has_usage
    assert not has_usage or answer.counts[1] == 5


@STREAM
def test_n_choices_differ_and_their_prompt_counts_once(tiny_server: Running, stream: bool) -> None:
    one = chat(tiny_server, "Hello", seed=3, max_tokens=12)
    answer = chat(tiny_server, "Hello", stream=stream, n=3, seed=3, max_tokens=12)
    assert len({choice.text for choice in answer.choices}) == 3
    assert [choice.finish for choice in answer.choices] == ["length"] * 3
    assert answer.counts == (one.counts[0], 36)


@STREAM
def test_an_answer_ends_before_a_stop_string_that_spans_tokens(tiny_server: Running, stream: bool) -> None:
    full = chat(tiny_server, "Hello", **GREEDY)
    middle = len(full.text) // 2
    stop = full.text[middle : middle + 7]
    answer = chat(tiny_server, "Hello", stream=stream, stop=["not in the text", stop], **GREEDY)
    assert answer.text == full.text[: full.text.index(stop)]
    assert answer.choice.finish == "stop"


@STREAM
def test_a_stop_string_may_begin_within_a_token(tiny_server: Running, stream: bool) -> None:
    fields = GREEDY | {"max_tokens": 60}
    full = chat(tiny_server, "Hello", **fields)
    for start in (5, 11, 17):
        stop = full.text[start : start + 3]
        answer = chat(tiny_server, "Hello", stream=stream, stop=stop, **fields)
        assert answer.text == full.text[: full.text.index(stop)]
        assert answer.choice.finish == "stop"


def test_the_same_seed_gives_the_same_answer(tiny_server: Running) -> None:
    def text(seed: int, stream: bool) -> str:
        return chat(tiny_server, "Hello", seed=seed, stream=stream, max_tokens=24, cache_prompt=False).text

    assert text(1, stream=True) == text(1, stream=False)
    assert text(1, stream=True) != text(2, stream=True)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_change_the_answer(tiny_server: Running, penalty: str) -> None:
    fields = GREEDY | {"max_tokens": 200}
    answer = chat(tiny_server, "Hello", **(fields | {penalty: 2}))
    assert answer.text != chat(tiny_server, "Hello", **fields).text


@STREAM
def test_logit_bias_forces_a_token(tiny_server: Running, stream: bool) -> None:
    [token] = fetch(tiny_server, "/tokenize", {"content": " hello"}).ok()["tokens"]
    answer = chat(tiny_server, "Hi", stream=stream, temperature=0, max_tokens=4, logit_bias={str(token): 100})
    assert answer.text == " hello" * 4


@STREAM
@pytest.mark.parametrize("top", [None, 3])
def test_log_probabilities_cover_the_whole_text(server: Running, stream: bool, top: int | None) -> None:
    answer = chat(server, "Say hello.", stream=stream, logprobs=True, top_logprobs=top, temperature=0, max_tokens=4)
    tokens = answer.choice.tokens
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == answer.text
    assert all(token["logprob"] <= 0 for token in tokens)
    assert {len(token["top_logprobs"]) for token in tokens} == {top or 0}
    if top:
        assert all(token["top_logprobs"][0]["token"] == token["token"] for token in tokens)


@STREAM
def test_log_probabilities_are_absent_by_default(tiny_server: Running, stream: bool) -> None:
    assert not chat(tiny_server, "Hello", stream=stream, max_tokens=4).choice.tokens


@STREAM
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("limit", [1, 7])
def test_the_token_limit_ends_the_answer_with_finish_reason_length(
    tiny_server: Running, stream: bool, field: str, limit: int
) -> None:
    fields: dict[str, Any] = {field: limit}
    answer = chat(tiny_server, "Hello", stream=stream, **fields)
    assert answer.choice.finish == "length"
    assert answer.counts[1] == limit


@STREAM
def test_text_parts_of_a_message_are_joined(tiny_server: Running, stream: bool) -> None:
    texts = ["What is the capital of", "France?"]
    parts = [{"type": "text", "text": text} for text in texts]
    answer = chat(tiny_server, [{"role": "user", "content": parts}], stream=stream, **GREEDY)
    assert answer == chat(tiny_server, "\n".join(texts), stream=stream, **GREEDY)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_earlier_messages_are_part_of_the_prompt(tiny_server: Running, role: str) -> None:
    messages = [
        {"role": role, "content": "You are a helpful assistant."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    prompts = [chat(tiny_server, messages[:count], temperature=0, max_tokens=1).counts[0] for count in (2, 3, 4)]
    sizes = [fetch(tiny_server, "/tokenize", {"content": message["content"]}).ok()["count"] for message in messages]
    assert prompts[0] >= sizes[0] + sizes[1]
    assert prompts[1] - prompts[0] >= sizes[2]
    assert prompts[2] - prompts[1] >= sizes[3]


@STREAM
def test_an_answer_has_the_build_of_the_engine(tiny_server: Running, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "stream": stream}
    found = re.findall(rb'"system_fingerprint":"([^"]*)"', fetch(tiny_server, "/v1/chat/completions", body).trace.body)
    assert set(found) == {f"b{llama_version_of(wheel_version() or '')}".encode()}


def test_each_answer_has_its_own_id(tiny_server: Running) -> None:
    assert len({chat(tiny_server, "Hello", max_tokens=1).id for _ in range(3)}) == 3


def test_a_server_with_one_model_needs_no_model_name(tiny_server: Running) -> None:
    assert chat(tiny_server, "Hello", model=None, max_tokens=2).model == "tiny"


@STREAM
@pytest.mark.parametrize("words", [3_000, 60_000], ids=["counted by the engine", "estimated from its bytes"])
def test_a_prompt_over_the_context_is_rejected_with_both_token_counts(
    tiny_server: Running, stream: bool, words: int
) -> None:
    messages = [{"role": "user", "content": "hello " * words}]
    reply = fetch(tiny_server, "/v1/chat/completions", {"model": "tiny", "messages": messages, "stream": stream})
    assert reply.status == 400
    error = reply.error()
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    numbers = [int(word) for word in error["message"].split() if word.isdigit()]
    assert numbers[0] == 2048
    assert numbers[1] > 2048
