"""What a route's reader gives: the bodies for the engine, and what the reply must know of the request."""

import msgspec

from welldone.wire.asked import RequestFacts
from welldone.wire.events import Json
from welldone.wire.forced import ForcedToolCall


class ValidatedRequest(msgspec.Struct, kw_only=True):
    """A request that was checked. Nothing of the client's body is in it that was not."""

    endpoint: str
    """chat, completions, embeddings, rerank, tokenize or detokenize."""
    model: str | None = None
    """As the client wrote it."""
    is_stream: bool = False
    facts: RequestFacts = msgspec.field(default_factory=RequestFacts)
    bodies: list[Json]
    """The engine's bodies, prompt by prompt and choice by choice. `model` is not in them."""
    prompt_count: int = 1
    """How many different prompts the parts have: the usage counts each once."""
    forced_call: ForcedToolCall | None = None
    """How a tool call is forced, if it is."""
    echo: list[str] | None = None
    """The text of each prompt, where it is to be repeated before the answer."""
    top_logprobs: int | None = None
    """How many alternatives a token shows; the engine gives at least one, also where none was asked for."""
    dimensions: int | None = None
    """To how many numbers an embedding is cut."""
    is_base64: bool = False
    """Whether embeddings are asked for as base64."""
    documents: list[str] | None = None
    """What is ranked, where the reply is to repeat it."""
    has_pieces: bool = False
    """Whether tokens are shown with their texts, in one object each, as llama.cpp does."""
    has_token_texts: bool = False
    """Whether the texts of tokens are shown beside them, as vLLM does."""
