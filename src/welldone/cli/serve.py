"""`welldone serve`: an OpenAI-compatible server on local models."""

import asyncio
import logging
import os
import signal
import ssl
import time
from pathlib import Path
from typing import Literal, cast

import uvloop

from welldone import __version__
from welldone.cli import flags, show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.pull import EXITS, fetch
from welldone.engines import default
from welldone.engines.arrival import PullError
from welldone.engines.fleet import Model, State
from welldone.engines.store import find, models_folder
from welldone.serve import log
from welldone.serve.keys import make_key, read_key_file
from welldone.serve.log import Log
from welldone.serve.origins import is_loopback
from welldone.serve.server import Server
from welldone.serve.settings import Config

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def run(arguments: list[str]) -> Exit:
    """Serve until told to stop."""
    config = flags.read(arguments)
    for note in config.notes:
        show.note(note)
    keys, made = _keys(config)
    folder = models_folder(os.environ)
    _check_files(config, folder)
    try:
        _fetch_default(config, folder)
    except PullError as error:
        show.note(str(error))
        return EXITS[error.trouble]
    settings = config.server
    level = logging.ERROR if settings.quiet else _LEVELS[settings.log_level]
    style = cast('Literal["text", "json"]', settings.log_format)
    with Log(style=style, level=level, secrets=keys), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, keys, folder, made))


async def _serve(config: Config, keys: list[str], folder: Path, made: str | None) -> Exit:
    return await _Service(config, keys, folder, made).run()


class _Service:
    """The server, from the first line that it prints to its end."""

    def __init__(self, config: Config, keys: list[str], folder: Path, made: str | None) -> None:
        self._config = config
        self._has_keys = bool(keys)
        self._made = made
        self._end = asyncio.Event()
        self._failed: Model | None = None
        self._began = time.monotonic()
        self._server = Server(config, keys=keys, folder=folder, on_change=self._changed, on_line=self._line)

    async def run(self) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end.set)
        settings = self._config.server
        try:
            await self._server.start()
        except ssl.SSLError as error:
            raise UsageError(f"cannot use {settings.ssl_cert_file}: {error.reason or error}") from None
        except OSError as error:
            raise UsageError(
                f"cannot listen on {settings.host}:{settings.port}: {show.why(error)}; choose another with --port"
            ) from None
        self._show_banner()
        await self._end.wait()
        return await self._stop()

    async def _stop(self) -> Exit:
        if self._failed is None:
            show.hint("ending: running requests may finish; once more to end at once")
        self._end.clear()
        stopping = asyncio.create_task(self._server.stop())
        again = asyncio.create_task(self._end.wait())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stopping.done():
            self._server.hurry()
        await stopping
        if self._failed is None:
            return Exit.RIGHT
        error = self._failed.last_error
        for line in error.details[-5:] if error is not None else ():
            show.note(f"  {line}")
        show.note(str(error))
        return Exit.UNREACHABLE

    def _changed(self, model: Model) -> None:
        if model.state is State.READY and model.running == 0 and model.started_at is not None:
            took_s = round(time.monotonic() - self._began, 2)
            log.event(logging.INFO, "model is ready", {"model": model.name, "since_start_s": took_s})
        elif model.state in (State.RESTARTING, State.FAILED):
            error = model.last_error
            log.event(logging.ERROR, str(error), {"model": model.name, "state": model.state.value})
            # A server for one model that was never there serves nobody.
            if model.state is State.FAILED and model.started_at is None and len(self._config.models) == 1:
                self._failed = model
                self._end.set()

    def _line(self, model: Model, line: str) -> None:
        if self._config.server.verbose:
            log.event(logging.INFO, line, {"model": model.name, "from": "engine"})

    def _show_banner(self) -> None:
        settings = self._config.server
        scheme = "http" if settings.ssl_cert_file is None else "https"
        is_any = settings.host in ("0.0.0.0", "::", "")
        host = "127.0.0.1" if is_any else f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{scheme}://{host}:{self._server.port}"
        names = [model.name for model in self._config.models]
        key = self._made or "$WELLDONE_API_KEY"
        show.line(f"welldone {__version__} serves {', '.join(names[:5])}{' …' if len(names) > 5 else ''} on {url}/v1")
        show.line()
        show.line(f"  curl -N {url}/v1/chat/completions \\")
        if self._has_keys:
            show.line(f"    -H 'Authorization: Bearer {key}' \\".replace("'", '"' if self._made is None else "'"))
        show.line("    -H 'Content-Type: application/json' \\")
        request = f'{{"model":"{names[0]}","stream":true,"messages":[{{"role":"user","content":"Hello!"}}]}}'
        show.line(f"    -d '{request}'")
        show.line()
        if not settings.no_page:
            show.line(f"  page      {url}/")
        if self._made is not None:
            show.line(f"  API key   {self._made}")
            show.line("            made for this run, since others can reach this address; choose one with --api-key")
        elif self._has_keys:
            show.line("  API key   the one that you chose")
        show.line("  end       Ctrl-C")
        show.flush()


def _keys(config: Config) -> tuple[list[str], str | None]:
    """The keys that clients need, and the one that was made because there were none."""
    settings = config.server
    keys = list(settings.api_keys)
    if settings.api_key_file is not None:
        try:
            file = read_key_file(settings.api_key_file)
        except ValueError as error:
            raise UsageError(str(error)) from None
        keys += file.keys
        if file.note is not None:
            show.note(file.note)
    if keys or settings.no_api_key or is_loopback(settings.host):
        return keys, None
    made = make_key()
    return [made], made


def _check_files(config: Config, folder: Path) -> None:
    """A file that is not there is a mistake in the command, and is said at once."""
    for file in (config.server.ssl_cert_file, config.server.ssl_key_file):
        if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
            raise UsageError(f"cannot read {show.name(str(file))}, which TLS needs")
    for model in config.models:
        if model.file is None or model.file.is_file() or default.is_meant(str(model.file)):
            continue
        if find(folder, str(model.file)) is None:
            raise UsageError(
                f"there is no model {show.name(str(model.file))}; welldone models lists those that are there, "
                "welldone pull fetches one"
            )


def _fetch_default(config: Config, folder: Path) -> None:
    is_wanted = any(
        not model.command and (model.file is None or default.is_meant(str(model.file))) for model in config.models
    )
    if is_wanted and default.find(folder) is None:
        show.note("fetching the built-in model (93 MB, once)")
        fetch(default.DEFAULT.name, folder=folder)
