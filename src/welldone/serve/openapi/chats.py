"""The bodies of requests for text: a row of `requests/table.py` is a member, with the limits of whoever reads it."""

from typing import Literal

from welldone.serve.openapi.kinds import (
    ANY,
    BOOLEAN,
    EMPTY_OBJECT,
    NULLABLE_OBJECT,
    OBJECT,
    TEXT,
    array,
    integer,
    pattern_string,
    non_nullable,
    number,
    any_of,
    const_values,
    component_ref,
    string,
    object_schema,
    enum_schema,
)
from welldone.serve.requests import formats, messages, sampling, tools
from welldone.serve.requests.branches import ALTERNATIVES_LIMIT
from welldone.serve.requests.chat import (
    REASONING_EFFORTS,
    TEMPLATE_KWARG_NAME,
    TEMPLATE_KWARG_LENGTH,
    TEMPLATE_KWARGS_LIMIT,
    MODALITIES_LIMIT,
    RESERVED_TEMPLATE_KWARGS,
)
from welldone.serve.requests.table import GENERATION_FIELDS, RequestField, FieldHandling
from welldone.wire.events import Json

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
_GUIDED_CHOICE = array(non_nullable(string(formats.GUIDED_CHOICE_LENGTH, 1)), ALTERNATIVES_LIMIT, 1)
_TRANSLATED_FIELD_SCHEMAS: Json = {
    "model": string(sampling.MODEL_NAME_LENGTH),
    "messages": non_nullable(array(component_ref("Message"), messages.MESSAGES_LIMIT, 1)),
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
            "type": non_nullable(enum_schema(formats.RESPONSE_FORMAT_TYPES)),
            "json_schema": object_schema(
                {
                    "name": {**pattern_string(formats.SCHEMA_NAME), "type": ["string", "null"]},
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
    "structured_outputs": object_schema(dict.fromkeys(formats.GUIDED_KINDS, ANY)),
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
"""Where the two differ."""


def text_or_token_ids(max_items: int) -> Json:
    """A text, a list of token ids, or a list of either."""
    return any_of(TEXT, _TOKEN_IDS, non_nullable(array(any_of(TEXT, _TOKEN_IDS), max_items, 1)))


def generation_request(endpoint: Literal["chat", "completions"]) -> Json:
    """The body of a request."""
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
    """What a field may be. `known`: those that a reader of their own reads; `empty`: what a refused one may be."""
    match field.handling:
        case FieldHandling.IGNORED:
            kind: Json = ANY
        case FieldHandling.REJECTED:
            kind = const_values(*empty)
        case FieldHandling.TRANSLATED:
            kind = known[field.name]
        case _:
            kind = known.get(field.name) or _forwarded_field_schema(field)
    return {**kind, "description": "; ".join(filter(None, (field.note, field.handling.value)))}


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


_CALL_ID = non_nullable(string(messages.NAME_LIMIT))
_MESSAGE_CONTENT = any_of(TEXT, non_nullable(array(component_ref("ContentPart"), messages.CONTENT_PARTS_LIMIT)))
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
    members: Json = {"role": {"const": role}, "content": _MESSAGE_CONTENT, "name": string(messages.NAME_LIMIT)}
    match role:
        case "assistant":
            said = {
                **members,
                "content": any_of(_MESSAGE_CONTENT, _NULL),
                "tool_calls": array(component_ref("ToolCall"), tools.TOOLS_LIMIT),
            }
            return non_nullable(object_schema(said, "role"))
        case "tool":
            return non_nullable(object_schema({**members, "tool_call_id": _CALL_ID}, "role", "content", "tool_call_id"))
        case _:
            return non_nullable(object_schema(members, "role", "content"))


CHAT_COMPONENTS: Json = {
    **{_role_component(role): _message_schema(role) for role in messages.CHAT_ROLES},
    "Message": any_of(*(component_ref(_role_component(role)) for role in messages.CHAT_ROLES)),
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
