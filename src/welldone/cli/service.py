"""The server as a program: what it needs is there, it says where it is, it runs, it ends."""

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import uvloop

from welldone.cli import banner, checks, show, workers
from welldone.cli.exits import ExitCode, UsageError
from welldone.cli.hangup import HangupPolicy
from welldone.cli.news import UpstreamLog
from welldone.cli.pull import PULL_EXIT_CODES, fetch_model
from welldone.cli.starting import ModelLoadProgress
from welldone.engines import default
from welldone.engines.arrival import PullError
from welldone.engines.fleet import LocalModel, ModelState
from welldone.engines.orders import NO_GPU_WARNING
from welldone.engines.store import models_folder
from welldone.engines.tail import failure_excerpt
from welldone.serve import log
from welldone.serve.log import LineFormatter, Redactor, FieldValue
from welldone.serve.log_settings import log_level, make_log_handler, log_style
from welldone.serve.page.front import ASSETS_PATH
from welldone.serve.server import Server
from welldone.serve.settings import Config, ServeSettings
from welldone.serve.siblings import Worker
from welldone.web.site import StaticSite

_GC_THRESHOLDS = (10_000, 20, 100)
"""Python has 700, 10, 10. Answers leave no rings: there is little to find, and each look stops all streams."""
_LIST_MODELS_TIMEOUT_S = (
    1.0  # that the first lines wait for upstreams to list their models: well servers need milliseconds
)


def run(config: Config) -> int:
    """Serve until told to stop."""
    note = partial(_print_warning, config.server)
    for text in config.warnings:
        note(text)
    keys, made = checks.find_api_keys(config, note)
    folder = models_folder(os.environ)
    checks.check_files(config, folder)
    checks.check_routes(config)
    try:
        _fetch_builtin_model(config, folder)
    except PullError as error:
        show.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    settings = config.server
    secrets = (*keys, *config.secrets)

    def serve(worker: Worker | None = None) -> ExitCode:
        own = config if worker is None else workers.worker_config(config)
        log = make_log_handler(settings, secrets, show.StderrAboveProgress() if show.is_interactive() else None)
        if worker is not None:
            log.addFilter(workers.WorkerNumberFilter(worker.number))
        with log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(own, keys, folder, made, worker))

    if settings.workers == 1:
        return serve()
    formatter = LineFormatter(log_style(settings), Redactor(secrets))
    has_keys = config.has_keys(keys)
    try:
        return workers.run_workers(
            settings,
            serve,
            announce=lambda port: _print_banner(config, port, has_keys, made),
            formatter=formatter,
            level=log_level(settings),
        )
    except OSError as error:
        raise UsageError(_listen_error(settings, error)) from None


def _print_warning(settings: ServeSettings, text: str) -> None:
    """Print a line about the start, before there is a log, in the log's form."""
    show.print_note(log.json_line(logging.WARNING, text, {}) if log_style(settings) == "json" else text)


def _print_banner(
    config: Config, port: int, has_keys: bool, generated_key: str | None, listed_model: str | None = None
) -> None:
    for line in banner.banner_lines(
        config, port, has_keys=has_keys, generated_key=generated_key, listed_model=listed_model
    ):
        show.print_line(line)
    show.flush_output()


def _ignore_signals(numbers: Iterable[int]) -> None:
    """All is done: who is impatient now shall not turn a good end into a bad one.

    A signal that comes just as it is set to be ignored is an error to Python, which nobody needs to see.
    """
    sys.unraisablehook = lambda error: None if error.exc_type is OSError else sys.__unraisablehook__(error)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _tune_gc() -> None:
    """What is there at the start stays: it need not be looked through again and again, while all streams wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _serve(
    config: Config, keys: list[str], folder: Path, generated_key: str | None, worker: Worker | None
) -> ExitCode:
    return await _ServerProcess(config, keys, folder, generated_key, worker).run()


class _ServerProcess:
    """The server, from the first line that it prints to its end."""

    def __init__(
        self, config: Config, keys: list[str], folder: Path, generated_key: str | None, worker: Worker | None
    ) -> None:
        self._config = config
        self._worker = worker
        self._has_keys = config.has_keys(keys)
        self._generated_key = generated_key
        self._stop_event = asyncio.Event()
        self._is_stopping = False
        self._hangup = HangupPolicy()
        self._is_json_log = log_style(config.server) == "json"
        self._failed_model: LocalModel | None = None
        is_shown = worker is None and show.is_interactive() and log.LOGGER.isEnabledFor(logging.INFO)
        self._load_progress = ModelLoadProgress(Redactor((*keys, *config.secrets)), is_shown=is_shown)
        self._server = Server(
            config,
            keys=keys,
            folder=folder,
            on_change=self._on_model_change,
            on_line=self._on_engine_line,
            on_upstream=UpstreamLog().update,
            worker=worker,
            site=StaticSite(
                ASSETS_PATH.strip("/")
            ),  # relative to the document: a proxy may put both below another path
        )

    async def run(self) -> ExitCode:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        loop = asyncio.get_running_loop()
        # Not the loop's own handlers: when it closes, it would give these signals back their power to kill.
        for number in numbers:
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._on_signal, number))
        try:
            return await self._run()
        finally:
            _ignore_signals(numbers)

    def _on_signal(self, number: int) -> None:
        """Asked once more, we hurry. A service manager asks each process, and the parent asks its workers too: so a
        worker hurries for SIGINT alone, which nobody but its parent sends."""
        if number == signal.SIGHUP and not self._hangup.should_exit():
            return
        if self._worker is None or number == signal.SIGINT or not self._is_stopping:
            self._stop_event.set()

    async def _run(self) -> ExitCode:
        try:
            await self._server.start()
        except OSError as error:
            raise UsageError(_listen_error(self._config.server, error)) from None
        _tune_gc()
        if self._worker is not None:
            self._worker.on_ready()
        else:
            _print_banner(
                self._config, self._server.port, self._has_keys, self._generated_key, await self._listed_model()
            )
        await self._stop_event.wait()
        return await self._stop()

    async def _listed_model(self) -> str | None:
        """The one model that upstreams list, if they do so soon."""
        if not self._config.upstreams:
            return None
        await self._server.upstreams.wait_until_probed(_LIST_MODELS_TIMEOUT_S)
        only = self._server.upstreams.sole_model()
        return None if only is None else only.name

    async def _stop(self) -> ExitCode:
        self._load_progress.stop()
        if self._failed_model is None and self._worker is None:
            show.print_hint("ending: running requests may finish; once more to end at once")
        self._stop_event.clear()
        self._is_stopping = True
        stopping = asyncio.create_task(self._server.stop())
        again = asyncio.create_task(self._stop_event.wait())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stopping.done():
            self._server.abort_all()
        await stopping
        if self._failed_model is None:
            return ExitCode.OK
        if self._is_json_log:  # the log has it
            return ExitCode.UNREACHABLE
        error = self._failed_model.last_error
        for line in failure_excerpt(error.details) if error is not None else ():
            show.print_note(f"  {line}")
        show.print_note(str(error))
        return ExitCode.UNREACHABLE

    def _on_model_change(self, model: LocalModel) -> None:
        match model.state:
            case ModelState.LOADING:
                self._load_progress.begin(model)
            case ModelState.READY:
                load_s = self._load_progress.end(model)
                if load_s is not None:  # else only a request has ended
                    log.event(logging.INFO, "model is ready", _model_log_fields(model, load_s))
            case ModelState.STOPPED:
                self._load_progress.end(model)
            case ModelState.UNLOADED:
                self._load_progress.end(model)
                log.event(logging.INFO, "model is unloaded", {"model": model.name})
            case ModelState.RESTARTING:
                self._load_progress.begin(model)
                self._log_error(model, has_details=True)
            case ModelState.FAILED:
                self._load_progress.end(model)
                # A server for one model that was never there serves nobody. It says why when it ends.
                is_alone = len(self._config.models) == 1 and not self._config.upstreams
                is_end = model.started_at is None and is_alone
                self._log_error(model, has_details=not is_end or self._is_json_log)
                if is_end:
                    self._failed_model = model
                    self._stop_event.set()

    def _log_error(self, model: LocalModel, *, has_details: bool) -> None:
        fields: dict[str, FieldValue] = {"model": model.name, "state": model.state.value}
        if has_details and model.last_error is not None and model.last_error.details:
            fields["engine"] = " | ".join(failure_excerpt(model.last_error.details))
        log.event(logging.ERROR, str(model.last_error), fields)

    def _on_engine_line(self, model: LocalModel, line: str) -> None:
        if line == NO_GPU_WARNING:
            log.event(logging.WARNING, line, {"model": model.name})
        elif self._config.server.verbose:
            log.event(logging.INFO, line, {"model": model.name, "from": "engine"})


def _model_log_fields(model: LocalModel, load_s: float) -> dict[str, FieldValue]:
    facts: dict[str, FieldValue] = {"model": model.name}
    if model.capabilities is not None:
        facts |= {"context": model.capabilities.context, "slots": model.capabilities.slots}
    return {**facts, "load_s": round(load_s, 2)}


def _listen_error(settings: ServeSettings, error: OSError) -> str:
    """The message for an address that the server cannot listen on."""
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} is already in use by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {settings.port} is not allowed for this user; choose one above 1023 with --port"
    where = f"{settings.host}:{settings.port}"
    return f"cannot listen on {where}: {show.error_text(error)}; choose an address of this machine with --host"


def _fetch_builtin_model(config: Config, folder: Path) -> None:
    if any(model.is_builtin for model in config.models) and default.find_builtin(folder) is None:
        _print_warning(config.server, "fetching the built-in model (93 MB, once)")
        fetch_model(default.DEFAULT_MODEL.name, folder=folder)
