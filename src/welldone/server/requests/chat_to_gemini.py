"""Translation of a chat request into a request of Google's Gemini API, for an upstream that has only this one.

Fields that chat does not define are forwarded, so that clients can send `safetySettings` or a `generationConfig` with
more members; the upstream validates them. docs/dialects.md lists what is not carried.
"""

import mimetypes
import re
from functools import partial

from welldone.core.collect import REASONING_DETAILS
from welldone.core.events import Json
from welldone.core.json_budget import exceeds_blocking_budget
from welldone.core.lenient_json import as_list, as_object
from welldone.dialects.gemini import objects
from welldone.server.requests import chat_input, fields
from welldone.server.requests.chat_input import ChatInput, Located
from welldone.server.requests.gemini import RESULT_MEMBER

_API = "Gemini"
_CONFIG = "generationConfig"
_TOOL_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE", "tool": "ANY"}
_ROLES = {"user": "user", "assistant": "model"}
_LEVELS = {"xhigh": "HIGH"}  # the others have the same name, in upper case
_BUDGETS = {"minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576, "xhigh": 24_576}
"""Tokens of thought by reasoning effort, of models without levels: as in Google's OpenAI-compatible API."""
_MODEL_WITH_BUDGET = re.compile(r"gemini-[12]\b")
_MODEL_WITH_SIGNATURES = re.compile(r"gemini-(?:[3-9]|\d\d)")
_NO_SIGNATURE = "skip_thought_signature_validator"
"""Google's placeholder for a call of another model. Since Gemini 3 a call without a signature is rejected."""
_GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Fields with the same values, by their name in a chat."""
REJECTED_FIELDS = {
    "audio": "its audio has another format.",
    "logit_bias": "it has no such option.",
    "web_search_options": "its search is a tool of its own.",
}
"""Fields that change the answer and have no equivalent, with the reason."""
IGNORED_FIELDS = (
    *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store", "user", "verbosity"),
)
"""Fields that are left out, and reported: hints and bookkeeping. Google's models may always call several functions."""
_TRANSLATED_FIELDS = (
    *("function_call", "functions", "logprobs", "max_completion_tokens", "max_tokens", "reasoning_effort"),
    *("response_format", "stop", "tool_choice", "tools", "top_logprobs", _CONFIG, *_GENERATION_FIELDS),
)


def chat_to_gemini(body: Json) -> Json:
    """Return the request without its model, which is read if it is known: models differ in their options.

    Raises:
        ApiError: a field is invalid, or has no equivalent.
    """
    others = chat_input.forwarded_fields(body, (*_TRANSLATED_FIELDS, *IGNORED_FIELDS), REJECTED_FIELDS, _API)
    model = body.get("model", "")  # unknown while the request is only checked
    system, turns = chat_input.read_turns(
        body, _API, text=_text_part, user=_user_part, tool=_function_response, assistant=partial(_model_parts, model)
    )
    out: Json = {"contents": [{"role": _ROLES[role], "parts": parts} for role, parts in turns]}
    out |= {"systemInstruction": {"parts": system}} if system else {}
    config = _generation_config(body, model) | as_object(body.get(_CONFIG))
    return out | ({_CONFIG: config} if config else {}) | _tool_fields(body) | others


def _generation_config(body: Json, model: str) -> Json:
    config = fields.given(**{name: body.get(field) for field, name in _GENERATION_FIELDS.items()})
    stops = list(chat_input.stop_strings(body))
    config |= fields.given(maxOutputTokens=chat_input.max_tokens(body), stopSequences=stops or None)
    if body.get("logprobs"):
        config |= {"responseLogprobs": True} | fields.given(logprobs=body.get("top_logprobs"))
    effort = body.get("reasoning_effort")
    if effort == "none":
        config["thinkingConfig"] = {"thinkingBudget": 0}
    elif effort is not None:
        word = str(effort)
        has_budget = _MODEL_WITH_BUDGET.search(model) and word in _BUDGETS
        level: Json = {"thinkingLevel": _LEVELS.get(word, word.upper())}
        chosen = {"thinkingBudget": _BUDGETS[word]} if has_budget else level
        config["thinkingConfig"] = {"includeThoughts": True, **chosen}
    response_format = as_object(body.get("response_format"))
    match response_format.get("type"):
        case None | "text":
            pass
        case "json_object":
            config["responseMimeType"] = "application/json"
        case "json_schema":
            schema = as_object(as_object(response_format.get("json_schema")).get("schema"))
            config |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
        case format_type:
            raise fields.unsupported(
                "response_format.type", f"'{format_type}' cannot be sent to an upstream with the {_API} API."
            )
    return config


def _tool_fields(body: Json) -> Json:
    declared = [_function(tool) for tool in chat_input.read_tools(body)]
    if not declared:
        return {}
    out: Json = {"tools": [{"functionDeclarations": declared}]}
    choice = chat_input.read_tool_choice(body)
    if choice is not None:
        if choice.mode not in _TOOL_MODES:
            raise fields.wrong_value("tool_choice", choice.mode, ("none", "auto", "required"))
        names = {"allowedFunctionNames": [choice.name]} if choice.name else {}
        out["toolConfig"] = {"functionCallingConfig": {"mode": _TOOL_MODES[choice.mode], **names}}
    return out


def _function(tool: Located) -> Json:
    if tool.value.get("type", "function") != "function":
        raise chat_input.unsupported_type(tool, _API)
    function = as_object(tool.value.get("function"))
    described = fields.given(description=function.get("description"), parametersJsonSchema=function.get("parameters"))
    return {"name": function.get("name"), **described}


def _text_part(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return objects.text_part(text)
        case _:
            raise chat_input.unsupported_type(content_part, _API)


def _user_part(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "image_url"}:
            return _media_part(chat_input.image_url(content_part))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(audio_format)}}:
            return {"inlineData": {"mimeType": f"audio/{audio_format}", "data": data}}
        case {"type": "file", "file": {"file_data": str(data)}} if chat_input.split_data_url(data) is not None:
            return _media_part(data)
        case _:
            return _text_part(content_part)


def _media_part(url: str) -> Json:
    data_url = chat_input.split_data_url(url)
    if data_url is not None:
        return {"inlineData": {"mimeType": data_url[0], "data": data_url[1]}}
    mime_type, _ = mimetypes.guess_type(url.partition("?")[0])
    return {"fileData": {"fileUri": url} | fields.given(mimeType=mime_type)}


def _function_response(message: ChatInput) -> Json:
    """Return the result of a call: an object, or else its text in one."""
    name = (message.call.name if message.call else None) or message.value.get("name")
    if not isinstance(name, str):
        raise fields.invalid(f"{message.param}.tool_call_id", "there is no call with this id before it.")
    parts = [_user_part(content_part) for content_part in message.parts]
    text = "".join(gemini_part["text"] for gemini_part in parts if "text" in gemini_part)
    media = [gemini_part for gemini_part in parts if "text" not in gemini_part]
    value = None if exceeds_blocking_budget(text.encode()) else chat_input.json_object(text)
    response = {"id": message.call_id, "name": name, "response": {RESULT_MEMBER: text} if value is None else value}
    return {"functionResponse": response | ({"parts": media} if media else {})}


def _model_parts(model: str, message: ChatInput) -> list[Json]:
    """Return reasoning, text and calls, with the signatures that the client sends back."""
    thought = message.value.get("reasoning_content") or message.value.get("reasoning")
    parts = [objects.text_part(thought, is_thought=True)] if isinstance(thought, str) and thought else []
    parts += [_text_part(content_part) for content_part in message.parts]
    refusal = message.value.get("refusal")
    parts += [objects.text_part(refusal)] if isinstance(refusal, str) and refusal else []
    for sealed in objects.signature_parts(message.value):
        if parts and "thoughtSignature" not in parts[-1]:
            parts[-1] |= {"thoughtSignature": sealed["thoughtSignature"]}
        else:
            parts.append(sealed)
    signatures = _call_signatures(message)
    needs_signature = _MODEL_WITH_SIGNATURES.search(model) is not None  # of the first call only
    for tool_call in message.calls:
        signature = signatures.get(tool_call.id) or (_NO_SIGNATURE if needs_signature else None)
        arguments = chat_input.call_input(tool_call)
        function_call = fields.given(id=tool_call.id or None) | {"name": tool_call.name, "args": arguments}
        parts.append({"functionCall": function_call} | fields.given(thoughtSignature=signature))
        needs_signature = False
    return parts


def _call_signatures(message: ChatInput) -> dict[object, str]:
    """Return the signatures of calls by their ids: members of the calls, or OpenRouter's reasoning details."""
    signatures: dict[object, str] = {}
    for detail in map(as_object, as_list(message.value.get(REASONING_DETAILS))):
        match detail:
            case {"format": objects.REASONING_FORMAT, "id": str(call_id), "data": str(signature)}:
                signatures[call_id] = signature
            case _:
                pass
    for tool_call in map(as_object, as_list(message.value.get("tool_calls"))):
        if (own := objects.thought_signature(tool_call)) is not None:
            signatures[tool_call.get("id")] = own
    return signatures
