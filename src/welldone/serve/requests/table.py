"""What becomes of each field of a request for text: one table, which the code obeys and the docs print.

A field that is not in it is dropped without a word: clients send all kinds of things, and an engine knows fields (of
slots, files, memory) that are not for clients.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from welldone.serve.requests import fields
from welldone.wire.events import Json

TextEndpoint = Literal["chat", "completions"]
FieldKind = Literal["number", "integer", "window", "boolean", "choice"]

DEFAULT_CONTEXT = 8192
"""How far back a sampler looks at most where the model's context is not known: what a context is capped at unless
asked."""

_INT32_MAX = 2**31 - 1  # the engine's own integers have 32 bits


class FieldHandling(StrEnum):
    """What is done with a field."""

    FORWARDED = "checked, then passed on"
    TRANSLATED = "checked, then put in the engine's form"
    IGNORED = "accepted, without effect here"
    REJECTED = "refused: it cannot be followed here"


class RequestField(msgspec.Struct, frozen=True):
    """A row: a field, and what is done with it."""

    name: str
    handling: FieldHandling
    note: str = ""
    kind: FieldKind = "number"
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    endpoint: TextEndpoint | None = None
    """The endpoint that alone knows it."""
    engine_name: str = ""
    """The engine's name for it, if that is another."""
    is_vllm: bool = False
    """Whether it goes on to an engine that is a user's command, which may be vLLM."""


def _number_field(name: str, low: float, high: float, note: str = "", engine_name: str = "") -> RequestField:
    return RequestField(
        name, FieldHandling.FORWARDED, note or f"{low:g} to {high:g}", "number", low, high, engine_name=engine_name
    )


def _integer_field(name: str, low: int, high: int, note: str = "") -> RequestField:
    return RequestField(name, FieldHandling.FORWARDED, note or f"{low} to {high}", "integer", low, high)


def _window_field(name: str) -> RequestField:
    # The engine makes room for as many tokens as are asked for: 2^31 of them cost 8 GB.
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
    # OpenAI's, that the engine knows by the same name. It allows temperatures up to 2; users of llama.cpp go higher.
    _number_field("temperature", 0, 5),
    _number_field("top_p", 0, 1),
    _number_field("presence_penalty", -2, 2),
    _number_field("frequency_penalty", -2, 2),
    # OpenAI's, that need more than a look at one number
    _translated_field("model", "the model's name"),
    _translated_field("messages", "1 to 4,096 messages", "chat"),
    _translated_field("prompt", "a text, token ids, or up to 64 of either", "completions"),
    _translated_field("stream", "true or false"),
    _translated_field(
        "stream_options", "with stream: include_usage, include_obfuscation, continuous_usage_stats (with include_usage)"
    ),
    _translated_field("n", "1 to 8; with a list of prompts at most 64 answers in all"),
    _translated_field("seed", "a 64-bit integer; answer k of n gets seed + k; -1: none"),
    _translated_field(
        "stop", "a text or up to 16, each of 1 to 256 characters; looked for in the text, not in thoughts or calls"
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
    _translated_field("functions", "the same as tools, as of old", "chat"),
    _translated_field("function_call", "the same as tool_choice, as of old", "chat"),
    _translated_field("modalities", "text only", "chat"),
    _translated_field("reasoning_effort", "given to the chat template; none: no thinking", "chat"),
    _translated_field("echo", "true or false; not with token ids", "completions"),
    _translated_field("best_of", "at most n", "completions"),
    # llama.cpp's
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
    _translated_field("dry_sequence_breakers", "1 to 16 texts of 1 to 40 characters"),
    _translated_field("samplers", "names of llama.cpp's samplers, in their order"),
    _translated_field("json_schema", "a schema, within the limits of response_format"),
    _translated_field("chat_template_kwargs", "plain values for the chat template", "chat"),
    *_ignored_fields("user", "safety_identifier", "metadata", "store", note="nothing is kept of requests"),
    *_ignored_fields("service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity"),
    *_ignored_fields("n_probs", "timings_per_token", "return_progress", "return_tokens", "post_sampling_probs"),
    # vLLM's that constrain the answer, or change the prompt: kept, or refused.
    _translated_field("structured_outputs", "json or choice; regex, grammar and structural_tag are refused"),
    _translated_field("guided_json", "a schema, within the limits of response_format; its text is read too"),
    _translated_field("guided_choice", "up to 128 texts of 1 to 256 characters: the answer is one of them"),
    _translated_field("guided_json_object", "true or false"),
    _translated_field(
        "continue_final_message", "as the messages say: true only if the last is the assistant's", "chat"
    ),
    _translated_field("add_generation_prompt", "the opposite of continue_final_message", "chat"),
    *(
        RequestField(name, FieldHandling.REJECTED, "is not offered for local models.", is_vllm=True)
        for name in (
            *("guided_regex", "guided_grammar", "guided_structural_tag", "use_beam_search", "min_tokens"),
            *("bad_words", "allowed_token_ids", "stop_token_ids", "logits_processors", "truncate_prompt_tokens"),
            *("include_stop_str_in_output", "chat_template", "documents"),
        )
    ),
    # A few short rules of a grammar stop an engine, and all it serves, for minutes: rules that can be empty and are
    # repeated, or that begin alike and call each other. No limit of size or depth tells those from harmless ones.
    _rejected_field("grammar", "is not offered; use 'response_format' with a schema."),
    _rejected_field("web_search_options", "needs a web search, which this server does not have.", "chat"),
    _rejected_field("audio", "needs a model that speaks.", "chat"),
    _rejected_field("suffix", "is not supported.", "completions"),
)

GENERATION_FIELDS_BY_NAME = {row.name: row for row in GENERATION_FIELDS}


def read_forwarded_fields(body: Json, endpoint: TextEndpoint, context: int, *, is_command: bool) -> Json:
    """The fields that go to the engine as they are, checked; and an error for those that cannot be followed.

    `is_command`: the engine is a user's command.
    """
    out: Json = {}
    for row in GENERATION_FIELDS:
        if row.endpoint not in (None, endpoint):
            continue
        if row.handling is FieldHandling.REJECTED and body.get(row.name):
            if not (row.is_vllm and is_command):
                raise fields.unsupported(row.name, row.note)
            out[row.name] = body[row.name]
        if row.handling is FieldHandling.FORWARDED:
            value = _read_field_value(row, body, context or DEFAULT_CONTEXT)
            if value is not None:
                out[row.engine_name or row.name] = value
    return out


def _read_field_value(field: RequestField, body: Json, context: int) -> float | str | None:
    match field.kind:
        case "number":
            return fields.number(body, field.name, field.low, field.high)
        case "integer":
            return fields.integer(body, field.name, int(field.low), int(field.high))
        case "window":
            value = fields.integer(body, field.name, int(field.low), int(field.high))
            return None if value is None else context if value < 0 else min(value, context)
        case "boolean":
            return fields.boolean(body, field.name)
        case "choice":
            return fields.choice(body, field.name, field.choices)
