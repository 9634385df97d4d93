"""`/tokenize` and `/detokenize`: the bodies checked. They count, so their length is bounded by the body's alone."""

from welldone.engines.abilities import Abilities
from welldone.engines.settings import ModelSettings
from welldone.serve.requests import fields
from welldone.serve.requests.request import Request
from welldone.serve.requests.sampling import UNKNOWN, check_tokens, model_name
from welldone.wire.asked import Asked
from welldone.wire.events import Json

_FLAGS = {"add_special": "add_special", "add_special_tokens": "add_special", "parse_special": "parse_special"}


def read_tokenize(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """A text to be cut into tokens. vLLM's names are known too."""
    param = "prompt" if body.get("content") is None and body.get("prompt") is not None else "content"
    content = body.get(param)
    if not isinstance(content, str):
        raise fields.missing(param) if content is None else fields.wrong_type(param, "a string", content)
    engine: Json = {"content": content}
    for name, known in _FLAGS.items():
        flag = fields.boolean(body, name)
        if flag is not None:
            engine[known] = flag
    if fields.boolean(body, "with_pieces") or fields.boolean(body, "return_token_strs"):
        engine["with_pieces"] = True
    return _request("tokenize", body, engine)


def read_detokenize(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """Tokens to be put together again."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise fields.missing("tokens") if tokens is None else fields.wrong_type("tokens", "an array", tokens)
    return _request("detokenize", body, {"tokens": check_tokens(tokens, "tokens", (abilities or UNKNOWN).vocabulary)})


def _request(endpoint: str, body: Json, engine: Json) -> Request:
    name = model_name(body)
    return Request(endpoint=endpoint, model=name, asked=Asked(model=name), parts=[engine])
