"""Validation of requests for upstreams; other fields are forwarded."""

from typing import Any

import pytest

from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.upstream_body import read_upstream_request

MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}


def chat(*, supports_n: bool = False, wants_usage: bool = True, **body: object) -> ValidatedRequest:
    given = {"model": "m", "messages": MESSAGES, **body}
    return read_upstream_request(given, "chat", supports_n=supports_n, wants_usage=wants_usage)


def complete(*, supports_n: bool = False, **body: object) -> ValidatedRequest:
    return read_upstream_request({"model": "m", **body}, "completions", supports_n=supports_n)


def test_a_plain_request_is_sent_as_a_stream_with_usage_and_without_the_model() -> None:
    request = chat()
    assert request.bodies == [{"messages": MESSAGES, "stream": True, "stream_options": USAGE}]
    assert (request.is_stream, request.echo) == (False, None)
    assert (request.facts.include_usage, request.facts.choice_count, request.facts.model) == (False, 1, "m")


UNKNOWN: dict[str, Any] = {
    "temperature": 99,
    "tools": "anything",
    "top_k": None,
    "provider": {"order": ["x"]},
    "chat_template_kwargs": {"tokenize": True},
    "x_new_field": [1, {"a": None}],
    "echo": True,
    "logprobs": "yes",
}


@pytest.mark.parametrize("supports_n", [True, False])
def test_unknown_fields_are_forwarded_unchanged(supports_n: bool) -> None:
    (part,) = chat(supports_n=supports_n, **UNKNOWN).bodies
    assert part.items() >= UNKNOWN.items()


@table(
    "name",
    [
        "api_base",
        "api_key",
        "base_url",
        "custom_llm_provider",
        "extra_headers",
        "fallbacks",
        "aws_secret_access_key",
        "vertex_credentials",
        "azure_ad_token",
        "user_config",
        "organization",
    ],
)
def test_fields_that_name_a_server_or_a_key_are_not_forwarded(name: str) -> None:
    named: dict[str, Any] = {name: "http://evil/"}
    (part,) = chat(**named).bodies
    assert name not in part


@table("stream", [True, False, None])
def test_a_stream_is_requested_whatever_the_client_wants(stream: bool | None) -> None:
    request = chat(stream=stream)
    assert request.is_stream is (stream is True)
    assert request.bodies[0]["stream"] is True
    assert "stream_options" in request.bodies[0]


@table("field", [{"prompt_logprobs": 1}, {"use_beam_search": True}, {"audio": {"format": "mp3"}}, {"best_of": 3}])
def test_features_without_streaming_are_requested_as_whole_replies(field: dict[str, Any]) -> None:
    assert chat(supports_n=True, **field).bodies[0]["stream"] is False
    assert chat(supports_n=True, stream=True, **field).bodies[0]["stream"] is True


@table(
    ("options", "wants_usage", "sent"),
    [
        (None, True, USAGE),
        ({}, True, USAGE),
        ({"include_usage": False}, True, USAGE),
        ({"continuous_usage_stats": True}, True, {"continuous_usage_stats": True, **USAGE}),
        ({"include_obfuscation": False, "new": 1}, True, {"include_obfuscation": False, "new": 1, **USAGE}),
        (None, False, None),
        ({"include_usage": True}, False, None),
        ({"include_obfuscation": False, "include_usage": True}, False, {"include_obfuscation": False}),
    ],
)
def test_usage_is_requested_and_other_stream_options_are_kept(options: object, wants_usage: bool, sent: object) -> None:
    request = chat(stream=True, stream_options=options, wants_usage=wants_usage)
    assert request.bodies[0].get("stream_options") == sent
    assert request.facts.include_usage is (isinstance(options, dict) and options.get("include_usage") is True)


@table(("seed", "seeds"), [(7, [7, 8, 9]), (None, [None] * 3), (-1, [-1] * 3), ("x", ["x"] * 3), (True, [True] * 3)])
def test_choices_become_requests_with_distinct_seeds(seed: object, seeds: list[object]) -> None:
    request = chat(n=3, seed=seed)
    assert [part["seed"] for part in request.bodies] == seeds
    assert not any("n" in part for part in request.bodies)
    assert (request.facts.choice_count, request.prompt_count) == (3, 1)


def test_an_upstream_with_support_for_n_gets_one_request() -> None:
    request = chat(n=3.0, seed=7, supports_n=True)
    assert [(part["n"], part["seed"]) for part in request.bodies] == [(3.0, 7)]
    assert request.facts.choice_count == 3
    request = complete(prompt=["a", "b"], n=2, best_of=4, supports_n=True)
    assert [(part["prompt"], part["best_of"]) for part in request.bodies] == [(["a", "b"], 4)]
    assert (request.facts.choice_count, request.prompt_count) == (4, 1)


def test_one_choice_keeps_its_seed() -> None:
    assert chat(n=1, seed=5).bodies[0]["seed"] == 5


@table(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1], [[1]]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ({"prompt_string": "a"}, [{"prompt_string": "a"}]),
    ],
)
def test_each_prompt_becomes_a_body(prompt: object, prompts: list[object]) -> None:
    request = complete(prompt=prompt)
    assert [part["prompt"] for part in request.bodies] == prompts
    assert request.prompt_count == request.facts.choice_count == len(prompts)


def test_bodies_are_ordered_by_prompt_then_choice() -> None:
    request = complete(prompt=["a", "b"], n=2, seed=5, best_of=2)
    assert [(part["prompt"], part["seed"]) for part in request.bodies] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert not any("best_of" in part for part in request.bodies)
    assert (request.prompt_count, request.facts.choice_count) == (2, 4)


def test_prompt_embeds_replaces_prompt() -> None:
    assert complete(prompt_embeds="AAAA").bodies[0]["prompt_embeds"] == "AAAA"


def test_a_field_prompt_in_a_chat_is_ignored() -> None:
    assert len(chat(prompt=[]).bodies) == 1
    assert len(chat(prompt=["a", "b"]).bodies) == 1


@table(
    ("body", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": {}}, "messages", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream_options": "x"}, "stream_options", "invalid_type"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": "m" * 300}, "model", "string_above_max_length"),
    ],
)
def test_fields_that_the_gateway_uses_are_validated(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


@table(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": "a", "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"prompt": ["a"] * 129}, "n", "integer_above_max_value"),
        ({"prompt": ["a"] * 43, "n": 3}, "n", "integer_above_max_value"),
    ],
)
def test_the_prompt_of_a_completion_is_validated(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        complete(**body)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_upstream_requests_per_client_request_are_limited() -> None:
    assert len(complete(prompt=["a"] * 64, n=2).bodies) == 128
    assert complete(prompt=["a"] * 32, n=128, supports_n=True).facts.choice_count == 4096
    with pytest.raises(ApiError):
        complete(prompt=["a"] * 33, n=128, supports_n=True)
