"""What the tests of requests begin with: a model, what it can do, and a body that is right."""

from typing import Any

import msgspec
import pytest

from welldone.engines.abilities import Abilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import ApiError
from welldone.serve.requests import Request, read_chat, read_completions

Body = dict[str, Any]

MODEL = ModelSettings(name="m")
ABLE = Abilities(
    kind="llama",
    context=4096,
    context_train=8192,
    slots=4,
    vocabulary=49152,
    embedding=576,
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


def able(**changes: object) -> Abilities:
    """A model that differs in these."""
    return msgspec.structs.replace(ABLE, **changes)


def chat(abilities: Abilities | None = ABLE, **body: object) -> Request:
    """A chat that says hello, and these."""
    return read_chat({"messages": HELLO, **body}, MODEL, abilities)


def engine(abilities: Abilities | None = ABLE, **body: object) -> Body:
    """What the engine gets for a chat."""
    return chat(abilities, **body).parts[0]


def complete(abilities: Abilities | None = ABLE, **body: object) -> Request:
    """A completion of "once"."""
    return read_completions({"prompt": "once", **body}, MODEL, abilities)


def refusal(abilities: Abilities = ABLE, **body: object) -> ApiError:
    """Why a chat is refused."""
    with pytest.raises(ApiError) as caught:
        chat(abilities, **body)
    assert caught.value.status == 400
    return caught.value
