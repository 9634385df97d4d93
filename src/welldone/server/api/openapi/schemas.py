"""JSON schema helpers, and the schemas of chat and completions requests.

Each row of `GENERATION_FIELDS` is a property, with the limits of the validators.
"""

import re
from typing import Literal

from welldone.protocol.events import Json
from welldone.server.requests import chat, output_constraint, sampling, tools
from welldone.server.requests.chat import (
    MODALITIES_LIMIT,
    REASONING_EFFORTS,
    RESERVED_TEMPLATE_KWARGS,
    TEMPLATE_KWARG_LENGTH,
    TEMPLATE_KWARG_NAME,
    TEMPLATE_KWARGS_LIMIT,
)
from welldone.server.requests.fields import GENERATION_FIELDS, FieldHandling, RequestField
from welldone.server.requests.json_schema_cost import ALTERNATIVES_LIMIT

# Most schemas are nullable, as the validators in `requests/fields.py` treat null as absent.

ANY: Json = {}
OBJECT: Json = {"type": "object", "additionalProperties": True}
"""Explicit, since some client generators take the default for an object without properties."""
NULLABLE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
EMPTY_OBJECT: Json = {"type": "object", "maxProperties": 0}
_EMPTY_ARRAY: Json = {"type": "array", "items": {}, "maxItems": 0}
BOOLEAN: Json = {"type": ["boolean", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
NULLABLE_TEXT: Json = {"type": ["string", "null"]}


def number(low: float, high: float) -> Json:
    """Return the schema of a number in a range."""
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def integer(low: int, high: int) -> Json:
    """Return the schema of an integer in a range."""
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def string(max_length: int, min_length: int = 0) -> Json:
    """Return the schema of a string with a length range."""
    return {"type": ["string", "null"], "maxLength": max_length} | ({"minLength": min_length} if min_length else {})


def pattern_string(pattern: re.Pattern[str]) -> Json:
    """Return the schema of a string that matches a whole pattern."""
    return {"type": "string", "pattern": f"^{pattern.pattern}$"}


def enum_schema(values: tuple[str, ...]) -> Json:
    """Return the schema of an enum of strings."""
    return {"enum": [*values, None]}


def array(items: Json, max_items: int, min_items: int = 0) -> Json:
    """Return the schema of an array with a length range."""
    return {"type": ["array", "null"], "items": items, "maxItems": max_items} | (
        {"minItems": min_items} if min_items else {}
    )


def object_schema(properties: Json | None = None, *required: str) -> Json:
    """Return the schema of an object that may have other properties too."""
    return {"type": ["object", "null"], **_properties(properties, required)} if properties else NULLABLE_OBJECT


def any_of(*schemas: Json) -> Json:
    """Return the union of schemas."""
    return {"anyOf": list(schemas)}


def const_values(*values: object) -> Json:
    """Return the schema of constants of mixed types, for which client generators do not support `enum`."""
    return any_of(*map(_const_schema, values))


def _const_schema(value: object) -> Json:
    match value:
        case None:
            return {"type": "null"}
        case dict():
            return EMPTY_OBJECT
        case list():
            return _EMPTY_ARRAY
        case _:
            return {"const": value}


def non_nullable(schema: Json) -> Json:
    """Return the schema without null."""
    if "enum" in schema:
        return {**schema, "enum": [value for value in schema["enum"] if value is not None]}
    kinds = schema["type"]
    return {**schema, "type": kinds[0] if isinstance(kinds, list) else kinds}


def reply_object(properties: Json, *optional: str) -> Json:
    """Return the schema of an object that the server sends; all properties but the optional ones are required."""
    required = tuple(name for name in properties if name not in optional)
    return {"type": "object", **_properties(properties, required)}


def component_ref(component: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{component}"}


def _properties(properties: Json, required: tuple[str, ...]) -> Json:
    out: Json = {"properties": properties}
    return {**out, "required": list(required)} if required else out


_EMPTY_VALUES: tuple[object, ...] = (None, "", {}, [], 0, False)
_MAX_TOKENS: Json = {**integer(-1, sampling.INT64), "not": {"const": 0}}
_TOP_LOGPROBS = integer(0, sampling.TOP_LOGPROBS_LIMIT)
_TOKEN_ID: Json = {"type": "integer", "minimum": 0, "maximum": sampling.MAX_TOKEN_ID}
_TOKEN_IDS: Json = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
_STOP_STRING = non_nullable(string(sampling.STOP_STRING_LENGTH, 1))
_SEQUENCE_BREAKER = non_nullable(string(sampling.SEQUENCE_BREAKER_LENGTH, 1))
_NULL: Json = {"type": "null"}
_NAMED_FUNCTION = object_schema({"name": pattern_string(tools.FUNCTION_NAME)}, "name")
_TEMPLATE_KWARG_VALUE = any_of(string(TEMPLATE_KWARG_LENGTH), {"type": ["number", "boolean"]})
_GUIDED_CHOICE = array(non_nullable(string(output_constraint.GUIDED_CHOICE_LENGTH, 1)), ALTERNATIVES_LIMIT, 1)
_TRANSLATED_FIELD_SCHEMAS: Json = {
    "model": string(sampling.MODEL_NAME_LENGTH),
    "messages": non_nullable(array(component_ref("Message"), chat.MESSAGES_LIMIT, 1)),
    "stream": BOOLEAN,
    "stream_options": object_schema(
        dict.fromkeys(("include_usage", "include_obfuscation", "continuous_usage_stats"), BOOLEAN),
    ),
    "n": integer(1, sampling.CHOICES_LIMIT),
    "seed": integer(-sampling.INT64, 2 * sampling.INT64),
    "stop": any_of(_STOP_STRING, array(_STOP_STRING, sampling.STOP_STRINGS_LIMIT)),
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
    "n_predict": _MAX_TOKENS,
    "logit_bias": {
        "type": ["object", "null"],
        "maxProperties": sampling.LOGIT_BIAS_LIMIT,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(-sampling.MAX_LOGIT_BIAS, sampling.MAX_LOGIT_BIAS),
    },
    "top_logprobs": _TOP_LOGPROBS,
    "response_format": object_schema(
        {
            "type": non_nullable(enum_schema(output_constraint.RESPONSE_FORMAT_TYPES)),
            "json_schema": object_schema(
                {
                    "name": {**pattern_string(output_constraint.SCHEMA_NAME), "type": ["string", "null"]},
                    "description": ANY,
                    "schema": ANY,
                    "strict": BOOLEAN,
                }
            ),
        },
        "type",
    ),
    "tools": any_of(array(component_ref("Tool"), tools.TOOLS_LIMIT), EMPTY_OBJECT),
    "tool_choice": any_of(enum_schema(tools.TOOL_CHOICE_MODES), OBJECT),
    "parallel_tool_calls": BOOLEAN,
    "functions": array(component_ref("Function"), tools.TOOLS_LIMIT),
    "function_call": any_of(enum_schema(tools.TOOL_CHOICE_MODES), _NAMED_FUNCTION),
    "modalities": array({"const": "text"}, MODALITIES_LIMIT),
    "reasoning_effort": enum_schema(REASONING_EFFORTS),
    "echo": BOOLEAN,
    "best_of": integer(1, sampling.CHOICES_LIMIT),
    "dry_sequence_breakers": array(_SEQUENCE_BREAKER, sampling.SEQUENCE_BREAKERS_LIMIT),
    "samplers": array(_SEQUENCE_BREAKER, len(sampling.SAMPLERS)),
    "json_schema": object_schema(),
    "structured_outputs": object_schema(dict.fromkeys(output_constraint.GUIDED_KINDS, ANY)),
    "guided_json": any_of(TEXT, NULLABLE_OBJECT),
    "guided_choice": _GUIDED_CHOICE,
    "guided_json_object": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "add_generation_prompt": BOOLEAN,
    "chat_template_kwargs": {
        "type": ["object", "null"],
        "maxProperties": TEMPLATE_KWARGS_LIMIT,
        "propertyNames": {**pattern_string(TEMPLATE_KWARG_NAME), "not": {"enum": sorted(RESERVED_TEMPLATE_KWARGS)}},
        "additionalProperties": _TEMPLATE_KWARG_VALUE,
    },
}
_ENDPOINT_FIELD_SCHEMAS: dict[str, Json] = {
    "chat": {"logprobs": BOOLEAN},
    "completions": {"logprobs": _TOP_LOGPROBS},
}
"""Fields that differ between the endpoints."""


def text_or_token_ids(max_items: int) -> Json:
    """Return the schema of a string, an array of token ids, or an array of either."""
    return any_of(TEXT, _TOKEN_IDS, non_nullable(array(any_of(TEXT, _TOKEN_IDS), max_items, 1)))


def generation_request(endpoint: Literal["chat", "completions"]) -> Json:
    """Return the schema of a chat or completions request."""
    known = {
        **_TRANSLATED_FIELD_SCHEMAS,
        "prompt": text_or_token_ids(sampling.TOTAL_CHOICES_LIMIT),
        **_ENDPOINT_FIELD_SCHEMAS[endpoint],
    }
    rows = [row for row in GENERATION_FIELDS if row.endpoint in (None, endpoint)]
    return non_nullable(
        object_schema(
            {row.name: field_schema(row, known) for row in rows}, "messages" if endpoint == "chat" else "prompt"
        )
    )


def field_schema(field: RequestField, known: Json, empty: tuple[object, ...] = _EMPTY_VALUES) -> Json:
    """Return the schema of a field. `known`: schemas by name; `empty`: values allowed for a rejected field."""
    match field.handling:
        case FieldHandling.IGNORED:
            schema: Json = ANY
        case FieldHandling.REJECTED:
            schema = const_values(*empty)
        case FieldHandling.TRANSLATED:
            schema = known[field.name]
        case _:
            schema = known.get(field.name) or _forwarded_field_schema(field)
    return {**schema, "description": "; ".join(filter(None, (field.note, field.handling.value)))}


def _forwarded_field_schema(field: RequestField) -> Json:
    match field.kind:
        case "number":
            return number(field.low, field.high)
        case "integer" | "window":
            return integer(int(field.low), int(field.high))
        case "boolean":
            return BOOLEAN
        case "choice":
            return enum_schema(field.choices)


_CALL_ID = non_nullable(string(chat.NAME_LIMIT))
_MESSAGE_CONTENT = any_of(TEXT, non_nullable(array(component_ref("ContentPart"), chat.CONTENT_PARTS_LIMIT)))
_TOOL_CALL = non_nullable(
    object_schema(
        {
            "id": _CALL_ID,
            "type": ANY,
            "function": non_nullable(
                object_schema({"name": pattern_string(tools.FUNCTION_NAME), "arguments": TEXT}, "name", "arguments")
            ),
        },
        "id",
        "function",
    )
)


def _role_component(role: str) -> str:
    return f"{role.capitalize()}Message"


def _message_schema(role: str) -> Json:
    properties: Json = {"role": {"const": role}, "content": _MESSAGE_CONTENT, "name": string(chat.NAME_LIMIT)}
    required = ["role", "content"]
    if role == "assistant":
        properties["content"] = any_of(_MESSAGE_CONTENT, _NULL)
        properties["tool_calls"] = array(component_ref("ToolCall"), tools.TOOLS_LIMIT)
        required = ["role"]
    elif role == "tool":
        properties["tool_call_id"] = _CALL_ID
        required.append("tool_call_id")
    return non_nullable(object_schema(properties, *required))


CHAT_COMPONENTS: Json = {
    **{_role_component(role): _message_schema(role) for role in chat.CHAT_ROLES},
    "Message": any_of(*(component_ref(_role_component(role)) for role in chat.CHAT_ROLES)),
    "ToolCall": _TOOL_CALL,
    "ContentPart": non_nullable(
        object_schema(
            {
                "type": {"enum": ["text", "refusal", "image_url", "input_audio"]},
                "text": TEXT,
                "image_url": any_of(TEXT, non_nullable(object_schema({"url": TEXT}, "url"))),
                "input_audio": non_nullable(
                    object_schema({"data": TEXT, "format": enum_schema(("wav", "mp3"))}, "data")
                ),
            },
            "type",
        )
    ),
    "Tool": non_nullable(
        object_schema({"type": enum_schema(("function",)), "function": component_ref("Function")}, "function")
    ),
    "Function": non_nullable(
        object_schema(
            {
                "name": pattern_string(tools.FUNCTION_NAME),
                "description": string(tools.DESCRIPTION_LIMIT),
                "parameters": object_schema(),
                "strict": BOOLEAN,
            },
            "name",
        )
    ),
}
