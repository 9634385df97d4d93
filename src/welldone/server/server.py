"""Life cycle of the server: build all parts, listen, start engines and probes, drain, stop."""

import asyncio
import importlib
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from welldone.config.server import Config
from welldone.engines.supervisor import EngineSupervisor, LocalModel
from welldone.gateway.registry import UpstreamRegistry
from welldone.gateway.upstream import Upstream
from welldone.http.client import ConnectionPool, send
from welldone.http.redaction import SecretRedactor, is_weak_key
from welldone.http.server import HttpServer
from welldone.server.access.key_storage import (
    FileKeyStorage,
    KeyStorage,
    SharedKeyStorage,
    WatchedKeyFile,
    connect_store,
)
from welldone.server.access.keys import ApiKeys, KeyLookup, SharedApiKeys
from welldone.server.access.limits import BucketStorage, RateLimiter, limited_principals
from welldone.server.access.origins import OriginPolicy
from welldone.server.access.store import RESPONSE_COPIES, STREAM_COPIES, SharedStore
from welldone.server.app import App, protocol_error_response
from welldone.server.generation.mirror import TrafficMirror
from welldone.server.inspector.assets import StaticSite
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.downloads import Downloads
from welldone.server.inspector.recent import RecentRequests
from welldone.server.observe.counters import RepairSummary
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.tracing import RequestTracer
from welldone.server.observe.workers import Worker, WorkerSync
from welldone.server.parts import InspectorServices, ServerParts
from welldone.server.reload import NewConfig, ReloadResult
from welldone.server.routes import Routes

_UNREAD_MARGIN_S = 60.0  # beyond the write timeout of a response, which closes the stream first and logs why
_ABORT_GRACE_S = 2.0  # to send the error events of aborted responses
_ENGINES_STOP_S = 15.0  # an engine is killed 5 s after SIGTERM


class Server:
    """The complete server."""

    def __init__(
        self,
        config: Config,
        *,
        keys: Iterable[str],
        folder: Path,
        environment: Mapping[str, str] = os.environ,
        on_change: Callable[[LocalModel], None] = lambda _: None,
        on_line: Callable[[LocalModel, str], None] = lambda *_: None,
        on_warning: Callable[[LocalModel, str], None] = lambda *_: None,
        on_upstream: Callable[[Upstream], None] = lambda _: None,
        worker: Worker | None = None,
        site: StaticSite | None = None,
        on_reload: Callable[[], Awaitable[ReloadResult]] | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._worker = worker
        self._on_change = on_change
        self._on_upstream = on_upstream
        settings = config.server
        keys = tuple(keys)
        api_keys, limits, self._store, key_storage = _make_access_control(
            config,
            keys,
            None if worker is None else worker.bucket_storage,
            () if worker is None else worker.places,
        )
        secrets = self._secrets = {*keys, *config.secrets}
        metrics = Metrics(
            (model.name for model in config.models),
            upstreams=[upstream.name for upstream in config.upstreams],
            secrets=secrets,
        )
        self.supervisor: EngineSupervisor = EngineSupervisor(
            config.models,
            folder=folder,
            environment=_without_secrets(secrets, environment),
            on_change=self._model_changed,
            on_line=on_line,
            on_warning=on_warning,
            max_loaded=settings.max_loaded,
            stall_s=settings.stall_s,
        )
        self.upstreams: UpstreamRegistry = UpstreamRegistry(
            config.upstreams, config.routes, local_names=_local_names(config), on_change=self._upstream_changed
        )
        if (store := self._store) is not None:
            metrics.watch("welldone_limits_store_up", lambda: store.is_up)
        url = config.limits.store
        stream_store = response_store = None
        if url is not None and settings.resume_s > 0:  # with connections of its own: copies are larger
            stream_store = SharedStore(connect_store(url), use=STREAM_COPIES, owner=api_keys.owner)
        if url is not None and settings.stored_s > 0 and settings.stored_responses > 0:
            response_store = SharedStore(connect_store(url), use=RESPONSE_COPIES, owner=api_keys.owner)
        self._pool = ConnectionPool()
        recorder = None if settings.record is None else TraceRecorder(settings.record, secrets=secrets)
        if recorder is not None:
            metrics.watch("welldone_recordings_dropped", lambda: recorder.dropped)
        tracer: RequestTracer | None = None
        if config.is_traced:  # the library is an optional dependency, and slow to import
            module = importlib.import_module("welldone.server.observe.otel")
            tracer = module.make_tracer(is_tls=settings.ssl_cert_file is not None)
        page = None
        if site is not None and not settings.no_page:
            downloads = None
            if config.models and worker is None:
                child_environment = _without_secrets(secrets, environment)
                downloads = Downloads(
                    folder, child_environment, check_admin=api_keys.check_admin, body_s=settings.body_s
                )
            recent, captures = RecentRequests(secrets=secrets), CaptureStore(SecretRedactor(secrets))
            page = InspectorServices(site, recent, captures, downloads)
        self._tls: ssl.SSLContext | None = None
        self._parts = parts = ServerParts(
            settings=settings,
            supervisor=self.supervisor,
            upstreams=self.upstreams,
            metrics=metrics,
            keys=api_keys,
            limits=limits,
            key_storage=key_storage,
            send=partial(send, pool=self._pool),
            recorder=recorder,
            tracer=tracer,
            mirror=TrafficMirror(self.upstreams.find, metrics),
            worker_sync=WorkerSync(worker, metrics.render),
            stream_store=stream_store,
            response_store=response_store,
            page=page,
            reload=on_reload,
        )
        self.routes: Routes = Routes(parts)
        self._app = App(self.routes.find, parts, self._origin_policy(settings.port))
        self._listener = HttpServer(
            self._app.handle,
            error_response=protocol_error_response,
            connections=settings.connections,
            keep_alive_s=settings.head_s,
            write_timeout_s=settings.write_s + _UNREAD_MARGIN_S,
            worker=None if worker is None else (worker.loads, worker.number),
        )
        self._repair_summary = RepairSummary(metrics.upstream_counts)
        self.port: int = settings.port

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, and start to load the models. Listening sockets replace host and port.

        Raises:
            OSError: the address cannot be bound, or a TLS file cannot be read.
        """
        settings, parts = self._config.server, self._parts
        if self._store is not None:
            await self._store.start()
        sockets = sockets if self._worker is None else self._worker.sockets
        self._tls = _tls_context(self._config)
        self.port = await self._listener.start(settings.host, settings.port, tls=self._tls, sockets=sockets)
        self._app.origins = self._origin_policy(self.port)
        loop = asyncio.get_running_loop()
        parts.metrics.watch("welldone_tasks", lambda: len(asyncio.all_tasks(loop)))
        if parts.recorder is not None:
            parts.recorder.start()
        await self.supervisor.start()
        await self.upstreams.start()
        await parts.worker_sync.start()
        self._repair_summary.start()

    def reload(self, new: NewConfig) -> set[str]:
        """Apply another configuration to new requests; requests in progress end as they began.

        Its settings that need a restart are those of the start. Returns the secrets that must not appear in logs: those
        of requests in progress are among them.

        Raises:
            OSError: a TLS file cannot be read; nothing has changed.
            ValueError: the configuration was not checked; nothing has changed.
        """
        config, settings, parts = new.config, new.config.server, self._parts
        if self._tls is not None and settings.ssl_cert_file is not None:  # a renewed certificate
            self._tls.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
        self.upstreams.reload(config.upstreams, config.routes, local_names=_local_names(config))
        parts.keys.reload(new.keys, config.keys)
        now_secrets = {*new.keys, *config.secrets}
        secrets, self._secrets = self._secrets | now_secrets, now_secrets
        self._config = config
        parts.settings = settings
        parts.limits.reload(
            settings.requests_per_minute,
            settings.tokens_per_minute,
            named=config.keys,
            principals=limited_principals(config, parts.keys),
            places=new.places,
        )
        upstream_names = (upstream.name for upstream in config.upstreams)
        parts.metrics.reload((model.name for model in config.models), upstream_names, secrets)
        redactors = [] if parts.recorder is None else [parts.recorder.secrets]
        if parts.page is not None:
            redactors += [parts.page.recent.secrets, parts.page.captures.secrets]
        for redactor in redactors:
            redactor.reload(secrets)
        self.supervisor.reload(config.models, _without_secrets(secrets, self._environment), settings.max_loaded)
        self.routes.reload()
        self._app.origins = self._origin_policy(self.port)
        return secrets

    def record_reload(self, result: ReloadResult, *, is_counted: bool = True) -> None:
        """Report a reload in the metrics. Of several workers one counts it."""
        self._parts.metrics.record_reload(result.outcome, is_counted=is_counted)

    async def stop(self) -> bool:
        """Drain: wait for running requests up to the limit, then abort them. Returns whether all finished."""
        parts = self._parts
        self._app.is_draining = True
        self._repair_summary.stop()
        self.routes.drain()
        await self._listener.stop_accepting()
        deadline = time.monotonic() + self._config.server.drain_s
        is_finished = await self._listener.wait_idle(self._config.server.drain_s)
        is_finished = await self.routes.wait_idle(max(0.0, deadline - time.monotonic())) and is_finished
        if not is_finished:
            self.abort_all()
            await self._listener.wait_idle(_ABORT_GRACE_S)
        await self._listener.close()
        await self.routes.close()
        await parts.mirror.close()
        await parts.limits.close()
        for store in (self._store, parts.stream_store, parts.response_store):
            if store is not None:
                await store.close()
        await self.upstreams.stop()
        await parts.worker_sync.stop()
        await self.supervisor.stop(_ENGINES_STOP_S)
        await self._pool.close()
        if parts.recorder is not None:
            await asyncio.to_thread(parts.recorder.close)
        if parts.tracer is not None:
            await asyncio.to_thread(parts.tracer.close)
        return is_finished

    def abort_all(self) -> None:
        """End all running requests with an error, now."""
        self.routes.abort_all()

    def _model_changed(self, model: LocalModel) -> None:
        self.routes.model_changed(model)
        self._on_change(model)

    def _upstream_changed(self, upstream: Upstream) -> None:
        self.routes.upstream_changed(upstream)
        self._on_upstream(upstream)

    def _origin_policy(self, port: int) -> OriginPolicy:
        settings = self._config.server
        return OriginPolicy(
            host=settings.host,
            port=port,
            allowed_hosts=settings.allowed_hosts,
            cors_origins=settings.cors_origins,
            is_tls=settings.ssl_cert_file is not None,
            has_keys=not self._parts.keys.allows_anonymous,
        )


def _make_access_control(
    config: Config, keys: Collection[str], bucket_storage: BucketStorage | None, places: Collection[str] = ()
) -> tuple[ApiKeys, RateLimiter, SharedStore | None, KeyStorage | None]:
    """Build keys, limits, the store that they share, and the storage in which admins add and remove keys.

    The storage is the key file if there is one, else the store. The workers of this machine share `bucket_storage`, and
    `places` in it.
    """
    settings = config.server
    api_keys = ApiKeys(keys, config.keys)
    store = None if config.limits.store is None else SharedStore(connect_store(config.limits.store))
    limits = RateLimiter(
        settings.requests_per_minute,
        settings.tokens_per_minute,
        named=config.keys,
        principals=places or limited_principals(config, api_keys),
        storage=bucket_storage if store is None else None,
        store=store,
    )
    if config.has_stored_keys:
        look_up = _key_lookup(settings.keys_file, store)
        api_keys = SharedApiKeys(keys, config.keys, look_up=look_up, on_found=limits.set_rates)
    storage: KeyStorage | None = None
    if settings.keys_file is not None:
        storage = FileKeyStorage(settings.keys_file)
    elif store is not None:
        storage = SharedKeyStorage(store.call)
    return api_keys, limits, store, storage


def _key_lookup(path: Path | None, store: SharedStore | None) -> KeyLookup:
    """Look keys up in the key file, then in the shared store."""
    file = None if path is None else WatchedKeyFile(path)

    async def look_up(digest: bytes) -> bytes | None:
        entry = None if file is None else await file.find(digest)
        if entry is None and store is not None:
            return await store.call(lambda client: client.key(digest.hex()))
        return entry

    return look_up


def _local_names(config: Config) -> list[str]:
    return [name for model in config.models for name in (model.name, *model.aliases)]


def _without_secrets(keys: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for engines, without variables that contain a client's key."""

    def contains(value: str, key: str) -> bool:
        # A short key occurs in other values by chance, such as `local` in PATH: match it only as a list item.
        return key in value.split(",") if is_weak_key(key) else key in value

    return {name: value for name, value in environment.items() if not any(contains(value, key) for key in keys)}


def _tls_context(config: Config) -> ssl.SSLContext | None:
    settings = config.server
    if settings.ssl_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
    return context
