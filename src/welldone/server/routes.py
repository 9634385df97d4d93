"""What answers on which path. The same paths stand with `/v1` and without."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.supervisor import EngineSupervisor, LocalModel, ModelState
from welldone.gateway.backends import LocalBackend, SendRequest
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.gateway.queue import RequestQueue
from welldone.gateway.registry import UpstreamRegistry
from welldone.gateway.upstream import Upstream
from welldone.http.client import HttpClientError, fetch
from welldone.http.server import HttpResponse
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.protocol.events import Json
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.api import models
from welldone.server.api.anthropic import MessagesApi
from welldone.server.api.count_tokens import make_token_counter
from welldone.server.api.embeddings import EmbeddingsApi
from welldone.server.api.models import ModelLoadingApi
from welldone.server.api.ollama import OllamaApi
from welldone.server.api.openapi.document import openapi_document
from welldone.server.api.response_owners import UpstreamIdOwners
from welldone.server.api.response_store import ResponseStore
from welldone.server.api.responses import ResponsesApi
from welldone.server.app import RequestContext, Route, RouteHandler, json_response
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS, LocalHandler, PassthroughApi
from welldone.server.generation.response_task import ResponseTask
from welldone.server.generation.service import GenerationRequest, GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.inspector.api import InspectorApi, InspectorServices, inspector_routes, wildcard_path
from welldone.server.inspector.assets import AssetHandlers
from welldone.server.inspector.state import StateApi
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.workers import WorkerSync
from welldone.server.requests.upstream_body import without_routing_fields

_API_PREFIX = "/v1"
_RESPONSE_PATH = re.compile(r"^/responses/(?!(?:input_tokens|compact)$)[^/*]+")
_ENGINE_METRICS_TIMEOUT_S = 1.0  # Prometheus itself waits ten


class Routes:
    """All paths of a server."""

    def __init__(
        self,
        settings: ServeSettings,
        fleet: EngineSupervisor,
        upstreams: UpstreamRegistry,
        metrics: Metrics,
        limits: RateLimiter,
        *,
        keys: ApiKeys,
        send: SendRequest,
        recorder: TraceRecorder | None,
        worker_sync: WorkerSync | None = None,
        page: InspectorServices | None = None,
        response_headers: Callable[[RequestContext], dict[str, str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.is_draining = False
        self._running_handlers: set[asyncio.Future[HttpResponse | None]] = (
            set()
        )  # what is answered at once, and may take long
        self._settings = settings
        self._fleet = fleet
        self._upstreams = upstreams
        self._metrics = metrics
        self._limits = limits
        self._worker_sync = worker_sync
        self._keys = keys
        self._generator = GenerationService(
            settings,
            metrics,
            limits,
            keys=keys,
            recorder=recorder,
            captures=None if page is None else page.captures,
            response_headers=response_headers,
            now=now,
        )
        self._created = int(now())
        self._queues = {model.name: _make_queue(model) for model in fleet.models}
        for name, gate in self._queues.items():
            metrics.watch_queue(name, gate)
        self._targets = BackendResolver(
            settings,
            fleet,
            upstreams,
            self._queues,
            keys=keys,
            metrics=metrics,
            send=send,
            on_report=self._on_attempt_report,
        )
        self._embeddings = EmbeddingsApi(settings, self._local_model, self._queues, charge_tokens=self._charge_tokens)
        self._count_tokens = count = make_token_counter(self._embeddings.count_chat)
        owners = UpstreamIdOwners(is_strict=keys.has_several_principals, worker_sync=worker_sync)
        self._responses = ResponsesApi(
            settings,
            self._targets,
            self._generator,
            _make_response_store(settings),
            owners=owners,
            count_tokens=count,
            now=now,
        )
        self._messages = MessagesApi(settings, self._targets, self._generator, count)
        self._ollama = OllamaApi(self._targets, self._generator, list_models=self._visible_models, now=now)
        self._passthrough = PassthroughApi(settings, self._targets, charge_tokens=self._charge_tokens)
        self._loading = ModelLoadingApi(keys, read_body=self._generator.read_body, find_backend=self._targets.find)
        for upstream in upstreams.all:
            if upstream.is_unassigned:
                self.upstream_changed(upstream)  # all others count as well until somebody finds out otherwise
        self._openapi_document = b""  # is made when it is first asked for
        self._routes = self._build_routes()
        if page is not None:
            state = StateApi(
                fleet=fleet,
                queues=self._queues,
                upstreams=upstreams,
                metrics=metrics,
                limits=limits,
                keys=keys,
                recent=page.recent,
                recorder=recorder,
                worker_sync=worker_sync,
                is_draining=lambda: self.is_draining,
                now=now,
            )
            inspect = InspectorApi(
                page.captures, worker_sync=worker_sync, body_s=settings.body_s, is_admin=keys.is_admin
            )
            self._routes |= inspector_routes(AssetHandlers(page.site), state, inspect)

    @property
    def response_tasks(self) -> set[ResponseTask]:
        """Those that are being given."""
        return self._generator.tasks

    @property
    def methods_by_path(self) -> dict[str, tuple[str, ...]]:
        """The methods of each path, without `/v1`; `*` stands for a name or an id."""
        passed = {way.path: way.methods for way in PASSTHROUGH_ENDPOINTS} if self._upstreams.all else {}
        return passed | {path: tuple(route.handlers) for path, route in self._routes.items()}

    def find(self, path: str) -> Route | None:
        """The route of a path."""
        bare = (
            path.removeprefix(_API_PREFIX) or "/" if path == _API_PREFIX or path.startswith(_API_PREFIX + "/") else path
        )
        route = self._routes.get(wildcard_path(_RESPONSE_PATH.sub("/responses/*", bare)))
        if route is None and bare.startswith("/models/"):
            return self._routes["/models/*"]
        if route is None and self._upstreams.all and (passed := self._passthrough.find(bare)) is not None:
            return self._abortable_route(passed)
        return route

    def model_changed(self, model: LocalModel) -> None:
        """A model has been loaded, has died, or the like."""
        self._metrics.set_engine_state(model.name, is_up=model.state is ModelState.READY, restarts=model.restarts)
        if model.capabilities is not None:
            self._queues[model.name].resize(model.capabilities.slots)

    def upstream_changed(self, upstream: Upstream) -> None:
        """An upstream is well, or is not."""
        self._metrics.set_upstream_state(
            upstream.name,
            is_up=upstream.is_healthy,
            is_failing=upstream.recent_failure is not None,
            breaker=upstream.breaker.state,
        )

    def _on_attempt_report(self, upstream: Upstream, failure: AttemptFailure | None) -> None:
        """An upstream has answered, or has not."""
        self._metrics.count_upstream_attempt(upstream.name, "200" if failure is None else failure.outcome)

    def abort_all(self) -> None:
        """End what runs with an error, now."""
        for answer in tuple(self.response_tasks):
            answer.abort(_shutting_down())
        for work in tuple(self._running_handlers):
            work.cancel()

    async def close(self) -> None:
        """End what nobody waits for."""
        await self._responses.close()

    def _abortable(self, handler: RouteHandler) -> RouteHandler:
        """The same action, such as `hurry` can end."""

        async def act(ctx: RequestContext) -> HttpResponse | None:
            work = asyncio.ensure_future(handler(ctx))
            self._running_handlers.add(work)
            try:
                return await work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the client has left
                raise _shutting_down() from None
            finally:
                self._running_handlers.discard(work)

        return act

    def _charge_tokens(self, ctx: RequestContext, tokens: int) -> None:
        self._limits.charge_tokens(ctx.principal, tokens)
        self._metrics.count_tokens(ctx.model, tokens, 0)

    def _build_routes(self) -> dict[str, Route]:
        def asked(endpoint: str, action: RouteHandler, shape: ErrorFormat = ErrorFormat.OPENAI) -> Route:
            return Route(endpoint, {"POST": action}, is_rate_limited=True, error_format=shape)

        def shown(
            endpoint: str, action: RouteHandler, shape: ErrorFormat = ErrorFormat.OPENAI, *, is_open: bool = False
        ) -> Route:
            return Route(endpoint, {"GET": action}, is_public=is_open, error_format=shape)

        vectors = self._embeddings
        rerank = self._local_or_passthrough("/rerank", vectors.rerank)
        paths = {
            "/chat/completions": asked("chat", self._chat),
            "/chat/completions/input_tokens": self._abortable_route(asked("chat", self._input_tokens)),
            "/completions": asked("completions", self._completions),
            "/embeddings": self._local_or_passthrough("/embeddings", vectors.embed),
            "/rerank": rerank,
            "/reranking": rerank,
            "/tokenize": self._local_or_passthrough("/tokenize", vectors.tokenize),
            "/detokenize": self._local_or_passthrough("/detokenize", vectors.detokenize),
            "/responses": asked("responses", self._responses.create),
            "/responses/input_tokens": self._abortable_route(asked("responses", self._responses.input_tokens)),
            "/responses/*": Route("responses", {"GET": self._responses.get, "DELETE": self._responses.delete}),
            "/responses/*/cancel": Route("responses", {"POST": self._responses.cancel}),
            "/responses/*/input_items": shown("responses", self._responses.input_items),
            "/messages": asked("messages", self._messages.create, ErrorFormat.ANTHROPIC),
            "/messages/count_tokens": self._abortable_route(
                asked("messages", self._messages.count_tokens, ErrorFormat.ANTHROPIC)
            ),
            "/api/chat": asked("ollama", self._ollama.chat, ErrorFormat.OLLAMA),
            "/api/generate": asked("ollama", self._ollama.complete, ErrorFormat.OLLAMA),
            "/api/tags": shown("ollama", self._ollama.tags, ErrorFormat.OLLAMA),
            "/api/version": shown("ollama", self._ollama.version, ErrorFormat.OLLAMA),
            "/models": shown("models", self._list_models),
            "/models/*": shown("models", self._get_model),
            "/models/load": Route("models", {"GET": self._get_model, "POST": self._loading.load}),
            "/models/unload": Route("models", {"GET": self._get_model, "POST": self._loading.unload}),
            "/health": shown("health", self._health, is_open=True),
            # Who probes sends no key: a kubelet has none to send.
            "/livez": shown("health", self._liveness, is_open=True),
            "/readyz": shown("health", self._health, is_open=True),
            "/metrics": shown("metrics", self._show_metrics),
            "/openapi.json": shown("openapi", self._show_document),
        }
        if self._settings.slots:
            paths["/slots"] = shown("slots", self._show_slots)
        return paths

    def _local_or_passthrough(self, path: str, handler: LocalHandler) -> Route:
        """A path that local models answer at once, and upstreams by what passes through."""
        return self._abortable_route(self._passthrough.route_with_local(path, handler))

    def _abortable_route(self, route: Route) -> Route:
        """The same route, such as `hurry` can end."""
        actions = {method: self._abortable(action) for method, action in route.handlers.items()}
        return msgspec.structs.replace(route, handlers=actions)

    # Answers.

    async def _chat(self, ctx: RequestContext) -> HttpResponse | None:
        return await self._generate(ctx, Endpoint.CHAT)

    async def _input_tokens(self, ctx: RequestContext) -> HttpResponse:
        """llama.cpp's way to count a chat: what usage would say of its prompt."""
        body = await self._generator.read_body(ctx)
        tokens = await self._count_tokens(self._targets.find(ctx, body.get("model")), without_routing_fields(body))
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    async def _completions(self, ctx: RequestContext) -> HttpResponse | None:
        return await self._generate(ctx, Endpoint.COMPLETIONS)

    async def _generate(self, ctx: RequestContext, endpoint: Endpoint) -> HttpResponse | None:
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        if endpoint is Endpoint.COMPLETIONS and isinstance(backend, LocalBackend):
            await self._embeddings.check_prompts(backend.model, body)
        order = GenerationRequest(body=body, id=ID_PREFIX[endpoint] + secrets.token_hex(12), endpoint=endpoint)
        return await self._generator.generate(ctx, backend, order)

    def _local_model(self, ctx: RequestContext, body: Json) -> LocalModel:
        """The local model that a request means."""
        backend = self._targets.find(ctx, body.get("model"))
        if isinstance(backend, LocalBackend):
            return backend.model
        raise ApiError(404, "This is not offered for the models of upstreams.", code="not_found")

    # What the server says of itself.

    async def _list_models(self, ctx: RequestContext) -> HttpResponse:
        listed = self._visible_models(ctx)
        return json_response(
            models.anthropic_list(listed)
            if ctx.error_format is ErrorFormat.ANTHROPIC
            else {"object": "list", "data": listed}
        )

    def _visible_models(self, ctx: RequestContext) -> list[Json]:
        local = [models.model_object(model, self._created) for model in self._fleet.models]
        return [one for one in [*local, *self._upstreams.list_models()] if self._targets.may_use(ctx, one["id"])]

    async def _get_model(self, ctx: RequestContext) -> HttpResponse:
        found = self._model_object(ctx, ctx.request.path.partition("/models/")[2])
        return json_response(models.anthropic_object(found) if ctx.error_format is ErrorFormat.ANTHROPIC else found)

    def _model_object(self, ctx: RequestContext, name: str) -> Json:
        backend = self._targets.find(ctx, name)
        if isinstance(backend, LocalBackend):
            return models.model_object(backend.model, self._created)
        for one in self._upstreams.list_models():
            if one["id"] == name:
                return one
        # It may be had, though nobody lists it: a pattern has it.
        return {"id": name, "object": "model", "created": self._created, "owned_by": "welldone"}

    async def _liveness(self, ctx: RequestContext) -> HttpResponse:
        return json_response({"status": "ok"})

    async def _health(self, ctx: RequestContext) -> HttpResponse:
        """As llama-server has it: 503 until the model is loaded; and 503 at the end, so that nobody is sent here."""
        if self.is_draining:
            raise _shutting_down()
        wanted = [model for model in self._fleet.models if model.settings.preload or len(self._fleet.models) == 1]
        for model in wanted:
            if model.state in (ModelState.LOADING, ModelState.RESTARTING):
                raise ApiError(503, "Loading model", code="model_loading", retry_after_s=1.0)
            if model.state is ModelState.FAILED:
                raise ApiError(503, "A model cannot be loaded.", code="model_unavailable", retry_after_s=10.0)
        if self._upstreams.all and not wanted and not any(one.is_ready for one in self._upstreams.all):
            raise ApiError(503, "No upstream can be reached.", code="upstream_unavailable", retry_after_s=10.0)
        return json_response({"status": "ok"})

    async def _show_metrics(self, ctx: RequestContext) -> HttpResponse:
        self._keys.check_metrics(ctx.principal)
        await asyncio.gather(*(self._scrape_engine(model) for model in self._fleet.models))
        if self._worker_sync is not None:
            content_type, body = await self._worker_sync.metrics_page()
        else:
            content_type, body = await asyncio.to_thread(self._metrics.render)
        return HttpResponse(200, body, content_type)

    async def _scrape_engine(self, model: LocalModel) -> None:
        """Take over what only the engine itself can count; one that is busy is not waited for."""
        address = model.address
        if address is None or model.settings.command:
            return
        with suppress(HttpClientError):
            reply = await fetch(address, "GET", "/metrics", timeout_s=_ENGINE_METRICS_TIMEOUT_S)
            self._metrics.add_engine_metrics(model.name, reply.body.decode(errors="replace"))

    async def _show_document(self, ctx: RequestContext) -> HttpResponse:
        if not self._openapi_document:
            self._openapi_document = msgspec.json.encode(
                openapi_document(self.methods_by_path, has_upstreams=bool(self._upstreams.all))
            )
        return HttpResponse(200, self._openapi_document)

    async def _show_slots(self, ctx: RequestContext) -> HttpResponse:
        """Which slots are busy, and no word of what is said in them."""
        slots = []
        for model in self._fleet.models:
            if not self._targets.may_use(ctx, model.name):
                continue
            gate = self._queues[model.name]
            context = model.capabilities.context if model.capabilities is not None else 0
            slots += [
                {"id": place, "model": model.name, "n_ctx": context, "is_processing": place < gate.running}
                for place in range(gate.slots)
            ]
        return json_response(slots)


def _make_response_store(settings: ServeSettings) -> ResponseStore:
    return ResponseStore(limit=settings.stored_responses, limit_bytes=settings.stored_bytes)


def _shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down.", code="shutting_down")


def _make_queue(model: LocalModel) -> RequestQueue:
    settings = model.settings
    return RequestQueue(settings.slots, settings.queue, settings.queue_wait_s)
