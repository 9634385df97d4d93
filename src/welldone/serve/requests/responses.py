"""`/v1/responses`: the body, as the body of a chat that asks for the same, and what the answer repeats of it."""

from itertools import takewhile

import msgspec

from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.flat_tools import read_responses_tools
from welldone.serve.requests.items import ConvertedMessage, items_to_messages
from welldone.serve.requests.sampling import TOP_LOGPROBS_LIMIT
from welldone.serve.requests.table import GENERATION_FIELDS_BY_NAME, RequestField, FieldHandling
from welldone.wire.events import Json

METADATA_PAIRS_LIMIT, METADATA_KEY_LENGTH, METADATA_VALUE_LENGTH = 16, 64, 512  # OpenAI's, of `metadata`
INT32_MAX = 2**31 - 1
_INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_VALUES = (
    _INCLUDE_LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
REASONING_SUMMARIES = ("auto", "concise", "detailed")
TEXT_FORMATS = ("text", "json_object", "json_schema")

RESPONSES_FIELDS: tuple[RequestField, ...] = (
    RequestField(
        "input",
        FieldHandling.TRANSLATED,
        "a text, or items: messages, calls of functions and custom tools and their outputs, thoughts, references",
    ),
    RequestField(
        "instructions",
        FieldHandling.TRANSLATED,
        "a text: the first system message; not carried over to the next response",
    ),
    RequestField(
        "previous_response_id",
        FieldHandling.TRANSLATED,
        "a response that is stored: what was said goes before the input",
    ),
    RequestField(
        "store",
        FieldHandling.TRANSLATED,
        "true (as if not said) or false: whether the response is kept, in memory, for some time",
    ),
    RequestField("background", FieldHandling.TRANSLATED, "true or false; true: without a stream, and stored"),
    RequestField(
        "tools",
        FieldHandling.TRANSLATED,
        "up to 128 functions; custom tools for upstreams; others are refused, or ignored: --unknown-tools ignore",
    ),
    RequestField(
        "tool_choice", FieldHandling.TRANSLATED, "none, auto, required, a function, a custom tool, allowed_tools"
    ),
    RequestField("parallel_tool_calls", FieldHandling.TRANSLATED, "true or false"),
    RequestField(
        "text", FieldHandling.TRANSLATED, "format: text, json_object, json_schema; verbosity goes on to upstreams"
    ),
    RequestField(
        "reasoning",
        FieldHandling.TRANSLATED,
        "effort: as reasoning_effort of a chat; summary: thoughts come as a summary",
    ),
    RequestField("max_output_tokens", FieldHandling.TRANSLATED, "1 or more"),
    RequestField("temperature", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["temperature"].note),
    RequestField("top_p", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["top_p"].note),
    RequestField("top_logprobs", FieldHandling.TRANSLATED, f"0 to 20, with {_INCLUDE_LOGPROBS} in include"),
    RequestField("include", FieldHandling.TRANSLATED, f"{_INCLUDE_LOGPROBS}; OpenAI's others are without effect"),
    RequestField("stream", FieldHandling.TRANSLATED, "true or false"),
    RequestField("stream_options", FieldHandling.TRANSLATED, "include_obfuscation: true or false, without effect"),
    RequestField(
        "metadata", FieldHandling.TRANSLATED, "up to 16 texts of 512 characters, with names of 64: they are repeated"
    ),
    RequestField("n", FieldHandling.TRANSLATED, "1: a response has one answer"),
    RequestField("truncation", FieldHandling.IGNORED, "auto or disabled: what is too long is refused either way"),
    RequestField("max_tool_calls", FieldHandling.IGNORED, "only of tools that a server calls itself"),
    RequestField("context_management", FieldHandling.IGNORED),
    RequestField("client_metadata", FieldHandling.IGNORED),
    RequestField("access_programs", FieldHandling.IGNORED),
    RequestField("image", FieldHandling.IGNORED),
    RequestField("conversation", FieldHandling.REJECTED, "is not offered: use 'previous_response_id'."),
    RequestField(
        "prompt",
        FieldHandling.REJECTED,
        "is not offered: this server keeps no prompts. Send 'instructions' and 'input'.",
    ),
    RequestField("moderation", FieldHandling.REJECTED, "is not offered."),
    RequestField("messages", FieldHandling.REJECTED, "is called 'input' in this API."),
    RequestField("response_format", FieldHandling.REJECTED, "is called 'text.format' in this API."),
    RequestField("max_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("max_completion_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("reasoning_effort", FieldHandling.REJECTED, "is called 'reasoning.effort' in this API."),
    RequestField("verbosity", FieldHandling.REJECTED, "is called 'text.verbosity' in this API."),
    RequestField("logprobs", FieldHandling.REJECTED, f"is said by '{_INCLUDE_LOGPROBS}' in 'include' in this API."),
    RequestField("functions", FieldHandling.REJECTED, "is called 'tools' in this API."),
    RequestField("function_call", FieldHandling.REJECTED, "is called 'tool_choice' in this API."),
)
"""What becomes of each field. Any other is of chat as well, and goes on to be read there."""

_CLIENT_PARAM_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "tool_choice.function": "tool_choice",
}
"""What the client calls fields of a chat."""
_OWN_FIELDS = frozenset(row.name for row in RESPONSES_FIELDS)
_ECHOED_FIELDS = (
    *("background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *(
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "store",
    ),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)


class ResponseStorageOptions(msgspec.Struct, frozen=True):
    """How the answer is given, and whether it is kept."""

    previous_response_id: str | None
    """The response that this one goes on from."""
    is_stored: bool
    is_background: bool
    is_stream: bool


class ResponsesTranslation(msgspec.Struct):
    """A request in the words of a chat."""

    chat: Json
    echo: Json
    """What the response repeats of its request."""
    param_names: dict[str, str]
    """What the client calls fields of the chat, its messages and tools."""
    wants_summary: bool
    """Whether thoughts were asked for as a summary."""


def read_storage_options(body: Json) -> ResponseStorageOptions:
    """What is said of the answer as a thing that can be asked for again."""
    keeping = ResponseStorageOptions(
        previous_response_id=fields.string(body, "previous_response_id", METADATA_VALUE_LENGTH) or None,
        is_stored=fields.boolean(body, "store") is not False,
        is_background=fields.boolean(body, "background") is True,
        is_stream=fields.boolean(body, "stream") is True,
    )
    if keeping.is_background and keeping.is_stream:
        raise fields.unsupported(
            "background", "cannot be used together with 'stream' here: ask for the response later."
        )
    if keeping.is_background and not keeping.is_stored:
        raise fields.unsupported("background", "needs 'store': the response could not be asked for.")
    return keeping


def echoed_fields(body: Json) -> Json:
    """What a response repeats of its request, as it came."""
    return {name: body[name] for name in _ECHOED_FIELDS if body.get(name) not in (None, "")}


def check_responses_fields(body: Json) -> None:
    """ApiError for a field that cannot be followed here, or has another name."""
    for row in RESPONSES_FIELDS:
        if row.handling is FieldHandling.REJECTED and body.get(row.name) not in (None, False, "", {}):
            raise fields.unsupported(row.name, row.note)


def responses_to_chat(
    body: Json,
    history: list[Json],
    items: list[Json],
    *,
    ignores_unknown_tools: bool,
    allows_custom_tools: bool = False,
) -> ResponsesTranslation:
    """The request as that for a chat. `history` has the items that went before `items`.

    `takes_custom`: custom tools are passed on; else they are unknown ones.

    Raises:
        ApiError: a field is wrong, or a chat cannot say it.
    """
    check_responses_fields(body)
    _check_echoed_fields(body)
    chat = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    tools = read_responses_tools(
        body, ignores_unknown_tools=ignores_unknown_tools, allows_custom_tools=allows_custom_tools
    )
    reasoning = _read_reasoning(body)
    text = fields.json_object(body, "text") or {}
    chat |= {**tools.chat, **_sampling_fields(body), **_text_format_fields(text), **_logprobs_fields(body)}
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if fields.boolean(body, "stream") is not None:
        chat["stream"] = body["stream"]
    messages = _read_messages(body, history, items)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": tools.echoed, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tools.param_names
    for place, message in enumerate(messages):
        names |= {f"messages[{place}]{below}": param for below, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, wants_summary=reasoning["summary"] is not None)


def _read_messages(body: Json, history: list[Json], items: list[Json]) -> list[ConvertedMessage]:
    """What was said before, and now; what stands first for the model is one system message: templates want no more."""
    named = [(item, "previous_response_id") for item in history]
    named += [(item, f"input[{place}]") for place, item in enumerate(items)]
    messages = items_to_messages(named)
    instructions = fields.string(body, "instructions", INT32_MAX)
    if instructions:
        messages.insert(0, ConvertedMessage({"role": "system", "content": instructions}, {".content": "instructions"}))
    first = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not first:
        return messages
    text = "\n\n".join(message.value["content"] for message in first)
    return [ConvertedMessage({"role": "system", "content": text}, first[0].param_names), *messages[len(first) :]]


def _sampling_fields(body: Json) -> Json:
    out: Json = {}
    for name in ("temperature", "top_p"):
        value = fields.number(body, name, GENERATION_FIELDS_BY_NAME[name].low, GENERATION_FIELDS_BY_NAME[name].high)
        if value is not None:
            out[name] = value
    most = fields.integer(body, "max_output_tokens", 1, INT32_MAX)
    if most is not None:
        out["max_completion_tokens"] = most
    return out


def _logprobs_fields(body: Json) -> Json:
    """Alternatives are shown with the tokens that were chosen; without those they are not."""
    top = fields.integer(body, "top_logprobs", 0, TOP_LOGPROBS_LIMIT)
    included = fields.strings(body, "include", len(INCLUDE_VALUES), METADATA_VALUE_LENGTH) or []
    for place, name in enumerate(included):
        if name not in INCLUDE_VALUES:
            raise fields.wrong_value(f"include[{place}]", name, INCLUDE_VALUES)
    if _INCLUDE_LOGPROBS not in included:
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def _text_format_fields(text: Json) -> Json:
    out: Json = {}
    if text.get("verbosity") is not None:
        out["verbosity"] = fields.string(text, "verbosity", METADATA_KEY_LENGTH, "text.")
    form = fields.json_object(text, "format", "text.")
    if form is None:
        return out
    kind = fields.choice(form, "type", TEXT_FORMATS, "text.format.")
    if kind is None:
        raise fields.missing("text.format.type")
    if kind == "json_object":
        out["response_format"] = {"type": kind}
    elif kind == "json_schema":
        if form.get("name") is None:
            raise fields.missing("text.format.name")
        if fields.json_object(form, "schema", "text.format.") is None:
            raise fields.missing("text.format.schema")
        named = {name: value for name, value in form.items() if name != "type" and value is not None}
        out["response_format"] = {"type": kind, kind: named}
    return out


def _read_reasoning(body: Json) -> Json:
    """What is said of thoughts, in full. `generate_summary` is an older name."""
    given = fields.json_object(body, "reasoning") or {}
    summary = fields.choice(given, "summary", REASONING_SUMMARIES, "reasoning.")
    older = fields.choice(given, "generate_summary", REASONING_SUMMARIES, "reasoning.")
    effort = fields.string(given, "effort", METADATA_KEY_LENGTH, "reasoning.")
    return {"effort": effort, "summary": summary or older}


def _check_echoed_fields(body: Json) -> None:
    """What is only repeated must be right all the same: clients read the answer by its types."""
    for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"):
        fields.string(body, name, METADATA_VALUE_LENGTH)
    fields.choice(body, "truncation", ("auto", "disabled"))
    fields.integer(body, "max_tool_calls", 0, INT32_MAX)
    fields.integer(body, "n", 1, 1)
    options = fields.json_object(body, "stream_options") or {}
    fields.boolean(options, "include_obfuscation", "stream_options.")
    metadata = fields.json_object(body, "metadata") or {}
    if len(metadata) > METADATA_PAIRS_LIMIT:
        raise _invalid_metadata(f"has {len(metadata)} pairs; at most {METADATA_PAIRS_LIMIT} are accepted")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{fields.shorten_value(name)}", "a string", value)
        if len(name) > METADATA_KEY_LENGTH or len(value) > METADATA_VALUE_LENGTH:
            raise _invalid_metadata(
                f"has names of at most {METADATA_KEY_LENGTH} characters, and texts of at most {METADATA_VALUE_LENGTH}"
            )


def _invalid_metadata(reason: str) -> ApiError:
    return invalid_request(f"Invalid 'metadata': it {reason}.", param="metadata", code="invalid_value")
