"""`/tokenize` and `/detokenize`: the bodies checked.

They count, so more than fits into the context is let through, but not without end: the engine does nothing else while
it cuts a text, and four megabytes take it seconds.
"""

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import BYTES_PER_TOKEN, UNKNOWN_ABILITIES, check_tokens, model_name
from welldone.wire.asked import RequestFacts
from welldone.wire.events import Json

TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Of a text, where the context is not larger still: some chapters of a book, which take the engine 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same, in tokens of four bytes."""

TOKENIZE_FLAGS = {"add_special": "add_special", "add_special_tokens": "add_special", "parse_special": "parse_special"}


def read_tokenize(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A text to be cut into tokens. vLLM's names are known too."""
    limit = max(TOKENIZE_LIMIT_BYTES, BYTES_PER_TOKEN * (abilities or UNKNOWN_ABILITIES).context)
    texts = {name: body[name] for name in ("content", "prompt") if body.get(name) is not None}
    if not texts:
        raise fields.missing("content")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise fields.wrong_type(name, "a string", text)
    param, content = next(iter(texts.items()))
    if len(content) > limit or len(content.encode()) > limit:
        message = f"Invalid '{param}': text too long. Expected at most {limit} bytes."
        raise invalid_request(message, param=param, code="string_above_max_length")
    engine: Json = {"content": content}
    for name, known in TOKENIZE_FLAGS.items():
        flag = fields.boolean(body, name)
        if flag is not None:
            engine[known] = flag
    has_pieces = fields.boolean(body, "with_pieces")
    has_texts = fields.boolean(body, "return_token_strs")
    if has_pieces or has_texts:
        engine["with_pieces"] = True
    request = _token_request("tokenize", body, engine)
    request.has_token_texts, request.has_pieces = has_texts is True, has_pieces is True
    return request


def read_detokenize(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """Tokens to be put together again."""
    able = abilities or UNKNOWN_ABILITIES
    tokens = fields.array(body, "tokens", max(DETOKENIZE_LIMIT, able.context))
    if tokens is None:
        raise fields.missing("tokens")
    return _token_request("detokenize", body, {"tokens": check_tokens(tokens, "tokens", able.vocabulary_size)})


def _token_request(endpoint: str, body: Json, engine_body: Json) -> ValidatedRequest:
    name = model_name(body)
    return ValidatedRequest(endpoint=endpoint, model=name, facts=RequestFacts(model=name), bodies=[engine_body])
