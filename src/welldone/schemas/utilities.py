"""Requests to small endpoints: `/v1/embeddings`, `/v1/rerank`, `/tokenize`, `/detokenize`, `/models/load`, `/keys`."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from welldone.schemas.chat import MAX_TOKEN_ID, text_or_token_ids
from welldone.schemas.fields import INT32_MAX, ModelName, note, text_or_object

INPUTS_LIMIT = 2_048
"""OpenAI's limit."""
DIMENSIONS_LIMIT = 65_536
"""More than any model has."""
DOCUMENTS_LIMIT = 1_000
"""Cohere's limit."""
_PER_MINUTE_LIMIT = 10**12
"""More than any server handles."""
_MODELS_LIMIT = 1_000
"""Patterns of one key. A request is matched against each."""
_PerMinute = Annotated[int, note("0: no limit; absent: that of the server", ge=0, le=_PER_MINUTE_LIMIT)]


class EmbeddingsRequest(Struct, kw_only=True):
    """A request to `/v1/embeddings`."""

    model: ModelName | None = None
    input: Annotated[Any, Meta(extra_json_schema=text_or_token_ids(INPUTS_LIMIT))]
    dimensions: Annotated[int, Meta(ge=1, le=DIMENSIONS_LIMIT)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class RerankRequest(Struct, kw_only=True):
    """A request to `/v1/rerank`, in the format of Jina and Cohere."""

    model: ModelName | None = None
    query: str
    documents: Annotated[
        list[Any], Meta(min_length=1, max_length=DOCUMENTS_LIMIT, extra_json_schema={"items": text_or_object("text")})
    ]
    top_n: Annotated[int, note("more than there are documents: all", ge=1, le=INT32_MAX)] | None = None
    return_documents: bool | None = None


class TokenizeRequest(Struct, kw_only=True):
    """A request to `/tokenize`, with the names of llama.cpp (`content`) or vLLM (`prompt`)."""

    model: ModelName | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: Annotated[bool | None, note("the same as add_special")] = None
    parse_special: bool | None = None
    with_pieces: Annotated[bool | None, note("tokens are objects with id and text")] = None
    return_token_strs: Annotated[bool | None, note("the texts of the tokens are listed too")] = None


class DetokenizeRequest(Struct, kw_only=True):
    """A request to `/detokenize`."""

    model: ModelName | None = None
    tokens: Annotated[
        list[Any], Meta(extra_json_schema={"items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}})
    ]


class LoadRequest(Struct, kw_only=True):
    """A request to `/models/load` or `/models/unload`."""

    model: Annotated[Any, Meta(extra_json_schema={"type": ["string", "null"]})] = None
    force: bool | None = None


class AddKeyRequest(Struct, kw_only=True):
    """A request to add a key. The fields are those of `[keys.NAME]`."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    models: (
        Annotated[list[str], note("names or patterns that the key may use; absent: all", max_length=_MODELS_LIMIT)]
        | None
    ) = None
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    admin: Annotated[bool | None, note("may see and control the whole server")] = None
    metrics: Annotated[bool | None, note("may read `/metrics` even if restricted to some models")] = None
