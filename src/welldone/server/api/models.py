"""Model objects for `GET /v1/models`, and the endpoints to load and unload models.

A model object has OpenAI's fields, and the context length under all names that clients read. Clients of Anthropic's and
Google's APIs get their format.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from welldone.core.events import Json
from welldone.engines.errors import EngineError
from welldone.engines.plan import context_per_request
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.backends import LocalBackend
from welldone.gateway.error_mapping import engine_unavailable
from welldone.gateway.errors import ApiError, ErrorFormat, invalid_request
from welldone.http.messages import HttpResponse
from welldone.schemas.utilities import LoadRequest
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.targets import BackendResolver
from welldone.server.parts import ServerParts
from welldone.server.requests import fields

_MAX_TIMESTAMP = 253_402_300_799  # the end of the year 9999; larger values may be milliseconds
# `status` is llama.cpp's, `state` is LM Studio's.
_LLAMA_STATUS = {
    ModelState.UNLOADED: "unloaded",
    ModelState.LOADING: "loading",
    ModelState.READY: "loaded",
    ModelState.RESTARTING: "loading",
    ModelState.FAILED: "failed",
    ModelState.STOPPED: "unloaded",
}


def model_object(model: LocalModel, created: int) -> Json:
    """Return the object of a local model. Most fields are only known of a loaded model."""
    out: Json = {
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
    capabilities = model.capabilities
    if capabilities is None:
        if model.metadata is not None and model.metadata.context_length:
            out |= _context_fields(context_per_request(model.settings, model.metadata), model.metadata.context_length)
        return out
    supported = {
        "completion": capabilities.chat,
        "tools": capabilities.chat and capabilities.tools,
        "vision": capabilities.images,
        "audio": capabilities.audio,
        "embedding": capabilities.embeddings,
        "rerank": capabilities.reranking,
    }
    inputs = ["text", *(["image"] if capabilities.images else []), *(["audio"] if capabilities.audio else [])]
    out |= {
        "type": "embeddings" if not capabilities.chat else "vlm" if capabilities.images else "llm",
        "capabilities": [name for name, is_supported in supported.items() if is_supported],
        "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
    }
    if capabilities.context:
        out |= _context_fields(capabilities.context, capabilities.train_context or capabilities.context)
        out["loaded_context_length"] = capabilities.context
    out["meta"] = {  # llama.cpp's
        "n_ctx": capabilities.context,
        "n_ctx_train": capabilities.train_context,
        "n_vocab": capabilities.vocabulary_size,
        "n_embd": capabilities.embedding_size,
        "n_params": capabilities.parameters,
        "size": capabilities.size_bytes,
    }
    return out


def anthropic_object(model: Json) -> Json:
    """Convert a model object to Anthropic's format. An unknown date is the first of 1970, as in Anthropic's API."""
    context = model.get("max_model_len")
    out: Json = {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": format_timestamp(model["created"]),
        "lifecycle": "active",
    }
    return {**out, "max_input_tokens": context} if isinstance(context, int) else out


def gemini_object(model: Json) -> Json:
    """Convert a model object to Google's format."""
    context = model.get("max_model_len")
    limits = {"inputTokenLimit": context, "outputTokenLimit": context} if isinstance(context, int) else {}
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    name = model["id"]
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": "",
        **limits,
        "supportedGenerationMethods": methods,
    }


def format_timestamp(seconds: float, precision: str = "seconds") -> str:
    """Format a Unix time as in the APIs of Anthropic and Ollama."""
    time = datetime.fromtimestamp(min(max(seconds, 0), _MAX_TIMESTAMP), UTC)
    return time.isoformat(timespec=precision).replace("+00:00", "Z")


def ollama_object(model: Json) -> Json:
    """Convert a model object to Ollama's format."""
    name, modified_at = model["id"], format_timestamp(model["created"])
    details = {"format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return {"name": name, "model": name, "modified_at": modified_at, "size": 0, "digest": "", "details": details}


def _context_fields(context: int, trained: int) -> Json:
    """Return the context of one request, and that of the model's training."""
    return {
        "context_length": context,  # OpenRouter
        "context_window": context,
        "max_model_len": context,  # vLLM
        "max_context_length": trained,  # LM Studio
    }


class ModelsApi(msgspec.Struct):
    """The handlers of `/models`, and of Ollama's `/api/tags`."""

    parts: ServerParts
    targets: BackendResolver
    read_body: Callable[[RequestContext], Awaitable[Json]]
    created: int
    """Unix time of local models."""

    async def list(self, ctx: RequestContext) -> HttpResponse:
        """GET /models."""
        listed = self._visible(ctx)
        if ctx.error_format is ErrorFormat.GEMINI:
            return json_response({"models": [gemini_object(model) for model in listed]})
        if ctx.error_format is not ErrorFormat.ANTHROPIC:
            return json_response({"object": "list", "data": listed})
        first_id, last_id = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
        data = [anthropic_object(model) for model in listed]  # all on one page
        return json_response({"data": data, "has_more": False, "first_id": first_id, "last_id": last_id})

    async def tags(self, ctx: RequestContext) -> HttpResponse:
        """GET /api/tags."""
        return json_response({"models": [ollama_object(model) for model in self._visible(ctx)]})

    async def get(self, ctx: RequestContext) -> HttpResponse:
        """GET /models/NAME."""
        name = ctx.request.path.partition("/models/")[2]
        backend = self.targets.find(ctx, name)
        if isinstance(backend, LocalBackend):
            model = model_object(backend.model, self.created)
        else:  # a name that matches a pattern is not listed
            unlisted = {"id": name, "object": "model", "created": self.created, "owned_by": "welldone"}
            model = next((item for item in self.parts.upstreams.list_models() if item["id"] == name), unlisted)
        if ctx.error_format is ErrorFormat.GEMINI:
            return json_response(gemini_object(model))
        return json_response(anthropic_object(model) if ctx.error_format is ErrorFormat.ANTHROPIC else model)

    def _visible(self, ctx: RequestContext) -> Sequence[Json]:
        """Return the models that the client may use."""
        local = [model_object(model, self.created) for model in self.parts.supervisor.models]
        return [item for item in [*local, *self.parts.upstreams.list_models()] if self.targets.may_use(ctx, item["id"])]

    # With the names of llama-server's router. For admins only.

    async def load(self, ctx: RequestContext) -> HttpResponse:
        """POST /models/load: start to load a model, or with `force` restart its engine. Clients poll its state."""
        model, is_forced = await self._read_request(ctx)
        try:
            if is_forced:
                model.restart()
            else:
                model.load()
        except EngineError as error:
            raise engine_unavailable(error) from error
        return json_response({"success": True})

    async def unload(self, ctx: RequestContext) -> HttpResponse:
        """POST /models/unload: start to unload a model; `force` takes it from its running requests."""
        model, is_forced = await self._read_request(ctx)
        if model.running and not is_forced:
            message = f"The model `{model.name}` is in use. Send force = true to unload it anyway."
            raise ApiError(409, message, param="model", code="model_busy")
        model.start_unload()
        return json_response({"success": True})

    async def _read_request(self, ctx: RequestContext) -> tuple[LocalModel, bool]:
        self.parts.keys.check_admin(ctx.principal)
        request = fields.read_fields(await self.read_body(ctx), LoadRequest)
        backend = self.targets.find(ctx, request.model)
        if isinstance(backend, LocalBackend):
            return backend.model, request.force is True
        message = f"The model `{backend.name[:64]}` belongs to an upstream, and cannot be loaded or unloaded here."
        raise invalid_request(message, param="model", code="model_not_local")
