"""`/tokenize` and `/detokenize`: the bodies checked.

They count, so more than fits into the context is let through, but not without end: the engine does nothing else while
it cuts a text, and four megabytes take it seconds.
"""

from welldone.engines.abilities import Abilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid
from welldone.serve.requests import fields
from welldone.serve.requests.request import Request
from welldone.serve.requests.sampling import BYTES_PER_TOKEN, UNKNOWN, check_tokens, model_name
from welldone.wire.asked import Asked
from welldone.wire.events import Json

TEXT_BYTES = 256 * 2**10
"""Of a text, where the context is not larger still: some chapters of a book, which take the engine 0.3 to 0.5 s."""
TOKENS = 65_536
"""The same, in tokens of four bytes."""

FLAGS = {"add_special": "add_special", "add_special_tokens": "add_special", "parse_special": "parse_special"}


def read_tokenize(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """A text to be cut into tokens. vLLM's names are known too."""
    limit = max(TEXT_BYTES, BYTES_PER_TOKEN * (abilities or UNKNOWN).context)
    texts = {name: body[name] for name in ("content", "prompt") if body.get(name) is not None}
    if not texts:
        raise fields.missing("content")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise fields.wrong_type(name, "a string", text)
    param, content = next(iter(texts.items()))
    if len(content) > limit or len(content.encode()) > limit:
        message = f"Invalid '{param}': text too long. Expected at most {limit} bytes."
        raise invalid(message, param=param, code="string_above_max_length")
    engine: Json = {"content": content}
    for name, known in FLAGS.items():
        flag = fields.boolean(body, name)
        if flag is not None:
            engine[known] = flag
    has_pieces = fields.boolean(body, "with_pieces")
    has_texts = fields.boolean(body, "return_token_strs")
    if has_pieces or has_texts:
        engine["with_pieces"] = True
    request = _request("tokenize", body, engine)
    request.has_token_texts, request.has_pieces = has_texts is True, has_pieces is True
    return request


def read_detokenize(body: Json, model: ModelSettings, abilities: Abilities | None) -> Request:
    """Tokens to be put together again."""
    able = abilities or UNKNOWN
    tokens = fields.array(body, "tokens", max(TOKENS, able.context))
    if tokens is None:
        raise fields.missing("tokens")
    return _request("detokenize", body, {"tokens": check_tokens(tokens, "tokens", able.vocabulary)})


def _request(endpoint: str, body: Json, engine: Json) -> Request:
    name = model_name(body)
    return Request(endpoint=endpoint, model=name, asked=Asked(model=name), parts=[engine])
