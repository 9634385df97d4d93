"""`/v1/completions`: the body checked, and what the engine gets for each prompt and choice."""

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.settings import ModelSettings
from welldone.serve.requests import fields
from welldone.serve.requests.formats import VLLM_CONSTRAINT_FIELDS, read_output_constraint
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import (
    CHOICES_LIMIT,
    TOTAL_CHOICES_LIMIT,
    TOP_LOGPROBS_LIMIT,
    UNKNOWN_ABILITIES,
    unsupported_by_model,
    check_context_length,
    check_prompt_tokens,
    read_stream_flag,
    model_name,
    engine_request_facts,
    read_sampling,
    read_prompts,
    expand_choices,
    extract_stop_strings,
    with_defaults,
)
from welldone.serve.requests.schema import SchemaBudget
from welldone.wire.events import Json

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

_COMPLETION_MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens", "n_predict")


def read_completions(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A request for a text to be continued, checked."""
    able = abilities or UNKNOWN_ABILITIES
    if not able.chat:
        raise unsupported_by_model("completions: it makes embeddings or ranks")
    asked = body
    body = with_defaults(body, model.defaults)
    stream = read_stream_flag(body)
    engine = read_sampling(body, "completions", able)
    stops = extract_stop_strings(engine, able)
    if not any(name in body for name in _COMPLETION_MAX_TOKENS_FIELDS):
        engine["max_tokens"] = DEFAULT_MAX_TOKENS
    _apply_completion_constraint(body, engine, able.kind == "command")
    top = fields.integer(body, "logprobs", 0, TOP_LOGPROBS_LIMIT)
    if top is not None:
        engine["logprobs"] = max(top, 1)
    _check_best_of(body)
    items = read_prompts(body, "prompt", TOTAL_CHOICES_LIMIT, able.context)
    prompts = [
        _read_prompt(item, f"prompt[{place}]" if len(items) > 1 else "prompt", able) for place, item in enumerate(items)
    ]
    parts = expand_choices([{**engine, "prompt": prompt} for prompt in prompts], body)
    return ValidatedRequest(
        endpoint="completions",
        model=model_name(body),
        is_stream=stream,
        facts=engine_request_facts(asked, len(parts), stops),
        bodies=parts,
        prompt_count=len(prompts),
        echo=_read_echo(body, prompts),
        top_logprobs=top,
    )


def _apply_completion_constraint(body: Json, engine_body: Json, is_command: bool) -> None:
    if is_command:
        engine_body |= {name: body[name] for name in VLLM_CONSTRAINT_FIELDS if body.get(name) is not None}
        body = {name: value for name, value in body.items() if name not in VLLM_CONSTRAINT_FIELDS}
    form = read_output_constraint(body, SchemaBudget())
    if form.schema is not None:
        engine_body["json_schema"] = form.schema
    elif form.grammar is not None:
        engine_body["grammar"] = form.grammar
    if form.schema is not None or form.grammar is not None:
        engine_body.pop("ignore_eos", None)  # where a grammar is at its end, llama.cpp fails if it may not end


def _read_prompt(item: object, param: str, abilities: ModelCapabilities) -> str | list[int]:
    if isinstance(item, str):
        check_context_length(len(item.encode()), abilities.context, "prompt")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, abilities)


def _read_echo(body: Json, prompts: list[str | list[int]]) -> list[str] | None:
    if not fields.boolean(body, "echo"):
        return None
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise fields.unsupported("echo", "needs prompts of text, not of token ids.")
    if fields.integer(body, "logprobs", 0, TOP_LOGPROBS_LIMIT) is not None:
        raise fields.unsupported("echo", "cannot be had with 'logprobs': those of a prompt are not known here.")
    return texts


def _check_best_of(body: Json) -> None:
    n = fields.integer(body, "n", 1, CHOICES_LIMIT) or 1
    best = fields.integer(body, "best_of", 1, CHOICES_LIMIT)
    if best is not None and best != n:
        raise fields.unsupported("best_of", "must be the same as 'n': answers are not compared here.")
