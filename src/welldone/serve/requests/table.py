"""What becomes of each field of a request for text: one table, which the code obeys and the docs print.

A field that is not in it is dropped without a word: clients send all kinds of things, and an engine knows fields (of
slots, files, memory) that are not for clients.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from welldone.serve.requests import fields
from welldone.wire.events import Json

Endpoint = Literal["chat", "completions"]
Kind = Literal["number", "integer", "window", "boolean", "choice"]

CONTEXT_UNKNOWN = 8192
"""How far back a sampler looks at most where the model's context is not known: what a context is capped at unless
asked."""

_MOST = 2**31 - 1  # the engine's own integers have 32 bits


class Use(StrEnum):
    """What is done with a field."""

    PASSED = "checked, then passed on"
    READ = "checked, then put in the engine's form"
    IGNORED = "accepted, without effect here"
    REFUSED = "refused: it cannot be followed here"


class Field(msgspec.Struct, frozen=True):
    """A row: a field, and what is done with it."""

    name: str
    use: Use
    note: str = ""
    kind: Kind = "number"
    low: float = 0
    high: float = 0
    words: tuple[str, ...] = ()
    only: Endpoint | None = None
    """The endpoint that alone knows it."""
    engine: str = ""
    """The engine's name for it, if that is another."""
    is_vllm: bool = False
    """Whether it goes on to an engine that is a user's command, which may be vLLM."""


def _number(name: str, low: float, high: float, note: str = "", engine: str = "") -> Field:
    return Field(name, Use.PASSED, note or f"{low:g} to {high:g}", "number", low, high, engine=engine)


def _integer(name: str, low: int, high: int, note: str = "") -> Field:
    return Field(name, Use.PASSED, note or f"{low} to {high}", "integer", low, high)


def _window(name: str) -> Field:
    # The engine makes room for as many tokens as are asked for: 2^31 of them cost 8 GB.
    return Field(name, Use.PASSED, "-1 (all) or more; at most the model's context", "window", -1, _MOST)


def _read(name: str, note: str, only: Endpoint | None = None) -> Field:
    return Field(name, Use.READ, note, only=only)


def _ignored(*names: str, note: str = "") -> tuple[Field, ...]:
    return tuple(Field(name, Use.IGNORED, note) for name in names)


def _refused(name: str, note: str, only: Endpoint | None = None) -> Field:
    return Field(name, Use.REFUSED, note, only=only)


FIELDS: tuple[Field, ...] = (
    # OpenAI's, that the engine knows by the same name. It allows temperatures up to 2; users of llama.cpp go higher.
    _number("temperature", 0, 5),
    _number("top_p", 0, 1),
    _number("presence_penalty", -2, 2),
    _number("frequency_penalty", -2, 2),
    # OpenAI's, that need more than a look at one number
    _read("model", "the model's name"),
    _read("messages", "1 to 4,096 messages", "chat"),
    _read("prompt", "a text, token ids, or up to 64 of either", "completions"),
    _read("stream", "true or false"),
    _read(
        "stream_options", "with stream: include_usage, include_obfuscation, continuous_usage_stats (with include_usage)"
    ),
    _read("n", "1 to 8; with a list of prompts at most 64 answers in all"),
    _read("seed", "a 64-bit integer; answer k of n gets seed + k; -1: none"),
    _read("stop", "a text or up to 16, each of 1 to 256 characters; looked for in the text, not in thoughts or calls"),
    _read("max_tokens", "1 or more, at most the model's context; -1: no limit"),
    _read("max_completion_tokens", "the same as max_tokens"),
    _read("n_predict", "the same as max_tokens"),
    _read("logit_bias", "up to 1,024 token ids with -100 to 100"),
    _read("logprobs", "chat: true or false; completions: 0 to 20"),
    _read("top_logprobs", "0 to 20, with logprobs", "chat"),
    _read("response_format", "text, json_object, json_schema"),
    _read("tools", "up to 128 functions", "chat"),
    _read("tool_choice", "none, auto, required, a function, allowed_tools", "chat"),
    _read("parallel_tool_calls", "true or false", "chat"),
    _read("functions", "the same as tools, as of old", "chat"),
    _read("function_call", "the same as tool_choice, as of old", "chat"),
    _read("modalities", "text only", "chat"),
    _read("reasoning_effort", "given to the chat template; none: no thinking", "chat"),
    _read("echo", "true or false; not with token ids", "completions"),
    _read("best_of", "at most n", "completions"),
    # llama.cpp's
    _integer("top_k", -1, _MOST, "-1 or more; -1 and 0: all"),
    _number("min_p", 0, 1),
    _number("typical_p", 0, 1),
    _number("top_n_sigma", -1, 100),
    _number("repeat_penalty", 0.01, 10),
    _number("repetition_penalty", 0.01, 10, "the same as repeat_penalty", "repeat_penalty"),
    _window("repeat_last_n"),
    _integer("mirostat", 0, 2),
    _number("mirostat_tau", 0, 100),
    _number("mirostat_eta", 0, 1),
    _number("dry_multiplier", 0, 100),
    _number("dry_base", 0, 100),
    _window("dry_allowed_length"),
    _window("dry_penalty_last_n"),
    _number("xtc_probability", 0, 1),
    _number("xtc_threshold", 0, 1),
    _number("dynatemp_range", 0, 5),
    _number("dynatemp_exponent", 0, 10),
    _integer("min_keep", 0, 1024),
    Field("cache_prompt", Use.PASSED, "true or false", "boolean"),
    Field("ignore_eos", Use.PASSED, "true or false", "boolean"),
    _integer("thinking_budget_tokens", -1, _MOST, "-1 or more; -1: no limit"),
    Field(
        "reasoning_format",
        Use.PASSED,
        "none, auto, deepseek, deepseek-legacy",
        "choice",
        words=("none", "auto", "deepseek", "deepseek-legacy"),
        only="chat",
    ),
    _read("dry_sequence_breakers", "1 to 16 texts of 1 to 40 characters"),
    _read("samplers", "names of llama.cpp's samplers, in their order"),
    _read("json_schema", "a schema, within the limits of response_format"),
    _read("chat_template_kwargs", "plain values for the chat template", "chat"),
    *_ignored("user", "safety_identifier", "metadata", "store", note="nothing is kept of requests"),
    *_ignored("service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity"),
    *_ignored("n_probs", "timings_per_token", "return_progress", "return_tokens", "post_sampling_probs"),
    # vLLM's that constrain the answer, or change the prompt: kept, or refused.
    _read("structured_outputs", "json or choice; regex, grammar and structural_tag are refused"),
    _read("guided_json", "a schema, within the limits of response_format; its text is read too"),
    _read("guided_choice", "up to 128 texts of 1 to 256 characters: the answer is one of them"),
    _read("guided_json_object", "true or false"),
    _read("continue_final_message", "as the messages say: true only if the last is the assistant's", "chat"),
    _read("add_generation_prompt", "the opposite of continue_final_message", "chat"),
    *(
        Field(name, Use.REFUSED, "is not offered for local models.", is_vllm=True)
        for name in (
            *("guided_regex", "guided_grammar", "guided_structural_tag", "use_beam_search", "min_tokens"),
            *("bad_words", "allowed_token_ids", "stop_token_ids", "logits_processors", "truncate_prompt_tokens"),
            *("include_stop_str_in_output", "chat_template", "documents"),
        )
    ),
    # A few short rules of a grammar stop an engine, and all it serves, for minutes: rules that can be empty and are
    # repeated, or that begin alike and call each other. No limit of size or depth tells those from harmless ones.
    _refused("grammar", "is not offered; use 'response_format' with a schema."),
    _refused("web_search_options", "needs a web search, which this server does not have.", "chat"),
    _refused("audio", "needs a model that speaks.", "chat"),
    _refused("suffix", "is not supported.", "completions"),
)

ROWS = {row.name: row for row in FIELDS}


def passed(body: Json, endpoint: Endpoint, context: int, *, is_command: bool) -> Json:
    """The fields that go to the engine as they are, checked; and an error for those that cannot be followed.

    `is_command`: the engine is a user's command.
    """
    out: Json = {}
    for row in FIELDS:
        if row.only not in (None, endpoint):
            continue
        if row.use is Use.REFUSED and body.get(row.name):
            if not (row.is_vllm and is_command):
                raise fields.unsupported(row.name, row.note)
            out[row.name] = body[row.name]
        if row.use is Use.PASSED:
            value = _value(row, body, context or CONTEXT_UNKNOWN)
            if value is not None:
                out[row.engine or row.name] = value
    return out


def _value(row: Field, body: Json, context: int) -> float | str | None:
    match row.kind:
        case "number":
            return fields.number(body, row.name, row.low, row.high)
        case "integer":
            return fields.integer(body, row.name, int(row.low), int(row.high))
        case "window":
            value = fields.integer(body, row.name, int(row.low), int(row.high))
            return None if value is None else context if value < 0 else min(value, context)
        case "boolean":
            return fields.boolean(body, row.name)
        case "choice":
            return fields.choice(body, row.name, row.words)
