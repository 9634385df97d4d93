"""The server process of `welldone serve`: startup checks, banner, log of models and upstreams, shutdown."""

import asyncio
import errno
import gc
import logging
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from welldone.cli import banner, supervisor, ui
from welldone.cli.banner import redacted_url
from welldone.cli.engine import engine_lines
from welldone.cli.pull import PULL_EXIT_CODES, fetch_configured_model
from welldone.cli.supervisor import HangupPolicy
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.engines.builds import choose_engine
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufError, read_metadata
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import needs_download
from welldone.engines.models.repository import find_configured_model
from welldone.engines.models.store import models_folder
from welldone.engines.process import failure_excerpt, strip_log_prefix
from welldone.engines.speculation import with_speculation
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.routing import route_problems
from welldone.gateway.upstream import Upstream
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.key_file import KeyFileError, permission_warning, read_entries
from welldone.server.access.keys import ApiKeys, make_key, read_key_file
from welldone.server.access.origins import is_loopback
from welldone.server.inspector.assets import ASSETS_PATH, StaticSite
from welldone.server.observe import log
from welldone.server.observe.log import FieldValue, Redactor, log_level, log_style, make_formatter, make_log_handler
from welldone.server.observe.workers import Worker
from welldone.server.server import Server

# Startup checks: keys, certificates, files, programs. The first problem ends the start with one line.


def find_api_keys(config: Config, warn: Callable[[str], None] = ui.print_note) -> tuple[list[str], str | None]:
    """Return the API keys without a name, and the generated key if the server is public and has no key at all."""
    settings = config.server
    keys = list(settings.api_keys)
    is_local = is_loopback(settings.host)
    if settings.api_key_file is not None:
        try:
            file = read_key_file(settings.api_key_file, allows_weak=is_local)
            keys += file.keys
            ApiKeys(keys, config.keys)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if file.warning is not None:
            warn(file.warning)
    if settings.keys_file is not None:
        _check_key_file(settings.keys_file, config, warn)
    if any(is_weak_key(key) for key in (*keys, *(named.key for named in config.keys))):
        warn(f"an API key is shorter than {MIN_KEY_LENGTH} characters: use it on this machine only")
    if keys or config.keys or config.has_stored_keys or settings.no_api_key or is_local:
        return keys, None
    made = make_key()
    return [made], made


def _check_key_file(path: Path, config: Config, warn: Callable[[str], None]) -> None:
    try:
        names = {key.name for key in read_entries(path).values()}
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    if taken := sorted(names & {key.name for key in config.keys}):
        raise UsageError(f"{path} and the settings both have a key {taken[0]}: rename one of them")
    if warning := permission_warning(path):
        warn(warning)


def check_files(config: Config, models: Path) -> None:
    """Raise `UsageError` if a file or a program from the settings is missing or unusable."""
    if config.server.ssl_cert_file is not None and config.server.ssl_key_file is not None:
        _check_tls(config.server.ssl_cert_file, config.server.ssl_key_file)
    for model in config.models:
        where = config.model_locations.get(model.name)
        for problem in _model_problems(model, models):
            raise UsageError(problem if where is None else f"{where}: {problem}")
    if (folder := config.server.record) is not None:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # recordings may hold private data
        except OSError as error:
            name = ui.printable_name(folder)
            raise UsageError(f"cannot create the folder {name} for --record: {ui.error_text(error)}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write into {ui.printable_name(folder)} (--record): permission denied")


def check_routes(config: Config) -> None:
    """Raise `UsageError` if a route has no target."""
    own = {name for model in config.models for name in (model.name, *model.aliases)}
    file = "" if config.server.config is None else f"{config.server.config.name}: "
    for problem in route_problems(config.routes, config.upstreams, own):
        raise UsageError(f"{file}{problem}")


def _model_problems(model: ModelSettings, folder: Path) -> Iterator[str]:
    if model.command:
        if shutil.which(model.command[0]) is None:
            yield f"cannot find the program {ui.printable_name(model.command[0])} of its command"
        return
    path = find_configured_model(folder, model)
    if path is None and not needs_download(folder, model):
        yield (
            f"there is no model {ui.printable_name(str(model.file))}; welldone models lists those that are there, "
            "welldone pull downloads one"
        )
        return
    if path is not None:
        try:
            read_metadata(path)
        except GgufError as error:
            yield f"{ui.printable_name(path)} {error}"
    try:
        choose_engine(model.engine, os.environ)
    except EngineError as error:
        yield f"{error.message} (--engine)"
    try:
        with_speculation(model, path, folder)
    except EngineError as error:
        yield error.message
    files = [("--mmproj", model.mmproj), ("--chat-template-file", model.chat_template_file)]
    for flag, path in (*(("--lora", Path(path)) for path in model.lora), *files):
        if path is not None and not _can_read(path):
            yield f"cannot read {ui.printable_name(path)} ({flag})"


def _can_read(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


class _EncryptedKeyError(Exception):
    """The private key needs a passphrase."""


def _check_tls(certificate: Path, key: Path) -> None:
    """Load certificate and key as the server does. The error names the file at fault."""
    for path in (certificate, key):
        if not _can_read(path):
            raise UsageError(f"cannot read {ui.printable_name(path)}, which TLS needs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        raise UsageError(f"{ui.printable_name(certificate)} does not hold a certificate in PEM form") from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _EncryptedKeyError:
        raise UsageError(
            f"the key in {ui.printable_name(key)} is encrypted, and a server cannot ask for its passphrase; "
            "decrypt it: openssl pkey -in KEY -out NEW_KEY"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"does not belong to the certificate in {ui.printable_name(certificate)}"
        else:
            problem = "is not a usable private key in PEM form"
        raise UsageError(f"the key in {ui.printable_name(key)} {problem}") from None


def _refuse_passphrase() -> str:
    # Without this callback OpenSSL would read the passphrase from the terminal.
    raise _EncryptedKeyError


class UpstreamLog:
    """Logs changes in the state of upstreams, each once."""

    def __init__(self) -> None:
        self._last_errors: dict[str, str | None] = {}
        self._open_breakers: set[str] = set()
        self._failing: set[str] = set()

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


def run(config: Config) -> int:
    """Serve until a signal arrives."""

    def note(text: str) -> None:  # before the log is set up, in the format of the log
        ui.print_note(log.json_line(logging.WARNING, text, {}) if log_style(config.server) == "json" else text)

    for text in config.warnings:
        note(text)
    keys, generated_key = find_api_keys(config, note)
    folder = models_folder(os.environ)
    check_files(config, folder)
    check_routes(config)
    try:
        if missing := [model for model in config.models if needs_download(folder, model)]:
            for model in missing:
                what = "the built-in model (93 MB, once)" if model.hf_repo is None else f"{model.hf_repo} (once)"
                note(f"downloading {what}")
                fetch_configured_model(model, folder=folder)
            check_files(config, folder)  # those of the new models
    except PullError as error:
        ui.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    settings = config.server
    secrets = (*keys, *config.secrets)

    def serve(worker: Worker | None = None) -> ExitCode:
        own_config = config if worker is None else supervisor.worker_config(config)
        handler = make_log_handler(settings, secrets, ui.StderrAboveProgress() if ui.is_interactive() else None)
        if worker is not None:
            handler.addFilter(supervisor.WorkerNumberFilter(worker.number))

        async def main() -> ExitCode:
            return await _ServerProcess(own_config, keys, folder, generated_key, worker).run()

        with handler, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    if settings.workers == 1:
        return serve()
    formatter = make_formatter(settings, secrets)
    has_keys = config.has_keys(keys)
    try:
        return supervisor.run_workers(
            settings,
            serve,
            announce=lambda port: _print_banner(config, port, has_keys, generated_key, []),
            formatter=formatter,
            level=log_level(settings),
        )
    except OSError as error:
        raise UsageError(_listen_error(settings, error)) from None


def _print_banner(
    config: Config,
    port: int,
    has_keys: bool,
    generated_key: str | None,
    engines: list[str],
    listed_model: str | None = None,
) -> None:
    ui.print_lines(
        banner.banner_lines(
            config,
            port,
            has_keys=has_keys,
            generated_key=generated_key,
            listed_model=listed_model,
            engines=engines,
        )
    )
    ui.flush_output()


class _ServerProcess:
    """The server, from its start to its end."""

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
        is_shown = worker is None and ui.is_interactive() and log.LOGGER.isEnabledFor(logging.INFO)
        self._load_progress = ModelLoadProgress(Redactor((*keys, *config.secrets)), is_shown=is_shown)
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
        )

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
            return
        if self._worker is None or number == signal.SIGINT or not self._is_stopping:
            self._stop_event.set()

    async def _run(self) -> ExitCode:
        try:
            await self._server.start()
        except OSError as error:
            raise UsageError(_listen_error(self._config.server, error)) from None
        limit_garbage_collection()
        if self._worker is not None:
            self._worker.on_ready()
        else:
            engines = await asyncio.to_thread(engine_lines, self._config)
            model = await self._listed_model()
            _print_banner(self._config, self._server.port, self._has_keys, self._generated_key, engines, model)
        await self._stop_event.wait()
        return await self._stop()

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
        self._stop_event.clear()
        self._is_stopping = True
        stopping = asyncio.create_task(self._server.stop())
        signalled = asyncio.create_task(self._stop_event.wait())
        await asyncio.wait({stopping, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not stopping.done():
            self._server.abort_all()
        await stopping
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
            is_alone = len(self._config.models) == 1 and not self._config.upstreams
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
