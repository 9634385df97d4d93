"""The routing table. Every path exists with and without `/v1`, those of Google's API also with `/v1beta`."""

import asyncio
import re
from contextlib import suppress
from functools import partial
from operator import itemgetter

import msgspec

import welldone
from welldone.core.envelope import Endpoint
from welldone.dialects.gemini.objects import METHOD_PATH
from welldone.dialects.registry import DIALECTS
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.backends import LocalBackend
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError, ErrorFormat, shutting_down
from welldone.gateway.queue import RequestQueue
from welldone.gateway.upstream import Upstream
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError
from welldone.http.messages import HttpResponse
from welldone.server.api.dialect import GeminiApi, MessagesApi, OllamaApi
from welldone.server.api.embeddings import EmbeddingsApi
from welldone.server.api.keys import KeysApi
from welldone.server.api.models import ModelsApi
from welldone.server.api.openapi import openapi_document
from welldone.server.api.response_socket import ResponseSockets
from welldone.server.api.response_store import ResponseStore, SharedResponses, UpstreamIdOwners
from welldone.server.api.responses import ResponsesApi
from welldone.server.context import RequestContext, Route, RouteHandler, json_response, random_hex
from welldone.server.generation.answer import Answer
from welldone.server.generation.mirror import KEPT_COMPARISONS
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS, LocalHandler, PassthroughApi
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.inspector.api import InspectorApi, download_routes, inspector_routes, wildcard_path
from welldone.server.inspector.state import StateApi
from welldone.server.observe.workers import WorkerQuery
from welldone.server.parts import ServerParts
from welldone.server.requests.upstream_body import without_routing_fields
from welldone.server.resume.api import ResumeService

_API_PREFIX = "/v1"
_GEMINI_PREFIX = "/v1beta/models"
_ID_PATH = re.compile(r"^/(responses|streams|keys)/(?!(?:input_tokens|compact)$)[^/*]+")
_MIRROR_TOPIC = "mirror"  # of queries among workers
_ENGINE_METRICS_TIMEOUT_S = 1.0  # Prometheus' own scrape timeout is 10 s


class Routes:
    """The routes of a server and the objects that handle them."""

    def __init__(self, parts: ServerParts) -> None:
        self.is_draining: bool = False
        self._running_handlers: set[asyncio.Future[HttpResponse | None]] = set()  # of abortable routes
        self._parts = parts
        settings, keys = parts.settings, parts.keys
        self._resume = ResumeService(parts)
        self._generator = GenerationService(parts, self._resume)
        self._queues: dict[str, RequestQueue] = {}  # of local models
        self._queued_models: dict[str, LocalModel] = {}
        self._set_queues()
        self._targets = BackendResolver(parts, self._queues, self._on_attempt_report)
        self._embeddings = EmbeddingsApi(settings, self._targets, self._queues, self._charge_tokens)
        services = (settings, self._targets, self._generator, self._embeddings.count_chat, parts.now)
        local_store = ResponseStore(limit=settings.connections, limit_bytes=settings.stored_bytes)
        store = ResponseStore(limit=settings.stored_responses, limit_bytes=settings.stored_bytes)
        shared = None if parts.response_store is None else SharedResponses(parts.response_store, store, settings)
        self._responses = ResponsesApi(
            *services,
            store=store,
            shared=shared,
            owners=UpstreamIdOwners(parts.worker_sync, is_strict=keys.has_several_principals),
            local_store=local_store,
            resume=self._resume,
            charge_tokens=self._charge_tokens,
        )
        self._response_sockets = ResponseSockets(parts, local_store)
        self._messages = MessagesApi(*services)
        self._ollama = OllamaApi(*services)
        self._gemini = GeminiApi(*services)
        self._passthrough = PassthroughApi(settings, self._targets, charge_tokens=self._charge_tokens)
        self._models = ModelsApi(parts, self._targets, self._generator.read_body, int(parts.now()))
        self._keys = KeysApi(parts, self._generator.read_body)
        for upstream in parts.upstreams.all:
            if upstream.is_unassigned:
                self.upstream_changed(upstream)  # all others count as healthy until the first probe
        parts.metrics.watch("welldone_ready", lambda: self._readiness_error() is None)
        self._openapi_document = b""  # built on the first request, and again after a reload
        self._routes = self._build_routes()
        parts.worker_sync.register(_MIRROR_TOPIC, self._encode_comparisons)
        if (page := parts.page) is not None:
            state = StateApi(parts, self._queues, page.recent, lambda: self.is_draining)
            inspect = InspectorApi(
                page.captures, worker_sync=parts.worker_sync, body_s=settings.body_s, is_admin=keys.is_admin
            )
            self._routes |= inspector_routes(page.site, state, inspect)
            if page.downloads is not None:
                self._routes |= download_routes(page.downloads)
        self._routes = {path: msgspec.structs.replace(route, path=path) for path, route in self._routes.items()}

    @property
    def answers(self) -> set[Answer]:
        """The responses in progress."""
        return self._generator.answers

    @property
    def methods_by_path(self) -> dict[str, tuple[str, ...]]:
        """The methods of each path, without `/v1`; `*` is the placeholder of a name or an id."""
        endpoints = PASSTHROUGH_ENDPOINTS if self._parts.upstreams.all else ()
        passthrough = {endpoint.path: endpoint.methods for endpoint in endpoints}
        return passthrough | {path: tuple(route.handlers) for path, route in self._routes.items()}

    def find(self, path: str) -> Route | None:
        """The route of a path, or None."""
        if (gemini := METHOD_PATH.fullmatch(path)) is not None:
            return self._routes[f"/models/*:{gemini[2]}"]
        if path.startswith(_GEMINI_PREFIX):
            path = path.removeprefix(_GEMINI_PREFIX.removesuffix("/models"))
        bare = path.removeprefix(_API_PREFIX) or "/" if f"{path}/".startswith(f"{_API_PREFIX}/") else path
        route = self._routes.get(bare) or self._routes.get(wildcard_path(_ID_PATH.sub(r"/\1/*", bare)))
        if route is None and bare.startswith("/models/"):
            return self._routes["/models/*"]
        if route is None and self._parts.upstreams.all and (passthrough := self._passthrough.find(bare)) is not None:
            return self._abortable_route(passthrough)
        return route

    def _set_queues(self) -> None:
        """Create the queues of new models. That of a removed model stays until the next change, for its requests."""
        models = {model.name: model for model in self._parts.supervisor.models}
        for name in self._queues.keys() - models.keys() - self._queued_models.keys():
            del self._queues[name]
        for name, model in models.items():
            settings = model.settings
            if self._queued_models.get(name) is model:
                self._queues[name].configure(settings.queue, settings.queue_wait_s)
            else:
                self._queues[name] = RequestQueue(settings.slots, settings.queue, settings.queue_wait_s)
        self._queued_models = models
        self._parts.metrics.watch_queues({name: self._queues[name] for name in models})

    def reload(self) -> None:
        """Use the present models, upstreams, keys and settings for new requests."""
        self._set_queues()
        self._targets.reload()
        self._responses.owners.is_strict = self._parts.keys.has_several_principals
        for service in (self._responses, self._messages, self._ollama, self._gemini, self._embeddings):
            service.settings = self._parts.settings
        self._passthrough.settings = self._resume.settings = self._parts.settings
        for upstream in self._parts.upstreams.all:
            self.upstream_changed(upstream)
        self._openapi_document = b""

    def model_changed(self, model: LocalModel) -> None:
        """Update metrics and queue after a change of a model's state."""
        if self._queued_models.get(model.name) is not model:
            return  # it is not served any more
        self._parts.metrics.set_engine_state(model.name, is_up=model.state is ModelState.READY, restarts=model.restarts)
        if model.capabilities is not None:
            self._queues[model.name].resize(model.capabilities.slots)

    def upstream_changed(self, upstream: Upstream) -> None:
        """Update metrics after a change of an upstream's state."""
        self._parts.metrics.set_upstream_state(
            upstream.name,
            is_up=upstream.is_healthy,
            is_failing=upstream.recent_failure is not None,
            breaker=upstream.breaker.state,
        )

    def _on_attempt_report(self, upstream: Upstream, failure: AttemptFailure | None) -> None:
        outcome = "200" if failure is None else failure.outcome
        is_failure = failure is not None and failure.is_upstream_failure
        self._parts.metrics.count_upstream_attempt(upstream.name, outcome, is_failure=is_failure)

    def drain(self) -> None:
        """Refuse new requests, and close each WebSocket after the response in progress."""
        self.is_draining = True
        self._response_sockets.drain()

    def abort_all(self) -> None:
        """End all running requests with an error, now."""
        for response in tuple(self.answers):
            response.abort(shutting_down())
        for handler in tuple(self._running_handlers):
            handler.cancel()

    async def wait_idle(self, within_s: float) -> bool:
        """Wait for streams without a connection that other servers can send; whether all have ended."""
        return await self._resume.wait_idle(within_s)

    async def close(self) -> None:
        """End background responses, streams without a connection, and a download."""
        if self._parts.page is not None and self._parts.page.downloads is not None:
            await self._parts.page.downloads.close()
        await self._resume.close()
        await self._responses.background.close()
        if self._responses.shared is not None:
            await self._responses.shared.close()

    def _abortable(self, handler: RouteHandler) -> RouteHandler:
        """Wrap a handler so that `abort_all` can end it."""

        async def handle(ctx: RequestContext) -> HttpResponse | None:
            running = asyncio.ensure_future(handler(ctx))
            self._running_handlers.add(running)
            try:
                return await running
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the client disconnected
                raise shutting_down() from None
            finally:
                self._running_handlers.discard(running)

        return handle

    def _charge_tokens(self, ctx: RequestContext, tokens: int) -> None:
        self._parts.limits.charge_tokens(ctx.principal, tokens)
        self._parts.metrics.count_tokens(ctx.model, tokens, 0)

    def _build_routes(self) -> dict[str, Route]:
        def post(endpoint: str, handler: RouteHandler, error_format: ErrorFormat = ErrorFormat.OPENAI) -> Route:
            return Route(endpoint, {"POST": handler}, is_rate_limited=True, error_format=error_format)

        def get(endpoint: str, handler: RouteHandler, error_format: ErrorFormat = ErrorFormat.OPENAI) -> Route:
            return Route(endpoint, {"GET": handler}, error_format=error_format)

        def local(path: str, handler: LocalHandler) -> Route:  # requests for upstreams are passed through
            return self._abortable_route(self._passthrough.route_with_local(path, handler))

        vectors = self._embeddings
        rerank = local("/rerank", vectors.rerank)
        paths = {
            "/chat/completions": post("chat", partial(self._generate, endpoint=Endpoint.CHAT)),
            "/chat/completions/input_tokens": self._abortable_route(post("chat", self._input_tokens)),
            "/completions": post("completions", partial(self._generate, endpoint=Endpoint.COMPLETIONS)),
            "/embeddings": local("/embeddings", vectors.embed),
            "/rerank": rerank,
            "/reranking": rerank,
            "/tokenize": local("/tokenize", vectors.tokenize),
            "/detokenize": local("/detokenize", vectors.detokenize),
            "/responses": msgspec.structs.replace(
                post("responses", self._responses.create), socket=self._response_sockets.connect
            ),
            "/responses/input_tokens": self._abortable_route(post("responses", self._responses.input_tokens)),
            "/responses/compact": self._abortable_route(post("responses", self._responses.compact)),
            "/responses/*": Route("responses", {"GET": self._responses.get, "DELETE": self._responses.delete}),
            "/responses/*/cancel": Route("responses", {"POST": self._responses.cancel}),
            "/responses/*/input_items": get("responses", self._responses.input_items),
            "/streams/*": Route("streams", {"GET": self._resume.get, "DELETE": self._resume.delete}),
            "/messages": post("messages", self._messages.create, ErrorFormat.ANTHROPIC),
            "/messages/count_tokens": self._abortable_route(
                post("messages", self._messages.count_tokens, ErrorFormat.ANTHROPIC)
            ),
            "/api/chat": post("ollama", partial(self._ollama.respond, is_chat=True), ErrorFormat.OLLAMA),
            "/api/generate": post("ollama", partial(self._ollama.respond, is_chat=False), ErrorFormat.OLLAMA),
            "/api/tags": get("ollama", self._models.tags, ErrorFormat.OLLAMA),
            "/api/version": get("ollama", self._show_version, ErrorFormat.OLLAMA),
            "/models/*:generateContent": post("gemini", self._gemini.generate, ErrorFormat.GEMINI),
            "/models/*:streamGenerateContent": post("gemini", self._gemini.stream, ErrorFormat.GEMINI),
            "/models/*:countTokens": self._abortable_route(
                post("gemini", self._gemini.count_tokens, ErrorFormat.GEMINI)
            ),
            "/models": get("models", self._models.list),
            "/models/*": get("models", self._models.get),
            "/models/load": Route("models", {"GET": self._models.get, "POST": self._models.load}),
            "/models/unload": Route("models", {"GET": self._models.get, "POST": self._models.unload}),
            "/keys": Route("keys", {"GET": self._keys.list, "POST": self._keys.add}),
            "/keys/*": Route("keys", {"DELETE": self._keys.remove}),
            "/health": Route("health", {"GET": self._health}, is_public=True),
            # Health probes are public: a kubelet has no key to send.
            "/livez": Route("health", {"GET": self._liveness}, is_public=True),
            "/readyz": Route("health", {"GET": self._health}, is_public=True),
            "/admin/mirror": Route("admin", {"GET": self._show_mirrored}),
            "/metrics": get("metrics", self._show_metrics),
            "/openapi.json": get("openapi", self._show_document),
        }
        if self._parts.reload is not None:
            paths["/admin/reload"] = Route("admin", {"POST": self._reload})
        if self._parts.settings.slots:
            paths["/slots"] = get("slots", self._show_slots)
        return paths

    def _abortable_route(self, route: Route) -> Route:
        handlers = {method: self._abortable(handler) for method, handler in route.handlers.items()}
        return msgspec.structs.replace(route, handlers=handlers)

    # Chat and completions.

    async def _input_tokens(self, ctx: RequestContext) -> HttpResponse:
        """llama.cpp's endpoint that counts the prompt tokens of a chat request."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        tokens = await self._embeddings.count_chat(ctx, backend, without_routing_fields(body))
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    async def _generate(self, ctx: RequestContext, endpoint: Endpoint) -> HttpResponse | None:
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        if not endpoint.is_chat and isinstance(backend, LocalBackend):
            await self._embeddings.check_prompts(backend.model, body)
        request_id = DIALECTS[endpoint].id_prefix + random_hex(12)
        return await self._generator.generate(
            ctx, backend, GenerationRequest(body=body, id=request_id, endpoint=endpoint)
        )

    # Administration, health, metrics and documents.

    async def _show_mirrored(self, ctx: RequestContext) -> HttpResponse:
        """The last comparisons of mirrored requests, the newest first. For admins."""
        self._parts.keys.check_admin(ctx.principal)
        comparisons = list(self._parts.mirror.comparisons)
        for reply in await self._parts.worker_sync.gather(_MIRROR_TOPIC, {}):
            comparisons += msgspec.json.decode(reply)
        newest = sorted(comparisons, key=itemgetter("at"), reverse=True)[:KEPT_COMPARISONS]
        return json_response({"object": "list", "data": newest})

    async def _encode_comparisons(self, query: WorkerQuery) -> bytes:
        return msgspec.json.encode(list(self._parts.mirror.comparisons))

    async def _reload(self, ctx: RequestContext) -> HttpResponse:
        """Read the configuration again and apply it. For admins."""
        self._parts.keys.check_admin(ctx.principal)
        assert self._parts.reload is not None
        result = await self._parts.reload()
        if result.error is not None:
            raise ApiError(409, f"The configuration is unchanged: {result.error}", code="invalid_configuration")
        return json_response(result)

    async def _liveness(self, ctx: RequestContext) -> HttpResponse:
        return json_response({"status": "ok"})

    async def _show_version(self, ctx: RequestContext) -> HttpResponse:
        return json_response({"version": welldone.__version__})

    async def _health(self, ctx: RequestContext) -> HttpResponse:
        if (error := self._readiness_error()) is not None:
            raise error
        return json_response({"status": "ok"})

    def _readiness_error(self) -> ApiError | None:
        """As llama-server: 503 while the model is loading; also while draining, to leave load balancing."""
        if self.is_draining:
            return shutting_down()
        models = self._parts.supervisor.models
        required = [model for model in models if model.settings.preload or len(models) == 1]
        for model in required:
            if model.state in (ModelState.LOADING, ModelState.RESTARTING):
                return ApiError(503, "Loading model", code="model_loading", retry_after_s=1.0)
            if model.state is ModelState.FAILED:
                return ApiError(503, "A model cannot be loaded.", code="model_unavailable", retry_after_s=10.0)
        upstreams = self._parts.upstreams.all
        if upstreams and not required and not any(upstream.is_ready for upstream in upstreams):
            return ApiError(503, "No upstream can be reached.", code="upstream_unavailable", retry_after_s=10.0)
        return None

    async def _show_metrics(self, ctx: RequestContext) -> HttpResponse:
        self._parts.keys.check_metrics(ctx.principal)
        await asyncio.gather(*(self._scrape_engine(model) for model in self._parts.supervisor.models))
        content_type, body = await self._parts.worker_sync.metrics_page()
        return HttpResponse(200, body, content_type)

    async def _scrape_engine(self, model: LocalModel) -> None:
        """Import the metrics that only the engine has, unless it is too busy to send them in time."""
        if model.settings.standby:
            self._parts.metrics.set_standby(model.name, is_ready=model.standby.process is not None)
        address = model.address
        if address is None or model.settings.command:
            return
        with suppress(HttpClientError):
            reply = await fetch(address, "GET", "/metrics", timeout_s=_ENGINE_METRICS_TIMEOUT_S)
            self._parts.metrics.add_engine_metrics(model.name, reply.body.decode(errors="replace"))

    async def _show_document(self, ctx: RequestContext) -> HttpResponse:
        if not self._openapi_document:
            self._openapi_document = msgspec.json.encode(
                openapi_document(self.methods_by_path, has_upstreams=bool(self._parts.upstreams.all))
            )
        return HttpResponse(200, self._openapi_document)

    async def _show_slots(self, ctx: RequestContext) -> HttpResponse:
        """Which slots are busy, without any content."""
        slots = []
        for model in self._parts.supervisor.models:
            if not self._targets.may_use(ctx, model.name):
                continue
            queue = self._queues[model.name]
            context = model.capabilities.context if model.capabilities is not None else 0
            slots += [
                {"id": slot, "model": model.name, "n_ctx": context, "is_processing": slot < queue.running}
                for slot in range(queue.slots)
            ]
        return json_response(slots)
