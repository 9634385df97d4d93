"""Fields that chat and completions share: sampling, token limits, stop strings and the number of choices."""

from collections.abc import Mapping

import msgspec

from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.server.requests import fields
from welldone.server.requests.fields import TextEndpoint, read_forwarded_fields

CHOICES_LIMIT = 8
"""Choices per prompt. OpenAI allows 128; here they share one machine, and each takes a slot."""
TOTAL_CHOICES_LIMIT = 64
"""Choices of one request, over all its prompts."""
TOP_LOGPROBS_LIMIT = 20
"""Alternatives per token: OpenAI's limit."""
BYTES_PER_TOKEN = 16
"""Text has under 6 bytes per token in all languages. Text with more than 16 bytes per token of the context cannot fit
(unless it is mostly blanks); it is rejected before the engine tokenises it, which takes 0.3 s per megabyte."""
TOKEN_IDS_LIMIT = 300_000
"""Token ids of one request: OpenAI's limit for embeddings. For a model with a longer context, that context."""

STOP_STRINGS_LIMIT = 16  # OpenAI allows 4; users of llama.cpp send more
STOP_STRING_LENGTH = 256
LOGIT_BIAS_LIMIT = 1_024  # 300,000 entries take the engine 2 s
MAX_LOGIT_BIAS = 100  # OpenAI's limit
MAX_TOKEN_ID = 2**31 - 1
MODEL_NAME_LENGTH = 256  # longer than any known model name
INT64 = 2**63
_SEED_MODULUS = 2**32 - 1  # llama.cpp reads 2^32 - 1 as "random seed"
SEQUENCE_BREAKERS_LIMIT = 16
SEQUENCE_BREAKER_LENGTH = 40  # llama.cpp truncates longer ones
SAMPLERS = frozenset(
    ("dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "xtc", "temperature", "penalties", "adaptive_p")
)
_MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")  # in order of precedence
_TOKEN_ID_DIGITS = 10

UNKNOWN_CAPABILITIES = ModelCapabilities(
    kind="llama",
    context=0,
    train_context=0,
    slots=0,
    vocabulary_size=0,
    embedding_size=0,
    parameters=0,
    size_bytes=0,
    images=True,
    audio=True,
    tools=True,
    chat=True,
    embeddings=True,
    reranking=True,
)
"""Capabilities of a model that has not reported any: no feature is ruled out."""


def with_defaults(body: Json, defaults: Mapping[str, object]) -> Json:
    """Return the body with the model's defaults for absent and null fields."""
    given = {key: value for key, value in body.items() if value is not None}
    out = {**defaults, **given}
    if any(name in given for name in _MAX_TOKENS_FIELDS):
        for name in _MAX_TOKENS_FIELDS:
            if name not in given:
                out.pop(name, None)
    return out


def read_sampling(body: Json, endpoint: TextEndpoint, capabilities: ModelCapabilities) -> Json:
    """Validate the sampling fields and return them as fields of the engine's body."""
    out = read_forwarded_fields(body, endpoint, capabilities.context, is_command=capabilities.kind == "command")
    max_tokens = read_max_tokens(body, capabilities.context)
    if max_tokens is not None:
        out["max_tokens"] = max_tokens
    stops = _stop_strings(body)
    if stops:
        out["stop"] = stops
    bias = _logit_bias(body, capabilities.vocabulary_size)
    if bias:
        out["logit_bias"] = bias
    breakers = fields.strings(body, "dry_sequence_breakers", SEQUENCE_BREAKERS_LIMIT, SEQUENCE_BREAKER_LENGTH)
    if breakers:
        out["dry_sequence_breakers"] = breakers
    samplers = fields.strings(body, "samplers", len(SAMPLERS), SEQUENCE_BREAKER_LENGTH)
    if samplers:
        out["samplers"] = [name for name in samplers if name in SAMPLERS]
    return out


def extract_stop_strings(engine_body: Json, capabilities: ModelCapabilities) -> tuple[str, ...]:
    """Remove the stop strings from the engine's body and return them: for llama.cpp, this server matches them.

    llama.cpp holds back text that may be the start of a stop string, and its streams lose that text if the answer ends
    there. `timings_per_token` makes it send token counts with each token: a stream that is closed at a stop string has
    no final usage.
    """
    if capabilities.kind != "llama" or "stop" not in engine_body:
        return ()
    engine_body["timings_per_token"] = True
    return tuple(engine_body.pop("stop"))


def read_max_tokens(body: Json, context: int) -> int | None:
    """Read the token limit of an answer; None if only the context limits it."""
    limits = []
    for name in _MAX_TOKENS_FIELDS:
        limit = fields.integer(body, name, -1, INT64)
        if limit == 0:
            fields.integer(body, name, 1, INT64)  # raises: -1 means no limit, 0 is out of range
        if limit is not None:
            limits.append(limit)
    return None if not limits or limits[0] == -1 else min(limits[0], context or MAX_TOKEN_ID)


def read_stream_flag(body: Json) -> bool:
    """Read `stream`, and validate `stream_options`."""
    stream = fields.boolean(body, "stream") is True
    options = fields.json_object(body, "stream_options")
    if options is not None:
        if not stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise invalid_request(message, param="stream_options", code="invalid_value")
        for name in ("include_usage", "include_obfuscation", "continuous_usage_stats"):
            fields.boolean(options, name, "stream_options.")
    return stream


def model_name(body: Json) -> str | None:
    """Read `model` as the client sent it."""
    return fields.string(body, "model", MODEL_NAME_LENGTH)


def expand_choices(prompts: list[Json], body: Json) -> list[Json]:
    """Return the engine's bodies: each prompt n times, with distinct seeds."""
    n = fields.integer(body, "n", 1, CHOICES_LIMIT) or 1
    if len(prompts) * n > TOTAL_CHOICES_LIMIT:
        message = (
            f"Invalid 'n': {len(prompts)} prompts with {n} choices each. Expected at most {TOTAL_CHOICES_LIMIT} "
            "choices in total."
        )
        raise invalid_request(message, param="n", code="integer_above_max_value")
    seed = fields.integer(body, "seed", -INT64, 2 * INT64)
    usage: Json = {"stream_options": {"include_usage": True}}
    if read_request_facts(body).continuous_usage:  # llama.cpp reports token counts in its timings
        usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings_per_token": True}
    bodies = []
    for prompt in prompts:
        for number in range(n):
            engine_body = {**prompt, "stream": True, **usage}
            if seed is not None and seed != -1:  # llama.cpp reads -1 as "random seed"
                engine_body["seed"] = (seed + number) % _SEED_MODULUS
            bodies.append(engine_body)
    return bodies


def engine_request_facts(
    body: Json, choices: int, stop_strings: tuple[str, ...], tool_choice: str | Json | None = None
) -> RequestFacts:
    """Return the facts for the stream writers: choice count, stop strings, and the tool choice in chat form."""
    return msgspec.structs.replace(
        read_request_facts({**body, "tool_choice": tool_choice}), choice_count=choices, stop_strings=stop_strings
    )


def read_prompts(body: Json, name: str, limit: int, context: int) -> list[object]:
    """Read a string, an array of token ids, or an array of either; returns a list of prompts."""
    value = body.get(name)
    match value:
        case None:
            raise fields.missing(name)
        case str():
            items: list[object] = [value]
        case [first, *_] if isinstance(first, int):
            items = [value]
        case [_, *_]:
            items = value
        case _:
            raise fields.wrong_type(name, "a string or a non-empty array", value)
    if len(items) > limit:
        raise fields.too_many(name, limit, len(items))
    tokens = sum(len(item) for item in items if isinstance(item, list))
    tokens_limit = max(TOKEN_IDS_LIMIT, context)
    if tokens > tokens_limit:
        message = f"Invalid '{name}': too many token ids. Expected at most {tokens_limit}, but got {tokens} instead."
        raise invalid_request(message, param=name, code="array_above_max_length")
    return items


def check_context_length(text_bytes: int, context: int, param: str) -> None:
    """Reject text that cannot fit into the context, before an engine tokenises it."""
    if context and text_bytes > BYTES_PER_TOKEN * context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your request has {text_bytes} bytes "
            f"of text, more than {BYTES_PER_TOKEN} per token. Please reduce the length of the {param}."
        )
        raise invalid_request(message, param=param, code="context_length_exceeded")


def unsupported_by_model(feature: str) -> ApiError:
    """Return the error for an endpoint that this kind of model does not serve."""
    return invalid_request(f"This model does not support {feature}.", param="model", code="unsupported_by_model")


def check_prompt_tokens(values: list[object], param: str, capabilities: ModelCapabilities) -> list[int]:
    """Validate token ids against the model's context and vocabulary."""
    if capabilities.context and len(values) > capabilities.context:
        message = (
            f"This model's maximum context length is {capabilities.context} tokens. However, your prompt has "
            f"{len(values)} tokens. Please reduce its length."
        )
        raise invalid_request(message, param=param, code="context_length_exceeded")
    return check_tokens(values, param, capabilities.vocabulary_size)


def check_tokens(values: list[object], param: str, vocabulary: int) -> list[int]:
    """Validate token ids against the vocabulary size; 0 means unknown."""
    highest = vocabulary - 1 if vocabulary else MAX_TOKEN_ID
    for index, value in enumerate(values):
        if type(value) is not int:
            raise fields.wrong_type(f"{param}[{index}]", "an integer", value)
        if not 0 <= value <= highest:
            got = fields.shorten_value(value)
            message = f"Invalid '{param}[{index}]': expected a token id from 0 to {highest}, but got {got}."
            raise invalid_request(message, param=param, code="invalid_value")
    return [value for value in values if isinstance(value, int)]


def _stop_strings(body: Json) -> list[str] | None:
    stop = body.get("stop")
    if isinstance(stop, list | None):
        return fields.strings(body, "stop", STOP_STRINGS_LIMIT, STOP_STRING_LENGTH)
    if not isinstance(stop, str):
        raise fields.wrong_type("stop", "a string or an array of strings", stop)
    return fields.strings({"stop": [stop]}, "stop", 1, STOP_STRING_LENGTH)


def _logit_bias(body: Json, vocabulary: int) -> dict[str, float]:
    bias = fields.json_object(body, "logit_bias") or {}
    if len(bias) > LOGIT_BIAS_LIMIT:
        raise fields.too_many("logit_bias", LOGIT_BIAS_LIMIT, len(bias))
    out = {}
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= _TOKEN_ID_DIGITS):
            message = f"Invalid key in 'logit_bias': '{fields.shorten_value(key)}'. Keys are token ids."
            raise invalid_request(message, param="logit_bias", code="invalid_value")
        check_tokens([int(key)], "logit_bias", vocabulary)
        value = fields.number(bias, key, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, "logit_bias.")
        if value is not None:
            out[str(int(key))] = value
    return out
