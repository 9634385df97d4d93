"""The server process of `welldone serve`: startup checks, banner, log of models and upstreams, shutdown."""

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from welldone.cli import banner, supervisor, ui
from welldone.cli.banner import redacted_url
from welldone.cli.config_reader import ConfigReader, check_startup, find_api_keys, log_reload, startup_problems
from welldone.cli.engine_actions import engine_lines
from welldone.cli.pull import PULL_EXIT_CODES, fetch_configured_model
from welldone.cli.service_manager import ServiceManager
from welldone.cli.supervisor import HangupPolicy
from welldone.cli.ui import ExitCode, UsageError
from welldone.cli.worker_channel import WorkerEnd
from welldone.config.server import Config, ServeSettings
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import needs_download
from welldone.engines.models.store import models_folder
from welldone.engines.process import failure_excerpt, strip_log_prefix
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.upstream import Upstream
from welldone.server.inspector.assets import ASSETS_PATH, StaticSite
from welldone.server.observe import log
from welldone.server.observe.log import (
    FieldValue,
    LogHandler,
    Redactor,
    log_level,
    log_style,
    make_formatter,
    make_log_handler,
)
from welldone.server.observe.workers import Worker
from welldone.server.reload import NewConfig, ReloadResult
from welldone.server.server import Server


class UpstreamLog:
    """Logs changes in the state of upstreams, each once."""

    def __init__(self) -> None:
        self._last_errors: dict[str, str | None] = {}
        self._open_breakers: set[str] = set()
        self._failing: set[str] = set()
        self._hinted: dict[str, tuple[int, int]] = {}  # what the last logged hint counted

    def update(self, upstream: Upstream) -> None:
        """Log what has changed about the upstream."""

        def note(level: int, text: str, **more: FieldValue) -> None:
            log.event(level, text, {"upstream": upstream.name, **more})

        before = self._last_errors.get(upstream.name)
        self._last_errors[upstream.name] = upstream.problem
        if upstream.problem is not None and upstream.problem != before:
            note(logging.WARNING, upstream.problem, url=redacted_url(upstream.settings))
        elif upstream.problem != before:
            note(logging.INFO, "the upstream has recovered")
        counts = len(str(upstream.unfinished_count)), len(upstream.unstreamed_models)  # a line for 1, 10, 100 answers
        if upstream.hint is not None and counts != self._hinted.get(upstream.name):
            self._hinted[upstream.name] = counts
            note(logging.WARNING, upstream.hint, url=redacted_url(upstream.settings))
        if upstream.recent_failure is not None and upstream.name not in self._failing:
            self._failing.add(upstream.name)
            note(logging.WARNING, "all recent requests to the upstream failed", last=upstream.recent_failure)
        is_open = upstream.breaker.opened_at is not None
        if is_open and upstream.name not in self._open_breakers:
            self._open_breakers.add(upstream.name)
            text = "circuit breaker opened: the upstream failed repeatedly"
            note(logging.WARNING, text, for_s=round(upstream.breaker.retry_after_s))
        elif not is_open and upstream.recent_failure is None and upstream.name in self._open_breakers | self._failing:
            self._open_breakers.discard(upstream.name)
            self._failing.discard(upstream.name)
            note(logging.INFO, "the upstream answers again")


# Progress of models that are loading: the engine's last output line and the elapsed time. On a terminal one line is
# overwritten; otherwise a line is logged at growing intervals.

_TICK_S = 1.0
_QUICK_S = 2.0  # shorter loads show no progress
_FIRST_LOG_S, _MAX_LOG_INTERVAL_S = 10.0, 60.0  # log after 10, 20, 40, 80 s, then every minute
_MAX_STATUS_CHARS = 200  # of the engine's output line


class ModelLoadProgress:
    """Shows the progress of all models that are loading."""

    def __init__(self, redactor: Redactor, *, is_shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._redactor = redactor
        self._is_shown = is_shown
        self._clock = clock
        self._started_at: dict[LocalModel, float] = {}
        self._due_s: dict[LocalModel, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, model: LocalModel) -> None:
        """Start reporting on a model."""
        self._started_at[model], self._due_s[model] = self._clock(), _FIRST_LOG_S
        if self._timer is None:
            self._schedule()

    def end(self, model: LocalModel) -> float | None:
        """Stop reporting on a model; return the seconds it was loading, None if it was not."""
        started_at = self._started_at.pop(model, None)
        if started_at is None:
            return None
        if not self._started_at:
            self.stop()
        return self._clock() - started_at

    def stop(self) -> None:
        """Stop reporting on all models."""
        self._started_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._is_shown:
                ui.overwrite_line("")

    def report(self) -> None:
        """Show or log the progress."""
        for model, started_at in self._started_at.items():
            seconds = self._clock() - started_at
            line = strip_log_prefix(model.last_output_line).strip()
            status = self._redactor.line_of(line, _MAX_STATUS_CHARS) or "no output yet"
            if self._is_shown:
                if seconds >= _QUICK_S:
                    minutes, rest = divmod(round(seconds), 60)
                    elapsed = f"{minutes} min {rest} s" if minutes else f"{rest} s"
                    ui.overwrite_line(f"{model.name} is loading, {elapsed}: {status}")
                return  # there is one line: it shows the model that has been loading for longest
            if seconds >= self._due_s[model]:
                self._due_s[model] += min(self._due_s[model], _MAX_LOG_INTERVAL_S)
                fields: dict[str, FieldValue] = {"model": model.name, "for_s": round(seconds), "engine": status}
                log.event(logging.INFO, "model is loading", fields)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self.report()
        self._schedule()


_GC_THRESHOLDS = (10_000, 20, 100)
"""Python's defaults are 700, 10, 10. Requests leave few reference cycles, and each collection pauses all streams."""
_LIST_MODELS_TIMEOUT_S = 1.0  # the banner waits this long for model lists of upstreams, which take milliseconds


def check(config: Config) -> ExitCode:
    """Check what `run` checks before it listens, and print what it would serve. All problems are one `UsageError`."""
    for text in config.warnings:
        ui.print_note(text)
    folder = models_folder(os.environ)
    problems = list(startup_problems(config, folder))
    try:
        keys, generated_key = find_api_keys(config)
    except UsageError as error:
        raise UsageError("\n".join([*problems, str(error)])) from None
    if problems:
        raise UsageError("\n".join(problems))
    ui.print_lines(banner.check_lines(config, folder, keys, generated_key))
    return ExitCode.OK


def run(config: Config, read: Callable[[], Config]) -> int:
    """Serve until a signal arrives. `read` reads the configuration again, and raises `UsageError`."""

    def note(text: str) -> None:  # before the log is set up, in the format of the log
        ui.print_note(log.json_line(logging.WARNING, text, {}) if log_style(config.server) == "json" else text)

    for text in config.warnings:
        note(text)
    keys, generated_key = find_api_keys(config, note)
    folder = models_folder(os.environ)
    check_startup(config, folder)
    try:
        if missing := [model for model in config.models if needs_download(folder, model)]:
            for model in missing:
                what = "the built-in model (93 MB, once)" if model.hf_repo is None else f"{model.hf_repo} (once)"
                note(f"downloading {what}")
                fetch_configured_model(model, folder=folder)
            check_startup(config, folder)  # with the files of the new models
    except PullError as error:
        ui.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    settings = config.server
    if settings.record is not None:
        settings.record.mkdir(mode=0o700, exist_ok=True)  # recordings may hold private data
    secrets = (*keys, *config.secrets)
    reader = ConfigReader(config, keys, generated_key=generated_key, folder=folder, read=read)
    manager = ServiceManager(os.environ)

    def serve(worker: Worker | None = None) -> ExitCode:
        secrets = (*reader.keys, *reader.config.secrets)
        handler = make_log_handler(settings, secrets, ui.StderrAboveProgress() if ui.is_interactive() else None)
        if worker is not None:
            handler.addFilter(supervisor.WorkerNumberFilter(worker.number))

        async def main() -> ExitCode:
            return await _ServerProcess(reader, folder, handler, manager, worker).run()

        with handler, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    if settings.workers == 1:
        return serve()
    formatter = make_formatter(settings, secrets)
    reader.on_commit = lambda: formatter.reload_secrets((*reader.keys, *reader.config.secrets))
    has_keys = config.has_keys(keys)

    def announce(port: int) -> None:
        ui.print_lines(banner.banner_lines(config, port, has_keys=has_keys, generated_key=generated_key))
        ui.flush_output()
        manager.ready("serving")

    try:
        return supervisor.run_workers(
            settings,
            serve,
            announce=announce,
            formatter=formatter,
            level=log_level(settings),
            reader=reader,
            manager=manager,
        )
    except OSError as error:
        raise UsageError(_listen_error(settings, error)) from None


class _ServerProcess:
    """The server, from its start to its end."""

    def __init__(
        self, reader: ConfigReader, folder: Path, handler: LogHandler, manager: ServiceManager, worker: Worker | None
    ) -> None:
        config = self._config = reader.config if worker is None else supervisor.worker_config(reader.config)
        keys = reader.keys
        self._reader = reader
        self._handler = handler
        self._manager = manager
        self._worker = worker
        self._reload_lock = asyncio.Lock()
        self._reload_tasks: set[asyncio.Task[ReloadResult]] = set()
        self._is_reload_due = False
        self._has_reloaded = False
        self._stop_event = asyncio.Event()
        self._is_stopping = False
        self._hangup = HangupPolicy()
        self._is_json_log = log_style(config.server) == "json"
        self._failed_model: LocalModel | None = None
        is_shown = worker is None and ui.is_interactive() and log.LOGGER.isEnabledFor(logging.INFO)
        self._redactor = Redactor((*keys, *config.secrets))
        self._load_progress = ModelLoadProgress(self._redactor, is_shown=is_shown)
        self._server = Server(
            config,
            keys=keys,
            folder=folder,
            on_change=self._on_model_change,
            on_line=self._on_engine_line,
            on_warning=lambda model, text: log.event(logging.WARNING, text, {"model": model.name}),
            on_upstream=UpstreamLog().update,
            worker=worker,
            # Relative to the document: a proxy may serve both below another path.
            site=StaticSite(ASSETS_PATH.strip("/")),
            on_reload=self._reload,
        )
        self._channel: WorkerEnd | None = None
        if worker is not None and worker.control is not None:
            self._channel = WorkerEnd(worker.control, self._apply, self._on_reload_finished)

    async def run(self) -> ExitCode:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        loop = asyncio.get_running_loop()
        # Not the loop's own handlers: when it closes, it restores the default handlers, which kill the process.
        for number in numbers:
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._on_signal, number))
        try:
            return await self._run()
        finally:
            # Signals after the stop do not change the exit code. One that arrives while its handler is being replaced
            # is an OSError in Python, which is not printed.
            sys.unraisablehook = lambda error: None if error.exc_type is OSError else sys.__unraisablehook__(error)
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int) -> None:
        """Stop, or abort if the server is stopping already.

        A service manager signals every process, and the supervisor signals its workers too. So in a worker only SIGINT,
        which only the supervisor sends, aborts.
        """
        if number == signal.SIGHUP and not self._hangup.should_exit():
            if self._worker is None and not self._is_reload_due:  # workers get it from the supervisor
                self._is_reload_due = True
                task = asyncio.get_running_loop().create_task(self._reload())
                self._reload_tasks.add(task)
                task.add_done_callback(self._reload_tasks.discard)
            return
        if self._worker is None or number == signal.SIGINT or not self._is_stopping:
            self._stop_event.set()

    # Reload of the configuration: in one process here, with workers by the supervisor.

    async def _reload(self) -> ReloadResult:
        if self._channel is not None:
            return await self._channel.request_reload()
        async with self._reload_lock:
            self._is_reload_due = False
            self._manager.reloading()
            result, new = await asyncio.to_thread(self._reader.prepare)
            if new is not None:
                try:
                    self._apply(new)
                except (OSError, ValueError) as error:
                    result = ReloadResult(outcome="failed", file=result.file, error=ui.error_text(error))
                else:
                    self._reader.commit(new)
                    await self._server.upstreams.wait_until_probed(_LIST_MODELS_TIMEOUT_S)
            log_reload(result)
            self._on_reload_finished(result)
            self._manager.ready(result.error or "serving")
        return result

    def _apply(self, new: NewConfig) -> None:
        secrets = self._server.reload(new)
        self._config, self._has_reloaded = new.config, True
        self._handler.reload_secrets(secrets)
        self._redactor.reload(secrets)

    def _on_reload_finished(self, result: ReloadResult) -> None:
        self._server.record_reload(result, is_counted=self._worker is None or self._worker.number == 1)

    async def _run(self) -> ExitCode:
        async with self._reload_lock:  # a reload waits for the start
            try:
                await self._server.start()
            except OSError as error:
                raise UsageError(_listen_error(self._config.server, error)) from None
            limit_garbage_collection()
            if self._channel is not None:
                await self._channel.start()
            if self._worker is not None:
                self._worker.on_ready()
            else:
                await self._announce()
        await self._stop_event.wait()
        return await self._stop()

    async def _announce(self) -> None:
        engines = await asyncio.to_thread(engine_lines, self._config)
        lines = banner.banner_lines(
            self._config,
            self._server.port,
            has_keys=self._config.has_keys(self._reader.keys),
            generated_key=self._reader.generated_key,
            listed_model=await self._listed_model(),
            engines=engines,
        )
        ui.print_lines(lines)
        ui.flush_output()
        self._manager.ready("serving")
        if self._manager.watchdog_s is not None:
            self._keep_alive(self._manager.watchdog_s)

    def _keep_alive(self, interval_s: float) -> None:
        self._manager.keep_alive()
        asyncio.get_running_loop().call_later(interval_s, self._keep_alive, interval_s)

    async def _listed_model(self) -> str | None:
        """Return the only model that the upstreams list, if they do so in time."""
        if not self._config.upstreams:
            return None
        await self._server.upstreams.wait_until_probed(_LIST_MODELS_TIMEOUT_S)
        model = self._server.upstreams.sole_model()
        return None if model is None else model.name

    async def _stop(self) -> ExitCode:
        self._load_progress.stop()
        if self._failed_model is None and self._worker is None:
            ui.print_hint("stopping: running requests may finish; press Ctrl-C again to stop at once")
        if self._worker is None:
            self._manager.stopping()
        self._stop_event.clear()
        self._is_stopping = True
        stopping = asyncio.create_task(self._server.stop())
        signalled = asyncio.create_task(self._stop_event.wait())
        await asyncio.wait({stopping, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not stopping.done():
            self._server.abort_all()
        await stopping
        if self._channel is not None:
            self._channel.close()
        if self._failed_model is None:
            return ExitCode.OK
        if self._is_json_log:  # the log has the error
            return ExitCode.UNREACHABLE
        error = self._failed_model.last_error
        for line in failure_excerpt(error.details) if error is not None else ():
            ui.print_note(f"  {line}")
        ui.print_note(str(error))
        return ExitCode.UNREACHABLE

    def _on_model_change(self, model: LocalModel) -> None:
        fields: dict[str, FieldValue] = {"model": model.name}
        if model.state in (ModelState.LOADING, ModelState.RESTARTING):
            self._load_progress.begin(model)
        elif (load_s := self._load_progress.end(model)) is not None and model.state is ModelState.READY:
            if model.capabilities is not None:
                fields |= {"context": model.capabilities.context, "slots": model.capabilities.slots}
            if model.process is not None and model.process.plan.engine is not None:
                fields["on"] = model.process.plan.engine.name
            log.event(logging.INFO, "model is ready", {**fields, "load_s": round(load_s, 2)})
        if model.state is ModelState.UNLOADED:
            log.event(logging.INFO, "model is unloaded", fields)
        elif model.state in (ModelState.RESTARTING, ModelState.FAILED):
            # A server whose only model never started is of no use: it ends, with the reason on stderr.
            is_alone = len(self._config.models) == 1 and not self._config.upstreams and not self._has_reloaded
            is_end = model.state is ModelState.FAILED and model.started_at is None and is_alone
            fields["state"] = model.state.value
            if (not is_end or self._is_json_log) and model.last_error is not None and model.last_error.details:
                fields["engine"] = " | ".join(failure_excerpt(model.last_error.details))
            log.event(logging.ERROR, str(model.last_error), fields)
            if is_end:
                self._failed_model = model
                self._stop_event.set()

    def _on_engine_line(self, model: LocalModel, line: str) -> None:
        if self._config.server.verbose:
            log.event(logging.INFO, line, {"model": model.name, "from": "engine"})


def limit_garbage_collection() -> None:
    """Exempt the objects of the startup from garbage collection, which would pause all streams, and make it rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _listen_error(settings: ServeSettings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} is already in use by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {settings.port} is not allowed for this user; choose one above 1023 with --port"
    where = f"{settings.host}:{settings.port}"
    return f"cannot listen on {where}: {ui.error_text(error)}; choose an address of this machine with --host"
