"""`/v1/embeddings`: the body checked."""

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import (
    UNKNOWN_ABILITIES,
    unsupported_by_model,
    check_context_length,
    check_prompt_tokens,
    model_name,
    read_prompts,
)
from welldone.wire.asked import RequestFacts
from welldone.wire.events import Json

INPUTS_LIMIT = 2_048
"""OpenAI's."""
DIMENSIONS_LIMIT = 65_536  # more than any model has


def read_embeddings(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A request for embeddings, checked."""
    able = abilities or UNKNOWN_ABILITIES
    if not able.embeddings:
        raise unsupported_by_model("embeddings; it would have to be started with --embeddings")
    items = read_prompts(body, "input", INPUTS_LIMIT, able.context)
    inputs = [
        _read_input(item, f"input[{place}]" if len(items) > 1 else "input", able) for place, item in enumerate(items)
    ]
    dimensions = fields.integer(body, "dimensions", 1, able.embedding_size or DIMENSIONS_LIMIT)
    form = fields.choice(body, "encoding_format", ("float", "base64"))
    name = model_name(body)
    return ValidatedRequest(
        endpoint="embeddings",
        model=name,
        facts=RequestFacts(model=name),
        bodies=[{"input": inputs, "encoding_format": "float"}],
        prompt_count=len(inputs),
        dimensions=dimensions,
        is_base64=form == "base64",
    )


def _read_input(item: object, param: str, abilities: ModelCapabilities) -> str | list[int]:
    if isinstance(item, str):
        if not item:
            raise invalid_request(
                f"Invalid '{param}': an empty string has no embedding.", param=param, code="invalid_value"
            )
        check_context_length(len(item.encode()), abilities.context, "input")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, abilities)
