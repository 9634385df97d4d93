"""The models as clients list them: OpenAI's fields, and the context length under each name that some client reads.

Clients of Anthropic's API get them in its shape.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from welldone.engines.fleet import LocalModel, ModelState
from welldone.engines.plan import context_per_request
from welldone.wire.events import Json

_MAX_TIMESTAMP = 253_402_300_799  # the end of the year 9999: more is no date, but perhaps milliseconds
# llama.cpp's router and LM Studio each have words of their own for the state of a model.
_LLAMA_STATUS = {
    ModelState.UNLOADED: "unloaded",
    ModelState.LOADING: "loading",
    ModelState.READY: "loaded",
    ModelState.RESTARTING: "loading",
    ModelState.FAILED: "failed",
    ModelState.STOPPED: "unloaded",
}


def model_object(model: LocalModel, created: int) -> Json:
    """One model. What is known only of a loaded model is left out of others."""
    listed: Json = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "welldone",
        "aliases": list(model.settings.aliases),
        "root": model.name,
        "parent": None,
        "status": {"value": _LLAMA_STATUS[model.state]},
        "state": "loaded" if model.state is ModelState.READY else "not-loaded",
    }
    abilities = model.capabilities
    if abilities is None:
        if model.metadata is not None and model.metadata.context_length:
            listed |= _context_fields(
                context_per_request(model.settings, model.metadata), model.metadata.context_length
            )
        return listed
    inputs = ["text", *(["image"] if abilities.images else []), *(["audio"] if abilities.audio else [])]
    listed |= {
        "type": "embeddings" if not abilities.chat else "vlm" if abilities.images else "llm",
        "capabilities": _capabilities(model),
        "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
    }
    if abilities.context:
        listed |= _context_fields(abilities.context, abilities.train_context or abilities.context)
        listed["loaded_context_length"] = abilities.context
    listed["meta"] = {  # llama.cpp's
        "n_ctx": abilities.context,
        "n_ctx_train": abilities.train_context,
        "n_vocab": abilities.vocabulary_size,
        "n_embd": abilities.embedding_size,
        "n_params": abilities.parameters,
        "size": abilities.size_bytes,
    }
    return listed


def anthropic_object(model: Json) -> Json:
    """One model in Anthropic's shape, made of OpenAI's. A day that is not known is the first of 1970, as Anthropic has
    it."""
    context = model.get("max_model_len")
    shown: Json = {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": format_timestamp(model["created"]),
        "lifecycle": "active",
    }
    return {**shown, "max_input_tokens": context} if isinstance(context, int) else shown


def format_timestamp(seconds: float, precision: str = "seconds") -> str:
    """A time of day as Anthropic and Ollama write it."""
    moment = datetime.fromtimestamp(min(max(seconds, 0), _MAX_TIMESTAMP), UTC)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def anthropic_list(models: Sequence[Json]) -> Json:
    """All models in Anthropic's shape, on one page."""
    ends = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {
        "data": [anthropic_object(one) for one in models],
        "has_more": False,
        "first_id": ends[0],
        "last_id": ends[1],
    }


def _context_fields(context: int, trained: int) -> Json:
    """The tokens that one request has, and those that the model could have."""
    return {
        "context_length": context,  # OpenRouter's clients
        "context_window": context,
        "max_model_len": context,  # vLLM's
        "max_context_length": trained,  # LM Studio's
    }


def _capabilities(model: LocalModel) -> list[str]:
    abilities = model.capabilities
    assert abilities is not None
    offered = {
        "completion": abilities.chat,
        "tools": abilities.chat and abilities.tools,
        "vision": abilities.images,
        "audio": abilities.audio,
        "embedding": abilities.embeddings,
        "rerank": abilities.reranking,
    }
    return [name for name, is_offered in offered.items() if is_offered]
