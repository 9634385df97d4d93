"""Validation of `generateContent` (Google's Gemini API), and translation into a chat request.

The chat request is validated again by the endpoint that serves it. Parts without an equivalent in a chat are rejected.
"""

from collections import deque
from itertools import count
from typing import Any

import msgspec

from welldone.core.events import Json
from welldone.core.lenient_json import as_list, as_object
from welldone.dialects.gemini.objects import signature_fields
from welldone.gateway.errors import invalid_request
from welldone.schemas import gemini as schema
from welldone.schemas.gemini import camel_case_name
from welldone.server.requests import fields
from welldone.server.requests.tools import unsupported_tool_type, user_turn

RESULT_MEMBER = "result"
"""Member of a function response that is text. google-genai sends the results of Python functions like this."""

_CONFIG = "generationConfig"
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
_TOOL_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_SAMPLING_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop": "stop_sequences",
    "n": "candidate_count",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logprobs": "response_logprobs",
    "top_logprobs": "logprobs",
}
"""Fields of a chat, and those of the generation config that have the same values."""
_PARAM_NAMES = {name: f"{_CONFIG}.{schema.camel_case_name(field)}" for name, field in _SAMPLING_FIELDS.items()} | {
    "max_tokens": f"{_CONFIG}.maxOutputTokens",
    "max_completion_tokens": f"{_CONFIG}.maxOutputTokens",
    "response_format": f"{_CONFIG}.responseMimeType",
    "reasoning_effort": f"{_CONFIG}.thinkingConfig.thinkingLevel",
    "thinking_budget_tokens": f"{_CONFIG}.thinkingConfig.thinkingBudget",
    "tool_choice": "toolConfig.functionCallingConfig",
}
"""The client's names for fields of the chat request."""


def read_gemini_body(body: Json) -> Json:
    """Return the body with the names of the API in camelCase."""
    try:
        return schema.camel_case_names(body)
    except ValueError as error:
        raise fields.invalid(str(error), "the field is given twice, in camelCase and in snake_case.") from None


def counted_request(body: Json) -> Json:
    """Return the request whose tokens `countTokens` counts."""
    request = fields.read_fields(body, schema.GeminiTokensRequest)
    if request.generate_content_request is not None:
        return request.generate_content_request
    if request.contents is None:
        raise fields.missing("contents")
    return {"contents": body["contents"]}


def gemini_to_chat(
    body: Json, upstream_kind: str, *, model: str, ignores_unknown_tools: bool
) -> fields.ChatTranslation:
    """Translate a request into a chat request.

    Args:
        body: the body, with names in camelCase.
        upstream_kind: the kind of server, as in `Upstream.kind`; `llamacpp` for a local model.
        model: the model in the path.
        ignores_unknown_tools: drop tools that only a server can run, instead of rejecting them.
    """
    fields.check_supported(body, schema.GeminiRequest)
    fields.check_supported(as_object(body.get(_CONFIG)), schema.GenerationConfig, f"{_CONFIG}.")
    request = fields.read_fields(body, schema.GeminiRequest)
    generation = request.generation_config or schema.GenerationConfig()
    names = dict(_PARAM_NAMES)
    messages = _chat_messages(request, names)
    chat: Json = {"model": model, "messages": messages}
    chat |= fields.given(**{name: getattr(generation, field) for name, field in _SAMPLING_FIELDS.items()})
    if generation.max_output_tokens is not None:
        chat[fields.max_tokens_field(upstream_kind)] = generation.max_output_tokens
    if generation.logprobs is not None and not generation.response_logprobs:
        raise fields.invalid(f"{_CONFIG}.logprobs", "it needs responseLogprobs = true.")
    chat |= _reasoning_fields(generation.thinking_config or schema.ThinkingConfig(), upstream_kind)
    chat |= _format_fields(generation, names)
    functions, ignored_tools = _read_tools(request, ignores_unknown_tools, names)
    chat |= _tool_fields(request, functions, has_ignored=ignored_tools > 0)
    thinking = generation.thinking_config
    shows_reasoning = thinking is not None and thinking.include_thoughts is True
    ignored_fields = (schema.SAFETY_SETTINGS,) if body.get(schema.SAFETY_SETTINGS) else ()
    return fields.ChatTranslation(chat, names, shows_reasoning, ignored_tools, ignored_fields)


def _reasoning_fields(thinking: schema.ThinkingConfig, upstream_kind: str) -> Json:
    """Translate `thinkingConfig`. Only llama.cpp gets a budget: others reject it, or need special settings."""
    budget = thinking.thinking_budget
    if budget == 0:
        return fields.thinking_off_fields(upstream_kind)
    out: Json = {}
    if thinking.thinking_level in ("MINIMAL", "LOW", "MEDIUM", "HIGH"):
        out["reasoning_effort"] = thinking.thinking_level.lower()
    if budget is not None and budget > 0 and upstream_kind == "llamacpp":
        out["thinking_budget_tokens"] = budget
    return out


def _format_fields(generation: schema.GenerationConfig, names: dict[str, str]) -> Json:
    """Translate the format of the answer."""
    json_schema, param = generation.response_json_schema, f"{_CONFIG}.responseJsonSchema"
    if generation.response_schema is not None:
        if json_schema is not None:
            raise fields.invalid(param, "it cannot be used together with responseSchema.")
        param = f"{_CONFIG}.responseSchema"
        json_schema = openapi_to_json_schema(generation.response_schema, param)
    is_json = generation.response_mime_type == "application/json"
    if json_schema is None:
        return {"response_format": {"type": "json_object"}} if is_json else {}
    if not is_json:
        raise fields.invalid(param, "it needs responseMimeType = 'application/json'.")
    names["response_format.json_schema.schema"] = param
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": json_schema}}}


def _read_tools(request: schema.GeminiRequest, ignores_unknown: bool, names: dict[str, str]) -> tuple[list[Json], int]:
    """Return the functions, and the number of tools that only a server can run."""
    functions: list[Json] = []
    ignored = 0
    for number, tool in enumerate(request.tools or ()):
        for tool_type, value in tool.items():
            param = f"tools[{number}].{tool_type}"
            if tool_type == "functionDeclarations":
                if not isinstance(value, list):
                    raise fields.wrong_type(param, "an array", value)
                for index, declared in enumerate(as_list(value)):
                    if not isinstance(declared, dict):
                        raise fields.wrong_type(f"{param}[{index}]", "an object", declared)
                    functions.append(_function(declared, f"{param}[{index}]", f"tools[{len(functions)}]", names))
            elif not ignores_unknown:
                raise unsupported_tool_type(param, tool_type, "functionDeclarations")
            else:
                ignored += 1
    return functions, ignored


def _function(declared: Json, param: str, chat_param: str, names: dict[str, str]) -> Json:
    function = fields.read_fields(declared, schema.FunctionDeclaration, f"{param}.")
    parameters, schema_param = function.parameters_json_schema, f"{param}.parametersJsonSchema"
    if parameters is None and function.parameters is not None:
        schema_param = f"{param}.parameters"
        parameters = openapi_to_json_schema(function.parameters, schema_param)
    names |= {chat_param: param, f"{chat_param}.function": param}
    names[f"{chat_param}.function.parameters"] = schema_param
    described = fields.given(name=function.name, description=function.description, parameters=parameters)
    return {"type": "function", "function": described}


def _tool_fields(request: schema.GeminiRequest, functions: list[Json], *, has_ignored: bool) -> Json:
    config = None if request.tool_config is None else request.tool_config.function_calling_config
    config = config or schema.FunctionCallingConfig()
    mode = _TOOL_CHOICES.get(config.mode or "")
    param = "toolConfig.functionCallingConfig"
    if config.allowed_function_names:
        if config.mode not in ("ANY", "VALIDATED"):
            raise fields.invalid(f"{param}.allowedFunctionNames", "it needs the mode ANY or VALIDATED.")
        known = {function["function"]["name"] for function in functions}
        for index, name in enumerate(config.allowed_function_names):
            if name not in known:
                raise fields.invalid(f"{param}.allowedFunctionNames[{index}]", "there is no such function.")
        functions = [tool for tool in functions if tool["function"]["name"] in config.allowed_function_names]
    if not functions:
        if mode == "required" and not has_ignored:
            raise invalid_request(f"'{param}' needs functions.", param=param, code="invalid_value")
        return {}
    return {"tools": functions} | fields.given(tool_choice=mode)


def _chat_messages(request: schema.GeminiRequest, names: dict[str, str]) -> list[Json]:
    messages: list[Json] = []
    if request.system_instruction is not None:
        parts = request.system_instruction.parts or []
        text = "\n".join(_text_only(piece, f"systemInstruction.parts[{index}]") for index, piece in enumerate(parts))
        if text:
            messages.append({"role": "system", "content": text})
            names["messages[0]"] = "systemInstruction"
    ids = count(1)
    pending: dict[str, deque[str]] = {}  # ids of calls without a result, by function
    for index, content in enumerate(request.contents):
        param = f"contents[{index}]"
        if content.role == "model":
            added = [_model_message(content, param, ids, pending)]
        else:
            added = _user_messages(content, param, pending)
        for message in added:
            names[f"messages[{len(messages)}]"] = param
            messages.append(message)
    if messages[-1]["role"] == "assistant":
        raise fields.invalid("contents", "the last content must be the user's, or have function responses.")
    return messages


def _text_only(content_part: schema.Part, param: str) -> str:
    if content_part.text is None:
        raise fields.unsupported(param, "is not text.")
    return content_part.text


def _model_message(content: schema.Content, param: str, ids: "count[int]", pending: dict[str, deque[str]]) -> Json:
    """Return a message. Text parts are joined without a gap: the server split them."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    signature: str | None = None  # of text; a call has its own
    for index, content_part in enumerate(content.parts or ()):
        if content_part.function_call is not None:
            function_call = content_part.function_call
            call_id = function_call.id or f"call_{next(ids)}"
            pending.setdefault(function_call.name, deque()).append(call_id)
            function = {"name": function_call.name, "arguments": msgspec.json.encode(function_call.args or {}).decode()}
            signed = signature_fields(content_part.thought_signature)
            calls.append({"id": call_id, "type": "function", "function": function, **signed})
        elif content_part.text is not None:
            (thoughts if content_part.thought else texts).append(content_part.text)
            signature = content_part.thought_signature or signature
        elif content_part.thought_signature is None:  # it may be a part of its own
            raise fields.unsupported(f"{param}.parts[{index}]", "has neither text nor a function call.")
        else:
            signature = content_part.thought_signature
    out: Json = {"role": "assistant", "content": "".join(texts), **signature_fields(signature)}
    if thought := "".join(thoughts):
        out["reasoning_content"] = thought
    return out | ({"tool_calls": calls} if calls else {})


def _user_messages(content: schema.Content, param: str, pending: dict[str, deque[str]]) -> list[Json]:
    """Return a message per function response, then one with the rest."""
    results: list[Json] = []
    rest: list[Json] = []
    for index, content_part in enumerate(content.parts or ()):
        part_param = f"{param}.parts[{index}]"
        if content_part.function_response is not None:
            results.append(_tool_message(content_part.function_response, part_param, pending))
        elif content_part.text is not None:
            rest += [{"type": "text", "text": content_part.text}] if content_part.text else []
        elif content_part.inline_data is not None:
            rest.append(_media_part(content_part.inline_data, f"{part_param}.inlineData"))
        else:
            reason = "has no content that is supported: text, inlineData, functionResponse."
            raise fields.unsupported(part_param, reason)
    return user_turn(results, rest, f"{param}.parts")


def _tool_message(response: schema.GeminiFunctionResponse, param: str, pending: dict[str, deque[str]]) -> Json:
    if response.parts:
        raise fields.unsupported(f"{param}.functionResponse.parts", "is not supported: send the result as response.")
    waiting = pending.get(response.name) or deque(["call_0"])
    if response.id is None:
        call_id = waiting.popleft()
    else:
        call_id = response.id
        if call_id in waiting:
            waiting.remove(call_id)
    value = response.response or {}
    result: Any = value.get(RESULT_MEMBER)
    is_text = len(value) == 1 and isinstance(result, str)
    text = result if is_text else msgspec.json.encode(value).decode()
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _media_part(blob: schema.Blob, param: str) -> Json:
    media_type = blob.mime_type.partition(";")[0].strip().lower()
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{blob.data}"}}
    if media_type in _AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": blob.data, "format": _AUDIO_FORMATS[media_type]}}
    raise fields.wrong_value(f"{param}.mimeType", blob.mime_type, ("image/…", *_AUDIO_FORMATS))


# Schemas in Google's format are a subset of OpenAPI 3.0: types are in upper case, `nullable` is a member, and counts
# may be strings, as protobuf writes 64-bit integers.

_DEPTH_LIMIT = 32  # the depth of a body is limited too
_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_DROPPED = frozenset({"example", "nullable", "propertyOrdering", "type"})
"""Members that are converted separately, or have no equivalent."""
_NUMBER_FORMATS = frozenset({"float", "double", "int32", "int64", "enum"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_RENAMED = {"defs": "$defs", "ref": "$ref"}
_SCHEMA_LISTS = frozenset({"anyOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"properties", "$defs"})
_NULL_ALTERNATIVES: Json = {"enum": None, "anyOf": {"type": "null"}}
_SCHEMAS = frozenset({"items", "additionalProperties"})


def openapi_to_json_schema(value: object, param: str, depth: int = 0) -> Json:
    """Return the JSON schema. Raises ApiError if a part of the schema is not as it must be."""
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "an object", value)
    if depth > _DEPTH_LIMIT:
        raise fields.invalid(param, f"the schema is nested more than {_DEPTH_LIMIT} levels deep.")
    out: Json = {}
    for name, member in value.items():
        camel = camel_case_name(name)
        target = _RENAMED.get(camel, camel)
        if member is None or target in _DROPPED or (target == "format" and member in _NUMBER_FORMATS):
            continue
        out[target] = _convert(target, member, f"{param}.{name}", depth)
    if value.get("nullable") is True:
        out |= {name: [*out[name], null] for name, null in _NULL_ALTERNATIVES.items() if name in out}
    return _type_members(value, param) | out


def _convert(name: str, member: Any, param: str, depth: int) -> Any:  # noqa: ANN401 - a part of a schema
    if name in _SCHEMA_MAPS:
        if not isinstance(member, dict):
            raise fields.wrong_type(param, "an object", member)
        return {key: openapi_to_json_schema(inner, f"{param}.{key}", depth + 1) for key, inner in member.items()}
    if name in _SCHEMA_LISTS:
        if not isinstance(member, list):
            raise fields.wrong_type(param, "an array", member)
        return [openapi_to_json_schema(inner, f"{param}[{index}]", depth + 1) for index, inner in enumerate(member)]
    if name in _SCHEMAS and not isinstance(member, bool):
        return openapi_to_json_schema(member, param, depth + 1)
    if name in _COUNTS and isinstance(member, str) and member.isascii() and member.isdigit() and len(member) < 20:
        return int(member)
    return member


def _type_members(value: Json, param: str) -> Json:
    type_name = value.get("type")
    if type_name is None or type_name == "TYPE_UNSPECIFIED":
        return {}
    if not isinstance(type_name, str):
        raise fields.wrong_type(f"{param}.type", "a string", type_name)
    if type_name.upper() not in _TYPES:
        raise fields.wrong_value(f"{param}.type", type_name, _TYPES)
    return {"type": [type_name.lower(), "null"] if value.get("nullable") is True else type_name.lower()}
