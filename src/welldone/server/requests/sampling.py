"""Fields that chat and completions share: sampling, token limits, stop strings, choices and constraints on the text."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from welldone.core.events import Json
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import chat as schema
from welldone.schemas.chat import GenerationBody, JsonObjectFormat, JsonSchemaFormat
from welldone.schemas.errors import shorten_value
from welldone.schemas.fields import FieldHandling
from welldone.server.requests import fields
from welldone.server.requests.fields import JsonSizeLimits, decode_json
from welldone.server.requests.json_schema import SchemaBudget, check_schema

RequestType = TypeVar("RequestType", bound=schema.GenerationBody)

BYTES_PER_TOKEN = 16
"""Text has under 6 bytes per token in all languages. Text with more than 16 bytes per token of the context cannot fit
(unless it is mostly blanks); it is rejected before the engine tokenises it, which takes 0.3 s per megabyte."""
TOKEN_IDS_LIMIT = 300_000
"""Token ids of one request: OpenAI's limit for embeddings. For a model with a longer context, that context."""
DEFAULT_CONTEXT = 8192
"""Longest window of a sampler if the model's context is unknown: the context size that local models get by default."""

_SEED_MODULUS = 2**32 - 1  # llama.cpp reads 2^32 - 1 as "random seed"
MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")  # in order of precedence
_WINDOW_FIELDS = ("repeat_last_n", "dry_allowed_length", "dry_penalty_last_n")
_TOKEN_ID_DIGITS = 10


UNKNOWN_CAPABILITIES = ModelCapabilities(kind="llama")
"""Capabilities of a model that has not reported any."""


def with_defaults(body: Json, defaults: Mapping[str, object]) -> Json:
    """Return the body with the model's defaults for absent and null fields."""
    present = {key: value for key, value in body.items() if value is not None}
    out = {**defaults, **present}
    if any(name in present for name in MAX_TOKENS_FIELDS):
        for name in MAX_TOKENS_FIELDS:
            if name not in present:
                out.pop(name, None)
    return out


def engine_sampling(request: schema.GenerationBody, body: Json, capabilities: ModelCapabilities) -> Json:
    """Return the sampling fields of the engine's body. Raises ApiError for unsupported fields."""
    out: Json = {}
    forwarded = fields.fields_with(FieldHandling.FORWARDED, type(request))
    rejected = fields.fields_with(FieldHandling.REJECTED, type(request))
    for name, value in body.items():
        if name in forwarded:
            out[name] = getattr(request, name)
        elif value and name in rejected:
            if not (capabilities.kind == "command" and rejected[name].extra.get(schema.VLLM_FIELD)):
                raise fields.unsupported(name, rejected[name].note)
            out[name] = value
    if "repetition_penalty" in out:  # vLLM's name
        out["repeat_penalty"] = out.pop("repetition_penalty")
    context = capabilities.context or DEFAULT_CONTEXT
    for name in _WINDOW_FIELDS:
        if name in out:
            out[name] = context if out[name] < 0 else min(out[name], context)
    max_tokens = _max_tokens(request, capabilities.context)
    if max_tokens is not None:
        out["max_tokens"] = max_tokens
    if request.stop:
        out["stop"] = request.stop
    if request.logit_bias and (bias := _logit_bias(request.logit_bias, capabilities.vocabulary_size)):
        out["logit_bias"] = bias
    if request.dry_sequence_breakers:
        out["dry_sequence_breakers"] = request.dry_sequence_breakers
    if request.samplers:
        out["samplers"] = [name for name in request.samplers if name in schema.SAMPLERS]
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


def _max_tokens(request: schema.GenerationBody, context: int) -> int | None:
    """Return the token limit of an answer; None if only the context limits it."""
    limits = []
    for name in MAX_TOKENS_FIELDS:
        limit = getattr(request, name)
        if limit is not None:
            fields.check_range(limit, 1 if limit == 0 else -1, schema.INT64, name, "integer")  # -1: no limit
            limits.append(limit)
    return None if not limits or limits[0] == -1 else min(limits[0], context or schema.MAX_TOKEN_ID)


def read_generation_request(body: Json, schema: type[RequestType]) -> RequestType:
    """Validate the fields of a body that `with_defaults` returned."""
    if isinstance(stop := body.get("stop"), str):
        body["stop"] = [stop]
    request = fields.read_fields(body, schema)
    if request.stream_options is not None and not request.stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise invalid_request(message, param="stream_options", code="invalid_value")
    return request


def expand_choices(prompts: list[Json], request: schema.GenerationBody) -> list[Json]:
    """Return the engine's bodies: each prompt n times, with distinct seeds."""
    n = request.n or 1
    if len(prompts) * n > schema.TOTAL_CHOICES_LIMIT:
        reason = f"{len(prompts)} prompts with {n} choices each. Expected at most {schema.TOTAL_CHOICES_LIMIT} choices"
        raise fields.invalid("n", f"{reason} in total.", "integer_above_max_value")
    seed = request.seed
    if seed is not None:
        fields.check_range(seed, -schema.INT64, 2 * schema.INT64, "seed", "integer")
    usage: Json = {"stream_options": {"include_usage": True}}
    options = request.stream_options
    if options is not None and options.include_usage and options.continuous_usage_stats:
        # llama.cpp reports token counts in its timings
        usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "timings_per_token": True}
    bodies = []
    for prompt in prompts:
        for number in range(n):
            engine_body = {**prompt, "stream": True, **usage}
            if seed is not None and seed != -1:  # llama.cpp reads -1 as "random seed"
                engine_body["seed"] = (seed + number) % _SEED_MODULUS
            bodies.append(engine_body)
    return bodies


def read_prompts(value: object, name: str, limit: int, capabilities: ModelCapabilities) -> list[str | list[int]]:
    """Read a string, an array of token ids, or an array of either; returns a list of prompts."""
    match value:
        case None:
            raise fields.missing(name)
        case str():
            items: list[object] = [value]
        case list() if value:
            items = [value] if isinstance(value[0], int) else value
        case _:
            raise fields.wrong_type(name, "a string or a non-empty array", value)
    if len(items) > limit:
        raise fields.too_many(name, limit, len(items))
    tokens = sum(len(item) for item in items if isinstance(item, list))
    tokens_limit = max(TOKEN_IDS_LIMIT, capabilities.context)
    if tokens > tokens_limit:
        reason = f"too many token ids. Expected at most {tokens_limit}, but got {tokens} instead."
        raise fields.invalid(name, reason, "array_above_max_length")
    prompts: list[str | list[int]] = []
    for index, item in enumerate(items):
        param = f"{name}[{index}]" if len(items) > 1 else name
        if isinstance(item, str):
            check_context_length(len(item.encode()), capabilities.context, name)
            prompts.append(item)
        elif isinstance(item, list) and item:
            prompts.append(_check_prompt_tokens(item, param, capabilities))
        else:
            raise fields.wrong_type(param, "a string or an array of token ids", item)
    return prompts


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


def _check_prompt_tokens(values: list[object], param: str, capabilities: ModelCapabilities) -> list[int]:
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
    highest = vocabulary - 1 if vocabulary else schema.MAX_TOKEN_ID
    for index, value in enumerate(values):
        if type(value) is not int:
            raise fields.wrong_type(f"{param}[{index}]", "an integer", value)
        if not 0 <= value <= highest:
            got = shorten_value(value)
            message = f"Invalid '{param}[{index}]': expected a token id from 0 to {highest}, but got {got}."
            raise invalid_request(message, param=param, code="invalid_value")
    return [value for value in values if isinstance(value, int)]


def _logit_bias(bias: Json, vocabulary: int) -> dict[str, float]:
    out = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _TOKEN_ID_DIGITS):
            message = f"Invalid key in 'logit_bias': '{shorten_value(key)}'. Keys are token ids."
            raise invalid_request(message, param="logit_bias", code="invalid_value")
        check_tokens([int(key)], "logit_bias", vocabulary)
        if value is None:
            continue
        if type(value) not in (int, float):
            raise fields.wrong_type(f"logit_bias.{key}", "a decimal", value)
        fields.check_range(value, -schema.MAX_LOGIT_BIAS, schema.MAX_LOGIT_BIAS, f"logit_bias.{key}", "decimal")
        out[str(int(key))] = value
    return out


ANY_OBJECT: Json = {"type": "object"}

_UNSUPPORTED_KINDS = ("regex", "grammar", "structural_tag")
VLLM_FIELDS = (
    "structured_outputs",
    *(f"guided_{suffix}" for suffix in ("json", "json_object", "choice", *_UNSUPPORTED_KINDS)),
)
_GBNF_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


class OutputConstraint(msgspec.Struct, frozen=True):
    """The constraint on the text of an answer; none if schema and grammar are None."""

    schema: Json | None = None
    grammar: str | None = None
    """A generated grammar in llama.cpp's GBNF; grammars of clients are rejected."""
    param: str = "response_format"
    """The field that sets the constraint."""


def read_output_constraint(request: GenerationBody, budget: SchemaBudget) -> OutputConstraint:
    """Read `response_format`, llama.cpp's `json_schema`, or vLLM's `structured_outputs` and `guided_*`.

    Raises:
        ApiError: the constraint is invalid or not supported, or there is more than one.
    """
    constraints: list[OutputConstraint] = []
    match request.response_format:
        case JsonObjectFormat(schema=schema):  # llama.cpp accepts a schema here too
            constraints.append(_format_constraint(schema, "response_format.schema", budget))
        case JsonSchemaFormat(json_schema=definition):
            constraints.append(_format_constraint(definition.schema, "response_format.json_schema.schema", budget))
        case _:
            pass
    if request.json_schema is not None:
        schema = check_schema(request.json_schema, "json_schema", budget)
        constraints.append(OutputConstraint(schema, param="json_schema"))
    structured = request.structured_outputs
    if structured is not None:
        options = (structured.json, structured.json_object, structured.choice)
        constraints += _guided_constraints(*options, "structured_outputs.", budget)
        for name in _UNSUPPORTED_KINDS:
            if getattr(structured, name) is not None:
                reason = "is not supported by local models; use a JSON schema ('json') or a list ('choice')."
                raise fields.unsupported(f"structured_outputs.{name}", reason)
    guided = (request.guided_json, request.guided_json_object, request.guided_choice)
    constraints += _guided_constraints(*guided, "guided_", budget)
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        message = f"'{second}' and '{first}' cannot be used together."
        raise invalid_request(message, param=second, code="invalid_value")
    return constraints[0] if constraints else OutputConstraint()


def _format_constraint(schema: object, param: str, budget: SchemaBudget) -> OutputConstraint:
    return OutputConstraint(ANY_OBJECT if schema is None else check_schema(schema, param, budget))


def _guided_constraints(
    schema: object, is_json_object: bool | None, choices: list[str] | None, prefix: str, budget: SchemaBudget
) -> list[OutputConstraint]:
    out = []
    if schema is not None:
        param = f"{prefix}json"
        if isinstance(schema, str):
            text = schema.encode()
            JsonSizeLimits(f"schema of '{param}'").check(text)
            schema = decode_json(text)
        out.append(OutputConstraint(check_schema(schema, param, budget), param=param))
    if is_json_object:
        out.append(OutputConstraint(ANY_OBJECT, param=f"{prefix}json_object"))
    if choices is not None:  # llama.cpp follows all that begin alike at once
        grammar = "root ::= " + " | ".join(f'"{_GBNF_SPECIAL.sub(_escape_gbnf, text)}"' for text in choices)
        out.append(OutputConstraint(grammar=grammar, param=f"{prefix}choice"))
    return out


def _escape_gbnf(match: re.Match[str]) -> str:
    char = match[0]
    return f"\\{char}" if char in '"\\' else f"\\x{ord(char):02x}"
