"""Anthropic's paths: `/v1/messages` and `/v1/messages/count_tokens`."""

import secrets

from welldone.net.inbound import Reply
from welldone.serve.app import Ask, json_reply
from welldone.serve.backends import Local, Remote
from welldone.serve.counting import Count, count_native, kind_of
from welldone.serve.errors import ApiError, invalid
from welldone.serve.generate import Generate, Order, speaks
from welldone.serve.requests.anthropic import Translated, read_anthropic
from welldone.serve.requests.foreign import without_routing
from welldone.serve.requests.names import rename
from welldone.serve.settings import ServeSettings
from welldone.serve.targets import Targets
from welldone.wire.dialects.messages import Messages
from welldone.wire.dialects.messages.objects import VERSION, VERSION_HEADER
from welldone.wire.events import Json
from welldone.wire.head import ID_PREFIX, Endpoint

_BETA = "anthropic-beta"
_HEADER_LIMIT = 2_048  # characters; Claude Code names a dozen betas, in 300


class MessagesApi:
    """The actions of these paths. `count` tells how many tokens a chat has."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: Targets,
        generate: Generate,
        count: Count,
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._generate = generate
        self._count = count

    async def create(self, ask: Ask) -> Reply | None:
        """POST /v1/messages."""
        body = await self._generate.body(ask)
        backend = self._targets.find(ask, body.get("model"))
        id_ = ID_PREFIX[Endpoint.MESSAGES] + secrets.token_hex(12)
        if speaks(backend, Endpoint.MESSAGES):
            order = Order(body=body, id=id_, endpoint=Endpoint.MESSAGES, headers=_headers(ask))
            return await self._generate.answer(ask, backend, order)
        asked = self._read(ask, body, backend)
        dialect = Messages(stops=asked.stops, shows_thoughts=asked.shows_thoughts)
        order = Order(body=asked.chat, id=id_, dialect=dialect, names=asked.names)
        return await self._generate.answer(ask, backend, order)

    async def count_tokens(self, ask: Ask) -> Reply:
        """POST /v1/messages/count_tokens: what usage would say of the same request."""
        body = await self._generate.body(ask)
        backend = self._targets.find(ask, body.get("model"))
        if isinstance(backend, Remote) and speaks(backend, Endpoint.MESSAGES):
            return json_reply(await count_native(backend, Endpoint.MESSAGES, without_routing(body), _headers(ask)))
        asked = self._read(ask, body, backend, is_counted=True)
        try:
            tokens = await self._count(backend, asked.chat)
        except ApiError as error:
            rename(error, asked.names)
            raise
        return json_reply({"input_tokens": tokens})

    def _read(self, ask: Ask, body: Json, backend: Local | Remote, *, is_counted: bool = False) -> Translated:
        is_lenient = self._settings.unknown_tools == "ignore"
        said = read_anthropic(body, kind_of(backend), skips_tools=is_lenient, is_counted=is_counted)
        if is_lenient and (ignored := len(body.get("tools") or ()) - len(said.chat.get("tools") or ())):
            ask.facts["ignored_tools"] = ignored
        return said


def _headers(ask: Ask) -> dict[str, str]:
    """What a server that speaks the dialect is told of the client's version of it."""
    found = {VERSION_HEADER: ask.call.headers.get(VERSION_HEADER, VERSION)}
    if betas := ",".join(ask.call.header_values(_BETA)):
        found[_BETA] = betas
    for name, value in found.items():
        if len(value) > _HEADER_LIMIT or not value.isascii() or not value.isprintable():
            raise invalid(f"The header '{name}' is too long, or has odd characters.", param=name)
    return found
