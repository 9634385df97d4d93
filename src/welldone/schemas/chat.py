"""Requests to `/v1/chat/completions` and `/v1/completions`, with the limits of local models.

Rules that need more than one field, and those for JSON schemas, images and audio, are in `server/requests`.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from welldone.core.request_facts import CHAT_CHOICES_LIMIT
from welldone.schemas.fields import (
    ANY_OBJECT,
    FORWARDED,
    INT32_MAX,
    FieldHandling,
    FieldInfo,
    ModelName,
    Probability,
    ignored,
    note,
    object_with_text,
    rejected,
)
from welldone.schemas.messages import TOOLS_LIMIT, Function, Message, Tool

MESSAGES_LIMIT = 4_096
"""No common context holds more: each message takes some tokens besides its text."""
CHOICES_LIMIT = 8
"""Choices per prompt. OpenAI allows 128; here they share one machine, and each takes a slot."""
TOTAL_CHOICES_LIMIT = 64
"""Choices of one request, over all its prompts."""
TOP_LOGPROBS_LIMIT = 20
"""Alternatives per token: OpenAI's limit."""
STOP_STRINGS_LIMIT = 16  # OpenAI allows 4; users of llama.cpp send more
STOP_STRING_LENGTH = 256
LOGIT_BIAS_LIMIT = 1_024  # 300,000 entries take the engine 2 s
MAX_LOGIT_BIAS = 100  # OpenAI's limit
MAX_TOKEN_ID = INT32_MAX
INT64 = 2**63
"""Limit of integers in 64 bits, which a client with only floats rounds up."""
ALTERNATIVES_LIMIT = 128
"""Choices of `guided_choice`: llama.cpp follows all that begin alike at once."""
GUIDED_CHOICE_LENGTH = 256
"""Characters of one choice; a label has about ten."""
TEMPLATE_KWARGS_LIMIT = 32
TEMPLATE_KWARG_LENGTH = 4_096
TEMPLATE_KWARG_NAME = "[a-z_]{1,64}"
# Set by the engine itself: a client could forge messages of other roles with them.
RESERVED_TEMPLATE_KWARGS = frozenset(
    ("tools", "messages", "add_generation_prompt", "tokenize", "bos_token", "eos_token")
)
SAMPLERS = frozenset(
    ("dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "xtc", "temperature", "penalties", "adaptive_p")
)
_MODALITIES_LIMIT = 8  # there are two
_SEQUENCE_BREAKERS_LIMIT = 16
_SEQUENCE_BREAKER_LENGTH = 40  # llama.cpp truncates longer ones

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}, "minItems": 1}


def text_or_token_ids(max_items: int) -> dict[str, Any]:
    """Return the JSON schema of a string, an array of token ids, or an array of either."""
    items = {"anyOf": [{"type": "string"}, _TOKEN_IDS]}
    array = {"type": "array", "items": items, "maxItems": max_items, "minItems": 1}
    return {"anyOf": [{"type": "string"}, _TOKEN_IDS, array]}


TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_LIMIT)]
ToolChoiceMode: TypeAlias = Literal["none", "auto", "required"]
_MODES = {"enum": ["none", "auto", "required", None]}
ToolChoice: TypeAlias = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [_MODES, {"type": "object", "additionalProperties": True}]})
]

_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=STOP_STRING_LENGTH)]
_SequenceBreaker: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_SEQUENCE_BREAKER_LENGTH)]
_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2, extra=FORWARDED)]
_RepeatPenalty: TypeAlias = Annotated[float, Meta(ge=0.01, le=10, extra=FORWARDED)]
_Percentage: TypeAlias = Annotated[float, Meta(ge=0, le=100, extra=FORWARDED)]
_Flag: TypeAlias = Annotated[bool, Meta(extra=FORWARDED)]
# The engine allocates the whole window: 2^31 tokens take 8 GB.
_Window: TypeAlias = Annotated[
    int, note("-1 (all) or more; at most the model's context", ge=-1, le=INT32_MAX, extra=FORWARDED)
]
_MaxTokens: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": -1, "maximum": INT64, "not": {"const": 0}})]
_ChoiceCount: TypeAlias = Annotated[
    int, note("1 to 8; with several prompts at most 64 choices in total", ge=1, le=CHOICES_LIMIT)
]
_SEED_RANGE = {"minimum": -INT64, "maximum": 2 * INT64}
_Seed: TypeAlias = Annotated[
    int, note("a 64-bit integer; choice k of n gets seed + k; -1: none", extra_json_schema=_SEED_RANGE)
]
_BIAS = {"type": ["number", "null"], "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS}
_BIASES = {"propertyNames": {"pattern": "^[0-9]{1,10}$"}, "additionalProperties": _BIAS}
_LogitBias: TypeAlias = Annotated[
    dict[str, Any],
    note("up to 1,024 token ids with -100 to 100", max_length=LOGIT_BIAS_LIMIT, extra_json_schema=_BIASES),
]
_TopK: TypeAlias = Annotated[int, note("-1 or more; -1 and 0: all", ge=-1, le=INT32_MAX, extra=FORWARDED)]
_ThinkingBudget: TypeAlias = Annotated[int, note("-1 or more; -1: no limit", ge=-1, le=INT32_MAX, extra=FORWARDED)]
_SequenceBreakers: TypeAlias = Annotated[
    list[_SequenceBreaker], note("1 to 16 strings of 1 to 40 characters", max_length=_SEQUENCE_BREAKERS_LIMIT)
]
_Samplers: TypeAlias = Annotated[
    list[_SequenceBreaker], note("names of llama.cpp's samplers, in order", max_length=len(SAMPLERS))
]
_Modalities: TypeAlias = Annotated[
    list[Any], note("text only", max_length=_MODALITIES_LIMIT, extra_json_schema={"items": {"const": "text"}})
]
_ReasoningFormat: TypeAlias = Annotated[Literal["none", "auto", "deepseek", "deepseek-legacy"], Meta(extra=FORWARDED)]
_KWARG_NAMES = {"pattern": f"^{TEMPLATE_KWARG_NAME}$", "not": {"enum": sorted(RESERVED_TEMPLATE_KWARGS)}}
_KWARG_VALUES = {"type": ["string", "number", "boolean", "null"], "maxLength": TEMPLATE_KWARG_LENGTH}
_TemplateKwargs: TypeAlias = Annotated[
    dict[str, Any],
    note(
        "strings, numbers and booleans for the chat template",
        max_length=TEMPLATE_KWARGS_LIMIT,
        extra_json_schema={"propertyNames": {"type": "string", **_KWARG_NAMES}, "additionalProperties": _KWARG_VALUES},
    ),
]
VLLM_FIELD = "is_vllm"
"""`extra` of fields that are forwarded to an engine that is a user's command, which may be vLLM."""
_VLLM_FIELDS = [
    FieldInfo(name, FieldHandling.REJECTED, "is not supported by local models.", {VLLM_FIELD: True})
    for name in (
        *("guided_regex", "guided_grammar", "guided_structural_tag", "use_beam_search", "min_tokens", "bad_words"),
        *("allowed_token_ids", "stop_token_ids", "logits_processors", "truncate_prompt_tokens"),
        *("include_stop_str_in_output", "chat_template", "documents"),
    )
]


class StreamOptions(Struct):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class TextFormat(Struct, tag_field="type", tag="text"):
    """No constraint on the answer."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """The answer is a JSON object; with llama.cpp's `schema`, one that matches it."""

    schema: Annotated[Any, Meta(extra_json_schema=ANY_OBJECT)] = None


class JsonSchemaDefinition(Struct):
    """A JSON schema with a name."""

    name: Annotated[str, Meta(max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")] | None = None
    description: Any = None
    schema: Any = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The answer matches a JSON schema."""

    json_schema: JsonSchemaDefinition


GuidedChoices: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=GUIDED_CHOICE_LENGTH)]],
    note(
        "up to 128 strings of 1 to 256 characters: the answer is one of them",
        min_length=1,
        max_length=ALTERNATIVES_LIMIT,
    ),
]


class StructuredOutputs(Struct):
    """A constraint in vLLM's form."""

    json: Any = None
    json_object: bool | None = None
    choice: GuidedChoices | None = None
    regex: Any = None
    grammar: Any = None
    structural_tag: Any = None


class GenerationBody(Struct, kw_only=True):
    """Fields of both endpoints. Others are dropped for local models: an engine has fields that are not for clients."""

    # OpenAI's fields with the same name in the engine. It allows temperatures up to 2; users of llama.cpp go higher.
    temperature: Annotated[float, Meta(ge=0, le=5, extra=FORWARDED)] | None = None
    top_p: Probability | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    # OpenAI's fields that need more than a range check
    model: ModelName | None = None
    stream: bool | None = None
    stream_options: Annotated[
        StreamOptions | None,
        note("with stream: include_usage, include_obfuscation, continuous_usage_stats (with include_usage)"),
    ] = None
    n: _ChoiceCount | None = None
    seed: _Seed | None = None
    stop: Annotated[
        _StopString | Annotated[list[_StopString], Meta(max_length=STOP_STRINGS_LIMIT)] | None,
        note("a string or up to 16, each of 1 to 256 characters; matched in the text, not in reasoning or tool calls"),
    ] = None
    max_tokens: Annotated[_MaxTokens | None, note("1 or more, at most the model's context; -1: no limit")] = None
    max_completion_tokens: Annotated[_MaxTokens | None, note("the same as max_tokens")] = None
    n_predict: Annotated[_MaxTokens | None, note("the same as max_tokens")] = None
    logit_bias: _LogitBias | None = None
    response_format: Annotated[
        TextFormat | JsonObjectFormat | JsonSchemaFormat | None, note("text, json_object, json_schema")
    ] = None
    # llama.cpp's fields
    top_k: _TopK | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=100, extra=FORWARDED)] | None = None
    repeat_penalty: _RepeatPenalty | None = None
    repetition_penalty: Annotated[_RepeatPenalty | None, note("the same as repeat_penalty")] = None
    repeat_last_n: _Window | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2, extra=FORWARDED)] | None = None
    mirostat_tau: _Percentage | None = None
    mirostat_eta: Probability | None = None
    dry_multiplier: _Percentage | None = None
    dry_base: _Percentage | None = None
    dry_allowed_length: _Window | None = None
    dry_penalty_last_n: _Window | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dynatemp_range: Annotated[float, Meta(ge=0, le=5, extra=FORWARDED)] | None = None
    dynatemp_exponent: Annotated[float, Meta(ge=0, le=10, extra=FORWARDED)] | None = None
    min_keep: Annotated[int, Meta(ge=0, le=1024, extra=FORWARDED)] | None = None
    cache_prompt: _Flag | None = None
    ignore_eos: _Flag | None = None
    thinking_budget_tokens: _ThinkingBudget | None = None
    dry_sequence_breakers: _SequenceBreakers | None = None
    samplers: _Samplers | None = None
    json_schema: Annotated[
        Any, note("a JSON schema, with the limits of response_format", extra_json_schema=ANY_OBJECT)
    ] = None
    # vLLM's fields that constrain the answer or change the prompt: implemented or rejected, never ignored
    structured_outputs: Annotated[
        StructuredOutputs | None, note("json or choice; regex, grammar and structural_tag are rejected")
    ] = None
    guided_json: Annotated[
        Any,
        note(
            "a JSON schema, or one as a string, with the limits of response_format",
            extra_json_schema={"anyOf": [{"type": "string"}, ANY_OBJECT]},
        ),
    ] = None
    guided_choice: GuidedChoices | None = None
    guided_json_object: bool | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [
        *ignored("user", "safety_identifier", "metadata", "store", note="requests are not stored"),
        *ignored("service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity"),
        *ignored("n_probs", "timings_per_token", "return_progress", "return_tokens", "post_sampling_probs"),
        *_VLLM_FIELDS,
        # A few short grammar rules block an engine, and all its requests, for minutes: repeated rules that can be
        # empty, or rules that start alike and call each other. No limit on size or depth separates those from others.
        *rejected(grammar="is not supported; use 'response_format' with a schema."),
    ]


class ChatRequest(GenerationBody, kw_only=True):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[Message], note("1 to 4,096 messages", min_length=1, max_length=MESSAGES_LIMIT)]
    logprobs: bool | None = None
    top_logprobs: Annotated[TopLogprobs | None, note("0 to 20, with logprobs")] = None
    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=TOOLS_LIMIT)] | None,
        Meta(
            description="up to 128 functions",
            extra={"also": {"type": "object", "maxProperties": 0}},  # of some clients, for none
        ),
    ] = None
    tool_choice: Annotated[ToolChoice, note("none, auto, required, a function, allowed_tools")] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[
        Annotated[list[Function], Meta(max_length=TOOLS_LIMIT)] | None, note("legacy form of tools")
    ] = None
    function_call: Annotated[
        Any, note("legacy form of tool_choice", extra_json_schema={"anyOf": [_MODES, object_with_text("name")]})
    ] = None
    modalities: _Modalities | None = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
        note("passed to the chat template; none: no thinking"),
    ] = None
    reasoning_format: _ReasoningFormat | None = None
    chat_template_kwargs: _TemplateKwargs | None = None
    continue_final_message: Annotated[
        bool | None, note("must match the messages: true only if the last is the assistant's")
    ] = None
    add_generation_prompt: Annotated[bool | None, note("the opposite of continue_final_message")] = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = rejected(
        web_search_options="needs a web search, which this server does not have.",
        audio="needs a model with audio output.",
    )


class CompletionRequest(GenerationBody, kw_only=True):
    """A request to `/v1/completions`."""

    prompt: Annotated[
        Any,
        note(
            "a string, token ids, or an array of up to 64 of either",
            extra_json_schema=text_or_token_ids(TOTAL_CHOICES_LIMIT),
        ),
    ]
    logprobs: TopLogprobs | None = None
    echo: Annotated[bool | None, note("true or false; not with token ids")] = None
    best_of: Annotated[int, note("at most n", ge=1, le=CHOICES_LIMIT)] | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = rejected(suffix="is not supported.")


class ModelRequest(Struct, kw_only=True):
    """The field of any request that selects the upstream."""

    model: ModelName | None = None


class SameDialectRequest(ModelRequest, kw_only=True):
    """The fields that a gateway reads from any request; upstreams validate the others."""

    stream: bool | None = None


class UpstreamRequest(SameDialectRequest, kw_only=True):
    """The fields that a gateway reads from a chat or completions request."""

    stream_options: dict[str, Any] | None = None
    n: Annotated[int, Meta(ge=1, le=CHAT_CHOICES_LIMIT)] | None = None
