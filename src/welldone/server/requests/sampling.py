"""What chat and completions share: how tokens are chosen, how many, when to stop, and how many answers."""

from collections.abc import Mapping

import msgspec

from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.server.requests import fields
from welldone.server.requests.fields import TextEndpoint, read_forwarded_fields

CHOICES_LIMIT = 8
"""Answers to one prompt. OpenAI allows 128; here they share one machine, and each takes a slot."""
TOTAL_CHOICES_LIMIT = 64
"""Answers of one request, over all its prompts."""
TOP_LOGPROBS_LIMIT = 20
"""OpenAI's limit of alternatives to a token."""
BYTES_PER_TOKEN = 16
"""Text of all languages has under 6 bytes a token. What has more than 16 for each token of the context does not fit
(unless it is blanks almost only), and is refused before it is tokenised: a megabyte of text costs the engine 0.3 s."""
TOKEN_IDS_LIMIT = 300_000
"""Token ids of one request: OpenAI's limit for embeddings. A model with a longer context takes as many as that has."""

STOP_STRINGS_LIMIT = 16  # OpenAI's is 4; users of llama.cpp send more
STOP_STRING_LENGTH = 256
LOGIT_BIAS_LIMIT = 1_024  # 300,000 cost the engine 2 s
MAX_LOGIT_BIAS = 100  # OpenAI's: more is no likelier, and less no rarer
MAX_TOKEN_ID = 2**31 - 1
MODEL_NAME_LENGTH = 256  # names are looked up; none that we know of is as long
INT64 = 2**63
_SEED_MODULUS = 2**32 - 1  # the engine takes the last number of 32 bits for "any"
SEQUENCE_BREAKERS_LIMIT = 16
SEQUENCE_BREAKER_LENGTH = 40  # llama.cpp cuts longer ones
SAMPLERS = frozenset(
    ("dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "xtc", "temperature", "penalties", "adaptive_p")
)
_MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")  # the first that is said counts
_TOKEN_ID_DIGITS = 10  # of a token id

UNKNOWN_ABILITIES = ModelCapabilities(
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
"""Of a model that has not said what it can do: it gets the benefit of the doubt."""


def with_defaults(body: Json, defaults: Mapping[str, object]) -> Json:
    """The body with the model's defaults where it is silent. null is silence."""
    said = {key: value for key, value in body.items() if value is not None}
    out = {**defaults, **said}
    if any(name in said for name in _MAX_TOKENS_FIELDS):
        for name in _MAX_TOKENS_FIELDS:
            if name not in said:
                out.pop(name, None)
    return out


def read_sampling(body: Json, endpoint: TextEndpoint, abilities: ModelCapabilities) -> Json:
    """The fields of the engine's body that say how tokens are chosen."""
    out = read_forwarded_fields(body, endpoint, abilities.context, is_command=abilities.kind == "command")
    most = read_max_tokens(body, abilities.context)
    if most is not None:
        out["max_tokens"] = most
    stops = _stop_strings(body)
    if stops:
        out["stop"] = stops
    bias = _logit_bias(body, abilities.vocabulary_size)
    if bias:
        out["logit_bias"] = bias
    breakers = fields.strings(body, "dry_sequence_breakers", SEQUENCE_BREAKERS_LIMIT, SEQUENCE_BREAKER_LENGTH)
    if breakers:
        out["dry_sequence_breakers"] = breakers
    samplers = fields.strings(body, "samplers", len(SAMPLERS), SEQUENCE_BREAKER_LENGTH)
    if samplers:
        out["samplers"] = [name for name in samplers if name in SAMPLERS]
    return out


def extract_stop_strings(engine_body: Json, abilities: ModelCapabilities) -> tuple[str, ...]:
    """The stop strings that are looked for here, taken out of the engine's body.

    llama.cpp holds back what may be the beginning of one, and in a stream that text is lost where the answer ends with
    it. It is asked to count with each token: who leaves it at a stop string hears no usage.
    """
    if abilities.kind != "llama" or "stop" not in engine_body:
        return ()
    engine_body["timings_per_token"] = True
    return tuple(engine_body.pop("stop"))


def read_max_tokens(body: Json, context: int) -> int | None:
    """How many tokens an answer may have; None for no limit but the context."""
    said = [most for name in _MAX_TOKENS_FIELDS if (most := _max_tokens_value(body, name)) is not None]
    return None if not said or said[0] == -1 else min(said[0], context or MAX_TOKEN_ID)


def _max_tokens_value(body: Json, name: str) -> int | None:
    most = fields.integer(body, name, -1, INT64)
    return fields.integer(body, name, 1, INT64) if most == 0 else most


def read_stream_flag(body: Json) -> bool:
    """Whether the answer is streamed; and whether what is said of the stream is right."""
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
    """The model, as the client wrote it."""
    return fields.string(body, "model", MODEL_NAME_LENGTH)


def expand_choices(prompts: list[Json], body: Json) -> list[Json]:
    """The engine's bodies: each prompt n times, with seeds that differ."""
    n = fields.integer(body, "n", 1, CHOICES_LIMIT) or 1
    if len(prompts) * n > TOTAL_CHOICES_LIMIT:
        message = f"Invalid 'n': {len(prompts)} prompts with {n} answers each; at most {TOTAL_CHOICES_LIMIT} answers are given."
        raise invalid_request(message, param="n", code="integer_above_max_value")
    seed = fields.integer(body, "seed", -INT64, 2 * INT64)
    counted: Json = {"stream_options": {"include_usage": True}}
    if read_request_facts(body).continuous_usage:  # llama.cpp counts in its timings
        counted = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings_per_token": True}
    parts = []
    for prompt in prompts:
        for number in range(n):
            part = {**prompt, "stream": True, **counted}
            if seed is not None and seed != -1:  # -1 is llama.cpp's word for "any"
                part["seed"] = (seed + number) % _SEED_MODULUS
            parts.append(part)
    return parts


def engine_request_facts(
    body: Json, choices: int, stop_strings: tuple[str, ...], tool_choice: str | Json | None = None
) -> RequestFacts:
    """What the writers must know: how many choices, which stop strings, and the choice of tools in its plain form."""
    return msgspec.structs.replace(
        read_request_facts({**body, "tool_choice": tool_choice}), choice_count=choices, stop_strings=stop_strings
    )


def read_prompts(body: Json, name: str, limit: int, context: int) -> list[object]:
    """What may be one text, one list of token ids, or a list of either: always as a list."""
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
            raise fields.wrong_type(name, "a string, or an array that is not empty", value)
    if len(items) > limit:
        raise fields.too_many(name, limit, len(items))
    tokens = sum(len(item) for item in items if isinstance(item, list))
    if tokens > max(TOKEN_IDS_LIMIT, context):
        message = f"Invalid '{name}': {tokens} token ids; at most {max(TOKEN_IDS_LIMIT, context)} are accepted at once."
        raise invalid_request(message, param=name, code="array_above_max_length")
    return items


def check_context_length(text_bytes: int, context: int, param: str) -> None:
    """Text that cannot fit is refused before an engine counts its tokens."""
    if context and text_bytes > BYTES_PER_TOKEN * context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your request has {text_bytes} bytes "
            f"of text, more than {BYTES_PER_TOKEN} for each of them. Please reduce the length of the {param}."
        )
        raise invalid_request(message, param=param, code="context_length_exceeded")


def unsupported_by_model(feature: str) -> ApiError:
    """The model is of another kind."""
    return invalid_request(f"This model does not offer {feature}.", param="model", code="unsupported_by_model")


def check_prompt_tokens(values: list[object], param: str, abilities: ModelCapabilities) -> list[int]:
    """Token ids that the model has, and no more than fit."""
    if abilities.context and len(values) > abilities.context:
        message = (
            f"This model's maximum context length is {abilities.context} tokens. However, your prompt has "
            f"{len(values)} tokens. Please reduce its length."
        )
        raise invalid_request(message, param=param, code="context_length_exceeded")
    return check_tokens(values, param, abilities.vocabulary_size)


def check_tokens(values: list[object], param: str, vocabulary: int) -> list[int]:
    """Token ids that the model has."""
    most = vocabulary - 1 if vocabulary else MAX_TOKEN_ID
    for place, value in enumerate(values):
        if type(value) is not int:
            raise fields.wrong_type(f"{param}[{place}]", "an integer", value)
        if not 0 <= value <= most:
            message = f"Invalid '{param}[{place}]': expected a token id of 0 to {most}, but got {fields.shorten_value(value)}."
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
    """Token ids and how much likelier they become."""
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
