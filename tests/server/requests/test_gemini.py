"""Translation of requests of Google's API into chat requests."""

import json
from typing import Any

import pytest

from tests.server.requests.builders import CAPABILITIES, MODEL
from tests.table import table
from welldone.core.events import Json
from welldone.gateway.errors import ApiError
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import ChatTranslation, rename_error_param
from welldone.server.requests.gemini import (
    counted_request,
    gemini_to_chat,
    openapi_to_json_schema,
    read_gemini_body,
)

PNG = {"mimeType": "image/png", "data": "iVBORw0KGgo="}
WEATHER = {"name": "weather", "description": "tells it", "parametersJsonSchema": {"type": "object", "properties": {}}}
FUNCTION = {"name": "weather", "description": "tells it", "parameters": {"type": "object", "properties": {}}}
CALL = {"functionCall": {"name": "weather", "args": {"city": "Köln"}}}
SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


def user(*parts: Json) -> Json:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def answer(name: str = "weather", response: object = None, **more: object) -> Json:
    return {"functionResponse": {"name": name, "response": response or {"result": "sunny"}, **more}}


HI = user({"text": "Hi"})


def read(kind: str = "llamacpp", /, *, ignores_tools: bool = False, **body: Any) -> ChatTranslation:  # noqa: ANN401 - any body
    whole = read_gemini_body({"contents": [HI], **body})
    return gemini_to_chat(whole, kind, model="m", ignores_unknown_tools=ignores_tools)


def configured(**config: Any) -> Json:  # noqa: ANN401 - any config
    return read(generationConfig=config).chat


def refusal(**body: Any) -> ApiError:  # noqa: ANN401 - any body
    with pytest.raises(ApiError) as caught:
        read(**body)
    assert caught.value.status == 400
    return caught.value


def test_text_and_instructions_become_messages() -> None:
    body = read(
        systemInstruction={"parts": [{"text": "Be"}, {"text": "brief."}]},
        contents=[
            {"parts": [{"text": "Hi"}, {"text": "there"}, {"text": ""}]},
            model({"text": "Hel"}, {"text": "lo"}),
            HI,
        ],
    )
    assert body.chat["messages"] == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Hi"},
    ]
    assert body.param_names["messages[3]"] == "contents[2]"


def test_names_may_be_in_snake_case_except_those_of_the_client() -> None:
    call = {"function_call": {"name": "f", "args": {"my_city": {"a_b": 1}}}}
    body = read(
        system_instruction={"parts": [{"text": "Be brief."}]},
        contents=[HI, model(call), user({"function_response": {"name": "f", "response": {"a_b": 1}}})],
        generation_config={"max_output_tokens": 5, "thinking_config": {"include_thoughts": True}},
        tools=[{"function_declarations": [{"name": "f", "parameters_json_schema": {"properties": {"my_city": {}}}}]}],
        tool_config={"function_calling_config": {"mode": "ANY"}},
    )
    assert body.shows_reasoning
    assert body.chat["max_tokens"] == 5
    assert body.chat["tool_choice"] == "required"
    assert body.chat["tools"][0]["function"]["parameters"] == {"properties": {"my_city": {}}}
    assert json.loads(body.chat["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"my_city": {"a_b": 1}}
    assert body.chat["messages"][3]["content"] == '{"a_b":1}'
    assert refusal(generationConfig={}, generation_config={}).param == "generationConfig"


def test_thoughts_calls_and_signatures_are_sent_back() -> None:
    said = model(
        {"text": "hm", "thought": True},
        {"text": "Wait.", "thoughtSignature": "c2ln"},
        {**CALL, "thoughtSignature": "c2ln"},
        {"functionCall": {"id": "x", "name": "clock"}},
    )
    messages = read(contents=[HI, said, user(answer(), answer("clock", {"hour": 5}, id="x"))]).chat["messages"]
    function = {"name": "weather", "arguments": '{"city":"Köln"}'}
    assert messages[1] == {
        "role": "assistant",
        "content": "Wait.",
        "reasoning_content": "hm",
        **SIGNED,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": function, **SIGNED},
            {"id": "x", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ],
    }
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "x", "content": '{"hour":5}'},
    ]
    signature_alone = read(contents=[HI, model({"thoughtSignature": "c2ln"}), HI]).chat["messages"]
    assert signature_alone[1] == {"role": "assistant", "content": "", **SIGNED}


def test_results_without_an_id_belong_to_the_calls_of_their_function_in_order() -> None:
    contents = [HI, model(CALL, CALL), user(answer(), answer()), HI, user(answer("other"))]
    ids = [one["tool_call_id"] for one in read(contents=contents).chat["messages"] if one["role"] == "tool"]
    assert ids == ["call_1", "call_2", "call_0"]


def test_images_and_audio_are_content_parts() -> None:
    sound = {"mimeType": "audio/mpeg", "data": "AAAA"}
    messages = read(contents=[user({"inlineData": PNG}, {"inlineData": sound}, {"text": "What?"})]).chat["messages"]
    assert messages[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "text", "text": "What?"},
    ]


def test_options_of_the_answer_are_translated() -> None:
    config = {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "maxOutputTokens": 10,
        "stopSequences": ["END"],
        "candidateCount": 2,
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "responseLogprobs": True,
        "logprobs": 3,
        "responseModalities": ["TEXT"],
        "mediaResolution": "MEDIA_RESOLUTION_LOW",
    }
    chat = configured(**config)
    del chat["messages"]
    assert chat == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 10,
        "stop": ["END"],
        "n": 2,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logprobs": True,
        "top_logprobs": 3,
    }
    assert read("openai", generationConfig={"maxOutputTokens": 5}).chat["max_completion_tokens"] == 5


@table(
    ("kind", "thinking", "expected"),
    [
        ("llamacpp", {"thinkingBudget": 0}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("openai", {"thinkingBudget": 0}, {"reasoning_effort": "none"}),
        ("llamacpp", {"thinkingBudget": 100}, {"thinking_budget_tokens": 100}),
        ("vllm", {"thinkingBudget": 100}, {}),
        ("llamacpp", {"thinkingBudget": -1}, {}),
        ("vllm", {"thinkingLevel": "LOW"}, {"reasoning_effort": "low"}),
        # Most clients of the REST API send lower case, as Google's examples do: its API reads enums in any case.
        ("vllm", {"thinkingLevel": "low"}, {"reasoning_effort": "low"}),
        ("vllm", {"thinking_level": "High"}, {"reasoning_effort": "high"}),
        ("vllm", {"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, {}),
    ],
)
def test_thinking_is_translated_for_the_server(kind: str, thinking: Json, expected: Json) -> None:
    chat = read(kind, generationConfig={"thinkingConfig": thinking}).chat
    assert {name: value for name, value in chat.items() if name not in ("model", "messages")} == expected


def test_modalities_may_be_in_lower_case() -> None:
    assert configured(responseModalities=["text", "TEXT"]) == configured()


def test_an_answer_may_be_json() -> None:
    assert configured(responseMimeType="application/json")["response_format"] == {"type": "json_object"}
    assert "response_format" not in configured(responseMimeType="text/plain")
    for name, given in (("responseSchema", {"type": "STRING"}), ("responseJsonSchema", {"type": "string"})):
        answer_format = configured(**{"responseMimeType": "application/json", name: given})["response_format"]
        assert answer_format["json_schema"]["schema"] == {"type": "string"}


def test_a_schema_of_google_becomes_a_json_schema() -> None:
    given = {
        "type": "OBJECT",
        "properties": {
            "any_of": {"type": "STRING", "enum": ["a"], "format": "enum", "nullable": True},
            "count": {"type": "INTEGER", "format": "int32", "minimum": 1},
            "list": {"type": "ARRAY", "items": {"type": "NUMBER"}, "min_items": "1", "maxItems": 3},
            "either": {"any_of": [{"type": "BOOLEAN"}, {"ref": "#/$defs/x"}], "nullable": True},
            "free": {"type": "TYPE_UNSPECIFIED", "title": None},
        },
        "additional_properties": False,
        "defs": {"x": {"type": "STRING", "format": "date-time"}},
        "propertyOrdering": ["count"],
        "example": {},
    }
    assert openapi_to_json_schema(given, "p") == {
        "type": "object",
        "properties": {
            "any_of": {"type": ["string", "null"], "enum": ["a", None]},
            "count": {"type": "integer", "minimum": 1},
            "list": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
            "either": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/x"}, {"type": "null"}]},
            "free": {},
        },
        "additionalProperties": False,
        "$defs": {"x": {"type": "string", "format": "date-time"}},
    }


def nested(depth: int) -> Json:
    return {"items": nested(depth - 1)} if depth else {"type": "STRING"}


@table(
    ("given", "param"),
    [
        ({"type": "TUPLE"}, "p.type"),
        ({"type": 5}, "p.type"),
        ({"properties": []}, "p.properties"),
        ({"properties": {"a": 5}}, "p.properties.a"),
        ({"anyOf": {}}, "p.anyOf"),
        (nested(40), "p" + ".items" * 33),
    ],
)
def test_a_wrong_schema_is_refused(given: Json, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        openapi_to_json_schema(given, "p")
    assert caught.value.param == param


def test_functions_become_tools() -> None:
    openapi = {"name": "clock", "parameters": {"type": "OBJECT", "properties": {"zone": {"type": "STRING"}}}}
    body = read(tools=[{"functionDeclarations": [WEATHER]}, {"functionDeclarations": [openapi, {"name": "dice"}]}])
    assert [tool["function"] for tool in body.chat["tools"]] == [
        FUNCTION,
        {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}},
        {"name": "dice"},
    ]
    assert "tool_choice" not in body.chat
    assert body.param_names["tools[1].function.parameters"] == "tools[1].functionDeclarations[0].parameters"


@table(
    ("config", "choice", "names"),
    [
        ({"mode": "AUTO"}, "auto", ["a", "b"]),
        ({"mode": "NONE"}, "none", ["a", "b"]),
        ({"mode": "auto"}, "auto", ["a", "b"]),
        ({"mode": "any", "allowed_function_names": ["b"]}, "required", ["b"]),
        ({"mode": "MODE_UNSPECIFIED"}, None, ["a", "b"]),
        ({"mode": "ANY", "allowedFunctionNames": ["b"]}, "required", ["b"]),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["a"]}, "auto", ["a"]),
    ],
)
def test_the_mode_of_function_calling_is_translated(config: Json, choice: str | None, names: list[str]) -> None:
    tools = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]
    chat = read(tools=tools, toolConfig={"functionCallingConfig": config}).chat
    assert chat.get("tool_choice") == choice
    assert [tool["function"]["name"] for tool in chat["tools"]] == names


def test_tools_of_a_server_are_refused_or_ignored() -> None:
    tools = [{"googleSearch": {}}, {"functionDeclarations": [{"name": "a"}]}]
    error = refusal(tools=tools)
    assert error.param == "tools[0].googleSearch"
    assert "--unknown-tools ignore" in error.message
    body = read(ignores_tools=True, tools=tools, toolConfig={"functionCallingConfig": {"mode": "ANY"}})
    assert (len(body.chat["tools"]), body.ignored_tools) == (1, 1)
    alone = read(ignores_tools=True, tools=tools[:1], toolConfig={"functionCallingConfig": {"mode": "ANY"}})
    assert "tools" not in alone.chat


def test_safety_settings_have_no_effect_and_are_reported() -> None:
    body = read(safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}])
    assert body.ignored_fields == ("safetySettings",)
    assert read().ignored_fields == ()


_ANY = {"functionCallingConfig": {"mode": "ANY"}}


@table(
    ("body", "param"),
    [
        ({"contents": None}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": [user()]}, "contents[0].parts"),
        ({"contents": [{"role": "assistant", "parts": []}]}, "contents[0].role"),
        ({"contents": [HI, model({"text": "a"})]}, "contents"),
        ({"contents": [user({"fileData": {"fileUri": "x"}})]}, "contents[0].parts[0]"),
        ({"contents": [HI, model({"executableCode": {}}), HI]}, "contents[1].parts[0]"),
        (
            {"contents": [user({"inlineData": {**PNG, "mimeType": "video/mp4"}})]},
            "contents[0].parts[0].inlineData.mimeType",
        ),
        ({"contents": [user(answer(parts=[{}]))]}, "contents[0].parts[0].functionResponse.parts"),
        ({"systemInstruction": {"parts": [{"inlineData": PNG}]}}, "systemInstruction.parts[0]"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": {"speechConfig": {"a": 1}}}, "generationConfig.speechConfig"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities[0]"),
        ({"generationConfig": {"responseModalities": [5]}}, "generationConfig.responseModalities[0]"),
        ({"generationConfig": {"responseModalities": "text"}}, "generationConfig.responseModalities"),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "odd"}}},
            "generationConfig.thinkingConfig.thinkingLevel",
        ),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": 5}}},
            "generationConfig.thinkingConfig.thinkingLevel",
        ),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"logprobs": 3}}, "generationConfig.logprobs"),
        ({"generationConfig": {"responseSchema": {}}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseSchema": {}, "responseJsonSchema": {}}}, "generationConfig.responseJsonSchema"),
        ({"tools": [{"functionDeclarations": {}}]}, "tools[0].functionDeclarations"),
        ({"tools": [{"functionDeclarations": [5]}]}, "tools[0].functionDeclarations[0]"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"toolConfig": _ANY}, "toolConfig.functionCallingConfig"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["a"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames[0]",
        ),
    ],
)
def test_a_request_that_cannot_be_translated_is_refused(body: Json, param: str) -> None:
    assert refusal(**body).param == param


@table(
    ("config", "param"),
    [
        ({"temperature": 99}, "generationConfig.temperature"),
        ({"topP": 2}, "generationConfig.topP"),
        ({"stopSequences": [""]}, "generationConfig.stopSequences"),
        ({"candidateCount": 999}, "generationConfig.candidateCount"),
        ({"responseLogprobs": True, "logprobs": 99}, "generationConfig.logprobs"),
    ],
)
def test_an_error_of_the_chat_request_names_the_field_of_the_client(config: Json, param: str) -> None:
    body = read(generationConfig=config)
    with pytest.raises(ApiError) as caught:
        read_chat(body.chat, MODEL, CAPABILITIES)
    rename_error_param(caught.value, body.param_names)
    assert (caught.value.param or "").startswith(param)


def test_tokens_are_counted_of_contents_or_of_a_whole_request() -> None:
    assert counted_request({"contents": [HI], "other": 1}) == {"contents": [HI]}
    whole = {"contents": [HI], "tools": []}
    assert counted_request({"generateContentRequest": whole}) == whole
    with pytest.raises(ApiError):
        counted_request({})
