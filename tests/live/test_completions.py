"""Texts that are continued: prompts as text and as tokens, one and many, streamed and whole."""

from typing import Any

import pytest

from tests.live.raw import COMPLETIONS, STREAM, ask, chat, complete
from tests.live.server import Running

FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "cache_prompt": False}


def tokens_of(server: Running, text: str) -> list[int]:
    """The text as the model reads it."""
    found = ask(server, "/tokenize", {"content": text}).ok()["tokens"]
    assert isinstance(found, list)
    return found


@STREAM
@pytest.mark.parametrize("path", ["/v1/completions", "/completions"])
def test_a_text_is_continued_with_and_without_v1(tiny_server: Running, path: str, stream: bool) -> None:
    said = complete(tiny_server, "Once upon", path=path, stream=stream, max_tokens=8)
    assert said.text
    assert said.one.finish == "length"
    assert said.id.startswith("cmpl-")


@STREAM
def test_the_default_model_goes_on(server: Running, stream: bool) -> None:
    said = complete(server, "The capital of France is", stream=stream, temperature=0, max_tokens=8)
    assert said.text.strip()
    assert said.one.finish in ("stop", "length")


@pytest.mark.parametrize("prompt", ["Once upon", "\N{GRINNING FACE}\u2028"])
def test_stream_and_whole_are_the_same_text(tiny_server: Running, prompt: str) -> None:
    fields = {**FIELDS, "max_tokens": 200}
    assert complete(tiny_server, prompt, stream=True, **fields) == complete(tiny_server, prompt, **fields)


def test_who_does_not_say_how_much_gets_sixteen_tokens(tiny_server: Running) -> None:
    assert complete(tiny_server, "Once").counts[1] == 16


@STREAM
def test_each_prompt_has_its_choices_in_order(tiny_server: Running, stream: bool) -> None:
    prompts = ["Once upon", "The cat", "Zürich"]
    alone = [complete(tiny_server, prompt, n=2, seed=5, max_tokens=8) for prompt in prompts]
    said = complete(tiny_server, prompts, stream=stream, n=2, seed=5, max_tokens=8)
    assert len(said.choices) == 6
    assert [choice.finish for choice in said.choices] == ["length"] * 6
    assert len({choice.text for choice in said.choices}) == 6
    assert said.counts == (sum(one.counts[0] for one in alone), 48)


@STREAM
def test_echo_repeats_each_prompt(tiny_server: Running, stream: bool) -> None:
    prompts = ["Once upon", "The cat"]
    said = complete(tiny_server, prompts, stream=stream, n=2, echo=True, max_tokens=8)
    for choice, prompt in zip(said.choices, ["Once upon", "Once upon", "The cat", "The cat"], strict=True):
        assert choice.text.startswith(prompt)
        assert choice.text != prompt


@STREAM
def test_tokens_are_continued_as_their_text_is(tiny_server: Running, stream: bool) -> None:
    tokens = tokens_of(tiny_server, "Once upon a time")
    text = complete(tiny_server, "Once upon a time", **FIELDS)
    assert complete(tiny_server, tokens, stream=stream, **FIELDS) == text
    many = complete(tiny_server, [tokens, tokens_of(tiny_server, "The cat")], stream=stream, **FIELDS)
    assert len(many.choices) == 2


@STREAM
@pytest.mark.parametrize("count", [0, 1, 4])
def test_log_probabilities_cover_the_text(server: Running, stream: bool, count: int) -> None:
    said = complete(server, "Roses are red,", stream=stream, logprobs=count, temperature=0, max_tokens=10)
    logprobs = said.one.logprobs
    assert "".join(logprobs["tokens"]) == said.text
    assert all(number <= 0 for number in logprobs["token_logprobs"])
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:place])) for place in range(10)]
    assert {len(top or ()) for top in logprobs["top_logprobs"]} == {max(count, 1)}


@pytest.mark.tier3
@STREAM
def test_a_continuation_ends_before_a_stop_text(server: Running, stream: bool) -> None:
    fields = FIELDS | {"max_tokens": 30}
    full = complete(server, "Monday, Tuesday,", **fields).text
    stop = full[12:19]
    said = complete(server, "Monday, Tuesday,", stream=stream, stop=stop, **fields)
    assert said.text == full[: full.index(stop)]
    assert said.one.finish == "stop"


@pytest.mark.parametrize(
    ("fields", "param"), [({"suffix": "end"}, "suffix"), ({"best_of": 3}, "best_of"), ({"n": 9}, "n")]
)
def test_what_cannot_be_followed_is_refused(tiny_server: Running, fields: dict[str, Any], param: str) -> None:
    reply = ask(tiny_server, "/v1/completions", {"model": "tiny", "prompt": "Once", **fields})
    assert reply.status == 400
    assert reply.error()["param"] == param


@STREAM
def test_no_alternatives_are_the_token_that_was_chosen(server: Running, stream: bool) -> None:
    said = complete(server, "Roses are red,", stream=stream, logprobs=0, temperature=0, max_tokens=3)
    logprobs = said.one.logprobs
    chosen = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    assert logprobs["top_logprobs"] == [{token: worth} for token, worth in chosen]


@pytest.mark.parametrize("prompt", ["", ["a", ""]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_without_a_token_is_refused(server: Running, prompt: object, stream: bool) -> None:
    reply = ask(server, COMPLETIONS, {"prompt": prompt, "max_tokens": 3, "stream": stream})
    assert reply.status == 400
    assert reply.error()["param"] == "prompt"


def test_the_answer_is_one_of_the_texts_that_were_given(server: Running) -> None:
    assert complete(server, "The colour is ", guided_choice=["red", "blue"]).text in ("red", "blue")
    said = chat(server, "Yes or no?", structured_outputs={"choice": ["yes", "no"]})
    assert said.text in ("yes", "no")


@pytest.mark.parametrize("is_asked", [False, True])
def test_counts_may_come_with_each_chunk(server: Running, is_asked: bool) -> None:
    options = {"include_usage": is_asked, "continuous_usage_stats": True}
    body = {"prompt": "Roses are", "max_tokens": 3, "stream": True, "stream_options": options}
    chunks = ask(server, COMPLETIONS, body).chunks()
    usages = [chunk.get("usage") for chunk in chunks if chunk["choices"]]
    assert any(usages) is is_asked
    assert ("usage" in chunks[-1]) is is_asked
