"""`/v1/embeddings`: the body checked."""

from welldone.engines.abilities import Abilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid
from welldone.serve.requests import fields
from welldone.serve.requests.request import Request
from welldone.serve.requests.sampling import UNKNOWN, cannot, check_length, check_prompt_tokens, model_name, several
from welldone.wire.asked import Asked
from welldone.wire.events import Json

INPUTS_LIMIT = 2_048
"""OpenAI's."""
DIMENSIONS_LIMIT = 65_536  # more than any model has


def read_embeddings(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """A request for embeddings, checked."""
    able = abilities or UNKNOWN
    if not able.embeddings:
        raise cannot("embeddings; it would have to be started with --embeddings")
    items = several(body, "input", INPUTS_LIMIT, able.context)
    inputs = [_input(item, f"input[{place}]" if len(items) > 1 else "input", able) for place, item in enumerate(items)]
    dimensions = fields.integer(body, "dimensions", 1, able.embedding or DIMENSIONS_LIMIT)
    form = fields.choice(body, "encoding_format", ("float", "base64"))
    name = model_name(body)
    return Request(
        endpoint="embeddings",
        model=name,
        asked=Asked(model=name),
        parts=[{"input": inputs, "encoding_format": "float"}],
        prompts=len(inputs),
        dimensions=dimensions,
        is_base64=form == "base64",
    )


def _input(item: object, param: str, abilities: Abilities) -> str | list[int]:
    if isinstance(item, str):
        if not item:
            raise invalid(f"Invalid '{param}': an empty string has no embedding.", param=param, code="invalid_value")
        check_length(len(item.encode()), abilities.context, "input")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, abilities)
