"""Chat with the real engine: the fields of a request that say how an answer is made, streamed and whole."""

from typing import Any

import pytest

from tests.live.raw import STREAM, ask, chat
from tests.live.server import Running

ODD = 'Tell me about \N{GRINNING FACE} and\u2028 "quotes" \\ data: [DONE]'
# Without the cache a prompt is read in the same way each time, to the last bit.
CALM: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "cache_prompt": False}


@STREAM
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_chat_is_answered_with_and_without_v1(tiny_server: Running, path: str, stream: bool) -> None:
    said = chat(tiny_server, "Hello", path=path, stream=stream, max_tokens=16)
    assert said.text
    assert said.one.role == "assistant"
    assert said.one.finish == "length"
    assert said.model == "tiny"
    assert said.id.startswith("chatcmpl-")


@STREAM
def test_the_default_model_answers_in_words(server: Running, stream: bool) -> None:
    question = "What is the capital of France? Answer in one short sentence."
    said = chat(server, question, stream=stream, temperature=0, max_tokens=40)
    assert len(said.text.split()) > 1
    assert said.one.finish in ("stop", "length")


@pytest.mark.parametrize("prompt", ["Hello", ODD, "x" * 300])
def test_stream_and_whole_are_the_same_answer_of_the_tiny_model(tiny_server: Running, prompt: str) -> None:
    fields = CALM | {"max_tokens": 200}
    whole = chat(tiny_server, prompt, **fields)
    assert chat(tiny_server, prompt, stream=True, **fields) == whole
    assert whole.counts[1] == 200


@pytest.mark.parametrize("prompt", ["Name three colours."])
def test_stream_and_whole_are_the_same_answer_of_the_default_model(server: Running, prompt: str) -> None:
    fields = CALM
    assert chat(server, prompt, stream=True, **fields) == chat(server, prompt, **fields)


@STREAM
def test_characters_that_the_model_breaks_are_mended(zoo: Running, stream: bool) -> None:
    said = chat(zoo, "Hello", model="broken", stream=stream, temperature=1, seed=7, max_tokens=400)
    assert "\N{REPLACEMENT CHARACTER}" in said.text


@pytest.mark.parametrize(
    ("options", "has_usage"), [({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)]
)
def test_usage_is_streamed_only_to_those_who_ask(
    tiny_server: Running, options: dict[str, bool], has_usage: bool
) -> None:
    said = chat(tiny_server, "Hello", stream=True, stream_options=options, max_tokens=5)
    assert (said.usage is not None) == has_usage
    assert not has_usage or said.counts[1] == 5


@STREAM
def test_n_answers_differ_and_their_prompt_counts_once(tiny_server: Running, stream: bool) -> None:
    one = chat(tiny_server, "Hello", seed=3, max_tokens=12)
    said = chat(tiny_server, "Hello", stream=stream, n=3, seed=3, max_tokens=12)
    assert len({choice.text for choice in said.choices}) == 3
    assert [choice.finish for choice in said.choices] == ["length"] * 3
    assert said.counts == (one.counts[0], 36)


@STREAM
def test_an_answer_ends_before_a_stop_text_that_goes_over_tokens(server: Running, stream: bool) -> None:
    full = chat(server, "Count from one to ten in words.", **CALM)
    middle = len(full.text) // 2
    stop = full.text[middle : middle + 7]
    said = chat(server, "Count from one to ten in words.", stream=stream, stop=["never said", stop], **CALM)
    assert said.text == full.text[: full.text.index(stop)]
    assert said.one.finish == "stop"


@STREAM
def test_a_stop_text_may_begin_within_a_token(tiny_server: Running, stream: bool) -> None:
    fields = CALM | {"max_tokens": 60}
    full = chat(tiny_server, "Hello", **fields)
    for place in (5, 11, 17):
        stop = full.text[place : place + 3]
        said = chat(tiny_server, "Hello", stream=stream, stop=stop, **fields)
        assert said.text == full.text[: full.text.index(stop)]
        assert said.one.finish == "stop"


def test_the_same_seed_gives_the_same_answer(tiny_server: Running) -> None:
    def text(seed: int, stream: bool) -> str:
        return chat(tiny_server, "Hello", seed=seed, stream=stream, max_tokens=24, cache_prompt=False).text

    assert text(1, stream=True) == text(1, stream=False)
    assert text(1, stream=True) != text(2, stream=True)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_change_what_is_said(tiny_server: Running, penalty: str) -> None:
    fields = CALM | {"max_tokens": 200}
    said = chat(tiny_server, "Hello", **(fields | {penalty: 2}))
    assert said.text != chat(tiny_server, "Hello", **fields).text


@STREAM
def test_logit_bias_makes_a_token_certain(tiny_server: Running, stream: bool) -> None:
    [token] = ask(tiny_server, "/tokenize", {"content": " hello"}).ok()["tokens"]
    said = chat(tiny_server, "Hi", stream=stream, temperature=0, max_tokens=4, logit_bias={str(token): 100})
    assert said.text == " hello" * 4


@STREAM
@pytest.mark.parametrize("top", [None, 3])
def test_log_probabilities_cover_the_text(server: Running, stream: bool, top: int | None) -> None:
    said = chat(server, "Say hello.", stream=stream, logprobs=True, top_logprobs=top, temperature=0, max_tokens=12)
    tokens = said.one.tokens
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == said.text
    assert all(token["logprob"] <= 0 for token in tokens)
    assert {len(token["top_logprobs"]) for token in tokens} == {top or 0}
    if top:
        assert all(token["top_logprobs"][0]["token"] == token["token"] for token in tokens)


@STREAM
def test_no_log_probabilities_come_unasked(tiny_server: Running, stream: bool) -> None:
    assert not chat(tiny_server, "Hello", stream=stream, max_tokens=4).one.tokens


@STREAM
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("most", [1, 7])
def test_an_answer_that_is_cut_says_so(tiny_server: Running, stream: bool, field: str, most: int) -> None:
    fields: dict[str, Any] = {field: most}
    said = chat(tiny_server, "Hello", stream=stream, **fields)
    assert said.one.finish == "length"
    assert said.counts[1] == most


@STREAM
def test_parts_of_a_message_are_its_text(server: Running, stream: bool) -> None:
    texts = ["What is the capital of", "France?"]
    parts = [{"type": "text", "text": text} for text in texts]
    said = chat(server, [{"role": "user", "content": parts}], stream=stream, **CALM)
    assert said == chat(server, "\n".join(texts), stream=stream, **CALM)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_was_said_before_is_part_of_the_prompt(server: Running, role: str) -> None:
    messages = [
        {"role": role, "content": "You are a helpful assistant."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    prompts = [chat(server, messages[:count], temperature=0, max_tokens=1).counts[0] for count in (2, 3, 4)]
    sizes = [ask(server, "/tokenize", {"content": message["content"]}).ok()["count"] for message in messages]
    assert prompts[0] >= sizes[0] + sizes[1]
    assert prompts[1] - prompts[0] >= sizes[2]
    assert prompts[2] - prompts[1] >= sizes[3]


def test_each_answer_has_an_id_of_its_own(tiny_server: Running) -> None:
    assert len({chat(tiny_server, "Hello", max_tokens=1).id for _ in range(3)}) == 3


def test_a_server_with_one_model_may_be_asked_without_a_name(tiny_server: Running) -> None:
    assert chat(tiny_server, "Hello", model=None, max_tokens=2).model == "tiny"


@STREAM
@pytest.mark.parametrize("words", [3_000, 60_000], ids=["counted by the engine", "seen from its bytes"])
def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(
    tiny_server: Running, stream: bool, words: int
) -> None:
    messages = [{"role": "user", "content": "hello " * words}]
    reply = ask(tiny_server, "/v1/chat/completions", {"model": "tiny", "messages": messages, "stream": stream})
    assert reply.status == 400
    error = reply.error()
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    numbers = [int(word) for word in error["message"].split() if word.isdigit()]
    assert numbers[0] == 2048
    assert numbers[1] > 2048
