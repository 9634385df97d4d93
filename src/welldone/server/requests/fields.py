"""Request bodies: JSON with size limits, typed fields with OpenAI's error messages, and the table of known fields.

`null` counts as absent, as in OpenAI's own clients. An error message names the field, the limit and the type of the
value; it repeats at most `SHOWN_VALUE_LENGTH` characters of the value itself.
"""

from collections.abc import Generator, Iterable, Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol import json_budget
from welldone.protocol.events import Json
from welldone.protocol.json_budget import (
    DIGITS_LIMIT,
    SMALL_TEXT_BYTES,
    count_json_syntax,
    decode_unlimited_in_steps,
    outside_strings_in_steps,
    run_to_completion,
)
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_tool_calls import ForcedToolCall

# A decoded body has finite numbers, valid UTF-8 and at most `JSON_DEPTH_LIMIT` levels. Engines receive a new encoding
# of it, never the client's bytes: two parsers may disagree about duplicate keys or odd numbers.

JSON_DEPTH_LIMIT = 64
"""Nesting depth of a body. OpenAI's deepest field, a schema of 10 levels, needs about 30."""
CONTAINERS_LIMIT = 50_000
"""Arrays and objects in a body. Decoding a million of them blocks the event loop for seconds; these take 25 ms.
The longest accepted list, `messages`, has 4,096 elements: 12 containers for each."""
STRINGS_LIMIT = 75_000
"""Keys and string values in a body, for the same reason: one object with this many keys takes 35 ms. That is 18 for
each message."""
ELEMENTS_LIMIT = 1_000_000
"""Elements of all arrays and objects: enough for the token ids of the longest model context. Decoding takes 30 to
50 ms."""
DECIMALS_LIMIT = 50_000
"""Numbers with a decimal point or an exponent: the slowest to parse, halfway between two doubles, take 1 us each."""
NEGATIVE_EXPONENTS_LIMIT = 4_096
"""Numbers with a negative exponent: subnormal ones take 2 us each."""

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
_URLENCODED_TYPE = "application/x-www-form-urlencoded"


def read_body_in_steps(
    data: bytes, content_type: str | None, *, is_browser: bool = False
) -> Generator[None, None, Json]:
    """Decode a request body into a JSON object. Yields between slow steps, so that the event loop can run.

    `is_browser`: the request has an Origin header.
    """
    _check_content_type(content_type, is_browser)
    if not data.strip():
        raise invalid_request("The body is empty: it must be a JSON object.")
    yield from JsonSizeLimits("body").check_in_steps(data)
    try:
        value = yield from decode_unlimited_in_steps(data)
    except _DECODE_ERRORS:
        raise _invalid_json() from None
    if not isinstance(value, dict):
        raise invalid_request("The body must be a JSON object.")
    if len(data) >= SMALL_TEXT_BYTES:
        yield
    return value


def read_body(data: bytes, content_type: str | None, *, is_browser: bool = False) -> Json:
    """Decode a request body without yielding, for use outside an event loop."""
    return run_to_completion(read_body_in_steps(data, content_type, is_browser=is_browser))


def decode_json(data: bytes) -> object:
    """Decode strict JSON of limited depth. Raises ApiError if it is invalid."""
    try:
        return json_budget.decode(data)
    except _DECODE_ERRORS:
        raise _invalid_json() from None


def _invalid_json() -> ApiError:
    return invalid_request("This is not valid JSON (UTF-8, finite numbers, no lone surrogates).")


class JsonSizeLimits:
    """Size limits for one or several JSON texts together, enforced before any of them is decoded."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._containers = CONTAINERS_LIMIT
        self._strings = STRINGS_LIMIT
        self._elements = ELEMENTS_LIMIT
        self._decimals = DECIMALS_LIMIT
        self._negative_exponents = NEGATIVE_EXPONENTS_LIMIT

    def check(self, data: bytes) -> None:
        """Count one more text. Raises ApiError if a limit is exceeded."""
        run_to_completion(self.check_in_steps(data))

    def check_in_steps(self, data: bytes) -> Generator[None, None, None]:
        """Count one more text, yielding between slow steps."""
        if len(data) >= SMALL_TEXT_BYTES:
            yield
        split = yield from outside_strings_in_steps(data, self._strings)
        if len(data) >= SMALL_TEXT_BYTES:
            yield
        if split is None:
            raise invalid_request(f"The {self._name} has more than {STRINGS_LIMIT} keys and strings.")
        outside, strings = split
        self._strings -= strings
        found = count_json_syntax(outside)
        self._elements -= found.elements
        if self._elements < 0:
            raise invalid_request(f"The {self._name} has more than {ELEMENTS_LIMIT} elements.")
        self._decimals -= found.floats
        self._negative_exponents -= found.negative_exponents
        if self._decimals < 0 or self._negative_exponents < 0 or found.has_long_number:
            raise invalid_request(
                f"The {self._name} has a number of more than {DIGITS_LIMIT} digits, more than {DECIMALS_LIMIT} "
                f"decimals, or more than {NEGATIVE_EXPONENTS_LIMIT} with a negative exponent."
            )
        self._containers -= found.containers
        if self._containers < 0:
            raise invalid_request(f"The {self._name} has more than {CONTAINERS_LIMIT} arrays and objects.")
        if found.depth > JSON_DEPTH_LIMIT:
            raise invalid_request(f"The {self._name} is nested more than {JSON_DEPTH_LIMIT} levels deep.")
        if len(data) >= SMALL_TEXT_BYTES:
            yield


def _check_content_type(content_type: str | None, is_browser: bool) -> None:
    """Require a JSON content type from browsers: a page may post a form to any site without a CORS preflight."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind in ("", _URLENCODED_TYPE) and not is_browser:  # the default of `curl -d`
        return
    raise ApiError(415, "The body must be JSON: send the header 'Content-Type: application/json'.")


SHOWN_VALUE_LENGTH = 64
"""Characters of a value in an error message: enough to recognise it, too few to fill a log."""


def json_type_name(value: object) -> str:
    """Return the type of a value as OpenAI's error messages name it."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def shorten_value(value: str | float) -> str:
    """Return the value as text of at most `SHOWN_VALUE_LENGTH` characters."""
    if isinstance(value, int) and abs(value) >= 10**SHOWN_VALUE_LENGTH:  # `str` of a huge integer is slow, or raises
        return "a number of many digits"
    text = str(value)
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"


def string_or_type_name(value: object) -> str:
    """Return a string as it is, and the type name of any other value."""
    return value if isinstance(value, str) else json_type_name(value)


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """Return the error for a value of the wrong type."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_type_name(value)} instead."
    return invalid_request(message, param=param, code="invalid_type")


def wrong_value(param: str, value: str | float, allowed: Iterable[str]) -> ApiError:
    """Return the error for a value that is not one of the allowed ones."""
    words = ", ".join(f"'{word}'" for word in allowed)
    message = f"Invalid value for '{param}': '{shorten_value(value)}'. Supported values are: {words}."
    return invalid_request(message, param=param, code="invalid_value")


def missing(param: str) -> ApiError:
    """Return the error for a required field that is absent."""
    return invalid_request(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a field, or a value of it, that this server does not support."""
    return invalid_request(f"Unsupported parameter: '{param}' {reason}", param=param, code="unsupported_parameter")


def too_many(param: str, limit: int, count: int) -> ApiError:
    """Return the error for an array that is too long."""
    message = f"Invalid '{param}': array too long. Expected at most {limit} elements, but got {count} instead."
    return invalid_request(message, param=param, code="array_above_max_length")


def boolean(body: Json, name: str, path: str = "") -> bool | None:
    """Read a boolean; None if it is absent."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(path + name, "a boolean", value)


def integer(body: Json, name: str, low: int, high: int, path: str = "") -> int | None:
    """Read an integer in a range; None if it is absent. Accepts 5.0: some clients have only floats."""
    value = body.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path + name, "an integer", value)
    _check_range(value, low, high, path + name, "integer")
    return value


def number(body: Json, name: str, low: float, high: float, path: str = "") -> float | None:
    """Read a number in a range; None if it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path + name, "a decimal", value)
    _check_range(value, low, high, path + name, "decimal")
    return value


def string(body: Json, name: str, limit: int, path: str = "") -> str | None:
    """Read a string of at most `limit` characters; None if it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(path + name, "a string", value)
    if len(value) > limit:
        message = f"Invalid '{path}{name}': string too long. Expected at most {limit} characters, but got {len(value)}."
        raise invalid_request(message, param=path + name, code="string_above_max_length")
    return value


def choice(body: Json, name: str, allowed: tuple[str, ...], path: str = "") -> str | None:
    """Read a string that must be one of `allowed`; None if it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(path + name, "a string", value)
    if value not in allowed:
        raise wrong_value(path + name, value, allowed)
    return value


def json_object(body: Mapping[str, object], name: str, path: str = "") -> Json | None:
    """Read an object; None if it is absent."""
    value = body.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise wrong_type(path + name, "an object", value)


def array(body: Mapping[str, object], name: str, limit: int, path: str = "") -> list[object] | None:
    """Read an array of at most `limit` elements; None if it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(path + name, "an array", value)
    if len(value) > limit:
        raise too_many(path + name, limit, len(value))
    return value


def strings(body: Json, name: str, count: int, length: int) -> list[str] | None:
    """Read an array of at most `count` strings, each of 1 to `length` characters; None if it is absent."""
    values = array(body, name, count)
    if values is None:
        return None
    texts = []
    for index, value in enumerate(values):
        param = f"{name}[{index}]"
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if not value or len(value) > length:
            message = f"Invalid '{param}': expected a string of 1 to {length} characters, but got {len(value)}."
            raise invalid_request(message, param=param, code="invalid_value")
        texts.append(value)
    return texts


def _check_range(value: float, low: float, high: float, param: str, unit: str) -> None:
    if low <= value <= high:
        return
    side, word, limit = ("below_min", "below minimum", low) if value < low else ("above_max", "above maximum", high)
    sign = ">=" if value < low else "<="
    message = (
        f"Invalid '{param}': {unit} {word} value. Expected a value {sign} {limit}, "
        f"but got {shorten_value(value)} instead."
    )
    raise invalid_request(message, param=param, code=f"{unit}_{side}_value")


# Responses, Anthropic and Ollama requests become chat requests; errors must name the fields that the client sent.


def rename_error_param(error: ApiError, param_names: Mapping[str, str]) -> None:
    """Replace the parameter of an error by the client's name for it, in the message too."""
    param = error.param
    if param is None:
        return
    error.param = client_param_name(param, param_names)
    error.message = error.message.replace(f"'{param}'", f"'{error.param}'")


def client_param_name(param: str, param_names: Mapping[str, str]) -> str:
    """Return the client's name of a chat parameter; the longest prefix in `param_names` is replaced.

    `messages[2].content` may be `input[5].content`.
    """
    end = len(param)
    while end > 0:
        if (name := param_names.get(param[:end])) is not None:
            return name + param[end:]
        end = max(param.rfind(".", 0, end), param.rfind("[", 0, end))
    return param


class ValidatedRequest(msgspec.Struct, kw_only=True):
    """A validated request: the bodies for the engine, and what the reply depends on."""

    endpoint: str
    """chat, completions, embeddings, rerank, tokenize or detokenize."""
    model: str | None = None
    """The model name as the client sent it."""
    is_stream: bool = False
    facts: RequestFacts = msgspec.field(default_factory=RequestFacts)
    bodies: list[Json]
    """The engine's bodies, ordered by prompt, then by choice, without `model`."""
    prompt_count: int = 1
    """Distinct prompts in `bodies`: the usage counts each once."""
    forced_call: ForcedToolCall | None = None
    echo: list[str] | None = None
    """The text of each prompt, if `echo` asks to repeat it before the answer."""
    top_logprobs: int | None = None
    """Alternatives shown per token. The engine always sends at least one, even for 0."""
    dimensions: int | None = None
    """Length to which an embedding is truncated."""
    is_base64: bool = False
    """Embeddings are sent as base64."""
    documents: list[str] | None = None
    """The documents to rank, if the reply repeats them."""
    has_pieces: bool = False
    """Tokens are objects with id and text (llama.cpp's `with_pieces`)."""
    has_token_texts: bool = False
    """The texts of the tokens are listed beside their ids (vLLM's `return_token_strs`)."""


# The fields of chat and completions requests: one table for validation, OpenAPI and the docs. Other fields are dropped
# silently: clients send all kinds of extensions, and an engine has fields (slots, files, memory) that are not for them.

TextEndpoint = Literal["chat", "completions"]
FieldKind = Literal["number", "integer", "window", "boolean", "choice"]

DEFAULT_CONTEXT = 8192
"""Longest window of a sampler if the model's context is unknown: the context size that local models get by default."""

_INT32_MAX = 2**31 - 1  # the engine's integers have 32 bits


class FieldHandling(StrEnum):
    """What the server does with a field."""

    FORWARDED = "validated, then forwarded"
    TRANSLATED = "validated, then translated for the engine"
    IGNORED = "accepted and ignored"
    REJECTED = "rejected"


class RequestField(msgspec.Struct, frozen=True):
    """One row of the table: a field and its handling."""

    name: str
    handling: FieldHandling
    note: str = ""
    kind: FieldKind = "number"
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    endpoint: TextEndpoint | None = None
    """The only endpoint that has the field."""
    engine_name: str = ""
    """The engine's name for it, if it differs."""
    is_vllm: bool = False
    """Forwarded to an engine that is a user's command, which may be vLLM."""


def _number_field(name: str, low: float, high: float, note: str = "", engine_name: str = "") -> RequestField:
    return RequestField(
        name, FieldHandling.FORWARDED, note or f"{low:g} to {high:g}", "number", low, high, engine_name=engine_name
    )


def _integer_field(name: str, low: int, high: int, note: str = "") -> RequestField:
    return RequestField(name, FieldHandling.FORWARDED, note or f"{low} to {high}", "integer", low, high)


def _window_field(name: str) -> RequestField:
    # The engine allocates the whole window: 2^31 tokens take 8 GB.
    return RequestField(
        name, FieldHandling.FORWARDED, "-1 (all) or more; at most the model's context", "window", -1, _INT32_MAX
    )


def _translated_field(name: str, note: str, endpoint: TextEndpoint | None = None) -> RequestField:
    return RequestField(name, FieldHandling.TRANSLATED, note, endpoint=endpoint)


def _ignored_fields(*names: str, note: str = "") -> tuple[RequestField, ...]:
    return tuple(RequestField(name, FieldHandling.IGNORED, note) for name in names)


def _rejected_field(name: str, note: str, endpoint: TextEndpoint | None = None) -> RequestField:
    return RequestField(name, FieldHandling.REJECTED, note, endpoint=endpoint)


GENERATION_FIELDS: tuple[RequestField, ...] = (
    # OpenAI's fields with the same name in the engine. It allows temperatures up to 2; users of llama.cpp go higher.
    _number_field("temperature", 0, 5),
    _number_field("top_p", 0, 1),
    _number_field("presence_penalty", -2, 2),
    _number_field("frequency_penalty", -2, 2),
    # OpenAI's fields that need more than a range check
    _translated_field("model", "the model's name"),
    _translated_field("messages", "1 to 4,096 messages", "chat"),
    _translated_field("prompt", "a string, token ids, or an array of up to 64 of either", "completions"),
    _translated_field("stream", "true or false"),
    _translated_field(
        "stream_options", "with stream: include_usage, include_obfuscation, continuous_usage_stats (with include_usage)"
    ),
    _translated_field("n", "1 to 8; with several prompts at most 64 choices in total"),
    _translated_field("seed", "a 64-bit integer; choice k of n gets seed + k; -1: none"),
    _translated_field(
        "stop", "a string or up to 16, each of 1 to 256 characters; matched in the text, not in reasoning or tool calls"
    ),
    _translated_field("max_tokens", "1 or more, at most the model's context; -1: no limit"),
    _translated_field("max_completion_tokens", "the same as max_tokens"),
    _translated_field("n_predict", "the same as max_tokens"),
    _translated_field("logit_bias", "up to 1,024 token ids with -100 to 100"),
    _translated_field("logprobs", "chat: true or false; completions: 0 to 20"),
    _translated_field("top_logprobs", "0 to 20, with logprobs", "chat"),
    _translated_field("response_format", "text, json_object, json_schema"),
    _translated_field("tools", "up to 128 functions", "chat"),
    _translated_field("tool_choice", "none, auto, required, a function, allowed_tools", "chat"),
    _translated_field("parallel_tool_calls", "true or false", "chat"),
    _translated_field("functions", "legacy form of tools", "chat"),
    _translated_field("function_call", "legacy form of tool_choice", "chat"),
    _translated_field("modalities", "text only", "chat"),
    _translated_field("reasoning_effort", "passed to the chat template; none: no thinking", "chat"),
    _translated_field("echo", "true or false; not with token ids", "completions"),
    _translated_field("best_of", "at most n", "completions"),
    # llama.cpp's fields
    _integer_field("top_k", -1, _INT32_MAX, "-1 or more; -1 and 0: all"),
    _number_field("min_p", 0, 1),
    _number_field("typical_p", 0, 1),
    _number_field("top_n_sigma", -1, 100),
    _number_field("repeat_penalty", 0.01, 10),
    _number_field("repetition_penalty", 0.01, 10, "the same as repeat_penalty", "repeat_penalty"),
    _window_field("repeat_last_n"),
    _integer_field("mirostat", 0, 2),
    _number_field("mirostat_tau", 0, 100),
    _number_field("mirostat_eta", 0, 1),
    _number_field("dry_multiplier", 0, 100),
    _number_field("dry_base", 0, 100),
    _window_field("dry_allowed_length"),
    _window_field("dry_penalty_last_n"),
    _number_field("xtc_probability", 0, 1),
    _number_field("xtc_threshold", 0, 1),
    _number_field("dynatemp_range", 0, 5),
    _number_field("dynatemp_exponent", 0, 10),
    _integer_field("min_keep", 0, 1024),
    RequestField("cache_prompt", FieldHandling.FORWARDED, "true or false", "boolean"),
    RequestField("ignore_eos", FieldHandling.FORWARDED, "true or false", "boolean"),
    _integer_field("thinking_budget_tokens", -1, _INT32_MAX, "-1 or more; -1: no limit"),
    RequestField(
        "reasoning_format",
        FieldHandling.FORWARDED,
        "none, auto, deepseek, deepseek-legacy",
        "choice",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
        endpoint="chat",
    ),
    _translated_field("dry_sequence_breakers", "1 to 16 strings of 1 to 40 characters"),
    _translated_field("samplers", "names of llama.cpp's samplers, in order"),
    _translated_field("json_schema", "a JSON schema, with the limits of response_format"),
    _translated_field("chat_template_kwargs", "strings, numbers and booleans for the chat template", "chat"),
    *_ignored_fields("user", "safety_identifier", "metadata", "store", note="requests are not stored"),
    *_ignored_fields("service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity"),
    *_ignored_fields("n_probs", "timings_per_token", "return_progress", "return_tokens", "post_sampling_probs"),
    # vLLM's fields that constrain the answer or change the prompt: implemented or rejected, never ignored
    _translated_field("structured_outputs", "json or choice; regex, grammar and structural_tag are rejected"),
    _translated_field("guided_json", "a JSON schema, or one as a string, with the limits of response_format"),
    _translated_field("guided_choice", "up to 128 strings of 1 to 256 characters: the answer is one of them"),
    _translated_field("guided_json_object", "true or false"),
    _translated_field(
        "continue_final_message", "must match the messages: true only if the last is the assistant's", "chat"
    ),
    _translated_field("add_generation_prompt", "the opposite of continue_final_message", "chat"),
    *(
        RequestField(name, FieldHandling.REJECTED, "is not supported by local models.", is_vllm=True)
        for name in (
            *("guided_regex", "guided_grammar", "guided_structural_tag", "use_beam_search", "min_tokens"),
            *("bad_words", "allowed_token_ids", "stop_token_ids", "logits_processors", "truncate_prompt_tokens"),
            *("include_stop_str_in_output", "chat_template", "documents"),
        )
    ),
    # A few short grammar rules block an engine, and all its requests, for minutes: repeated rules that can be empty, or
    # rules that start alike and call each other. No limit on size or depth separates those from harmless ones.
    _rejected_field("grammar", "is not supported; use 'response_format' with a schema."),
    _rejected_field("web_search_options", "needs a web search, which this server does not have.", "chat"),
    _rejected_field("audio", "needs a model with audio output.", "chat"),
    _rejected_field("suffix", "is not supported.", "completions"),
)

GENERATION_FIELDS_BY_NAME = {row.name: row for row in GENERATION_FIELDS}


def read_forwarded_fields(body: Json, endpoint: TextEndpoint, context: int, *, is_command: bool) -> Json:
    """Validate and return the fields that the engine receives unchanged. Raises ApiError for unsupported fields.

    `is_command`: the engine is a user's command.
    """
    out: Json = {}
    for row in GENERATION_FIELDS:
        if row.endpoint not in (None, endpoint):
            continue
        if row.handling is FieldHandling.REJECTED and body.get(row.name):
            if not (row.is_vllm and is_command):
                raise unsupported(row.name, row.note)
            out[row.name] = body[row.name]
        if row.handling is FieldHandling.FORWARDED:
            value = _read_field_value(row, body, context or DEFAULT_CONTEXT)
            if value is not None:
                out[row.engine_name or row.name] = value
    return out


def _read_field_value(field: RequestField, body: Json, context: int) -> float | str | None:
    match field.kind:
        case "number":
            return number(body, field.name, field.low, field.high)
        case "integer":
            return integer(body, field.name, int(field.low), int(field.high))
        case "window":
            value = integer(body, field.name, int(field.low), int(field.high))
            return None if value is None else context if value < 0 else min(value, context)
        case "boolean":
            return boolean(body, field.name)
        case "choice":
            return choice(body, field.name, field.choices)
