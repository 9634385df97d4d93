"""The bodies of requests for text: a row of `requests/table.py` is a member, with the limits of whoever reads it."""

from typing import Literal

from welldone.serve.openapi.kinds import (
    ANY,
    BOOLEAN,
    EMPTY_OBJECT,
    MAYBE_OBJECT,
    OBJECT,
    TEXT,
    array,
    integer,
    name,
    needed,
    number,
    one_of,
    only,
    ref,
    string,
    table,
    words,
)
from welldone.serve.requests import formats, messages, sampling, tools
from welldone.serve.requests.branches import WAYS_LIMIT
from welldone.serve.requests.chat import EFFORTS, KWARG, KWARG_LENGTH, KWARGS_LIMIT, MODALITIES_LIMIT, RESERVED
from welldone.serve.requests.table import FIELDS, Field, Use
from welldone.wire.events import Json

_EMPTY: tuple[object, ...] = (None, "", {}, [], 0, False)
_MOST_TOKENS: Json = {**integer(-1, sampling.INT64), "not": {"const": 0}}
_TOP = integer(0, sampling.TOP_LIMIT)
_TOKEN: Json = {"type": "integer", "minimum": 0, "maximum": sampling.TOKEN_LIMIT}
_TOKENS: Json = {"type": "array", "items": _TOKEN, "minItems": 1}
_STOP = needed(string(sampling.STOP_LENGTH, 1))
_BREAKER = needed(string(sampling.BREAKER_LENGTH, 1))
_NULL: Json = {"type": "null"}
_NAMED = table({"name": name(tools.NAME)}, "name")
_PLAIN = one_of(string(KWARG_LENGTH), {"type": ["number", "boolean"]})
_GUIDED_CHOICE = array(needed(string(formats.CHOICE_LENGTH, 1)), WAYS_LIMIT, 1)
_READ: Json = {
    "model": string(sampling.MODEL_LENGTH),
    "messages": needed(array(ref("Message"), messages.MESSAGES_LIMIT, 1)),
    "stream": BOOLEAN,
    "stream_options": table(
        dict.fromkeys(("include_usage", "include_obfuscation", "continuous_usage_stats"), BOOLEAN),
    ),
    "n": integer(1, sampling.CHOICES_LIMIT),
    "seed": integer(-sampling.INT64, 2 * sampling.INT64),
    "stop": one_of(_STOP, array(_STOP, sampling.STOPS_LIMIT)),
    "max_tokens": _MOST_TOKENS,
    "max_completion_tokens": _MOST_TOKENS,
    "n_predict": _MOST_TOKENS,
    "logit_bias": {
        "type": ["object", "null"],
        "maxProperties": sampling.BIAS_LIMIT,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(-sampling.BIAS, sampling.BIAS),
    },
    "top_logprobs": _TOP,
    "response_format": table(
        {
            "type": needed(words(formats.KINDS)),
            "json_schema": table(
                {
                    "name": {**name(formats.NAME), "type": ["string", "null"]},
                    "description": ANY,
                    "schema": ANY,
                    "strict": BOOLEAN,
                }
            ),
        },
        "type",
    ),
    "tools": one_of(array(ref("Tool"), tools.TOOLS_LIMIT), EMPTY_OBJECT),
    "tool_choice": one_of(words(tools.MODES), OBJECT),
    "parallel_tool_calls": BOOLEAN,
    "functions": array(ref("Function"), tools.TOOLS_LIMIT),
    "function_call": one_of(words(tools.MODES), _NAMED),
    "modalities": array({"const": "text"}, MODALITIES_LIMIT),
    "reasoning_effort": words(EFFORTS),
    "echo": BOOLEAN,
    "best_of": integer(1, sampling.CHOICES_LIMIT),
    "dry_sequence_breakers": array(_BREAKER, sampling.BREAKERS_LIMIT),
    "samplers": array(_BREAKER, len(sampling.SAMPLERS)),
    "json_schema": table(),
    "structured_outputs": table(dict.fromkeys(formats.GUIDED, ANY)),
    "guided_json": one_of(TEXT, MAYBE_OBJECT),
    "guided_choice": _GUIDED_CHOICE,
    "guided_json_object": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "add_generation_prompt": BOOLEAN,
    "chat_template_kwargs": {
        "type": ["object", "null"],
        "maxProperties": KWARGS_LIMIT,
        "propertyNames": {**name(KWARG), "not": {"enum": sorted(RESERVED)}},
        "additionalProperties": _PLAIN,
    },
}
_OWN: dict[str, Json] = {
    "chat": {"logprobs": BOOLEAN},
    "completions": {"logprobs": _TOP},
}
"""Where the two differ."""


def several(most: int) -> Json:
    """A text, a list of token ids, or a list of either."""
    return one_of(TEXT, _TOKENS, needed(array(one_of(TEXT, _TOKENS), most, 1)))


def body(endpoint: Literal["chat", "completions"]) -> Json:
    """The body of a request."""
    known = {**_READ, "prompt": several(sampling.PARTS_LIMIT), **_OWN[endpoint]}
    rows = [row for row in FIELDS if row.only in (None, endpoint)]
    return needed(table({row.name: member(row, known) for row in rows}, "messages" if endpoint == "chat" else "prompt"))


def member(row: Field, known: Json, empty: tuple[object, ...] = _EMPTY) -> Json:
    """What a field may be. `known`: those that a reader of their own reads; `empty`: what a refused one may be."""
    match row.use:
        case Use.IGNORED:
            kind: Json = ANY
        case Use.REFUSED:
            kind = only(*empty)
        case Use.READ:
            kind = known[row.name]
        case _:
            kind = known.get(row.name) or _passed(row)
    return {**kind, "description": "; ".join(filter(None, (row.note, row.use.value)))}


def _passed(row: Field) -> Json:
    match row.kind:
        case "number":
            return number(row.low, row.high)
        case "integer" | "window":
            return integer(int(row.low), int(row.high))
        case "boolean":
            return BOOLEAN
        case "choice":
            return words(row.words)


_ID = needed(string(messages.NAME_LIMIT))
_CONTENT = one_of(TEXT, needed(array(ref("ContentPart"), messages.PARTS_LIMIT)))
_CALL = needed(
    table(
        {
            "id": _ID,
            "type": ANY,
            "function": needed(table({"name": name(tools.NAME), "arguments": TEXT}, "name", "arguments")),
        },
        "id",
        "function",
    )
)


def _role(role: str) -> str:
    return f"{role.capitalize()}Message"


def _message(role: str) -> Json:
    members: Json = {"role": {"const": role}, "content": _CONTENT, "name": string(messages.NAME_LIMIT)}
    match role:
        case "assistant":
            said = {
                **members,
                "content": one_of(_CONTENT, _NULL),
                "tool_calls": array(ref("ToolCall"), tools.TOOLS_LIMIT),
            }
            return needed(table(said, "role"))
        case "tool":
            return needed(table({**members, "tool_call_id": _ID}, "role", "content", "tool_call_id"))
        case _:
            return needed(table(members, "role", "content"))


COMPONENTS: Json = {
    **{_role(role): _message(role) for role in messages.ROLES},
    "Message": one_of(*(ref(_role(role)) for role in messages.ROLES)),
    "ToolCall": _CALL,
    "ContentPart": needed(
        table(
            {
                "type": {"enum": ["text", "refusal", "image_url", "input_audio"]},
                "text": TEXT,
                "image_url": one_of(TEXT, needed(table({"url": TEXT}, "url"))),
                "input_audio": needed(table({"data": TEXT, "format": words(("wav", "mp3"))}, "data")),
            },
            "type",
        )
    ),
    "Tool": needed(table({"type": words(("function",)), "function": ref("Function")}, "function")),
    "Function": needed(
        table(
            {
                "name": name(tools.NAME),
                "description": string(tools.DESCRIPTION_LIMIT),
                "parameters": table(),
                "strict": BOOLEAN,
            },
            "name",
        )
    ),
}
