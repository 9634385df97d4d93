"""What the tests of requests begin with: a model, what it can do, and a body that is right."""

from typing import Any

import msgspec
import pytest

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError
from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest

Body = dict[str, Any]

MODEL = ModelSettings(name="m")
ABLE = ModelCapabilities(
    kind="llama",
    context=4096,
    train_context=8192,
    slots=4,
    vocabulary_size=49152,
    embedding_size=576,
    parameters=135_000_000,
    size_bytes=100_000_000,
    images=True,
    audio=True,
    tools=True,
    chat=True,
    embeddings=True,
    reranking=True,
)
HELLO = [{"role": "user", "content": "hello"}]


def able(**changes: object) -> ModelCapabilities:
    """A model that differs in these."""
    return msgspec.structs.replace(ABLE, **changes)


def chat(abilities: ModelCapabilities | None = ABLE, **body: object) -> ValidatedRequest:
    """A chat that says hello, and these."""
    return read_chat({"messages": HELLO, **body}, MODEL, abilities)


def engine(abilities: ModelCapabilities | None = ABLE, **body: object) -> Body:
    """What the engine gets for a chat."""
    return chat(abilities, **body).bodies[0]


def complete(abilities: ModelCapabilities | None = ABLE, **body: object) -> ValidatedRequest:
    """A completion of "once"."""
    return read_completions({"prompt": "once", **body}, MODEL, abilities)


def refusal(abilities: ModelCapabilities = ABLE, **body: object) -> ApiError:
    """Why a chat is refused."""
    with pytest.raises(ApiError) as caught:
        chat(abilities, **body)
    assert caught.value.status == 400
    return caught.value
