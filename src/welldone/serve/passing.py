"""Paths whose requests pass to an upstream, and whose replies come back, without a change.

The model's name in the body says which upstream is asked; what belongs to no model goes to the first one of the
configuration. Batches are not here: they would spend what a key's limits forbid.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from welldone.net.inbound import Reply
from welldone.net.turns import in_turns
from welldone.serve.app import Action, Ask, Route
from welldone.serve.backends import Backend, Local, Seat
from welldone.serve.charging import prompt_tokens
from welldone.serve.errors import ApiError
from welldone.serve.relay import Relay
from welldone.serve.requests.upload import Upload, is_form, reading_upload
from welldone.serve.settings import ServeSettings
from welldone.serve.troubles import Trouble
from welldone.wire.events import Json

LocalAction: TypeAlias = Callable[[Ask, Json], Awaitable[Reply | None]]
"""Answers for a local model what was asked in this body."""

_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"  # OpenAI's are `file-` and some letters
_QUERY = re.compile(r"[A-Za-z0-9_.~=&%+,:\[\]-]{0,2048}")
_KEYS = re.compile(r"(?:^|&)(?:api[-_]?key|key|access_token|token)=[^&]*", re.IGNORECASE)
"""What some clients put into an address beside the header: a key, which is none of the upstream's business."""
_API = "/v1"


class Way(msgspec.Struct, frozen=True):
    """A path, without `/v1`; `*` stands for an id."""

    path: str
    endpoint: str
    """What it is called in logs and metrics."""
    methods: tuple[str, ...] = ("POST",)
    is_root: bool = False
    """Whether servers have it at their root, and not below `/v1`."""
    has_model: bool = True
    """Whether its body names a model."""


WAYS = (
    Way("/embeddings", "embeddings"),
    Way("/rerank", "rerank"),
    Way("/reranking", "rerank"),
    Way("/moderations", "moderations"),
    Way("/audio/speech", "audio"),
    Way("/audio/transcriptions", "audio"),
    Way("/audio/translations", "audio"),
    Way("/images/generations", "images"),
    Way("/images/edits", "images"),
    Way("/images/variations", "images"),
    Way("/score", "score"),
    Way("/classify", "classify", is_root=True),
    Way("/pooling", "pooling", is_root=True),
    Way("/tokenize", "tokenize", is_root=True),
    Way("/detokenize", "detokenize", is_root=True),
    Way("/files", "files", ("GET", "POST"), has_model=False),
    Way("/files/*", "files", ("GET", "DELETE"), has_model=False),
    Way("/files/*/content", "files", ("GET",), has_model=False),
)
"""All of them: OpenAI's, vLLM's and llama.cpp's."""


class Targets(Protocol):
    """Finds who answers."""

    def find(self, ask: Ask, name: object) -> Backend:
        """Who answers for a model's name; ApiError where nobody does, or not for this client."""

    def first(self, ask: Ask) -> Backend | None:
        """The first upstream."""

    def may_use(self, ask: Ask, name: str) -> bool:
        """Whether the client's key is good for a model; of no model: for all."""


class Passing:
    """The routes of these paths."""

    def __init__(self, settings: ServeSettings, targets: Targets, *, spend: Callable[[Ask, int], None]) -> None:
        self._settings = settings
        self._targets = targets
        self._spend = spend
        self._routes = [(_pattern(way), self._route(way, None)) for way in WAYS]

    def find(self, path: str) -> Route | None:
        """The route of a path without its `/v1`, where only upstreams answer."""
        return next((route for pattern, route in self._routes if pattern.fullmatch(path)), None)

    def with_local(self, path: str, local: LocalAction) -> Route:
        """The route of a path on which local models answer as well."""
        return self._route(next(way for way in WAYS if way.path == path), local)

    def _route(self, way: Way, local: LocalAction | None) -> Route:
        async def act(ask: Ask) -> Reply | None:
            return await self._act(ask, way, local)

        actions: dict[str, Action] = dict.fromkeys(way.methods, act)
        return Route(way.endpoint, actions, is_limited=True)

    async def _act(self, ask: Ask, way: Way, local: LocalAction | None) -> Reply | None:
        if ask.call.method == "HEAD":
            raise ApiError(405, "This path takes no HEAD.", code="method_not_allowed")
        upload = await self._read(ask) if ask.call.method == "POST" else Upload()
        backend = self._targets.find(ask, upload.model) if way.has_model else self._first(ask)
        if not isinstance(backend, Local):
            with backend.using():
                await self._pass(ask, way, upload, backend)
            return None
        if local is None or upload.json is None:
            raise ApiError(404, "Local models do not offer this.", code="not_found")
        return await local(ask, upload.json)

    async def _read(self, ask: Ask) -> Upload:
        call, settings = ask.call, self._settings
        if call.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        kind = call.headers.get("Content-Type")
        limit = settings.upload_limit_bytes if is_form(kind) else settings.body_limit_bytes
        data = await call.body(limit_bytes=limit, within_s=settings.body_s)
        return await in_turns(reading_upload(data, kind, is_browser="Origin" in call.headers))

    def _first(self, ask: Ask) -> Backend:
        """Who keeps files. All who may ask see the same ones: so a key that is for some models only sees none."""
        backend = self._targets.first(ask)
        if backend is None or not self._targets.may_use(ask, ""):
            raise ApiError(403, "The API key of this request is for models only.", code="not_allowed")
        return backend

    async def _pass(self, ask: Ask, way: Way, upload: Upload, backend: Backend) -> None:
        """Ask one upstream, and another one if nothing has gone to the client yet.

        Raises:
            ApiError: none has answered.
        """
        avoid: set[str] = set()
        for attempt in range(1, backend.attempts + 1):
            async with backend.seat(avoid, None) as seat:
                relay = Relay(ask.call, _headers(ask), write_s=self._settings.write_s)
                try:
                    trouble = await self._ask(relay, seat, ask, way, upload, is_again=attempt > 1)
                except asyncio.CancelledError:
                    if way.has_model and upload.json is not None:  # the client has left, and the upstream works
                        self._spend(ask, relay.tokens or prompt_tokens(upload.json))
                    raise
            if trouble is None or relay.has_begun:
                self._note(ask, relay, trouble)
                return
            may_do_better = trouble.is_stale or seat.is_gone or backend.has_another({seat.name})
            if attempt == backend.attempts or not (trouble.is_worth_another and may_do_better):
                raise trouble.error
            avoid.add(seat.name)

    async def _ask(
        self, relay: Relay, seat: Seat, ask: Ask, way: Way, upload: Upload, *, is_again: bool
    ) -> Trouble | None:
        method = ask.call.method
        if way.is_root:
            root = seat.address.prefix.removesuffix(_API)
            seat.address = msgspec.structs.replace(seat.address, prefix=root)
        body = upload.body(seat.model) if method == "POST" else b""
        trouble = await relay.run(
            seat, method, _path(ask), body=body, content_type=upload.content_type, is_again=is_again
        )
        seat.report(trouble)
        return trouble

    def _note(self, ask: Ask, relay: Relay, trouble: Trouble | None) -> None:
        """What the log and the limits are told."""
        if trouble is not None:
            ask.facts["error"] = trouble.error.code
        if relay.tokens:
            ask.facts["prompt_tokens"] = relay.tokens
            self._spend(ask, relay.tokens)


def _pattern(way: Way) -> re.Pattern[str]:
    return re.compile(re.escape(way.path).replace(r"\*", _ID))


def _path(ask: Ask) -> str:
    """The path below the API's start, and the query of those that have one."""
    path, query = ask.call.path.removeprefix(_API), _KEYS.sub("", ask.call.query).strip("&")
    if not _QUERY.fullmatch(query):
        raise ApiError(400, "The query of this address cannot be passed on.", code="invalid_query")
    return f"{path}?{query}" if query else path


def _headers(ask: Ask) -> dict[str, str]:
    return {**ask.headers, "X-Content-Type-Options": "nosniff"}
