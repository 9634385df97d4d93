"""Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`."""

from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import invalid_request
from welldone.http.messages import HttpResponse
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.server.api.dialect import DialectApi, server_kind
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import speaks_natively
from welldone.server.random_ids import random_hex
from welldone.server.requests.anthropic import anthropic_to_chat

_BETA_HEADER = "anthropic-beta"
_HEADER_LIMIT = 2_048  # characters; Claude Code lists a dozen betas in 300


class MessagesApi(DialectApi):
    """The handlers of these endpoints."""

    async def create(self, ctx: RequestContext) -> HttpResponse | None:
        """POST /v1/messages."""
        return await self.generator.generate(ctx, *await self._prepare(ctx))

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST /v1/messages/count_tokens: the input tokens that usage would report."""
        return json_response(await self.count_prompt(ctx, *await self._prepare(ctx, is_count_only=True)))

    async def _prepare(
        self, ctx: RequestContext, *, is_count_only: bool = False
    ) -> tuple[LocalBackend | UpstreamBackend, GenerationRequest]:
        body, backend = await self.read(ctx)
        message_id = ID_PREFIX[Endpoint.MESSAGES] + random_hex(12)
        if speaks_natively(backend, Endpoint.MESSAGES):
            headers = _forwarded_headers(ctx)
            return backend, GenerationRequest(
                body=body, id=message_id, endpoint=Endpoint.MESSAGES, forwarded_headers=headers
            )
        ignores_tools = self.settings.unknown_tools == "ignore"
        translation = anthropic_to_chat(
            body, server_kind(backend), ignores_unknown_tools=ignores_tools, is_count_only=is_count_only
        )
        chat = translation.chat
        if ignores_tools and (ignored := len(body.get("tools") or ()) - len(chat.get("tools") or ())):
            ctx.log_fields["ignored_tools"] = ignored
        dialect = MessagesDialect(
            stop_sequences=tuple(chat.get("stop") or ()), includes_thinking=translation.shows_reasoning
        )
        return backend, GenerationRequest(
            body=chat, id=message_id, dialect=dialect, field_names=translation.param_names
        )


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
