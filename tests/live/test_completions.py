"""Text completions: prompts as text and as tokens, single and in lists, with and without streaming."""

from typing import Any

import pytest

from tests.support.raw import COMPLETIONS, STREAM, chat, complete, fetch
from tests.support.server import Running

FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "cache_prompt": False}


def tokens_of(server: Running, text: str) -> list[int]:
    """The tokens of a text."""
    tokens = fetch(server, "/tokenize", {"content": text}).ok()["tokens"]
    assert isinstance(tokens, list)
    return tokens


@STREAM
@pytest.mark.parametrize("path", ["/v1/completions", "/completions"])
def test_completions_work_with_and_without_the_v1_prefix(tiny_server: Running, path: str, stream: bool) -> None:
    answer = complete(tiny_server, "Once upon", path=path, stream=stream, max_tokens=8)
    assert answer.text
    assert answer.choice.finish == "length"
    assert answer.id.startswith("cmpl-")


@STREAM
def test_the_default_model_continues_a_text(server: Running, stream: bool) -> None:
    answer = complete(server, "The capital of France is", stream=stream, temperature=0, max_tokens=8)
    assert answer.text.strip()
    assert answer.choice.finish in ("stop", "length")


@pytest.mark.parametrize("prompt", ["Once upon", "\N{GRINNING FACE}\u2028"])
def test_streamed_and_whole_completions_are_equal(tiny_server: Running, prompt: str) -> None:
    fields = {**FIELDS, "max_tokens": 200}
    assert complete(tiny_server, prompt, stream=True, **fields) == complete(tiny_server, prompt, **fields)


def test_the_default_of_max_tokens_is_sixteen(tiny_server: Running) -> None:
    assert complete(tiny_server, "Once").counts[1] == 16


@STREAM
def test_each_prompt_has_its_choices_in_order(tiny_server: Running, stream: bool) -> None:
    prompts = ["Once upon", "The cat", "Zürich"]
    alone = [complete(tiny_server, prompt, n=2, seed=5, max_tokens=8) for prompt in prompts]
    answer = complete(tiny_server, prompts, stream=stream, n=2, seed=5, max_tokens=8)
    assert len(answer.choices) == 6
    assert [choice.finish for choice in answer.choices] == ["length"] * 6
    assert len({choice.text for choice in answer.choices}) == 6
    assert answer.counts == (sum(one.counts[0] for one in alone), 48)


@STREAM
def test_echo_repeats_each_prompt(tiny_server: Running, stream: bool) -> None:
    prompts = ["Once upon", "The cat"]
    answer = complete(tiny_server, prompts, stream=stream, n=2, echo=True, max_tokens=8)
    for choice, prompt in zip(answer.choices, ["Once upon", "Once upon", "The cat", "The cat"], strict=True):
        assert choice.text.startswith(prompt)
        assert choice.text != prompt


@STREAM
def test_a_prompt_as_tokens_gives_the_same_answer_as_its_text(tiny_server: Running, stream: bool) -> None:
    tokens = tokens_of(tiny_server, "Once upon a time")
    text = complete(tiny_server, "Once upon a time", **FIELDS)
    assert complete(tiny_server, tokens, stream=stream, **FIELDS) == text
    many = complete(tiny_server, [tokens, tokens_of(tiny_server, "The cat")], stream=stream, **FIELDS)
    assert len(many.choices) == 2


@STREAM
@pytest.mark.parametrize("count", [1, 4])
def test_log_probabilities_cover_the_whole_text(server: Running, stream: bool, count: int) -> None:
    answer = complete(server, "Roses are red,", stream=stream, logprobs=count, temperature=0, max_tokens=4)
    logprobs = answer.choice.logprobs
    assert "".join(logprobs["tokens"]) == answer.text
    assert all(number <= 0 for number in logprobs["token_logprobs"])
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:index])) for index in range(4)]
    assert {len(top or ()) for top in logprobs["top_logprobs"]} == {count}


@pytest.mark.tier3
@STREAM
def test_a_completion_ends_before_a_stop_string(tiny_server: Running, stream: bool) -> None:
    fields = FIELDS | {"max_tokens": 30}
    full = complete(tiny_server, "Monday, Tuesday,", **fields).text
    stop = full[12:19]
    answer = complete(tiny_server, "Monday, Tuesday,", stream=stream, stop=stop, **fields)
    assert answer.text == full[: full.index(stop)]
    assert answer.choice.finish == "stop"


@pytest.mark.parametrize(
    ("fields", "param"), [({"suffix": "end"}, "suffix"), ({"best_of": 3}, "best_of"), ({"n": 9}, "n")]
)
def test_unsupported_fields_are_rejected(tiny_server: Running, fields: dict[str, Any], param: str) -> None:
    reply = fetch(tiny_server, "/v1/completions", {"model": "tiny", "prompt": "Once", **fields})
    assert reply.status == 400
    assert reply.error()["param"] == param


@STREAM
def test_zero_logprobs_return_only_the_chosen_token(server: Running, stream: bool) -> None:
    answer = complete(server, "Roses are red,", stream=stream, logprobs=0, temperature=0, max_tokens=3)
    logprobs = answer.choice.logprobs
    chosen = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    assert logprobs["top_logprobs"] == [{token: logprob} for token, logprob in chosen]


@pytest.mark.parametrize("prompt", ["", ["a", ""]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_is_rejected(server: Running, prompt: object, stream: bool) -> None:
    reply = fetch(server, COMPLETIONS, {"prompt": prompt, "max_tokens": 3, "stream": stream})
    assert reply.status == 400
    assert reply.error()["param"] == "prompt"


def test_a_guided_choice_returns_one_of_the_given_texts(tiny_server: Running) -> None:
    assert complete(tiny_server, "The colour is ", guided_choice=["red", "blue"]).text in ("red", "blue")
    answer = chat(tiny_server, "Yes or no?", structured_outputs={"choice": ["yes", "no"]})
    assert answer.text in ("yes", "no")


@pytest.mark.parametrize("include_usage", [False, True])
def test_continuous_usage_stats_add_usage_to_chunks(server: Running, include_usage: bool) -> None:
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    body = {"prompt": "Roses are", "max_tokens": 3, "stream": True, "stream_options": options}
    chunks = fetch(server, COMPLETIONS, body).chunks()
    usages = [chunk.get("usage") for chunk in chunks if chunk["choices"]]
    assert any(usages) is include_usage
    assert ("usage" in chunks[-1]) is include_usage
