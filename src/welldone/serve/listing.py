"""The models as clients list them: OpenAI's fields, and the context length under each name that some client reads.

Clients of Anthropic's API get them in its shape.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from welldone.engines.fleet import Model, State
from welldone.engines.plan import context_of
from welldone.wire.events import Json

_LAST_DAY = 253_402_300_799  # the end of the year 9999: more is no date, but perhaps milliseconds
# llama.cpp's router and LM Studio each have words of their own for the state of a model.
_LLAMA = {
    State.UNLOADED: "unloaded",
    State.LOADING: "loading",
    State.READY: "loaded",
    State.RESTARTING: "loading",
    State.FAILED: "failed",
    State.STOPPED: "unloaded",
}


def model_object(model: Model, created: int) -> Json:
    """One model. What is known only of a loaded model is left out of others."""
    listed: Json = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "welldone",
        "aliases": list(model.settings.aliases),
        "root": model.name,
        "parent": None,
        "status": {"value": _LLAMA[model.state]},
        "state": "loaded" if model.state is State.READY else "not-loaded",
    }
    abilities = model.abilities
    if abilities is None:
        if model.facts is not None and model.facts.context_length:
            listed |= _lengths(context_of(model.settings, model.facts), model.facts.context_length)
        return listed
    inputs = ["text", *(["image"] if abilities.images else []), *(["audio"] if abilities.audio else [])]
    listed |= {
        "type": "embeddings" if not abilities.chat else "vlm" if abilities.images else "llm",
        "capabilities": _capabilities(model),
        "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
    }
    if abilities.context:
        listed |= _lengths(abilities.context, abilities.context_train or abilities.context)
        listed["loaded_context_length"] = abilities.context
    listed["meta"] = {  # llama.cpp's
        "n_ctx": abilities.context,
        "n_ctx_train": abilities.context_train,
        "n_vocab": abilities.vocabulary,
        "n_embd": abilities.embedding,
        "n_params": abilities.parameters,
        "size": abilities.size_bytes,
    }
    return listed


def anthropic_object(listed: Json) -> Json:
    """One model in Anthropic's shape, made of OpenAI's. A day that is not known is the first of 1970, as Anthropic has
    it."""
    context = listed.get("max_model_len")
    shown: Json = {
        "type": "model",
        "id": listed["id"],
        "display_name": listed["id"],
        "created_at": date(listed["created"]),
        "lifecycle": "active",
    }
    return {**shown, "max_input_tokens": context} if isinstance(context, int) else shown


def date(seconds: float, precision: str = "seconds") -> str:
    """A time of day as Anthropic and Ollama write it."""
    moment = datetime.fromtimestamp(min(max(seconds, 0), _LAST_DAY), UTC)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def anthropic_list(listed: Sequence[Json]) -> Json:
    """All models in Anthropic's shape, on one page."""
    ends = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
    return {
        "data": [anthropic_object(one) for one in listed],
        "has_more": False,
        "first_id": ends[0],
        "last_id": ends[1],
    }


def _lengths(context: int, own: int) -> Json:
    """The tokens that one request has, and those that the model could have."""
    return {
        "context_length": context,  # OpenRouter's clients
        "context_window": context,
        "max_model_len": context,  # vLLM's
        "max_context_length": own,  # LM Studio's
    }


def _capabilities(model: Model) -> list[str]:
    abilities = model.abilities
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
