"""What an engine can do, as it says itself."""

from typing import Any, Literal

import msgspec

from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.models.store import GgufMetadata
from welldone.http.address import Address
from welldone.http.client import HttpClientError, fetch
from welldone.protocol.lenient_json import parse_strict

CAPABILITIES_TIMEOUT_S = 10.0
"""The engine has just said that it is ready; on a busy machine even that may take seconds."""

CAPABILITIES_LIMIT_BYTES = 4 * 2**20
"""The properties hold the chat template, which may be long."""


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are 0 where the engine does not say them."""

    kind: Literal["llama", "command"]
    context: int
    """Tokens that one request may use."""
    train_context: int
    slots: int
    vocabulary_size: int
    embedding_size: int
    parameters: int
    size_bytes: int
    images: bool
    audio: bool
    tools: bool
    """Whether the chat template knows tools."""
    chat: bool
    embeddings: bool
    reranking: bool
    engine_model_name: str = ""
    """What the engine calls its model; a command may know it by no other name."""


async def read_capabilities(
    address: Address, settings: ModelSettings, metadata: GgufMetadata | None
) -> ModelCapabilities:
    """Asks the engine. `EngineError` if it is our own and does not answer."""
    properties = await _get_json(address, "/props", metadata is not None)
    listed = await _get_json(address, "/v1/models", metadata is not None)
    return parse_capabilities(properties, listed, settings, metadata)


async def _get_json(address: Address, path: str, is_ours: bool) -> dict[str, Any]:
    try:
        reply = await fetch(
            address, "GET", path, timeout_s=CAPABILITIES_TIMEOUT_S, limit_bytes=CAPABILITIES_LIMIT_BYTES
        )
        found = parse_strict(reply.body) if reply.status == 200 else None
    except HttpClientError:
        found = None
    if isinstance(found, dict):
        return found
    if is_ours:
        raise EngineError("ended as soon as it was ready")
    return {}


def parse_capabilities(
    props: dict[str, Any], model_list: dict[str, Any], settings: ModelSettings, metadata: GgufMetadata | None
) -> ModelCapabilities:
    """What the replies to /props and /v1/models say, and the model's file."""
    data = model_list.get("data")
    first = _as_object(data[0]) if isinstance(data, list) and data else {}
    meta = _as_object(first.get("meta"))
    modalities = _as_object(props.get("modalities"))
    template = _as_object(props.get("chat_template_caps"))
    is_reranker = settings.reranking or (metadata is not None and metadata.is_reranker)
    is_embedder = metadata is not None and metadata.is_embedder
    is_told = bool(props)  # a server that does not tell is given the benefit of the doubt
    generation = _as_object(props.get("default_generation_settings"))
    return ModelCapabilities(
        kind="command" if metadata is None else "llama",
        context=_positive_int(generation.get("n_ctx")) or _positive_int(first.get("max_model_len")),
        train_context=_positive_int(meta.get("n_ctx_train")) or _positive_int(first.get("max_model_len")),
        slots=_positive_int(props.get("total_slots")) or settings.slots,
        vocabulary_size=_positive_int(meta.get("n_vocab")),
        embedding_size=_positive_int(meta.get("n_embd")),
        parameters=_positive_int(meta.get("n_params")),
        size_bytes=_positive_int(meta.get("size")),
        images=bool(modalities.get("vision")) if is_told else True,
        audio=bool(modalities.get("audio")) if is_told else True,
        tools=bool(template.get("supports_tools")) if is_told else True,
        chat=not (is_reranker or is_embedder),
        embeddings=is_embedder or settings.embeddings or metadata is None,
        reranking=is_reranker,
        engine_model_name=name if isinstance(name := first.get("id"), str) else "",
    )


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive_int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
