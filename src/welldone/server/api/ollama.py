"""Ollama's API, for clients without OpenAI's: `/api/chat` and `/api/generate`. `ModelsApi` has `/api/tags`."""

from functools import cache

from welldone.http.messages import HttpResponse
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.server.api.dialect import DialectApi
from welldone.server.api.models import format_timestamp
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.random_ids import random_hex
from welldone.server.requests.ollama import OLLAMA_PARAM_NAMES, read_ollama_chat, read_ollama_generate


class OllamaApi(DialectApi):
    """The handlers of these endpoints."""

    async def respond(self, ctx: RequestContext, *, is_chat: bool) -> HttpResponse | None:
        """POST /api/chat, or /api/generate."""
        body = await self.generator.read_body(ctx)
        chat = read_ollama_chat(body) if is_chat else read_ollama_generate(body)
        backend = self.targets.find(ctx, body.get("model"))
        began = self.now()
        created_at = format_timestamp(began, "microseconds")

        @cache  # a replay for the inspector gives the same bytes
        def duration_ns() -> int:
            return max(0, round((self.now() - began) * 1e9))

        dialect = OllamaDialect(is_chat=is_chat, created_at=created_at, duration_ns=duration_ns)
        if not body.get("messages" if is_chat else "prompt"):  # Ollama's request to load a model
            reply = {"model": backend.name, "created_at": created_at, **dialect.content_fields("")}
            return json_response({**reply, "done": True, "done_reason": "load"})
        gen_request = GenerationRequest(
            body=chat, id=ID_PREFIX[Endpoint.CHAT] + random_hex(12), dialect=dialect, field_names=OLLAMA_PARAM_NAMES
        )
        return await self.generator.generate(ctx, backend, gen_request)
