"""Capabilities of an engine, from its replies to `/props` and `/v1/models` and the GGUF metadata."""

from typing import Any, Literal

import msgspec

from welldone.config.model import ModelSettings
from welldone.core.lenient_json import as_object, as_positive_int
from welldone.engines.models.gguf import GgufMetadata


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of a model. Numbers that the engine does not report are 0; no unknown feature is ruled out."""

    kind: Literal["llama", "command"]
    context: int = 0
    """Context length of one request, in tokens."""
    train_context: int = 0
    slots: int = 0
    vocabulary_size: int = 0
    embedding_size: int = 0
    parameters: int = 0
    size_bytes: int = 0
    images: bool = True
    audio: bool = True
    tools: bool = True
    """Whether the chat template supports tools."""
    json_tool_calls: bool = False
    """Whether an answer that is only the JSON of a tool call becomes that call."""
    chat: bool = True
    embeddings: bool = True
    reranking: bool = True
    logprobs: bool = True
    """Not with speculative decoding: llama.cpp reports a probability of 1 for each drafted token."""
    engine_model_name: str = ""
    """The engine's own name of the model, which requests to a command must use."""


def parse_capabilities(
    props: dict[str, Any], model_list: dict[str, Any], settings: ModelSettings, metadata: GgufMetadata | None
) -> ModelCapabilities:
    """Combine the replies of /props and /v1/models with the settings and the GGUF metadata."""
    data = model_list.get("data")
    first = as_object(data[0]) if isinstance(data, list) and data else {}
    meta = as_object(first.get("meta"))
    modalities = as_object(props.get("modalities"))
    template = as_object(props.get("chat_template_caps"))
    is_reranker = settings.reranking or (metadata is not None and metadata.is_reranker)
    is_embedder = metadata is not None and metadata.is_embedder
    prints_calls = metadata is not None and metadata.prints_json_calls
    has_props = bool(props)  # a server without /props is assumed to support everything
    generation = as_object(props.get("default_generation_settings"))
    return ModelCapabilities(
        kind="command" if metadata is None else "llama",
        context=as_positive_int(generation.get("n_ctx")) or as_positive_int(first.get("max_model_len")),
        train_context=as_positive_int(meta.get("n_ctx_train")) or as_positive_int(first.get("max_model_len")),
        slots=as_positive_int(props.get("total_slots")) or settings.slots,
        vocabulary_size=as_positive_int(meta.get("n_vocab")),
        embedding_size=as_positive_int(meta.get("n_embd")),
        parameters=as_positive_int(meta.get("n_params")),
        size_bytes=as_positive_int(meta.get("size")),
        images=bool(modalities.get("vision")) if has_props else True,
        audio=bool(modalities.get("audio")) if has_props else True,
        tools=bool(template.get("supports_tools")) if has_props else True,
        json_tool_calls=settings.json_tool_calls == "on" or (settings.json_tool_calls == "auto" and prints_calls),
        chat=not (is_reranker or is_embedder),
        embeddings=is_embedder or settings.embeddings or metadata is None,
        reranking=is_reranker,
        logprobs=metadata is None or not settings.has_speculation,
        engine_model_name=name if isinstance(name := first.get("id"), str) else "",
    )
