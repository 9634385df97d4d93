"""What answers on which path. The same paths stand with `/v1` and without."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeAlias

import msgspec

from welldone.engines.fleet import Abilities, Fleet, Model, State
from welldone.engines.settings import ModelSettings
from welldone.net.inbound import Reply
from welldone.net.outbound import OutboundError, fetch
from welldone.serve import listing, pages
from welldone.serve.admission import Gate
from welldone.serve.answers import Answer
from welldone.serve.app import Action, Ask, Route, json_reply
from welldone.serve.errors import ApiError
from welldone.serve.limits import Limits
from welldone.serve.metrics import Metrics
from welldone.serve.requests import Request, read_body, read_chat, read_completions
from welldone.serve.requests.sampling import UNKNOWN
from welldone.serve.settings import ServeSettings
from welldone.serve.vectors import Vectors
from welldone.wire.events import Json, Usage
from welldone.wire.head import Head

Reader: TypeAlias = Callable[[Json, ModelSettings, Abilities | None], Request]
"""Checks a body, and turns it into what the engine gets."""

_PREFIX = "/v1"
_METRICS_S = 1.0  # Prometheus itself waits ten
_ID = {"chat": "chatcmpl-", "completions": "cmpl-"}


class Routes:
    """All paths of a server."""

    def __init__(
        self,
        settings: ServeSettings,
        fleet: Fleet,
        metrics: Metrics,
        limits: Limits,
        *,
        head: Callable[[Ask], dict[str, str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.answers: set[Answer] = set()
        """Those that are being given."""
        self.is_draining = False
        self._works: set[asyncio.Task[Reply]] = set()  # what is answered at once, and may take long
        self._settings = settings
        self._fleet = fleet
        self._metrics = metrics
        self._limits = limits
        self._head = head
        self._now = now
        self._created = int(now())
        self._gates = {model.name: _gate(model) for model in fleet.models}
        for name, gate in self._gates.items():
            metrics.watch(name, gate)
        self._vectors = Vectors(settings, self._body, self._model, self._gates, spend=self._spend)
        self._paths = self._make()

    def find(self, path: str) -> Route | None:
        """The route of a path."""
        bare = path.removeprefix(_PREFIX) or "/" if path == _PREFIX or path.startswith(_PREFIX + "/") else path
        route = self._paths.get(bare)
        if route is None and bare.startswith("/models/"):
            return self._paths["/models/"]
        return route

    def changed(self, model: Model) -> None:
        """A model has been loaded, has died, or the like."""
        self._metrics.engine(model.name, is_up=model.state is State.READY, restarts=model.restarts)
        if model.abilities is not None:
            self._gates[model.name].resize(model.abilities.slots)

    def hurry(self) -> None:
        """End what runs with an error, now."""
        for answer in tuple(self.answers):
            answer.break_off(_ending())
        for work in tuple(self._works):
            work.cancel()

    def _breakable(self, action: Callable[[Ask], Coroutine[None, None, Reply]]) -> Action:
        """The same action, such as `hurry` can end."""

        async def act(ask: Ask) -> Reply:
            work = asyncio.create_task(action(ask))
            self._works.add(work)
            try:
                return await work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the client has left
                raise _ending() from None
            finally:
                self._works.discard(work)

        return act

    def _spend(self, ask: Ask, tokens: int) -> None:
        self._limits.spend(ask.principal, tokens)
        self._metrics.tokens(ask.model, tokens, 0)

    def _make(self) -> dict[str, Route]:
        def asked(endpoint: str, action: Action) -> Route:
            return Route(endpoint, {"POST": action}, is_limited=True)

        def shown(endpoint: str, action: Action, *, is_open: bool = False) -> Route:
            return Route(endpoint, {"GET": action}, is_open=is_open)

        rerank = asked("rerank", self._breakable(self._vectors.rerank))
        paths = {
            "/chat/completions": asked("chat", self._chat),
            "/completions": asked("completions", self._completions),
            "/embeddings": asked("embeddings", self._breakable(self._vectors.embed)),
            "/rerank": rerank,
            "/reranking": rerank,
            "/tokenize": asked("tokenize", self._breakable(self._vectors.tokenize)),
            "/detokenize": asked("detokenize", self._breakable(self._vectors.detokenize)),
            "/models": shown("models", self._list),
            "/models/": shown("models", self._one),
            "/health": shown("health", self._health, is_open=True),
            "/livez": shown("health", self._live),
            "/readyz": shown("health", self._health),
            "/metrics": shown("metrics", self._show_metrics),
        }
        if self._settings.slots:
            paths["/slots"] = shown("slots", self._show_slots)
        if not self._settings.no_page:
            paths["/"] = shown("page", pages.front, is_open=True)
        return paths

    # Answers.

    async def _chat(self, ask: Ask) -> Reply | None:
        return await self._generate(ask, read_chat)

    async def _completions(self, ask: Ask) -> Reply | None:
        return await self._generate(ask, read_completions)

    async def _generate(self, ask: Ask, read: Reader) -> Reply | None:
        body = await self._body(ask)
        model = self._model(ask, body)
        request = read(body, model.settings, _abilities(model))
        times = self._metrics.begin()
        answer = Answer(
            ask.call,
            request,
            model,
            self._gates[model.name],
            # What depends on the model is known only when it is loaded.
            again=None if model.abilities is not None else lambda: read(body, model.settings, _abilities(model)),
            head=Head(_ID[ask.endpoint] + secrets.token_hex(12), int(self._now()), model.name),
            settings=self._settings,
            times=times,
            headers=lambda: self._head(ask),
        )
        self.answers.add(answer)
        try:
            with model.using():
                return await answer.run()
        finally:
            self.answers.discard(answer)
            self._metrics.end(times, model.name)
            self._account(ask, answer, request)

    def _account(self, ask: Ask, answer: Answer, request: Request) -> None:
        """Count what an answer cost, and what was wrong with it."""
        times, pipe = answer.times, answer.pipe
        usage = pipe.usage
        mended = tuple(note.rule for note in pipe.notes.all())
        self._metrics.findings(mended)
        if answer.is_foreign:  # what our own engine does is always the same
            ask.facts["mended"] = mended
        ask.facts |= {"ttft_ms": _ms(times.ttft_s), "queued_ms": _ms(times.queued_s)}
        if usage is not None:
            prompt_s = max(0.0, (times.ttft_s or 0.0) - (times.queued_s or 0.0))
            self._limits.spend(ask.principal, usage.total_tokens)
            self._metrics.tokens(
                ask.model,
                usage.prompt_tokens,
                usage.completion_tokens,
                cached=_cached(usage),
                prompt_s=prompt_s,
                completion_s=times.gaps_s,
            )
            ask.facts |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        else:
            self._limits.spend(ask.principal, times.pieces)  # who leaves early has had them all the same
        failure = pipe.failure
        if failure is not None and ask.call.stream is not None:
            self._metrics.failure(failure.code or failure.type)
            ask.facts["error"] = failure.code or failure.type

    async def _body(self, ask: Ask) -> Json:
        headers = ask.call.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        data = await ask.call.body(limit_bytes=self._settings.body_limit_bytes, within_s=self._settings.body_s)
        return read_body(data, headers.get("Content-Type"), is_browser="Origin" in headers)

    def _model(self, ask: Ask, body: Json) -> Model:
        """The model that a request means; a server with one model may be asked without a name."""
        name = body.get("model")
        if name is None or name == "":
            if len(self._fleet.models) != 1:
                raise ApiError(400, "You must provide a model parameter.", param="model", code="missing_model")
            model: Model | None = self._fleet.models[0]
        else:
            model = self._fleet.find(name) if isinstance(name, str) else None
        if model is None:
            raise self._unknown(name)
        ask.model = model.name
        return model

    def _unknown(self, name: object) -> ApiError:
        known = ", ".join(f"`{model.name}`" for model in self._fleet.models[:8])
        return ApiError(
            404,
            f"The model `{str(name)[:64]}` does not exist here. There is: {known}. More names: --alias.",
            param="model",
            code="model_not_found",
        )

    # What the server says of itself.

    async def _list(self, ask: Ask) -> Reply:
        return json_reply(listing.models_list(self._fleet.models, self._created))

    async def _one(self, ask: Ask) -> Reply:
        name = ask.call.path.partition("/models/")[2]
        model = self._fleet.find(name)
        if model is None:
            raise self._unknown(name)
        ask.model = model.name
        return json_reply(listing.model_object(model, self._created))

    async def _live(self, ask: Ask) -> Reply:
        return json_reply({"status": "ok"})

    async def _health(self, ask: Ask) -> Reply:
        """As llama-server has it: 503 until the model is loaded; and 503 at the end, so that nobody is sent here."""
        if self.is_draining:
            raise _ending()
        wanted = [model for model in self._fleet.models if model.settings.preload or len(self._fleet.models) == 1]
        for model in wanted:
            if model.state in (State.LOADING, State.RESTARTING):
                raise ApiError(503, "Loading model", code="model_loading", retry_after_s=1.0)
            if model.state is State.FAILED:
                raise ApiError(503, "A model cannot be loaded.", code="model_unavailable", retry_after_s=10.0)
        return json_reply({"status": "ok"})

    async def _show_metrics(self, ask: Ask) -> Reply:
        await asyncio.gather(*(self._ask_metrics(model) for model in self._fleet.models))
        content_type, body = await asyncio.to_thread(self._metrics.render)
        return Reply(200, body, content_type)

    async def _ask_metrics(self, model: Model) -> None:
        """Take over what only the engine itself can count; one that is busy is not waited for."""
        address = model.address
        if address is None or model.settings.command:
            return
        with suppress(OutboundError):
            reply = await fetch(address, "GET", "/metrics", within_s=_METRICS_S)
            self._metrics.engine_report(model.name, reply.body.decode(errors="replace"))

    async def _show_slots(self, ask: Ask) -> Reply:
        """Which slots are busy, and no word of what is said in them."""
        slots = []
        for model in self._fleet.models:
            gate = self._gates[model.name]
            context = model.abilities.context if model.abilities is not None else 0
            slots += [
                {"id": place, "model": model.name, "n_ctx": context, "is_processing": place < gate.running}
                for place in range(gate.slots)
            ]
        return json_reply(slots)


def _ending() -> ApiError:
    return ApiError(503, "The server is shutting down.", code="shutting_down")


def _abilities(model: Model) -> Abilities:
    """What the model can do, as far as that is known before it is loaded."""
    if model.abilities is not None:
        return model.abilities
    return msgspec.structs.replace(UNKNOWN, kind="command") if model.settings.command else UNKNOWN


def _cached(usage: Usage) -> int:
    """The tokens of the prompt that the engine knew from before."""
    details = usage.more.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _gate(model: Model) -> Gate:
    settings = model.settings
    return Gate(settings.slots, settings.queue, settings.queue_wait_s)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
