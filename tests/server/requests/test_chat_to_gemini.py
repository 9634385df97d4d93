"""Translation of chat requests for upstreams that have only Google's Gemini API."""

from typing import Any

import pytest

from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.json_budget import exceeds_blocking_budget
from welldone.dialects.gemini.objects import method_target
from welldone.gateway.errors import ApiError
from welldone.server.requests.chat_to_gemini import chat_to_gemini
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.upstream_dialects import check_translations, translate_request

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hi"}
HI: Json = {"role": "user", "parts": [{"text": "Hi"}]}
PNG: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "g"}}]
CUSTOM: Json = {"type": "custom", "custom": {"name": "c"}}
SCHEMA = {"type": "object"}


def gemini(*turns: Json, **more: Any) -> Json:  # noqa: ANN401 - fields of a request
    return chat_to_gemini({"messages": list(turns) or [USER], **more})


def call(call_id: str, arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


@table(
    "more, expected",
    [
        ({}, {}),
        (
            {"temperature": 0.5, "top_p": 1, "top_k": 3, "seed": 7},
            {"temperature": 0.5, "topP": 1, "topK": 3, "seed": 7},
        ),
        ({"presence_penalty": 1, "frequency_penalty": 0.5}, {"presencePenalty": 1, "frequencyPenalty": 0.5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"maxOutputTokens": 6}),
        ({"max_tokens": -1, "stop": []}, {}),
        ({"stop": "a"}, {"stopSequences": ["a"]}),
        ({"logprobs": True, "top_logprobs": 2}, {"responseLogprobs": True, "logprobs": 2}),
        ({"logprobs": True}, {"responseLogprobs": True}),
        ({"top_logprobs": 2}, {}),
        ({"reasoning_effort": "none"}, {"thinkingConfig": {"thinkingBudget": 0}}),
        ({"reasoning_effort": "low"}, {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"}}),
        ({"reasoning_effort": "xhigh"}, {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"}}),
        (
            {"reasoning_effort": "medium", "model": "gemini-2.5-pro"},
            {"thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192}},
        ),
        (
            {"reasoning_effort": "odd", "model": "gemini-2.5-pro"},  # the upstream rejects it
            {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "ODD"}},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"responseMimeType": "application/json"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
        ),
        (
            {"temperature": 1, "generationConfig": {"mediaResolution": "LOW", "temperature": 0}},
            {"temperature": 0, "mediaResolution": "LOW"},
        ),
    ],
)
def test_fields_of_a_chat_become_those_of_the_generation_config(more: Json, expected: Json) -> None:
    assert gemini(**more) == {"contents": [HI], **({"generationConfig": expected} if expected else {})}


def test_other_fields_are_forwarded_or_left_out() -> None:
    settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    found = gemini(safetySettings=settings, stream=True, user="u", store=True, n=1, metadata={}, modalities=["text"])
    assert found == {"contents": [HI], "safetySettings": settings, "stream": True}


@table(
    "more, expected",
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"mode": "AUTO"}),
        ({"tool_choice": "none"}, {"mode": "NONE"}),
        ({"tool_choice": "required"}, {"mode": "ANY"}),
        ({"tool_choice": TOOLS[0]}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    ],
)
def test_tools_become_function_declarations(more: Json, expected: Json | None) -> None:
    found = gemini(tools=TOOLS, **more)
    declared = [{"name": "f", "description": "d", "parametersJsonSchema": SCHEMA}, {"name": "g"}]
    assert found["tools"] == [{"functionDeclarations": declared}]
    assert found.get("toolConfig") == (None if expected is None else {"functionCallingConfig": expected})
    assert "toolConfig" not in gemini(**more)


def test_a_conversation_becomes_contents() -> None:
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}}
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    link = {"type": "image_url", "image_url": "https://example.com/a.png?size=1"}
    found = gemini(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, PNG, pdf, sound, link]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call("1", '{"x": 1}')]},
        {"role": "tool", "tool_call_id": "1", "content": '{"y": [2]}'},
        {"role": "assistant", "content": "", "refusal": "No"},
        {"role": "system", "content": "Now."},
        USER,
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    )
    data = {"data": "aGk="}
    assert found == {
        "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "Look"},
                    {"inlineData": {"mimeType": "image/png", **data}},
                    {"inlineData": {"mimeType": "application/pdf", **data}},
                    {"inlineData": {"mimeType": "audio/wav", **data}},
                    {"fileData": {"fileUri": "https://example.com/a.png?size=1", "mimeType": "image/png"}},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "1", "name": "f", "args": {"x": 1}}},
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"id": "1", "name": "f", "response": {"y": [2]}}}],
            },
            {"role": "model", "parts": [{"text": "No"}]},
            {"role": "user", "parts": [{"text": "<system>\nNow.\n</system>"}, {"text": "Hi"}]},
            {"role": "model", "parts": [{"text": "no"}]},
        ],
    }


def result_of(content: str) -> Json:
    """Return the function response for the result of a call."""
    asked = {"role": "assistant", "tool_calls": [call("1")]}
    found = gemini(USER, asked, {"role": "tool", "tool_call_id": "1", "content": content})
    response: Json = found["contents"][2]["parts"][0]["functionResponse"]["response"]
    return response


@table(
    "content, expected",
    [
        ("ok", {"result": "ok"}),
        ("[1]", {"result": "[1]"}),
        ("{broken", {"result": "{broken"}),
        (' {"a": 1}', {"a": 1}),
    ],
)
def test_the_result_of_a_call_is_an_object(content: str, expected: Json) -> None:
    assert result_of(content) == expected


def test_a_result_that_would_take_long_to_decode_is_sent_as_text() -> None:
    content = '{"a": [' + "[]," * 400_000 + "1]}"
    assert exceeds_blocking_budget(content.encode())
    assert (result_of(content)["result"] == content) is True


def test_results_may_have_images_and_belong_to_custom_or_deprecated_functions() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "c", "input": "hi"}}
    found = gemini(
        USER,
        {"role": "assistant", "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}, PNG]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "2"},
        {"role": "tool", "tool_call_id": "lost", "name": "g", "content": "3"},
    )["contents"]
    assert found[1]["parts"] == [{"functionCall": {"id": "c1", "name": "c", "args": {"input": "hi"}}}]
    result = {"id": "c1", "name": "c", "response": {"result": "a"}}
    assert found[2]["parts"] == [
        {"functionResponse": {**result, "parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]}}
    ]
    assert found[3]["parts"] == [{"functionCall": {"id": "call_0", "name": "f", "args": {}}}]
    assert [part["functionResponse"]["name"] for part in found[4]["parts"]] == ["f", "g"]


def test_signatures_come_back_with_what_they_belong_to() -> None:
    google = {"format": "google-gemini-v1", "type": "reasoning.encrypted"}
    signed = {"extra_content": {"google": {"thought_signature": "b25l"}}}
    details = [{**google, "data": "dGV4dA=="}, {**google, "data": "dHdv", "id": "2"}, {"format": "other", "data": "x"}]
    calls = [call("1") | signed, call("2"), call("3")]
    message = {"role": "assistant", "content": "Hello", "reasoning_details": details, "tool_calls": calls}
    parts = gemini(USER, message)["contents"][1]["parts"]
    assert parts[0] == {"text": "Hello", "thoughtSignature": "dGV4dA=="}
    assert [part.get("thoughtSignature") for part in parts[1:]] == ["b25l", "dHdv", None]
    alone = {"role": "assistant", "content": None, **signed, "reasoning_details": [{**google, "data": "YQ=="}]}
    assert gemini(USER, alone)["contents"][1]["parts"] == [
        {"text": "", "thoughtSignature": "YQ=="},
        {"text": "", "thoughtSignature": "b25l"},
    ]


@table(
    "model, signature",
    [
        ("gemini-3-pro-preview", "skip_thought_signature_validator"),
        ("models/gemini-4-x", "skip_thought_signature_validator"),
        ("gemini-2.5-flash", None),
        ("other", None),
    ],
)
def test_a_call_of_another_model_gets_googles_placeholder_for_its_signature(model: str, signature: str | None) -> None:
    message = {"role": "assistant", "tool_calls": [call("1"), call("2")]}
    parts = gemini(USER, message, model=model)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [signature, None]


@table(
    "body, param",
    [
        ({"audio": {"voice": "x"}}, "audio"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"tools": [CUSTOM]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": "odd"}, "tool_choice"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "odd", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call("1", "[]")]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [call("1", "{")]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "system", "content": [PNG]}]}, "messages[0].content[0].type"),
    ],
)
def test_what_has_no_equivalent_is_refused(body: Json, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat_to_gemini({"messages": [USER], **body})
    assert (raised.value.status, raised.value.param) == (400, param)


def test_ignored_fields_are_reported_and_stop_strings_are_left_to_the_upstream() -> None:
    messages = [{**USER, "name": "Ada"}, {"role": "assistant", "content": "x", "reasoning_content": "hm"}]
    body = {"messages": messages, "user": "u", "parallel_tool_calls": False, "seed": 1, "stop": ["\n"]}
    request = ValidatedRequest(is_stream=True, bodies=[body])
    check_translations(request, [Endpoint.GEMINI], Endpoint.CHAT)
    assert request.ignored_fields == ("messages.name", "parallel_tool_calls", "user")
    assert request.facts.stop_strings == ()
    check_translations(request, [Endpoint.GEMINI, Endpoint.MESSAGES], Endpoint.CHAT)
    assert "messages.reasoning_content" in request.ignored_fields


def test_a_completion_is_a_message_of_the_user() -> None:
    found = translate_request({"prompt": "Hi", "max_tokens": 5}, Endpoint.GEMINI, Endpoint.COMPLETIONS)
    assert found == {"contents": [HI], "generationConfig": {"maxOutputTokens": 5}}


@table(
    "model, name",
    [
        ("gemini-2.5-pro", "/models/gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "/models/gemini-2.5-pro"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("m/../../files?x=y#z", "/models/m%2F..%2F..%2Ffiles%3Fx%3Dy%23z"),
        ("models/a:b c", "/models/a%3Ab%20c"),
    ],
)
def test_the_path_has_the_model_and_the_method(model: str, name: str) -> None:
    body = {"contents": [HI], "model": "client's"}
    assert method_target("generateContent", {**body, "stream": True}, model) == (
        f"{name}:streamGenerateContent?alt=sse",
        {"contents": [HI]},
    )
    assert method_target("generateContent", body, model) == (f"{name}:generateContent", {"contents": [HI]})
    path, counted = method_target("countTokens", {"generateContentRequest": body}, "x")
    assert (path, counted["generateContentRequest"]["model"]) == ("/models/x:countTokens", "models/x")
    assert method_target("countTokens", {"contents": [HI]}, "x")[1] == {"contents": [HI]}
