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
from welldone.cli.exits import Exit, UsageError
from welldone.cli.hangup import Hangup
from welldone.cli.news import News
from welldone.cli.pull import EXITS, fetch
from welldone.cli.starting import Starting
from welldone.engines import default
from welldone.engines.arrival import PullError
from welldone.engines.fleet import Model, State
from welldone.engines.orders import NO_GPU
from welldone.engines.store import models_folder
from welldone.engines.tail import last_words
from welldone.serve import log
from welldone.serve.log import LineFormatter, Redactor, Value
from welldone.serve.log_settings import level_of, log_of, style_of
from welldone.serve.page.front import ASSETS
from welldone.serve.server import Server
from welldone.serve.settings import Config, ServeSettings
from welldone.serve.siblings import Worker
from welldone.web.site import Site

_COLLECT = (10_000, 20, 100)
"""Python has 700, 10, 10. Answers leave no rings: there is little to find, and each look stops all streams."""
_LOOK_S = 1.0  # that the first lines wait for upstreams to list their models: well servers need milliseconds


def run(config: Config) -> int:
    """Serve until told to stop."""
    note = partial(_note, config.server)
    for text in config.notes:
        note(text)
    keys, made = checks.find_keys(config, note)
    folder = models_folder(os.environ)
    checks.check_files(config, folder)
    checks.check_routes(config)
    try:
        _fetch_default(config, folder)
    except PullError as error:
        show.note(str(error))
        return EXITS[error.trouble]
    settings = config.server
    secrets = (*keys, *config.secrets)

    def serve(worker: Worker | None = None) -> Exit:
        own = config if worker is None else workers.share(config)
        log = log_of(settings, secrets, show.Above() if show.is_watched() else None)
        if worker is not None:
            log.addFilter(workers.Numbered(worker.number))
        with log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(own, keys, folder, made, worker))

    if settings.workers == 1:
        return serve()
    formatter = LineFormatter(style_of(settings), Redactor(secrets))
    has_keys = config.has_keys(keys)
    try:
        return workers.run(
            settings,
            serve,
            announce=lambda port: _announce(config, port, has_keys, made),
            formatter=formatter,
            level=level_of(settings),
        )
    except OSError as error:
        raise UsageError(_no_place(settings, error)) from None


def _note(settings: ServeSettings, text: str) -> None:
    """Print a line about the start, before there is a log, in the log's form."""
    show.note(log.json_line(logging.WARNING, text, {}) if style_of(settings) == "json" else text)


def _announce(config: Config, port: int, has_keys: bool, made: str | None, listed: str | None = None) -> None:
    for line in banner.lines(config, port, has_keys=has_keys, made=made, listed=listed):
        show.line(line)
    show.flush()


def _ignore_signals(numbers: Iterable[int]) -> None:
    """All is done: who is impatient now shall not turn a good end into a bad one.

    A signal that comes just as it is set to be ignored is an error to Python, which nobody needs to see.
    """
    sys.unraisablehook = lambda error: None if error.exc_type is OSError else sys.__unraisablehook__(error)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _calm_collector() -> None:
    """What is there at the start stays: it need not be looked through again and again, while all streams wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


async def _serve(config: Config, keys: list[str], folder: Path, made: str | None, worker: Worker | None) -> Exit:
    return await _Service(config, keys, folder, made, worker).run()


class _Service:
    """The server, from the first line that it prints to its end."""

    def __init__(self, config: Config, keys: list[str], folder: Path, made: str | None, worker: Worker | None) -> None:
        self._config = config
        self._worker = worker
        self._has_keys = config.has_keys(keys)
        self._made = made
        self._end = asyncio.Event()
        self._is_ending = False
        self._hangup = Hangup()
        self._is_for_programs = style_of(config.server) == "json"
        self._failed: Model | None = None
        is_shown = worker is None and show.is_watched() and log.LOGGER.isEnabledFor(logging.INFO)
        self._starting = Starting(Redactor((*keys, *config.secrets)), is_shown=is_shown)
        self._server = Server(
            config,
            keys=keys,
            folder=folder,
            on_change=self._changed,
            on_line=self._line,
            on_upstream=News().tell,
            worker=worker,
            site=Site(ASSETS.strip("/")),  # relative to the document: a proxy may put both below another path
        )

    async def run(self) -> Exit:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        loop = asyncio.get_running_loop()
        # Not the loop's own handlers: when it closes, it would give these signals back their power to kill.
        for number in numbers:
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._heed, number))
        try:
            return await self._run()
        finally:
            _ignore_signals(numbers)

    def _heed(self, number: int) -> None:
        """Asked once more, we hurry. A service manager asks each process, and the parent asks its workers too: so a
        worker hurries for SIGINT alone, which nobody but its parent sends."""
        if number == signal.SIGHUP and not self._hangup.is_end():
            return
        if self._worker is None or number == signal.SIGINT or not self._is_ending:
            self._end.set()

    async def _run(self) -> Exit:
        try:
            await self._server.start()
        except OSError as error:
            raise UsageError(_no_place(self._config.server, error)) from None
        _calm_collector()
        if self._worker is not None:
            self._worker.ready()
        else:
            _announce(self._config, self._server.port, self._has_keys, self._made, await self._listed())
        await self._end.wait()
        return await self._stop()

    async def _listed(self) -> str | None:
        """The one model that upstreams list, if they do so soon."""
        if not self._config.upstreams:
            return None
        await self._server.upstreams.looked(_LOOK_S)
        only = self._server.upstreams.only()
        return None if only is None else only.name

    async def _stop(self) -> Exit:
        self._starting.stop()
        if self._failed is None and self._worker is None:
            show.hint("ending: running requests may finish; once more to end at once")
        self._end.clear()
        self._is_ending = True
        stopping = asyncio.create_task(self._server.stop())
        again = asyncio.create_task(self._end.wait())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stopping.done():
            self._server.hurry()
        await stopping
        if self._failed is None:
            return Exit.RIGHT
        if self._is_for_programs:  # the log has it
            return Exit.UNREACHABLE
        error = self._failed.last_error
        for line in last_words(error.details) if error is not None else ():
            show.note(f"  {line}")
        show.note(str(error))
        return Exit.UNREACHABLE

    def _changed(self, model: Model) -> None:
        match model.state:
            case State.LOADING:
                self._starting.begin(model)
            case State.READY:
                load_s = self._starting.end(model)
                if load_s is not None:  # else only a request has ended
                    log.event(logging.INFO, "model is ready", _facts(model, load_s))
            case State.STOPPED:
                self._starting.end(model)
            case State.UNLOADED:
                self._starting.end(model)
                log.event(logging.INFO, "model is unloaded", {"model": model.name})
            case State.RESTARTING:
                self._starting.begin(model)
                self._log_error(model, has_details=True)
            case State.FAILED:
                self._starting.end(model)
                # A server for one model that was never there serves nobody. It says why when it ends.
                is_alone = len(self._config.models) == 1 and not self._config.upstreams
                is_end = model.started_at is None and is_alone
                self._log_error(model, has_details=not is_end or self._is_for_programs)
                if is_end:
                    self._failed = model
                    self._end.set()

    def _log_error(self, model: Model, *, has_details: bool) -> None:
        fields: dict[str, Value] = {"model": model.name, "state": model.state.value}
        if has_details and model.last_error is not None and model.last_error.details:
            fields["engine"] = " | ".join(last_words(model.last_error.details))
        log.event(logging.ERROR, str(model.last_error), fields)

    def _line(self, model: Model, line: str) -> None:
        if line == NO_GPU:
            log.event(logging.WARNING, line, {"model": model.name})
        elif self._config.server.verbose:
            log.event(logging.INFO, line, {"model": model.name, "from": "engine"})


def _facts(model: Model, load_s: float) -> dict[str, Value]:
    facts: dict[str, Value] = {"model": model.name}
    if model.abilities is not None:
        facts |= {"context": model.abilities.context, "slots": model.abilities.slots}
    return {**facts, "load_s": round(load_s, 2)}


def _no_place(settings: ServeSettings, error: OSError) -> str:
    """The message for an address that the server cannot listen on."""
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} is already in use by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {settings.port} is not allowed for this user; choose one above 1023 with --port"
    where = f"{settings.host}:{settings.port}"
    return f"cannot listen on {where}: {show.why(error)}; choose an address of this machine with --host"


def _fetch_default(config: Config, folder: Path) -> None:
    if any(model.is_builtin for model in config.models) and default.find(folder) is None:
        _note(config.server, "fetching the built-in model (93 MB, once)")
        fetch(default.DEFAULT.name, folder=folder)
