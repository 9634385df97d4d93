"""Anthropic's paths: `/v1/messages` and `/v1/messages/count_tokens`."""

import secrets

from welldone.config.server import ServeSettings
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.server import HttpResponse
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.protocol.events import Json
from welldone.server.api.count_tokens import PromptTokenCounter, count_native, server_kind
from welldone.server.app import RequestContext, json_response
from welldone.server.generation.service import GenerationRequest, ResponseGenerator, speaks_natively
from welldone.server.generation.targets import BackendResolver
from welldone.server.requests.anthropic import AnthropicTranslation, anthropic_to_chat
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.upstream_body import without_routing_fields

_BETA_HEADER = "anthropic-beta"
_HEADER_LIMIT = 2_048  # characters; Claude Code names a dozen betas, in 300


class MessagesApi:
    """The actions of these paths. `count` tells how many tokens a chat has."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: BackendResolver,
        generator: ResponseGenerator,
        count_tokens: PromptTokenCounter,
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._generator = generator
        self._count_tokens = count_tokens

    async def create(self, ctx: RequestContext) -> HttpResponse | None:
        """POST /v1/messages."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        id_ = ID_PREFIX[Endpoint.MESSAGES] + secrets.token_hex(12)
        if speaks_natively(backend, Endpoint.MESSAGES):
            order = GenerationRequest(
                body=body, id=id_, endpoint=Endpoint.MESSAGES, forwarded_headers=_forwarded_headers(ctx)
            )
            return await self._generator.generate(ctx, backend, order)
        asked = self._translate(ctx, body, backend)
        dialect = MessagesDialect(stop_sequences=asked.stop_strings, includes_thinking=asked.shows_reasoning)
        order = GenerationRequest(body=asked.chat, id=id_, dialect=dialect, field_names=asked.param_names)
        return await self._generator.generate(ctx, backend, order)

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST /v1/messages/count_tokens: what usage would say of the same request."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        if isinstance(backend, UpstreamBackend) and speaks_natively(backend, Endpoint.MESSAGES):
            return json_response(
                await count_native(backend, Endpoint.MESSAGES, without_routing_fields(body), _forwarded_headers(ctx))
            )
        asked = self._translate(ctx, body, backend, is_count_only=True)
        try:
            tokens = await self._count_tokens(backend, asked.chat)
        except ApiError as error:
            rename_error_param(error, asked.param_names)
            raise
        return json_response({"input_tokens": tokens})

    def _translate(
        self, ctx: RequestContext, body: Json, backend: LocalBackend | UpstreamBackend, *, is_count_only: bool = False
    ) -> AnthropicTranslation:
        is_lenient = self._settings.unknown_tools == "ignore"
        said = anthropic_to_chat(
            body, server_kind(backend), ignores_unknown_tools=is_lenient, is_count_only=is_count_only
        )
        if is_lenient and (ignored := len(body.get("tools") or ()) - len(said.chat.get("tools") or ())):
            ctx.log_fields["ignored_tools"] = ignored
        return said


def _forwarded_headers(ctx: RequestContext) -> dict[str, str]:
    """What a server that speaks the dialect is told of the client's version of it."""
    found = {ANTHROPIC_VERSION_HEADER: ctx.request.headers.get(ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION)}
    if betas := ",".join(ctx.request.header_values(_BETA_HEADER)):
        found[_BETA_HEADER] = betas
    for name, value in found.items():
        if len(value) > _HEADER_LIMIT or not value.isascii() or not value.isprintable():
            raise invalid_request(f"The header '{name}' is too long, or has odd characters.", param=name)
    return found
