"""Translation of chat and completions requests for upstreams that have only the Messages or the Responses API."""

from typing import Any

import pytest

from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.gateway.errors import ApiError
from welldone.server.requests.chat_to_messages import chat_to_messages
from welldone.server.requests.chat_to_responses import chat_to_responses
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.upstream_dialects import check_translations, translate_request

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hi"}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}
PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "g"}}]
CUSTOM: Json = {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "lark"}}}}
CALLS = [{"id": "a:1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
EACH = table("dialect", [Endpoint.MESSAGES, Endpoint.RESPONSES])


def messages(*turns: Json, **more: Any) -> Json:  # noqa: ANN401 - fields of a request
    return chat_to_messages({"messages": list(turns) or [USER], **more})


def responses(*turns: Json, **more: Any) -> Json:  # noqa: ANN401 - fields of a request
    return chat_to_responses({"messages": list(turns) or [USER], **more})


@table(
    "more, expected",
    [
        ({}, {"max_tokens": 8192}),
        (
            {"max_tokens": 5, "model": "m", "n": 1, "stream": True, "stream_options": {}},
            {"max_tokens": 5, "stream": True},
        ),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"max_tokens": -1}, {"max_tokens": 8192}),
        (
            {"temperature": 0.5, "top_p": 1, "top_k": 3},
            {"max_tokens": 8192, "temperature": 0.5, "top_p": 1, "top_k": 3},
        ),
        ({"temperature": "hot"}, {"max_tokens": 8192, "temperature": "hot"}),  # the upstream validates it
        ({"stop": "a"}, {"max_tokens": 8192, "stop_sequences": ["a"]}),
        ({"stop": ["\n", "b"]}, {"max_tokens": 8192, "stop_sequences": ["b"]}),
        ({"user": "u"}, {"max_tokens": 8192, "metadata": {"user_id": "u"}}),
        ({"safety_identifier": "s"}, {"max_tokens": 8192, "metadata": {"user_id": "s"}}),
        ({"reasoning_effort": "none"}, {"max_tokens": 8192, "thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "minimal"},
            {"max_tokens": 8192, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        (
            {"reasoning_effort": 3, "thinking": {"type": "enabled", "budget_tokens": 9}},
            {
                "max_tokens": 8192,
                "thinking": {"type": "enabled", "budget_tokens": 9},
                "output_config": {"effort": 3},
            },
        ),
        ({"response_format": {"type": "text"}}, {"max_tokens": 8192}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"max_tokens": 8192, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
        (
            {"modalities": ["text"], "seed": 1, "store": True, "logit_bias": {}, "presence_penalty": 0},
            {"max_tokens": 8192},
        ),
    ],
)
def test_fields_of_a_chat_become_those_of_messages(more: Json, expected: Json) -> None:
    assert messages(**more) == {"messages": [USER], **expected}


@table(
    "more, expected",
    [
        ({}, {"store": False}),
        ({"store": True, "max_tokens": 5, "stream": False}, {"store": True, "max_output_tokens": 5, "stream": False}),
        (
            {"temperature": 2, "user": "u", "metadata": {"a": "b"}},
            {"temperature": 2, "user": "u", "metadata": {"a": "b"}},
        ),
        ({"frequency_penalty": 1, "stop": "x", "seed": 3, "top_logprobs": 1}, {"frequency_penalty": 1}),
        ({"logprobs": True, "top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"reasoning_effort": "minimal"}, {"reasoning": {"effort": "minimal"}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
        ),
    ],
)
def test_fields_of_a_chat_become_those_of_responses(more: Json, expected: Json) -> None:
    assert responses(**more) == {"input": [USER], "store": False, **expected}


@table(
    "more, choice, is_serial",
    [
        ({}, None, False),
        ({"tool_choice": "auto"}, "auto", False),
        ({"tool_choice": "none", "parallel_tool_calls": False}, "none", True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "required", True),
        ({"parallel_tool_calls": False}, None, True),
        ({"tool_choice": TOOLS[0]}, "f", False),
        ({"tool_choice": {"type": "function", "name": "f"}}, "f", False),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS}}},
            "required",
            False,
        ),
        ({"tool_choice": {"type": "allowed_tools", "tools": TOOLS}}, "auto", False),
    ],
)
def test_tools_are_translated(more: Json, choice: str | None, is_serial: bool) -> None:
    found = messages(tools=TOOLS, **more)
    assert found["tools"] == [
        {"name": "f", "input_schema": {"type": "object"}},
        {"name": "g", "input_schema": {"type": "object"}},
    ]
    kinds = {"auto": "auto", "none": "none", "required": "any", "f": "tool"}
    expected: Json | None = None if choice is None and not is_serial else {"type": kinds[choice or "auto"]}
    if expected is not None:
        expected |= {"name": "f"} if choice == "f" else {}
        expected |= {"disable_parallel_tool_use": True} if is_serial and choice != "none" else {}
    assert found.get("tool_choice") == expected
    sent = responses(tools=TOOLS, **more)
    assert sent["tools"][0] == {"type": "function", "strict": False, **FUNCTION}
    assert sent["tools"][1] == {"type": "function", "strict": False, "parameters": None, "name": "g"}
    assert sent.get("tool_choice") == ({"type": "function", "name": "f"} if choice == "f" else choice)
    assert sent.get("parallel_tool_calls") == (False if is_serial else None)


def test_allowed_tools_deprecated_functions_and_custom_tools_are_translated() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOLS[1]]}}
    assert [tool["name"] for tool in messages(tools=TOOLS, tool_choice=allowed)["tools"]] == ["g"]
    legacy = {"functions": [FUNCTION], "function_call": {"name": "f"}}
    assert messages(**legacy)["tool_choice"] == {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    assert responses(**legacy)["parallel_tool_calls"] is False
    assert messages(functions=[FUNCTION], function_call="none")["tool_choice"] == {"type": "none"}
    called = responses(tools=[CUSTOM, {"type": "custom", "custom": {"name": "d"}}], tool_choice=CUSTOM)
    assert called["tools"][0] == {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}}
    assert called["tool_choice"] == {"type": "custom", "name": "c"}
    described = {"function": {**FUNCTION, "description": "d", "strict": True}, "cache_control": {"type": "ephemeral"}}
    (tool,) = messages(tools=[described])["tools"]
    assert tool == {
        "name": "f",
        "input_schema": {"type": "object"},
        "description": "d",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
    }


DETAILS = [
    {"type": "reasoning.text", "text": "hm", "signature": "s"},
    {"type": "reasoning.encrypted", "data": "d", "format": "anthropic-claude-v1"},
    {"type": "reasoning.encrypted", "data": "e", "format": "openai-responses-v1", "id": "rs_1"},
    {"type": "reasoning.summary", "summary": "x"},
]
CONVERSATION: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "Look"}, PNG, PDF]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": CALLS,
        "reasoning_details": DETAILS,
        "reasoning_content": "hm",
    },
    {"role": "tool", "tool_call_id": "a:1", "content": "1"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}, {"type": "text", "text": "."}]},
    {"role": "system", "content": "Now."},
    {"role": "user", "content": "Go"},
    {"role": "assistant", "content": "Well", "refusal": "no"},
]


def test_a_conversation_becomes_messages() -> None:
    found = messages(*CONVERSATION)
    assert found["system"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
    ]
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert found["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": source},
                {"type": "document", "source": {**source, "media_type": "application/pdf"}, "title": "a.pdf"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "a_1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a_1", "content": "1"},
                {"type": "text", "text": "And?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "No"}, {"type": "text", "text": "."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "<system>\nNow.\n</system>"}, {"type": "text", "text": "Go"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Well"}, {"type": "text", "text": "no"}]},
    ]


def test_a_conversation_becomes_items() -> None:
    found = responses(*CONVERSATION)["input"]
    assert found[:2] == [
        CONVERSATION[0],
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
    ]
    assert found[2]["content"] == [
        {"type": "input_text", "text": "Look"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
        {"type": "input_file", **PDF["file"]},  # type: ignore[dict-item]
    ]
    assert found[3:6] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "e", "id": "rs_1"},
        {"type": "function_call", "call_id": "a:1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "a:1", "output": "1"},
    ]
    refused = [{"type": "refusal", "refusal": "No"}, {"type": "output_text", "text": "."}]
    assert found[7] == {"type": "message", "role": "assistant", "content": refused}
    said = [{"type": "output_text", "text": "Well"}, {"type": "refusal", "refusal": "no"}]
    assert found[-1] == {"type": "message", "role": "assistant", "content": said}
    assert len(found) == 11


def test_calls_of_custom_and_deprecated_functions_are_translated() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "c", "input": "hi"}}
    turns: list[Json] = [
        USER,
        {"role": "assistant", "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}, PNG]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "2"},
    ]
    blocks = [block for turn in messages(*turns)["messages"][1:] for block in turn["content"]]
    assert blocks[0] == {"type": "tool_use", "id": "c1", "name": "c", "input": {"input": "hi"}}
    assert [block["type"] for block in blocks[1]["content"]] == ["text", "image"]
    assert blocks[2] == {"type": "tool_use", "id": "call_0", "name": "f", "input": {}}
    assert blocks[3] == {"type": "tool_result", "tool_use_id": "call_0", "content": "2"}
    items = responses(*turns)["input"][1:]
    assert items[0] == {"type": "custom_tool_call", "call_id": "c1", "name": "c", "input": "hi"}
    assert (items[1]["type"], items[2]["call_id"], items[3]["call_id"]) == (
        "custom_tool_call_output",
        "call_0",
        "call_0",
    )


def test_urls_of_images_and_audio_are_sent_on() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.com/a.png"}]}
    (turn,) = messages(image)["messages"]
    assert turn["content"] == [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    (item,) = responses({"role": "user", "content": [audio]})["input"]
    assert item["content"] == [audio]


@table(
    "body, param",
    [
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 3}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "assistant", "content": [PNG]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"web_search_options": {"x": 1}}, "web_search_options"),
    ],
)
def test_requests_that_neither_api_can_carry_are_refused(body: Json, param: str) -> None:
    for translate in (chat_to_messages, chat_to_responses):
        with pytest.raises(ApiError) as caught:
            translate({"messages": [USER], **body})
        assert (caught.value.status, caught.value.param) == (400, param)


@table(
    "body, param",
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "system", "content": [PNG]}]}, "messages[0].content[0].type"),
        ({"temperature": 1.1}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"tools": [CUSTOM]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        *(
            (
                {"messages": [{"role": "assistant", "tool_calls": [calls]}]},
                "messages[0].tool_calls[0].function.arguments",
            )
            for calls in (
                {"id": "x", "function": {"name": "f", "arguments": "{"}},
                {"id": "x", "function": {"name": "f", "arguments": "[]"}},
                {"id": "x", "function": {"name": "f", "arguments": {"a": 1}}},
            )
        ),
    ],
)
def test_requests_that_messages_cannot_carry_are_refused(body: Json, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_to_messages({"messages": [USER], **body})
    assert (caught.value.status, caught.value.param) == (400, param)


@EACH
def test_a_completion_is_a_message_of_the_user(dialect: Endpoint) -> None:
    found = translate_request({"prompt": "Once", "max_tokens": 3}, dialect, Endpoint.COMPLETIONS)
    assert found.get("messages", found.get("input")) == [{"role": "user", "content": "Once"}]
    for name, value in (("prompt", [1]), ("suffix", "x"), ("echo", True), ("logprobs", 2), ("prompt_embeds", "x")):
        with pytest.raises(ApiError) as caught:
            translate_request({"prompt": "Once", name: value}, dialect, Endpoint.COMPLETIONS)
        assert caught.value.param == name


def test_ignored_fields_are_named_and_stop_strings_without_support_are_matched_here() -> None:
    body = {"messages": [USER], "seed": 1, "metadata": {"a": "b"}, "stop": ["a", " "]}
    for dialects, ignored, stops in (
        ([Endpoint.MESSAGES], ("metadata", "seed"), ("a", " ")),
        ([Endpoint.RESPONSES], ("seed",), ("a", " ")),
        ([Endpoint.MESSAGES, Endpoint.RESPONSES], ("metadata", "seed"), ("a", " ")),
    ):
        request = ValidatedRequest(bodies=[body])
        check_translations(request, dialects, Endpoint.CHAT)
        assert (request.ignored_fields, request.facts.stop_strings) == (ignored, stops)
    turns = [{**USER, "name": "Ada"}, {"role": "assistant", "content": "x", "reasoning_content": "y"}]
    turns += [{"role": "assistant", "content": "x", "reasoning_content": "y", "reasoning_details": DETAILS}, USER]
    request = ValidatedRequest(bodies=[{"messages": turns}])
    check_translations(request, [Endpoint.RESPONSES], Endpoint.CHAT)
    assert request.ignored_fields == ("messages.name", "messages.reasoning_content")
    request = ValidatedRequest(bodies=[{"messages": [USER], "stop": "END"}])
    check_translations(request, [Endpoint.MESSAGES], Endpoint.CHAT)
    assert (request.ignored_fields, request.facts.stop_strings) == ((), ())
