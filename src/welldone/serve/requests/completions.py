"""`/v1/completions`: the body checked, and what the engine gets for each prompt and choice."""

from welldone.engines.abilities import Abilities
from welldone.engines.settings import ModelSettings
from welldone.serve.requests import fields
from welldone.serve.requests.formats import VLLM, read_form
from welldone.serve.requests.request import Request
from welldone.serve.requests.sampling import (
    CHOICES_LIMIT,
    PARTS_LIMIT,
    TOP_LIMIT,
    UNKNOWN,
    cannot,
    check_length,
    check_prompt_tokens,
    is_stream,
    model_name,
    read_asked,
    read_sampling,
    several,
    spread,
    take_stops,
    with_defaults,
)
from welldone.serve.requests.schema import Budget
from welldone.wire.events import Json

MAX_TOKENS = 16
"""OpenAI's default."""

_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "n_predict")


def read_completions(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """A request for a text to be continued, checked."""
    able = abilities or UNKNOWN
    if not able.chat:
        raise cannot("completions: it makes embeddings or ranks")
    asked = body
    body = with_defaults(body, model.defaults)
    stream = is_stream(body)
    engine = read_sampling(body, "completions", able)
    stops = take_stops(engine, able)
    if not any(name in body for name in _MOST_TOKENS):
        engine["max_tokens"] = MAX_TOKENS
    _add_form(body, engine, able.kind == "command")
    top = fields.integer(body, "logprobs", 0, TOP_LIMIT)
    if top is not None:
        engine["logprobs"] = max(top, 1)
    _check_best_of(body)
    items = several(body, "prompt", PARTS_LIMIT, able.context)
    prompts = [
        _prompt(item, f"prompt[{place}]" if len(items) > 1 else "prompt", able) for place, item in enumerate(items)
    ]
    parts = spread([{**engine, "prompt": prompt} for prompt in prompts], body)
    return Request(
        endpoint="completions",
        model=model_name(body),
        is_stream=stream,
        asked=read_asked(asked, len(parts), stops),
        parts=parts,
        prompts=len(prompts),
        echo=_echo(body, prompts),
        top_logprobs=top,
    )


def _add_form(body: Json, engine: Json, is_command: bool) -> None:
    if is_command:
        engine |= {name: body[name] for name in VLLM if body.get(name) is not None}
        body = {name: value for name, value in body.items() if name not in VLLM}
    form = read_form(body, Budget())
    if form.schema is not None:
        engine["json_schema"] = form.schema
    elif form.grammar is not None:
        engine["grammar"] = form.grammar
    if form.schema is not None or form.grammar is not None:
        engine.pop("ignore_eos", None)  # where a grammar is at its end, llama.cpp fails if it may not end


def _prompt(item: object, param: str, abilities: Abilities) -> str | list[int]:
    if isinstance(item, str):
        check_length(len(item.encode()), abilities.context, "prompt")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, abilities)


def _echo(body: Json, prompts: list[str | list[int]]) -> list[str] | None:
    if not fields.boolean(body, "echo"):
        return None
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise fields.unsupported("echo", "needs prompts of text, not of token ids.")
    if fields.integer(body, "logprobs", 0, TOP_LIMIT) is not None:
        raise fields.unsupported("echo", "cannot be had with 'logprobs': those of a prompt are not known here.")
    return texts


def _check_best_of(body: Json) -> None:
    n = fields.integer(body, "n", 1, CHOICES_LIMIT) or 1
    best = fields.integer(body, "best_of", 1, CHOICES_LIMIT)
    if best is not None and best != n:
        raise fields.unsupported("best_of", "must be the same as 'n': answers are not compared here.")
