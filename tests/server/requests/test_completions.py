"""Validation of completions requests."""

import pytest

from tests.server.requests.builders import Body, capabilities_with, complete
from tests.table import table
from welldone.gateway.errors import ApiError

PLAIN: Body = {"prompt": "once", "max_tokens": 16, "stream": True, "stream_options": {"include_usage": True}}


def test_a_completion_has_16_tokens_by_default() -> None:
    request = complete()
    assert request.bodies == [PLAIN]
    assert (request.prompt_count, request.echo) == (1, None)


@table(
    ("prompt", "prompts"),
    [
        ("", [""]),
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([0, 49151], [[0, 49151]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
        (["x"] * 64, ["x"] * 64),
    ],
)
def test_each_prompt_becomes_a_body(prompt: object, prompts: list[object]) -> None:
    request = complete(prompt=prompt)
    assert [part["prompt"] for part in request.bodies] == prompts
    assert request.prompt_count == request.facts.choice_count == len(prompts)


def test_bodies_are_ordered_by_prompt_then_choice() -> None:
    request = complete(prompt=["a", "b"], n=2, seed=5)
    assert [(part["prompt"], part["seed"]) for part in request.bodies] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert (request.prompt_count, request.facts.choice_count) == (2, 4)


@table(
    ("body", "sent"),
    [
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"n_predict": 3}, {"max_tokens": 3}),
        ({"logprobs": 5}, {"logprobs": 5}),
        ({"logprobs": 0}, {"logprobs": 1}),
        ({"best_of": 1}, {}),
        ({"suffix": None}, {}),
        ({"suffix": ""}, {}),
        ({"json_schema": {"type": "null"}}, {"json_schema": {"type": "null"}}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        ({"messages": [], "tools": [1], "reasoning_format": "x"}, {}),
    ],
)
def test_a_valid_value_reaches_the_engine(body: Body, sent: Body) -> None:
    assert complete(**body).bodies == [PLAIN | sent]


def test_minus_one_means_no_token_limit() -> None:
    assert "max_tokens" not in complete(max_tokens=-1).bodies[0]


def test_echo_returns_the_prompts() -> None:
    assert complete(prompt=["a", "b"], echo=True).echo == ["a", "b"]
    assert complete(echo=False).echo is None


@table(
    ("body", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": 7}, "prompt", "invalid_type"),
        ({"prompt": {"prompt_string": "a"}}, "prompt", "invalid_type"),
        ({"prompt": [{}]}, "prompt", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
        ({"prompt": [[1], []]}, "prompt[1]", "invalid_type"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": [49152]}, "prompt", "invalid_value"),
        ({"prompt": [2**40]}, "prompt", "invalid_value"),
        ({"prompt": [1] * 4097}, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 65_537}, "prompt", "context_length_exceeded"),
        ({"prompt": ["x"] * 65}, "prompt", "array_above_max_length"),
        ({"prompt": ["x"] * 33, "n": 2}, "n", "integer_above_max_value"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": 21}, "logprobs", "integer_above_max_value"),
        ({"logprobs": 0, "echo": True}, "echo", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"echo": True, "prompt": [1]}, "echo", "unsupported_parameter"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"grammar": "x"}, "grammar", "unsupported_parameter"),
    ],
)
def test_an_invalid_value_is_named(body: Body, param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        complete(**body)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_token_ids_have_32_bits_if_the_vocabulary_is_unknown() -> None:
    assert complete(capabilities_with(vocabulary_size=0), prompt=[2**31 - 1]).bodies
    with pytest.raises(ApiError):
        complete(capabilities_with(vocabulary_size=0), prompt=[2**31])


def test_an_embedding_model_rejects_completions() -> None:
    with pytest.raises(ApiError, match="does not support completions"):
        complete(capabilities_with(chat=False))


def test_ignore_eos_is_dropped_with_a_schema() -> None:
    (part,) = complete(json_schema={"type": "boolean"}, ignore_eos=True).bodies
    assert "ignore_eos" not in part


def test_a_completion_may_be_constrained_with_vllm_fields() -> None:
    schema = {"type": "object"}
    assert complete(guided_json=schema).bodies[0]["json_schema"] == schema
    assert complete(guided_choice=["a", "b"]).bodies[0]["grammar"] == 'root ::= "a" | "b"'
    given = {"guided_regex": "a+", "structured_outputs": {"choice": ["a"]}}
    assert given.items() <= complete(capabilities_with(kind="command"), **given).bodies[0].items()
    with pytest.raises(ApiError, match="use_beam_search"):
        complete(use_beam_search=True)
