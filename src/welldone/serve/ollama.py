"""Ollama's paths, for the clients that know no others: /api/chat, /api/generate, /api/tags and /api/version."""

import secrets
from collections.abc import Callable

import welldone
from welldone.net.inbound import Reply
from welldone.serve.app import Ask, json_reply
from welldone.serve.generate import Generate, Order
from welldone.serve.listing import date
from welldone.serve.requests.ollama import NAMES, read_ollama_chat, read_ollama_generate
from welldone.serve.targets import Targets
from welldone.wire.dialects.ollama import Ollama
from welldone.wire.events import Json
from welldone.wire.head import ID_PREFIX, Endpoint


class OllamaApi:
    """The actions of these paths. `listed` has the models that a client may use, as OpenAI lists them."""

    def __init__(
        self,
        targets: Targets,
        generate: Generate,
        *,
        listed: Callable[[Ask], list[Json]],
        now: Callable[[], float],
    ) -> None:
        self._targets = targets
        self._generate = generate
        self._listed = listed
        self._now = now

    async def chat(self, ask: Ask) -> Reply | None:
        """POST /api/chat."""
        return await self._answer(ask, read_ollama_chat, is_chat=True)

    async def complete(self, ask: Ask) -> Reply | None:
        """POST /api/generate."""
        return await self._answer(ask, read_ollama_generate, is_chat=False)

    async def tags(self, ask: Ask) -> Reply:
        """GET /api/tags."""
        return json_reply({"models": [self._tag(one) for one in self._listed(ask)]})

    async def version(self, ask: Ask) -> Reply:
        """GET /api/version."""
        return json_reply({"version": welldone.__version__})

    async def _answer(self, ask: Ask, read: Callable[[Json], Json], *, is_chat: bool) -> Reply | None:
        body = await self._generate.body(ask)
        chat = read(body)
        backend = self._targets.find(ask, body.get("model"))
        at = date(self._now(), "microseconds")
        dialect = Ollama(is_chat=is_chat, at=at)
        if not body.get("messages" if is_chat else "prompt"):  # so Ollama is asked to load a model
            ready = {"model": backend.name, "created_at": at, **dialect.said("")}
            return json_reply({**ready, "done": True, "done_reason": "load"})
        order = Order(body=chat, id=ID_PREFIX[Endpoint.CHAT] + secrets.token_hex(12), dialect=dialect, names=NAMES)
        return await self._generate.answer(ask, backend, order)

    def _tag(self, model: Json) -> Json:
        name, at = model["id"], date(model["created"])
        details = {"format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
        return {"name": name, "model": name, "modified_at": at, "size": 0, "digest": "", "details": details}
