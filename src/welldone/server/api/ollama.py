"""Ollama's API, for clients without OpenAI's: `/api/chat`, `/api/generate`, `/api/tags` and `/api/version`."""

from collections.abc import Callable

import welldone
from welldone.http.server import HttpResponse
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.protocol.events import Json
from welldone.server.api.models import format_timestamp
from welldone.server.app import RequestContext, json_response
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.random_ids import random_hex
from welldone.server.requests.ollama import OLLAMA_PARAM_NAMES, read_ollama_chat, read_ollama_generate


class OllamaApi:
    """The handlers of these endpoints. `list_models` returns the models that a client may use, in OpenAI's format."""

    def __init__(
        self,
        targets: BackendResolver,
        generator: GenerationService,
        *,
        list_models: Callable[[RequestContext], list[Json]],
        now: Callable[[], float],
    ) -> None:
        self._targets = targets
        self._generator = generator
        self._list_models = list_models
        self._now = now

    async def chat(self, ctx: RequestContext) -> HttpResponse | None:
        """POST /api/chat."""
        return await self._respond(ctx, read_ollama_chat, is_chat=True)

    async def complete(self, ctx: RequestContext) -> HttpResponse | None:
        """POST /api/generate."""
        return await self._respond(ctx, read_ollama_generate, is_chat=False)

    async def tags(self, ctx: RequestContext) -> HttpResponse:
        """GET /api/tags."""
        return json_response({"models": [self._tag(model) for model in self._list_models(ctx)]})

    async def version(self, ctx: RequestContext) -> HttpResponse:
        """GET /api/version."""
        return json_response({"version": welldone.__version__})

    async def _respond(
        self, ctx: RequestContext, read: Callable[[Json], Json], *, is_chat: bool
    ) -> HttpResponse | None:
        body = await self._generator.read_body(ctx)
        chat = read(body)
        backend = self._targets.find(ctx, body.get("model"))
        created_at = format_timestamp(self._now(), "microseconds")
        dialect = OllamaDialect(is_chat=is_chat, created_at=created_at)
        if not body.get("messages" if is_chat else "prompt"):  # Ollama's request to load a model
            reply = {"model": backend.name, "created_at": created_at, **dialect.content_fields("")}
            return json_response({**reply, "done": True, "done_reason": "load"})
        gen_request = GenerationRequest(
            body=chat, id=ID_PREFIX[Endpoint.CHAT] + random_hex(12), dialect=dialect, field_names=OLLAMA_PARAM_NAMES
        )
        return await self._generator.generate(ctx, backend, gen_request)

    def _tag(self, model: Json) -> Json:
        name, modified_at = model["id"], format_timestamp(model["created"])
        details = {"format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
        return {"name": name, "model": name, "modified_at": modified_at, "size": 0, "digest": "", "details": details}
