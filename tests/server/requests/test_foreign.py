"""Requests for upstreams: little is checked, all else passes."""

from typing import Any

import pytest

from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.upstream_body import read_upstream_request

MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}


def chat(
    *, makes_choices: bool = False, streams: bool = True, wants_usage: bool = True, **body: object
) -> ValidatedRequest:
    given = {"model": "m", "messages": MESSAGES, **body}
    return read_upstream_request(
        given, "chat", supports_n=makes_choices, supports_streaming=streams, wants_usage=wants_usage
    )


def complete(*, makes_choices: bool = False, streams: bool = True, **body: object) -> ValidatedRequest:
    return read_upstream_request(
        {"model": "m", **body}, "completions", supports_n=makes_choices, supports_streaming=streams
    )


def test_a_plain_request_gains_a_stream_and_usage_and_loses_the_name() -> None:
    request = chat()
    assert request.bodies == [{"messages": MESSAGES, "stream": True, "stream_options": USAGE}]
    assert (request.endpoint, request.model, request.is_stream, request.echo) == ("chat", "m", False, None)
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


@pytest.mark.parametrize("makes_choices", [True, False])
def test_what_is_not_known_passes_unchanged(makes_choices: bool) -> None:
    (part,) = chat(makes_choices=makes_choices, **UNKNOWN).bodies
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
def test_no_field_that_names_a_server_or_a_key_goes_on(name: str) -> None:
    named: dict[str, Any] = {name: "http://evil/"}
    (part,) = chat(**named).bodies
    assert name not in part


@table(
    ("stream", "streams", "is_stream", "asked"),
    [
        (True, True, True, True),
        (True, False, True, False),
        (False, True, False, True),
        (None, False, False, False),
    ],
)
def test_an_upstream_streams_if_it_can_whatever_the_client_wants(
    stream: bool | None, streams: bool, is_stream: bool, asked: bool
) -> None:
    request = chat(stream=stream, streams=streams)
    assert request.is_stream is is_stream
    assert request.bodies[0]["stream"] is asked
    assert ("stream_options" in request.bodies[0]) is asked


@table("field", [{"prompt_logprobs": 1}, {"use_beam_search": True}, {"audio": {"format": "mp3"}}, {"best_of": 3}])
def test_what_servers_give_only_in_whole_replies_is_asked_for_so(field: dict[str, Any]) -> None:
    assert chat(makes_choices=True, **field).bodies[0]["stream"] is False
    assert chat(makes_choices=True, stream=True, **field).bodies[0]["stream"] is True


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
def test_usage_is_asked_for_and_the_other_options_are_kept(options: object, wants_usage: bool, sent: object) -> None:
    request = chat(stream=True, stream_options=options, wants_usage=wants_usage)
    assert request.bodies[0].get("stream_options") == sent
    assert request.facts.include_usage is (isinstance(options, dict) and options.get("include_usage") is True)


@table(("seed", "seeds"), [(7, [7, 8, 9]), (None, [None] * 3), (-1, [-1] * 3), ("x", ["x"] * 3), (True, [True] * 3)])
def test_choices_are_asked_for_one_by_one_with_seeds_that_differ(seed: object, seeds: list[object]) -> None:
    request = chat(n=3, seed=seed)
    assert [part["seed"] for part in request.bodies] == seeds
    assert not any("n" in part for part in request.bodies)
    assert (request.facts.choice_count, request.prompt_count) == (3, 1)


def test_an_upstream_that_makes_choices_gets_them_all_at_once() -> None:
    request = chat(n=3.0, seed=7, makes_choices=True)
    assert [(part["n"], part["seed"]) for part in request.bodies] == [(3.0, 7)]
    assert request.facts.choice_count == 3
    request = complete(prompt=["a", "b"], n=2, best_of=4, makes_choices=True)
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
def test_each_prompt_is_asked_by_itself(prompt: object, prompts: list[object]) -> None:
    request = complete(prompt=prompt)
    assert [part["prompt"] for part in request.bodies] == prompts
    assert request.prompt_count == request.facts.choice_count == len(prompts)


def test_parts_come_prompt_by_prompt_and_choice_by_choice() -> None:
    request = complete(prompt=["a", "b"], n=2, seed=5, best_of=2)
    assert [(part["prompt"], part["seed"]) for part in request.bodies] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert not any("best_of" in part for part in request.bodies)
    assert (request.prompt_count, request.facts.choice_count) == (2, 4)


def test_embeddings_of_a_prompt_do_for_a_prompt() -> None:
    assert complete(prompt_embeds="AAAA").bodies[0]["prompt_embeds"] == "AAAA"


def test_a_chat_may_have_a_field_prompt_that_means_nothing() -> None:
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
def test_what_a_gateway_must_know_is_checked(body: dict[str, Any], param: str, code: str) -> None:
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
def test_what_a_completion_must_have_is_checked(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        complete(**body)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_the_parts_of_one_request_are_bounded() -> None:
    assert len(complete(prompt=["a"] * 64, n=2).bodies) == 128
    assert complete(prompt=["a"] * 32, n=128, makes_choices=True).facts.choice_count == 4096
    with pytest.raises(ApiError):
        complete(prompt=["a"] * 33, n=128, makes_choices=True)
