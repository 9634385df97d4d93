"""What an engine can do, as it says itself."""

from typing import Any, Literal

import msgspec

from welldone.engines.address import Address
from welldone.engines.errors import EngineError
from welldone.engines.gguf import Facts
from welldone.engines.settings import ModelSettings
from welldone.net.outbound import OutboundError, fetch
from welldone.wire.lenient import strict

ANSWER_S = 10.0
"""The engine has just said that it is ready; on a busy machine even that may take seconds."""

REPLY_LIMIT_BYTES = 4 * 2**20
"""The properties hold the chat template, which may be long."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are 0 where the engine does not say them."""

    kind: Literal["llama", "command"]
    context: int
    """Tokens that one request may use."""
    context_train: int
    slots: int
    vocabulary: int
    embedding: int
    parameters: int
    size_bytes: int
    images: bool
    audio: bool
    tools: bool
    """Whether the chat template knows tools."""
    chat: bool
    embeddings: bool
    reranking: bool
    name: str = ""
    """What the engine calls its model; a command may know it by no other name."""


async def read_abilities(address: Address, settings: ModelSettings, facts: Facts | None) -> Abilities:
    """Asks the engine. `EngineError` if it is our own and does not answer."""
    properties = await _read(address, "/props", facts is not None)
    listed = await _read(address, "/v1/models", facts is not None)
    return abilities_of(properties, listed, settings, facts)


async def _read(address: Address, path: str, is_ours: bool) -> dict[str, Any]:
    try:
        reply = await fetch(address, "GET", path, within_s=ANSWER_S, limit_bytes=REPLY_LIMIT_BYTES)
        found = strict(reply.body) if reply.status == 200 else None
    except OutboundError:
        found = None
    if isinstance(found, dict):
        return found
    if is_ours:
        raise EngineError("ended as soon as it was ready")
    return {}


def abilities_of(
    properties: dict[str, Any], listed: dict[str, Any], settings: ModelSettings, facts: Facts | None
) -> Abilities:
    """What the replies to /props and /v1/models say, and the model's file."""
    data = listed.get("data")
    first = _table(data[0]) if isinstance(data, list) and data else {}
    meta = _table(first.get("meta"))
    modalities = _table(properties.get("modalities"))
    template = _table(properties.get("chat_template_caps"))
    is_reranker = settings.reranking or (facts is not None and facts.is_reranker)
    is_embedder = facts is not None and facts.is_embedder
    is_told = bool(properties)  # a server that does not tell is given the benefit of the doubt
    generation = _table(properties.get("default_generation_settings"))
    return Abilities(
        kind="command" if facts is None else "llama",
        context=_number(generation.get("n_ctx")) or _number(first.get("max_model_len")),
        context_train=_number(meta.get("n_ctx_train")) or _number(first.get("max_model_len")),
        slots=_number(properties.get("total_slots")) or settings.slots,
        vocabulary=_number(meta.get("n_vocab")),
        embedding=_number(meta.get("n_embd")),
        parameters=_number(meta.get("n_params")),
        size_bytes=_number(meta.get("size")),
        images=bool(modalities.get("vision")) if is_told else True,
        audio=bool(modalities.get("audio")) if is_told else True,
        tools=bool(template.get("supports_tools")) if is_told else True,
        chat=not (is_reranker or is_embedder),
        embeddings=is_embedder or settings.embeddings or facts is None,
        reranking=is_reranker,
        name=name if isinstance(name := first.get("id"), str) else "",
    )


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
