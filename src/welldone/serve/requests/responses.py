"""`/v1/responses`: the body, as the body of a chat that asks for the same, and what the answer repeats of it."""

from itertools import takewhile

import msgspec

from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests import fields
from welldone.serve.requests.flat_tools import read_flat_tools
from welldone.serve.requests.items import Message, as_messages
from welldone.serve.requests.sampling import TOP_LIMIT
from welldone.serve.requests.table import ROWS, Field, Use
from welldone.wire.events import Json

PAIRS_LIMIT, KEY_LIMIT, VALUE_LIMIT = 16, 64, 512  # OpenAI's, of `metadata`
INT32 = 2**31 - 1
_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
SUMMARIES = ("auto", "concise", "detailed")
FORMATS = ("text", "json_object", "json_schema")

FIELDS: tuple[Field, ...] = (
    Field(
        "input",
        Use.READ,
        "a text, or items: messages, calls of functions and custom tools and their outputs, thoughts, references",
    ),
    Field("instructions", Use.READ, "a text: the first system message; not carried over to the next response"),
    Field("previous_response_id", Use.READ, "a response that is stored: what was said goes before the input"),
    Field("store", Use.READ, "true (as if not said) or false: whether the response is kept, in memory, for some time"),
    Field("background", Use.READ, "true or false; true: without a stream, and stored"),
    Field(
        "tools",
        Use.READ,
        "up to 128 functions; custom tools for upstreams; others are refused, or ignored: --unknown-tools ignore",
    ),
    Field("tool_choice", Use.READ, "none, auto, required, a function, a custom tool, allowed_tools"),
    Field("parallel_tool_calls", Use.READ, "true or false"),
    Field("text", Use.READ, "format: text, json_object, json_schema; verbosity goes on to upstreams"),
    Field("reasoning", Use.READ, "effort: as reasoning_effort of a chat; summary: thoughts come as a summary"),
    Field("max_output_tokens", Use.READ, "1 or more"),
    Field("temperature", Use.READ, ROWS["temperature"].note),
    Field("top_p", Use.READ, ROWS["top_p"].note),
    Field("top_logprobs", Use.READ, f"0 to 20, with {_LOGPROBS} in include"),
    Field("include", Use.READ, f"{_LOGPROBS}; OpenAI's others are without effect"),
    Field("stream", Use.READ, "true or false"),
    Field("stream_options", Use.READ, "include_obfuscation: true or false, without effect"),
    Field("metadata", Use.READ, "up to 16 texts of 512 characters, with names of 64: they are repeated"),
    Field("n", Use.READ, "1: a response has one answer"),
    Field("truncation", Use.IGNORED, "auto or disabled: what is too long is refused either way"),
    Field("max_tool_calls", Use.IGNORED, "only of tools that a server calls itself"),
    Field("context_management", Use.IGNORED),
    Field("client_metadata", Use.IGNORED),
    Field("access_programs", Use.IGNORED),
    Field("image", Use.IGNORED),
    Field("conversation", Use.REFUSED, "is not offered: use 'previous_response_id'."),
    Field("prompt", Use.REFUSED, "is not offered: this server keeps no prompts. Send 'instructions' and 'input'."),
    Field("moderation", Use.REFUSED, "is not offered."),
    Field("messages", Use.REFUSED, "is called 'input' in this API."),
    Field("response_format", Use.REFUSED, "is called 'text.format' in this API."),
    Field("max_tokens", Use.REFUSED, "is called 'max_output_tokens' in this API."),
    Field("max_completion_tokens", Use.REFUSED, "is called 'max_output_tokens' in this API."),
    Field("reasoning_effort", Use.REFUSED, "is called 'reasoning.effort' in this API."),
    Field("verbosity", Use.REFUSED, "is called 'text.verbosity' in this API."),
    Field("logprobs", Use.REFUSED, f"is said by '{_LOGPROBS}' in 'include' in this API."),
    Field("functions", Use.REFUSED, "is called 'tools' in this API."),
    Field("function_call", Use.REFUSED, "is called 'tool_choice' in this API."),
)
"""What becomes of each field. Any other is of chat as well, and goes on to be read there."""

_NAMES = {
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
_OWN = frozenset(row.name for row in FIELDS)
_REPEATED = (
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


class Keeping(msgspec.Struct, frozen=True):
    """How the answer is given, and whether it is kept."""

    previous: str | None
    """The response that this one goes on from."""
    is_stored: bool
    is_background: bool
    is_stream: bool


class Translation(msgspec.Struct):
    """A request in the words of a chat."""

    chat: Json
    echo: Json
    """What the response repeats of its request."""
    names: dict[str, str]
    """What the client calls fields of the chat, its messages and tools."""
    is_summary: bool
    """Whether thoughts were asked for as a summary."""


def read_keeping(body: Json) -> Keeping:
    """What is said of the answer as a thing that can be asked for again."""
    keeping = Keeping(
        previous=fields.string(body, "previous_response_id", VALUE_LIMIT) or None,
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


def repeated(body: Json) -> Json:
    """What a response repeats of its request, as it came."""
    return {name: body[name] for name in _REPEATED if body.get(name) not in (None, "")}


def check_fields(body: Json) -> None:
    """ApiError for a field that cannot be followed here, or has another name."""
    for row in FIELDS:
        if row.use is Use.REFUSED and body.get(row.name) not in (None, False, "", {}):
            raise fields.unsupported(row.name, row.note)


def translate(
    body: Json, history: list[Json], items: list[Json], *, ignores_unknown: bool, takes_custom: bool = False
) -> Translation:
    """The request as that for a chat. `history` has the items that went before `items`.

    `takes_custom`: custom tools are passed on; else they are unknown ones.

    Raises:
        ApiError: a field is wrong, or a chat cannot say it.
    """
    check_fields(body)
    _check_repeated(body)
    chat = {name: value for name, value in body.items() if name not in _OWN}
    tools = read_flat_tools(body, ignores_unknown=ignores_unknown, takes_custom=takes_custom)
    reasoning = _reasoning(body)
    text = fields.table(body, "text") or {}
    chat |= {**tools.chat, **_sampling(body), **_form(text), **_logprobs(body)}
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if fields.boolean(body, "stream") is not None:
        chat["stream"] = body["stream"]
    messages = _messages(body, history, items)
    chat["messages"] = [message.value for message in messages]
    echo = repeated(body) | {"tools": tools.listed, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _NAMES | tools.names
    for place, message in enumerate(messages):
        names |= {f"messages[{place}]{below}": param for below, param in message.names.items()}
    return Translation(chat, echo, names, is_summary=reasoning["summary"] is not None)


def _messages(body: Json, history: list[Json], items: list[Json]) -> list[Message]:
    """What was said before, and now; what stands first for the model is one system message: templates want no more."""
    named = [(item, "previous_response_id") for item in history]
    named += [(item, f"input[{place}]") for place, item in enumerate(items)]
    messages = as_messages(named)
    instructions = fields.string(body, "instructions", INT32)
    if instructions:
        messages.insert(0, Message({"role": "system", "content": instructions}, {".content": "instructions"}))
    first = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not first:
        return messages
    text = "\n\n".join(message.value["content"] for message in first)
    return [Message({"role": "system", "content": text}, first[0].names), *messages[len(first) :]]


def _sampling(body: Json) -> Json:
    out: Json = {}
    for name in ("temperature", "top_p"):
        value = fields.number(body, name, ROWS[name].low, ROWS[name].high)
        if value is not None:
            out[name] = value
    most = fields.integer(body, "max_output_tokens", 1, INT32)
    if most is not None:
        out["max_completion_tokens"] = most
    return out


def _logprobs(body: Json) -> Json:
    """Alternatives are shown with the tokens that were chosen; without those they are not."""
    top = fields.integer(body, "top_logprobs", 0, TOP_LIMIT)
    included = fields.strings(body, "include", len(INCLUDED), VALUE_LIMIT) or []
    for place, name in enumerate(included):
        if name not in INCLUDED:
            raise fields.wrong_value(f"include[{place}]", name, INCLUDED)
    if _LOGPROBS not in included:
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def _form(text: Json) -> Json:
    out: Json = {}
    if text.get("verbosity") is not None:
        out["verbosity"] = fields.string(text, "verbosity", KEY_LIMIT, "text.")
    form = fields.table(text, "format", "text.")
    if form is None:
        return out
    kind = fields.choice(form, "type", FORMATS, "text.format.")
    if kind is None:
        raise fields.missing("text.format.type")
    if kind == "json_object":
        out["response_format"] = {"type": kind}
    elif kind == "json_schema":
        if form.get("name") is None:
            raise fields.missing("text.format.name")
        if fields.table(form, "schema", "text.format.") is None:
            raise fields.missing("text.format.schema")
        named = {name: value for name, value in form.items() if name != "type" and value is not None}
        out["response_format"] = {"type": kind, kind: named}
    return out


def _reasoning(body: Json) -> Json:
    """What is said of thoughts, in full. `generate_summary` is an older name."""
    given = fields.table(body, "reasoning") or {}
    summary = fields.choice(given, "summary", SUMMARIES, "reasoning.")
    older = fields.choice(given, "generate_summary", SUMMARIES, "reasoning.")
    effort = fields.string(given, "effort", KEY_LIMIT, "reasoning.")
    return {"effort": effort, "summary": summary or older}


def _check_repeated(body: Json) -> None:
    """What is only repeated must be right all the same: clients read the answer by its types."""
    for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"):
        fields.string(body, name, VALUE_LIMIT)
    fields.choice(body, "truncation", ("auto", "disabled"))
    fields.integer(body, "max_tool_calls", 0, INT32)
    fields.integer(body, "n", 1, 1)
    options = fields.table(body, "stream_options") or {}
    fields.boolean(options, "include_obfuscation", "stream_options.")
    metadata = fields.table(body, "metadata") or {}
    if len(metadata) > PAIRS_LIMIT:
        raise _metadata(f"has {len(metadata)} pairs; at most {PAIRS_LIMIT} are accepted")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{fields.shown(name)}", "a string", value)
        if len(name) > KEY_LIMIT or len(value) > VALUE_LIMIT:
            raise _metadata(f"has names of at most {KEY_LIMIT} characters, and texts of at most {VALUE_LIMIT}")


def _metadata(why: str) -> ApiError:
    return invalid(f"Invalid 'metadata': it {why}.", param="metadata", code="invalid_value")
