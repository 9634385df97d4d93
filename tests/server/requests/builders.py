"""Model capabilities and valid bodies for the tests of request validation."""

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
CAPABILITIES = ModelCapabilities(
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


def capabilities_with(**changes: object) -> ModelCapabilities:
    """Return the default capabilities with changes."""
    return msgspec.structs.replace(CAPABILITIES, **changes)


def chat(capabilities: ModelCapabilities = CAPABILITIES, **body: object) -> ValidatedRequest:
    """Validate a chat with these fields."""
    return read_chat({"messages": HELLO, **body}, MODEL, capabilities)


def engine(capabilities: ModelCapabilities = CAPABILITIES, **body: object) -> Body:
    """Return the engine's body for a chat with these fields."""
    return chat(capabilities, **body).bodies[0]


def complete(capabilities: ModelCapabilities = CAPABILITIES, **body: object) -> ValidatedRequest:
    """Validate a completion with these fields."""
    return read_completions({"prompt": "once", **body}, MODEL, capabilities)


def rejection(capabilities: ModelCapabilities = CAPABILITIES, **body: object) -> ApiError:
    """Return the error of an invalid chat."""
    with pytest.raises(ApiError) as caught:
        chat(capabilities, **body)
    assert caught.value.status == 400
    return caught.value
