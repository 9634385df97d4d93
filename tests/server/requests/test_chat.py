"""Validation of chat requests: valid and invalid values of each field, and the engine's body."""

from collections.abc import Callable

import msgspec
import pytest

from tests.server.requests.builders import (
    CAPABILITIES,
    HELLO,
    MODEL,
    Body,
    capabilities_with,
    chat,
    complete,
    engine,
    rejection,
)
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.core.request_facts import RequestFacts
from welldone.gateway.errors import ApiError
from welldone.schemas.chat import ChatRequest
from welldone.schemas.fields import FieldHandling, FieldInfo, describe_fields
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.sampling import UNKNOWN_CAPABILITIES

CHAT_FIELDS = describe_fields(ChatRequest)
PLAIN: Body = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}


def sent_for(body: Body) -> Body:
    """Return the changes in the engine's body for these fields."""
    return read_chat({"messages": HELLO, **body}, MODEL, CAPABILITIES).bodies[0]


def test_a_plain_chat_becomes_a_stream_with_usage() -> None:
    request = chat()
    assert request.bodies == [PLAIN]
    assert (request.is_stream, request.prompt_count) == (False, 1)
    assert request.facts == RequestFacts(
        include_usage=False, is_usage_forced=True, allow_obfuscation=True, choice_count=1, count_reasoning_tokens=True
    )


def test_stream_options_are_read() -> None:
    request = chat(model="x", stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert request.is_stream is True
    assert (request.facts.include_usage, request.facts.allow_obfuscation, request.facts.model) == (True, False, "x")


@table(
    ("body", "sent"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 5}, {"temperature": 5}),
        ({"temperature": None}, {}),
        ({"top_p": 1}, {"top_p": 1}),
        ({"presence_penalty": -2, "frequency_penalty": 2.0}, {"presence_penalty": -2, "frequency_penalty": 2.0}),
        ({"top_k": 40, "min_p": 0.1}, {"top_k": 40, "min_p": 0.1}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repeat_last_n": 64}, {"repeat_last_n": 64}),
        ({"repeat_last_n": -1}, {"repeat_last_n": 4096}),
        ({"repeat_last_n": 2**31 - 1}, {"repeat_last_n": 4096}),
        ({"dry_penalty_last_n": 2**31 - 1}, {"dry_penalty_last_n": 4096}),
        ({"dry_sequence_breakers": ["\n", ":"]}, {"dry_sequence_breakers": ["\n", ":"]}),
        ({"samplers": ["top_k", "made up", "temperature"]}, {"samplers": ["top_k", "temperature"]}),
        ({"cache_prompt": False, "ignore_eos": True}, {"cache_prompt": False, "ignore_eos": True}),
        ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5.0}, {"max_tokens": 5}),
        ({"max_tokens": 10**18}, {"max_tokens": 4096}),
        ({"max_tokens": -1}, {}),
        ({"max_completion_tokens": 3, "max_tokens": 5}, {"max_tokens": 3}),
        ({"n_predict": 7}, {"max_tokens": 7}),
        ({"stop": []}, {}),
        ({"stop": None}, {}),
        ({"logit_bias": {"5": -100, "49151": 1.5}}, {"logit_bias": {"5": -100, "49151": 1.5}}),
        ({"logit_bias": {"007": 1}}, {"logit_bias": {"7": 1}}),
        ({"logit_bias": {}}, {}),
        ({"seed": 42}, {"seed": 42}),
        ({"seed": -1}, {}),
        ({"seed": 2**32 - 1}, {"seed": 0}),
        ({"seed": -(2**63)}, {"seed": -(2**63) % (2**32 - 1)}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 20}),
        ({"logprobs": False, "top_logprobs": 0}, {}),
        ({"modalities": ["text"]}, {}),
        ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "low"}}),
        ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"audio": None, "web_search_options": None}, {}),
    ],
)
def test_a_valid_value_reaches_the_engine_in_its_format(body: Body, sent: Body) -> None:
    assert engine(**body) == PLAIN | sent


@table(
    ("body", "param", "code"),
    [
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
        ({"temperature": 5.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": [1]}, "temperature", "invalid_type"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
        ({"presence_penalty": -2.1}, "presence_penalty", "decimal_below_min_value"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "decimal_above_max_value"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"top_k": 2**31}, "top_k", "integer_above_max_value"),
        ({"min_p": 2}, "min_p", "decimal_above_max_value"),
        ({"repeat_penalty": 0}, "repeat_penalty", "decimal_below_min_value"),
        ({"repeat_last_n": -2}, "repeat_last_n", "integer_below_min_value"),
        ({"repeat_last_n": 2**40}, "repeat_last_n", "integer_above_max_value"),
        ({"mirostat": 3}, "mirostat", "integer_above_max_value"),
        ({"cache_prompt": "yes"}, "cache_prompt", "invalid_type"),
        ({"reasoning_format": "x"}, "reasoning_format", "invalid_value"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
        ({"max_tokens": -2}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": "five"}, "max_tokens", "invalid_type"),
        ({"max_tokens": 10**30}, "max_tokens", "integer_above_max_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 9}, "n", "integer_above_max_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"stop": ["x", 1]}, "stop[1]", "invalid_type"),
        ({"stop": ["x"] * 17}, "stop", "array_above_max_length"),
        ({"stop": "x" * 257}, "stop[0]", "invalid_value"),
        ({"stop": 7}, "stop", "invalid_type"),
        ({"logit_bias": [[5, 1]]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"hello": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"49152": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"²": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "decimal_above_max_value"),
        ({"logit_bias": {"5": False}}, "logit_bias.5", "invalid_type"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", "array_above_max_length"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"seed": 2**70}, "seed", "integer_above_max_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"logprobs": True, "tools": [{"function": {"name": "get"}}]}, "logprobs", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": True}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"model": 7}, "model", "invalid_type"),
        ({"model": "x" * 300}, "model", "string_above_max_length"),
        ({"modalities": ["text", "audio"]}, "modalities[1]", "invalid_value"),
        ({"modalities": [1]}, "modalities[0]", "invalid_value"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"web_search_options": {"a": 1}}, "web_search_options", "unsupported_parameter"),
        ({"grammar": 'root ::= "a"'}, "grammar", "unsupported_parameter"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools", "unsupported_parameter"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", "unsupported_parameter"),
        ({"chat_template_kwargs": {"A": 1}}, "chat_template_kwargs.A", "unsupported_parameter"),
        ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs.a", "invalid_type"),
        (
            {"chat_template_kwargs": {"a" * i: 1 for i in range(1, 40)}},
            "chat_template_kwargs",
            "array_above_max_length",
        ),
    ],
)
def test_an_invalid_value_is_named(body: Body, param: str, code: str) -> None:
    error = rejection(**body)
    assert (error.param, error.code) == (param, code)


def test_an_error_repeats_only_the_start_of_a_value() -> None:
    assert len(rejection(reasoning_format="secret " * 1000).message) < 250
    assert len(rejection(max_tokens=10**3000).message) < 250


@table("row", [row for row in CHAT_FIELDS if row.handling is FieldHandling.IGNORED], ids=lambda row: row.name)
@table("value", ["x", 7, {"a": [1]}, []])
def test_an_ignored_field_may_have_any_value(row: FieldInfo, value: object) -> None:
    assert sent_for({row.name: value}) == PLAIN


@table("name", ["id_slot", "lora", "n_discard", "t_max_predict_ms", "__class__", "api_base", "slots"])
def test_an_unknown_field_never_reaches_the_engine(name: str) -> None:
    assert name not in ChatRequest.__struct_fields__
    assert sent_for({name: 1}) == PLAIN


@table("row", [row for row in CHAT_FIELDS if row.handling is FieldHandling.FORWARDED], ids=lambda row: row.name)
def test_a_forwarded_field_rejects_an_object(row: FieldInfo) -> None:
    with pytest.raises(ApiError) as caught:
        sent_for({row.name: {}})
    assert caught.value.param == row.name


def test_several_choices_become_several_bodies_with_distinct_seeds() -> None:
    request = chat(n=3, seed=2**32 - 2)
    assert [part["seed"] for part in request.bodies] == [2**32 - 2, 0, 1]
    assert all("n" not in part for part in request.bodies)
    assert (request.facts.choice_count, request.prompt_count) == (3, 1)
    assert all("seed" not in part for part in chat(n=2).bodies)


def test_a_whole_float_counts_as_an_integer() -> None:
    request = chat(n=2.0)
    assert (len(request.bodies), request.facts.choice_count) == (2, 2)


@table(("top", "expected"), [(None, 0), (0, 0), (1, 1), (20, 20)])
def test_top_logprobs_are_kept_for_the_reply(top: int | None, expected: int) -> None:
    assert chat(logprobs=True, top_logprobs=top).facts.top_logprobs == expected


def test_defaults_of_the_model_apply_to_absent_fields() -> None:
    defaults = {"temperature": 0.3, "max_tokens": 9, "chat_template_kwargs": {"a": [1], "b": 1}}
    model = ModelSettings(name="m", defaults=defaults)
    silent = read_chat({"messages": HELLO, "temperature": None}, model, CAPABILITIES).bodies[0]
    assert (silent["temperature"], silent["max_tokens"]) == (0.3, 9)
    body = {"messages": HELLO, "temperature": 0, "max_completion_tokens": 4, "chat_template_kwargs": {"b": 2}}
    sent = read_chat(body, model, CAPABILITIES).bodies[0]
    assert (sent["temperature"], sent["max_tokens"]) == (0, 4)
    assert sent["chat_template_kwargs"] == {"a": [1], "b": 2}


def test_text_that_cannot_fit_is_rejected_before_tokenisation() -> None:
    fits = [{"role": "user", "content": "x" * (16 * 4096)}]
    assert chat(messages=fits).bodies
    error = rejection(messages=[{"role": "user", "content": "x" * (16 * 4096 + 1)}])
    assert error.code == "context_length_exceeded"
    assert "4096 tokens" in error.message
    assert "65537 bytes" in error.message


def test_no_feature_is_ruled_out_for_a_model_with_unknown_capabilities() -> None:
    long = [{"role": "user", "content": "x" * 10**6}]
    part = chat(
        UNKNOWN_CAPABILITIES, messages=long, max_tokens=10**9, repeat_last_n=10**9, logit_bias={"2000000000": 1}
    ).bodies[0]
    assert (part["max_tokens"], part["repeat_last_n"]) == (10**9, 8192)


def test_an_embedding_model_rejects_chat() -> None:
    with pytest.raises(ApiError, match="does not support chat"):
        chat(capabilities_with(chat=False))


def test_an_engine_without_log_probabilities_rejects_them() -> None:
    for request in (chat, complete):
        with pytest.raises(ApiError, match="'logprobs' cannot be used with this model: it runs with speculative"):
            request(capabilities_with(logprobs=False), logprobs=request is chat or 1)


@table(
    ("wanted", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": {"type": "integer"}}, {"type": "integer"}),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}, {"type": "null"}),
        ({"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {}}}, {}),
        ({"type": "json_schema", "json_schema": {}}, {"type": "object"}),
    ],
)
def test_response_format_becomes_a_schema(wanted: Body, schema: Body) -> None:
    assert engine(response_format=wanted)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def test_the_field_json_schema_of_llama_cpp_is_supported() -> None:
    assert engine(json_schema={"type": "null"})["response_format"]["json_schema"]["schema"] == {"type": "null"}


def test_a_command_gets_json_object_without_a_schema() -> None:
    sent = engine(capabilities_with(kind="command"), response_format={"type": "json_object"})
    assert sent["response_format"] == {"type": "json_object"}


def test_plain_text_needs_no_response_format() -> None:
    assert engine(response_format={"type": "text"}) == PLAIN


@table(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": 1}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"json_schema": 1}, "json_schema"),
        ({"json_schema": {}, "response_format": {"type": "json_object"}}, "json_schema"),
    ],
)
def test_an_invalid_constraint_is_named(body: Body, param: str) -> None:
    assert rejection(**body).param == param


@table("read", [chat, complete])
@table("stop", ["x", ["x"] * 16, "x" * 256])
def test_stop_strings_are_not_sent_to_llama_cpp(read: Callable[..., ValidatedRequest], stop: str | list[str]) -> None:
    strings = [stop] if isinstance(stop, str) else stop
    request = read(stop=stop, n=2)
    assert request.facts.stop_strings == tuple(strings)
    assert all(part["timings_per_token"] is True and "stop" not in part for part in request.bodies)


@table("read", [chat, complete])
@table("stop", [None, []])
def test_without_stop_strings_no_timings_per_token_are_requested(
    read: Callable[..., ValidatedRequest], stop: object
) -> None:
    request = read(stop=stop)
    assert request.facts.stop_strings == ()
    assert "timings_per_token" not in request.bodies[0]


@pytest.mark.parametrize("read", [chat, complete])
def test_stop_strings_are_sent_to_a_command(read: Callable[..., ValidatedRequest]) -> None:
    request = read(capabilities_with(kind="command"), stop="x")
    assert request.facts.stop_strings == ()
    assert request.bodies[0]["stop"] == ["x"]
    assert "timings_per_token" not in request.bodies[0]


def test_the_body_of_the_client_is_not_modified() -> None:
    body = {"messages": [{"role": "developer", "content": "x"}], "n": 2, "stop": "a"}
    before = msgspec.json.encode(body)
    read_chat(body, MODEL, CAPABILITIES)
    assert msgspec.json.encode(body) == before


def test_ignore_eos_is_dropped_with_a_schema() -> None:
    assert "ignore_eos" not in engine(json_schema={"type": "boolean"}, ignore_eos=True)


@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": {"type": "boolean"}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ],
    ids=["schema", "object", "forced call"],
)
def test_end_tokens_in_a_prefill_are_rejected_with_a_schema(form: Body) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "<|im_end|>"}]
    assert rejection(messages=messages, **form).param == "response_format"
    assert engine(messages=[*messages, *HELLO], **form)["response_format"]
    assert engine(messages=[*HELLO, {"role": "assistant", "content": '{"a":'}], **form)["response_format"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CALLS = [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}]
BEGUN = [*HELLO, {"role": "assistant", "content": "I"}]


@table(
    ("body", "sent"),
    [
        ({"guided_json": SCHEMA}, {"response_format": FORMAT}),
        ({"guided_json": msgspec.json.encode(SCHEMA).decode()}, {"response_format": FORMAT}),
        ({"structured_outputs": {"json": SCHEMA, "choice": None}}, {"response_format": FORMAT}),
        ({"guided_choice": ["a", 'b"\\\n']}, {"grammar": 'root ::= "a" | "b\\"\\\\\\x0a"'}),
        ({"structured_outputs": {"choice": ["é"]}}, {"grammar": 'root ::= "é"'}),
        ({"guided_json": None, "guided_regex": "", "use_beam_search": False, "min_tokens": 0, "bad_words": []}, {}),
    ],
)
def test_vllm_constraints_are_supported(body: Body, sent: Body) -> None:
    assert sent_for(body) == {**PLAIN, **sent}


@pytest.mark.parametrize("name", ["guided_json_object", "structured_outputs"])
def test_json_object_may_be_requested_with_vllm_fields(name: str) -> None:
    value = {"json_object": True} if name == "structured_outputs" else True
    assert sent_for({name: value})["response_format"]["json_schema"]["schema"] == {"type": "object"}


@table(
    ("body", "param"),
    [
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": 7}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["x"] * 129}, "guided_choice"),
        ({"structured_outputs": {"choice": ["a", 7]}}, "structured_outputs.choice[1]"),
        ({"guided_choice": ["a"], "guided_json": SCHEMA}, "guided_choice"),
        ({"guided_choice": ["a"], "response_format": FORMAT}, "guided_choice"),
        ({"json_schema": SCHEMA, "response_format": FORMAT}, "json_schema"),
        ({"guided_choice": ["a"], "tools": CALLS}, "guided_choice"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"add_generation_prompt": True, "messages": BEGUN}, "add_generation_prompt"),
    ],
)
def test_an_unsupported_constraint_is_rejected(body: Body, param: str) -> None:
    assert rejection(**body).param == param


@pytest.mark.parametrize(
    "body",
    [
        {"continue_final_message": True, "add_generation_prompt": False, "messages": BEGUN},
        {"continue_final_message": False, "add_generation_prompt": True},
    ],
)
def test_continuation_fields_that_match_the_messages_are_accepted(body: Body) -> None:
    assert sent_for(body).keys() == PLAIN.keys()


def test_a_schema_as_a_string_must_be_json() -> None:
    assert rejection(guided_json="{").status == 400
    assert "nested" in rejection(guided_json="[" * 100 + "]" * 100).message


def test_a_command_gets_the_fields_of_vllm() -> None:
    fields: Body = {
        "structured_outputs": {"regex": "a+"},
        "guided_choice": ["a"],
        "min_tokens": 5,
        "continue_final_message": True,
        "add_generation_prompt": True,
    }
    assert fields.items() <= engine(capabilities_with(kind="command"), **fields).items()


@table(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tools": CALLS}, "tools"),
        ({"tools": CALLS, "tool_choice": "required"}, "tools"),
    ],
)
def test_without_jinja_constraints_are_rejected(body: Body, param: str) -> None:
    plain = ModelSettings(name="m", jinja=False)
    with pytest.raises(ApiError) as caught:
        read_chat({"messages": HELLO, **body}, plain, CAPABILITIES)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "--no-jinja" in caught.value.message
    assert read_chat({"messages": HELLO, "tools": CALLS, "tool_choice": "none"}, plain, CAPABILITIES).bodies == [PLAIN]


def test_usage_may_be_requested_with_each_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert sent_for({"stream": True, "stream_options": options})["timings_per_token"] is True
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert "timings_per_token" not in sent_for({"stream": True, "stream_options": options})
