"""The models as clients list them: OpenAI's fields, and the context length under each name that some client reads.

Clients of Anthropic's API get them in its shape.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from welldone.engines.errors import EngineError
from welldone.engines.plan import context_per_request
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.error_mapping import engine_unavailable
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.server import HttpResponse
from welldone.protocol.events import Json
from welldone.server.access.keys import ApiKeys
from welldone.server.app import RequestContext, json_response
from welldone.server.requests import fields

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


# Loading and unloading of models by hand, under the names that llama-server's router has for it.


class ModelLoadingApi:
    """Both paths. `body` reads a request, and `find` gives who answers for a name. Only admins get in."""

    def __init__(
        self,
        keys: ApiKeys,
        *,
        read_body: Callable[[RequestContext], Awaitable[Json]],
        find_backend: Callable[[RequestContext, object], LocalBackend | UpstreamBackend],
    ) -> None:
        self._keys = keys
        self._read_body = read_body
        self._find_backend = find_backend

    async def load(self, ctx: RequestContext) -> HttpResponse:
        """Begin to load a model; who wants to know when it is ready looks at its state."""
        model, _ = await self._read_request(ctx)
        try:
            model.load()
        except EngineError as error:
            raise engine_unavailable(error) from error
        return json_response({"success": True})

    async def unload(self, ctx: RequestContext) -> HttpResponse:
        """Begin to unload a model that nobody uses; with `force` also one that is in use."""
        model, is_forced = await self._read_request(ctx)
        if model.running and not is_forced:
            message = f"The model `{model.name}` is in use. With force = true what runs is ended."
            raise ApiError(409, message, param="model", code="model_busy")
        model.start_unload()
        return json_response({"success": True})

    async def _read_request(self, ctx: RequestContext) -> tuple[LocalModel, bool]:
        """The model, and whether `force` was said."""
        self._keys.check_admin(ctx.principal)
        body = await self._read_body(ctx)
        is_forced = fields.boolean(body, "force") is True
        found = self._find_backend(ctx, body.get("model"))
        if isinstance(found, LocalBackend):
            return found.model, is_forced
        message = f"The model `{found.name[:64]}` is an upstream's, which loads it itself."
        raise invalid_request(message, param="model", code="model_not_local")
