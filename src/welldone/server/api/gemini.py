"""Google's Gemini API: `generateContent`, `streamGenerateContent` and `countTokens` of `/v1beta/models/{model}`.

`ModelsApi` has `GET /v1beta/models`. The current SDKs use `/v1` in place of `/v1beta`.
"""

from urllib.parse import parse_qsl

from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.http.messages import HttpResponse
from welldone.protocol.dialects.gemini.objects import METHOD_PATH
from welldone.protocol.dialects.gemini.writer import GeminiArrayDialect, GeminiDialect
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.server.api.dialect import GEMINI_COUNT, DialectApi, server_kind
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import speaks_natively
from welldone.server.random_ids import random_hex
from welldone.server.requests import fields
from welldone.server.requests.gemini import counted_request, gemini_to_chat, read_gemini_body


class GeminiApi(DialectApi):
    """The handlers of these methods."""

    async def generate(self, ctx: RequestContext) -> HttpResponse | None:
        """POST :generateContent."""
        backend, request = await self._prepare(ctx)
        return await self.generator.generate(ctx, backend, request)

    async def stream(self, ctx: RequestContext) -> HttpResponse | None:
        """POST :streamGenerateContent: a JSON array, or server-sent events with `alt=sse`."""
        backend, request = await self._prepare(ctx, is_stream=True)
        return await self.generator.generate(ctx, backend, request)

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST :countTokens: the prompt tokens that usage would report."""
        backend, request = await self._prepare(ctx, is_count_only=True)
        counted = await self.count_prompt(ctx, backend, request)
        if request.endpoint is Endpoint.GEMINI:
            return json_response(counted)
        return json_response({GEMINI_COUNT: counted["input_tokens"]})

    async def _prepare(
        self, ctx: RequestContext, *, is_stream: bool = False, is_count_only: bool = False
    ) -> tuple[LocalBackend | UpstreamBackend, GenerationRequest]:
        make_dialect = GeminiArrayDialect if is_stream and not _wants_events(ctx) else GeminiDialect
        given = await self.generator.read_body(ctx)
        path = METHOD_PATH.fullmatch(ctx.request.path)
        assert path is not None
        backend = self.targets.find(ctx, path[1])
        if speaks_natively(backend, Endpoint.GEMINI):
            native: Json = given if is_count_only else {**given, "stream": is_stream}
            return backend, GenerationRequest(
                body=native, id=random_hex(12), endpoint=Endpoint.GEMINI, dialect=make_dialect()
            )
        body = read_gemini_body(given)
        ignores_tools = self.settings.unknown_tools == "ignore"
        translation = gemini_to_chat(
            counted_request(body) if is_count_only else body,
            server_kind(backend),
            model=path[1],
            ignores_unknown_tools=ignores_tools,
        )
        if translation.ignored_tools:
            ctx.log_fields["ignored_tools"] = translation.ignored_tools
        chat: Json = {**translation.chat, "stream": is_stream}
        return backend, GenerationRequest(
            body=chat,
            id=random_hex(12),
            dialect=make_dialect(includes_thoughts=translation.shows_thoughts),
            field_names=translation.param_names,
            ignored_fields=translation.ignored_fields,
        )


def _wants_events(ctx: RequestContext) -> bool:
    """Whether `alt` of the query asks for server-sent events; a JSON array is the default."""
    alt = next((value for name, value in parse_qsl(ctx.request.query) if name in ("alt", "$alt")), "json")
    if alt not in ("json", "sse"):
        raise fields.wrong_value("alt", alt, ("json", "sse"))
    return alt == "sse"
