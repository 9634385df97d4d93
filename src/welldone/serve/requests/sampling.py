"""What chat and completions share: how tokens are chosen, how many, when to stop, and how many answers."""

from collections.abc import Mapping

import msgspec

from welldone.engines.abilities import Abilities
from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests import fields
from welldone.serve.requests.table import Endpoint, passed
from welldone.wire.asked import Asked, read_request
from welldone.wire.events import Json

CHOICES_LIMIT = 8
"""Answers to one prompt. OpenAI allows 128; here they share one machine, and each takes a slot."""
PARTS_LIMIT = 64
"""Answers of one request, over all its prompts."""
TOP_LIMIT = 20
"""OpenAI's limit of alternatives to a token."""
BYTES_PER_TOKEN = 16
"""Text of all languages has under 6 bytes a token. What has more than 16 for each token of the context does not fit
(unless it is blanks almost only), and is refused before it is tokenised: a megabyte of text costs the engine 0.3 s."""
TOKENS_LIMIT = 300_000
"""Token ids of one request: OpenAI's limit for embeddings. A model with a longer context takes as many as that has."""

STOPS_LIMIT = 16  # OpenAI's is 4; users of llama.cpp send more
STOP_LENGTH = 256
BIAS_LIMIT = 1_024  # 300,000 cost the engine 2 s
BIAS = 100  # OpenAI's: more is no likelier, and less no rarer
TOKEN_LIMIT = 2**31 - 1
MODEL_LENGTH = 256  # names are looked up; none that we know of is as long
INT64 = 2**63
_SEEDS = 2**32 - 1  # the engine takes the last number of 32 bits for "any"
BREAKERS_LIMIT = 16
BREAKER_LENGTH = 40  # llama.cpp cuts longer ones
SAMPLERS = frozenset(
    ("dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "xtc", "temperature", "penalties", "adaptive_p")
)
_MOST_TOKENS = ("max_completion_tokens", "max_tokens", "n_predict")  # the first that is said counts
_DIGITS = 10  # of a token id

UNKNOWN = Abilities(
    kind="llama",
    context=0,
    context_train=0,
    slots=0,
    vocabulary=0,
    embedding=0,
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
    if any(name in said for name in _MOST_TOKENS):
        for name in _MOST_TOKENS:
            if name not in said:
                out.pop(name, None)
    return out


def read_sampling(body: Json, endpoint: Endpoint, abilities: Abilities) -> Json:
    """The fields of the engine's body that say how tokens are chosen."""
    out = passed(body, endpoint, abilities.context, is_command=abilities.kind == "command")
    most = read_most_tokens(body, abilities.context)
    if most is not None:
        out["max_tokens"] = most
    stops = _stops(body)
    if stops:
        out["stop"] = stops
    bias = _bias(body, abilities.vocabulary)
    if bias:
        out["logit_bias"] = bias
    breakers = fields.strings(body, "dry_sequence_breakers", BREAKERS_LIMIT, BREAKER_LENGTH)
    if breakers:
        out["dry_sequence_breakers"] = breakers
    samplers = fields.strings(body, "samplers", len(SAMPLERS), BREAKER_LENGTH)
    if samplers:
        out["samplers"] = [name for name in samplers if name in SAMPLERS]
    return out


def take_stops(engine: Json, abilities: Abilities) -> tuple[str, ...]:
    """The stop strings that are looked for here, taken out of the engine's body.

    llama.cpp holds back what may be the beginning of one, and in a stream that text is lost where the answer ends with
    it. It is asked to count with each token: who leaves it at a stop string hears no usage.
    """
    if abilities.kind != "llama" or "stop" not in engine:
        return ()
    engine["timings_per_token"] = True
    return tuple(engine.pop("stop"))


def read_most_tokens(body: Json, context: int) -> int | None:
    """How many tokens an answer may have; None for no limit but the context."""
    said = [most for name in _MOST_TOKENS if (most := _most(body, name)) is not None]
    return None if not said or said[0] == -1 else min(said[0], context or TOKEN_LIMIT)


def _most(body: Json, name: str) -> int | None:
    most = fields.integer(body, name, -1, INT64)
    return fields.integer(body, name, 1, INT64) if most == 0 else most


def is_stream(body: Json) -> bool:
    """Whether the answer is streamed; and whether what is said of the stream is right."""
    stream = fields.boolean(body, "stream") is True
    options = fields.table(body, "stream_options")
    if options is not None:
        if not stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise invalid(message, param="stream_options", code="invalid_value")
        for name in ("include_usage", "include_obfuscation", "continuous_usage_stats"):
            fields.boolean(options, name, "stream_options.")
    return stream


def model_name(body: Json) -> str | None:
    """The model, as the client wrote it."""
    return fields.string(body, "model", MODEL_LENGTH)


def spread(prompts: list[Json], body: Json) -> list[Json]:
    """The engine's bodies: each prompt n times, with seeds that differ."""
    n = fields.integer(body, "n", 1, CHOICES_LIMIT) or 1
    if len(prompts) * n > PARTS_LIMIT:
        message = f"Invalid 'n': {len(prompts)} prompts with {n} answers each; at most {PARTS_LIMIT} answers are given."
        raise invalid(message, param="n", code="integer_above_max_value")
    seed = fields.integer(body, "seed", -INT64, 2 * INT64)
    counted: Json = {"stream_options": {"include_usage": True}}
    if read_request(body).continuous_usage:  # llama.cpp counts in its timings
        counted = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings_per_token": True}
    parts = []
    for prompt in prompts:
        for number in range(n):
            part = {**prompt, "stream": True, **counted}
            if seed is not None and seed != -1:  # -1 is llama.cpp's word for "any"
                part["seed"] = (seed + number) % _SEEDS
            parts.append(part)
    return parts


def read_asked(body: Json, choices: int, stops: tuple[str, ...], choice: str | Json | None = None) -> Asked:
    """What the writers must know: how many choices, which stop strings, and the choice of tools in its plain form."""
    return msgspec.structs.replace(read_request({**body, "tool_choice": choice}), choices=choices, stops=stops)


def several(body: Json, name: str, limit: int, context: int) -> list[object]:
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
    if tokens > max(TOKENS_LIMIT, context):
        message = f"Invalid '{name}': {tokens} token ids; at most {max(TOKENS_LIMIT, context)} are accepted at once."
        raise invalid(message, param=name, code="array_above_max_length")
    return items


def check_length(text_bytes: int, context: int, param: str) -> None:
    """Text that cannot fit is refused before an engine counts its tokens."""
    if context and text_bytes > BYTES_PER_TOKEN * context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your request has {text_bytes} bytes "
            f"of text, more than {BYTES_PER_TOKEN} for each of them. Please reduce the length of the {param}."
        )
        raise invalid(message, param=param, code="context_length_exceeded")


def cannot(what: str) -> ApiError:
    """The model is of another kind."""
    return invalid(f"This model does not offer {what}.", param="model", code="unsupported_by_model")


def check_prompt_tokens(values: list[object], param: str, abilities: Abilities) -> list[int]:
    """Token ids that the model has, and no more than fit."""
    if abilities.context and len(values) > abilities.context:
        message = (
            f"This model's maximum context length is {abilities.context} tokens. However, your prompt has "
            f"{len(values)} tokens. Please reduce its length."
        )
        raise invalid(message, param=param, code="context_length_exceeded")
    return check_tokens(values, param, abilities.vocabulary)


def check_tokens(values: list[object], param: str, vocabulary: int) -> list[int]:
    """Token ids that the model has."""
    most = vocabulary - 1 if vocabulary else TOKEN_LIMIT
    for place, value in enumerate(values):
        if type(value) is not int:
            raise fields.wrong_type(f"{param}[{place}]", "an integer", value)
        if not 0 <= value <= most:
            message = f"Invalid '{param}[{place}]': expected a token id of 0 to {most}, but got {fields.shown(value)}."
            raise invalid(message, param=param, code="invalid_value")
    return [value for value in values if isinstance(value, int)]


def _stops(body: Json) -> list[str] | None:
    stop = body.get("stop")
    if isinstance(stop, list | None):
        return fields.strings(body, "stop", STOPS_LIMIT, STOP_LENGTH)
    if not isinstance(stop, str):
        raise fields.wrong_type("stop", "a string or an array of strings", stop)
    return fields.strings({"stop": [stop]}, "stop", 1, STOP_LENGTH)


def _bias(body: Json, vocabulary: int) -> dict[str, float]:
    """Token ids and how much likelier they become."""
    bias = fields.table(body, "logit_bias") or {}
    if len(bias) > BIAS_LIMIT:
        raise fields.too_many("logit_bias", BIAS_LIMIT, len(bias))
    out = {}
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= _DIGITS):
            message = f"Invalid key in 'logit_bias': '{fields.shown(key)}'. Keys are token ids."
            raise invalid(message, param="logit_bias", code="invalid_value")
        check_tokens([int(key)], "logit_bias", vocabulary)
        value = fields.number(bias, key, -BIAS, BIAS, "logit_bias.")
        if value is not None:
            out[str(int(key))] = value
    return out
