"""What answers on which path. The same paths stand with `/v1` and without."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from welldone.engines.fleet import Fleet, Model, State
from welldone.engines.upstream import Upstream
from welldone.engines.upstreams import Upstreams
from welldone.net.inbound import Reply
from welldone.net.outbound import OutboundError, fetch
from welldone.serve import listing
from welldone.serve.admission import Gate
from welldone.serve.answers import Answer
from welldone.serve.app import Action, Ask, Route, json_reply
from welldone.serve.backends import Local, Send
from welldone.serve.counting import counter
from welldone.serve.errors import ApiError, Shape
from welldone.serve.generate import Generator, Order
from welldone.serve.keys import Keys
from welldone.serve.limits import Limits
from welldone.serve.messages import MessagesApi
from welldone.serve.metrics import Metrics
from welldone.serve.ollama import OllamaApi
from welldone.serve.openapi.document import document
from welldone.serve.owners import Owners
from welldone.serve.page.api import PageParts, below_page, page_paths
from welldone.serve.page.front import Front
from welldone.serve.page.inspect import Inspect
from welldone.serve.page.loading import Loading
from welldone.serve.page.state import StateApi
from welldone.serve.passing import WAYS, LocalAction, Passing
from welldone.serve.recording import Recorder
from welldone.serve.requests.foreign import without_routing
from welldone.serve.responses import ResponsesApi
from welldone.serve.settings import ServeSettings
from welldone.serve.siblings import Siblings
from welldone.serve.stored import Store
from welldone.serve.targets import Targets
from welldone.serve.troubles import Trouble
from welldone.serve.vectors import Vectors
from welldone.wire.events import Json
from welldone.wire.head import ID_PREFIX, Endpoint

_PREFIX = "/v1"
_RESPONSE = re.compile(r"^/responses/(?!(?:input_tokens|compact)$)[^/*]+")
_METRICS_S = 1.0  # Prometheus itself waits ten


class Routes:
    """All paths of a server."""

    def __init__(
        self,
        settings: ServeSettings,
        fleet: Fleet,
        upstreams: Upstreams,
        metrics: Metrics,
        limits: Limits,
        *,
        keys: Keys,
        send: Send,
        recorder: Recorder | None,
        siblings: Siblings | None = None,
        page: PageParts | None = None,
        head: Callable[[Ask], dict[str, str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.is_draining = False
        self._works: set[asyncio.Future[Reply | None]] = set()  # what is answered at once, and may take long
        self._settings = settings
        self._fleet = fleet
        self._upstreams = upstreams
        self._metrics = metrics
        self._limits = limits
        self._siblings = siblings
        self._keys = keys
        self._generator = Generator(
            settings,
            metrics,
            limits,
            keys=keys,
            recorder=recorder,
            tapes=None if page is None else page.tapes,
            head=head,
            now=now,
        )
        self._created = int(now())
        self._gates = {model.name: _gate(model) for model in fleet.models}
        for name, gate in self._gates.items():
            metrics.watch(name, gate)
        self._targets = Targets(
            settings,
            fleet,
            upstreams,
            self._gates,
            keys=keys,
            metrics=metrics,
            send=send,
            on_report=self._reported,
        )
        self._vectors = Vectors(settings, self._local, self._gates, spend=self._spend)
        self._count = count = counter(self._vectors.count_chat)
        owners = Owners(is_strict=keys.has_several, siblings=siblings)
        self._responses = ResponsesApi(
            settings, self._targets, self._generator, _store(settings), owners=owners, count=count, now=now
        )
        self._messages = MessagesApi(settings, self._targets, self._generator, count)
        self._ollama = OllamaApi(self._targets, self._generator, listed=self._listed, now=now)
        self._passing = Passing(settings, self._targets, spend=self._spend)
        self._loading = Loading(keys, body=self._generator.body, find=self._targets.find)
        for upstream in upstreams.all:
            if upstream.is_vacant:
                self.upstream_changed(upstream)  # all others count as well until somebody finds out otherwise
        self._document = b""  # is made when it is first asked for
        self._paths = self._make()
        if page is not None:
            state = StateApi(
                fleet=fleet,
                gates=self._gates,
                upstreams=upstreams,
                metrics=metrics,
                limits=limits,
                keys=keys,
                recent=page.recent,
                recorder=recorder,
                siblings=siblings,
                is_draining=lambda: self.is_draining,
                now=now,
            )
            inspect = Inspect(page.tapes, siblings=siblings, body_s=settings.body_s, is_admin=keys.is_admin)
            self._paths |= page_paths(Front(page.site), state, inspect)

    @property
    def answers(self) -> set[Answer]:
        """Those that are being given."""
        return self._generator.answers

    @property
    def methods(self) -> dict[str, tuple[str, ...]]:
        """The methods of each path, without `/v1`; `*` stands for a name or an id."""
        passed = {way.path: way.methods for way in WAYS} if self._upstreams.all else {}
        return passed | {path: tuple(route.actions) for path, route in self._paths.items()}

    def find(self, path: str) -> Route | None:
        """The route of a path."""
        bare = path.removeprefix(_PREFIX) or "/" if path == _PREFIX or path.startswith(_PREFIX + "/") else path
        route = self._paths.get(below_page(_RESPONSE.sub("/responses/*", bare)))
        if route is None and bare.startswith("/models/"):
            return self._paths["/models/*"]
        if route is None and self._upstreams.all and (passed := self._passing.find(bare)) is not None:
            return self._hurried(passed)
        return route

    def changed(self, model: Model) -> None:
        """A model has been loaded, has died, or the like."""
        self._metrics.engine(model.name, is_up=model.state is State.READY, restarts=model.restarts)
        if model.abilities is not None:
            self._gates[model.name].resize(model.abilities.slots)

    def upstream_changed(self, upstream: Upstream) -> None:
        """An upstream is well, or is not."""
        self._metrics.upstream_state(
            upstream.name,
            is_up=upstream.is_healthy,
            is_failing=upstream.failing is not None,
            breaker=upstream.breaker.state,
        )

    def _reported(self, upstream: Upstream, trouble: Trouble | None) -> None:
        """An upstream has answered, or has not."""
        self._metrics.upstream_attempt(upstream.name, "200" if trouble is None else trouble.outcome)

    def hurry(self) -> None:
        """End what runs with an error, now."""
        for answer in tuple(self.answers):
            answer.break_off(_ending())
        for work in tuple(self._works):
            work.cancel()

    async def close(self) -> None:
        """End what nobody waits for."""
        await self._responses.close()

    def _breakable(self, action: Action) -> Action:
        """The same action, such as `hurry` can end."""

        async def act(ask: Ask) -> Reply | None:
            work = asyncio.ensure_future(action(ask))
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
        def asked(endpoint: str, action: Action, shape: Shape = Shape.OPENAI) -> Route:
            return Route(endpoint, {"POST": action}, is_limited=True, shape=shape)

        def shown(endpoint: str, action: Action, shape: Shape = Shape.OPENAI, *, is_open: bool = False) -> Route:
            return Route(endpoint, {"GET": action}, is_open=is_open, shape=shape)

        vectors = self._vectors
        rerank = self._counted("/rerank", vectors.rerank)
        paths = {
            "/chat/completions": asked("chat", self._chat),
            "/chat/completions/input_tokens": self._hurried(asked("chat", self._input_tokens)),
            "/completions": asked("completions", self._completions),
            "/embeddings": self._counted("/embeddings", vectors.embed),
            "/rerank": rerank,
            "/reranking": rerank,
            "/tokenize": self._counted("/tokenize", vectors.tokenize),
            "/detokenize": self._counted("/detokenize", vectors.detokenize),
            "/responses": asked("responses", self._responses.create),
            "/responses/input_tokens": self._hurried(asked("responses", self._responses.input_tokens)),
            "/responses/*": Route("responses", {"GET": self._responses.get, "DELETE": self._responses.delete}),
            "/responses/*/cancel": Route("responses", {"POST": self._responses.cancel}),
            "/responses/*/input_items": shown("responses", self._responses.input_items),
            "/messages": asked("messages", self._messages.create, Shape.ANTHROPIC),
            "/messages/count_tokens": self._hurried(asked("messages", self._messages.count_tokens, Shape.ANTHROPIC)),
            "/api/chat": asked("ollama", self._ollama.chat, Shape.OLLAMA),
            "/api/generate": asked("ollama", self._ollama.complete, Shape.OLLAMA),
            "/api/tags": shown("ollama", self._ollama.tags, Shape.OLLAMA),
            "/api/version": shown("ollama", self._ollama.version, Shape.OLLAMA),
            "/models": shown("models", self._list),
            "/models/*": shown("models", self._one),
            "/models/load": Route("models", {"GET": self._one, "POST": self._loading.load}),
            "/models/unload": Route("models", {"GET": self._one, "POST": self._loading.unload}),
            "/health": shown("health", self._health, is_open=True),
            # Who probes sends no key: a kubelet has none to send.
            "/livez": shown("health", self._live, is_open=True),
            "/readyz": shown("health", self._health, is_open=True),
            "/metrics": shown("metrics", self._show_metrics),
            "/openapi.json": shown("openapi", self._show_document),
        }
        if self._settings.slots:
            paths["/slots"] = shown("slots", self._show_slots)
        return paths

    def _counted(self, path: str, local: LocalAction) -> Route:
        """A path that local models answer at once, and upstreams by what passes through."""
        return self._hurried(self._passing.with_local(path, local))

    def _hurried(self, route: Route) -> Route:
        """The same route, such as `hurry` can end."""
        actions = {method: self._breakable(action) for method, action in route.actions.items()}
        return msgspec.structs.replace(route, actions=actions)

    # Answers.

    async def _chat(self, ask: Ask) -> Reply | None:
        return await self._generate(ask, Endpoint.CHAT)

    async def _input_tokens(self, ask: Ask) -> Reply:
        """llama.cpp's way to count a chat: what usage would say of its prompt."""
        body = await self._generator.body(ask)
        tokens = await self._count(self._targets.find(ask, body.get("model")), without_routing(body))
        return json_reply({"object": "response.input_tokens", "input_tokens": tokens})

    async def _completions(self, ask: Ask) -> Reply | None:
        return await self._generate(ask, Endpoint.COMPLETIONS)

    async def _generate(self, ask: Ask, endpoint: Endpoint) -> Reply | None:
        body = await self._generator.body(ask)
        backend = self._targets.find(ask, body.get("model"))
        if endpoint is Endpoint.COMPLETIONS and isinstance(backend, Local):
            await self._vectors.check_prompts(backend.model, body)
        order = Order(body=body, id=ID_PREFIX[endpoint] + secrets.token_hex(12), endpoint=endpoint)
        return await self._generator.answer(ask, backend, order)

    def _local(self, ask: Ask, body: Json) -> Model:
        """The local model that a request means."""
        backend = self._targets.find(ask, body.get("model"))
        if isinstance(backend, Local):
            return backend.model
        raise ApiError(404, "This is not offered for the models of upstreams.", code="not_found")

    # What the server says of itself.

    async def _list(self, ask: Ask) -> Reply:
        listed = self._listed(ask)
        return json_reply(
            listing.anthropic_list(listed) if ask.shape is Shape.ANTHROPIC else {"object": "list", "data": listed}
        )

    def _listed(self, ask: Ask) -> list[Json]:
        local = [listing.model_object(model, self._created) for model in self._fleet.models]
        return [one for one in [*local, *self._upstreams.listing()] if self._targets.may_use(ask, one["id"])]

    async def _one(self, ask: Ask) -> Reply:
        found = self._model_object(ask, ask.call.path.partition("/models/")[2])
        return json_reply(listing.anthropic_object(found) if ask.shape is Shape.ANTHROPIC else found)

    def _model_object(self, ask: Ask, name: str) -> Json:
        backend = self._targets.find(ask, name)
        if isinstance(backend, Local):
            return listing.model_object(backend.model, self._created)
        for one in self._upstreams.listing():
            if one["id"] == name:
                return one
        # It may be had, though nobody lists it: a pattern has it.
        return {"id": name, "object": "model", "created": self._created, "owned_by": "welldone"}

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
        if self._upstreams.all and not wanted and not any(one.is_ready for one in self._upstreams.all):
            raise ApiError(503, "No upstream can be reached.", code="upstream_unavailable", retry_after_s=10.0)
        return json_reply({"status": "ok"})

    async def _show_metrics(self, ask: Ask) -> Reply:
        self._keys.check_metrics(ask.principal)
        await asyncio.gather(*(self._ask_metrics(model) for model in self._fleet.models))
        if self._siblings is not None:
            content_type, body = await self._siblings.page()
        else:
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

    async def _show_document(self, ask: Ask) -> Reply:
        if not self._document:
            self._document = msgspec.json.encode(document(self.methods, has_upstreams=bool(self._upstreams.all)))
        return Reply(200, self._document)

    async def _show_slots(self, ask: Ask) -> Reply:
        """Which slots are busy, and no word of what is said in them."""
        slots = []
        for model in self._fleet.models:
            if not self._targets.may_use(ask, model.name):
                continue
            gate = self._gates[model.name]
            context = model.abilities.context if model.abilities is not None else 0
            slots += [
                {"id": place, "model": model.name, "n_ctx": context, "is_processing": place < gate.running}
                for place in range(gate.slots)
            ]
        return json_reply(slots)


def _store(settings: ServeSettings) -> Store:
    return Store(limit=settings.stored_responses, limit_bytes=settings.stored_bytes)


def _ending() -> ApiError:
    return ApiError(503, "The server is shutting down.", code="shutting_down")


def _gate(model: Model) -> Gate:
    settings = model.settings
    return Gate(settings.slots, settings.queue, settings.queue_wait_s)
