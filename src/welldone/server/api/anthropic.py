"""Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`."""

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
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import GenerationService, speaks_natively
from welldone.server.generation.targets import BackendResolver
from welldone.server.random_ids import random_hex
from welldone.server.requests.anthropic import AnthropicTranslation, anthropic_to_chat
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.upstream_body import without_routing_fields

_BETA_HEADER = "anthropic-beta"
_HEADER_LIMIT = 2_048  # characters; Claude Code lists a dozen betas in 300


class MessagesApi:
    """The handlers of these endpoints."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: BackendResolver,
        generator: GenerationService,
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
        message_id = ID_PREFIX[Endpoint.MESSAGES] + random_hex(12)
        if speaks_natively(backend, Endpoint.MESSAGES):
            gen_request = GenerationRequest(
                body=body, id=message_id, endpoint=Endpoint.MESSAGES, forwarded_headers=_forwarded_headers(ctx)
            )
        else:
            translation = self._translate(ctx, body, backend)
            dialect = MessagesDialect(
                stop_sequences=translation.stop_strings, includes_thinking=translation.shows_reasoning
            )
            gen_request = GenerationRequest(
                body=translation.chat, id=message_id, dialect=dialect, field_names=translation.param_names
            )
        return await self._generator.generate(ctx, backend, gen_request)

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST /v1/messages/count_tokens: the input tokens that usage would report."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        if isinstance(backend, UpstreamBackend) and speaks_natively(backend, Endpoint.MESSAGES):
            return json_response(
                await count_native(
                    ctx, backend, Endpoint.MESSAGES, without_routing_fields(body), _forwarded_headers(ctx)
                )
            )
        translation = self._translate(ctx, body, backend, is_count_only=True)
        try:
            tokens = await self._count_tokens(ctx, backend, translation.chat)
        except ApiError as error:
            rename_error_param(error, translation.param_names)
            raise
        return json_response({"input_tokens": tokens})

    def _translate(
        self, ctx: RequestContext, body: Json, backend: LocalBackend | UpstreamBackend, *, is_count_only: bool = False
    ) -> AnthropicTranslation:
        ignores_tools = self._settings.unknown_tools == "ignore"
        translation = anthropic_to_chat(
            body, server_kind(backend), ignores_unknown_tools=ignores_tools, is_count_only=is_count_only
        )
        if ignores_tools and (ignored := len(body.get("tools") or ()) - len(translation.chat.get("tools") or ())):
            ctx.log_fields["ignored_tools"] = ignored
        return translation


def _forwarded_headers(ctx: RequestContext) -> dict[str, str]:
    """Return the client's version headers for an upstream with the same dialect."""
    headers = {ANTHROPIC_VERSION_HEADER: ctx.request.headers.get(ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION)}
    if betas := ",".join(ctx.request.header_values(_BETA_HEADER)):
        headers[_BETA_HEADER] = betas
    for name, value in headers.items():
        if len(value) > _HEADER_LIMIT or not value.isascii() or not value.isprintable():
            message = f"Invalid header '{name}': expected at most {_HEADER_LIMIT} printable ASCII characters."
            raise invalid_request(message, param=name)
    return headers
