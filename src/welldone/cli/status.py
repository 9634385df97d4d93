"""`welldone status`: models, upstreams and recent errors of a running server, live.

Show the state of a running server: models, upstreams and recent errors. On a terminal it is shown again
every two seconds until Ctrl-C; otherwise, and with --once or --json, once.

Without a URL the server and an admin key are those of the settings. What the key may not see is left out.

examples:
  welldone status
  welldone status https://llm.example:8443 --api-key env:MY_KEY --watch 10s
  welldone status --once
  welldone status --json
"""

import argparse
import asyncio
import contextlib
import time

import msgspec

from welldone.cli import ui
from welldone.cli.option_types import add_running_server_options, parse_duration, server_url
from welldone.cli.options import CommandParser
from welldone.cli.running_server import RunningServerError, find_running_server
from welldone.cli.server_status import ServerStatus, query_status
from welldone.cli.signals import cancel_on_sigterm
from welldone.cli.status_table import status_lines
from welldone.cli.ui import ExitCode, UsageError
from welldone.http.address import Address

_INTERVAL_S = 2.0
_MIN_INTERVAL_S = 0.1  # a query costs the server about a millisecond


def run(arguments: list[str]) -> ExitCode:
    """Show the state of the server."""
    options = _parser().parse(arguments)
    if options.once and options.watch is not None:
        raise UsageError("--once conflicts with --watch: keep one")
    url = None if options.url is None else server_url(options.url)
    url, address = find_running_server(url, options.api_key, options.config, options.ca_file)
    url = url.rstrip("/").removesuffix("/v1")
    try:
        status = asyncio.run(query_status(url, address))
    except RunningServerError as error:
        ui.print_note(str(error))
        return ExitCode.UNREACHABLE
    is_watched = options.watch is not None or (ui.has_screen() and not options.once and not options.json)
    if not is_watched:
        _print(status, is_json=options.json)
        return ExitCode.OK if status.is_ready else ExitCode.FAILED
    view = _LogView(is_json=options.json) if options.json or not ui.has_screen() else _ScreenView()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):  # the normal end
        asyncio.run(_watch(url, address, status, view, options.watch or _INTERVAL_S))
    return ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser("status", __doc__)
    add = parser.option
    add("URL", "URL of the server (default: from the settings)", dest="url", nargs="?")
    add("--once", "show it once, also on a terminal")
    add("--watch SECONDS", f"show it again after this time, such as 10s or 1m ({_INTERVAL_S:g}s)", _parse_interval)
    add("--json", "print it as JSON, once or, with --watch, one line each time")
    add_running_server_options(parser)
    return parser


def _parse_interval(text: str) -> float:
    interval_s = parse_duration(text)
    if interval_s < _MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text!r} is shorter than {_MIN_INTERVAL_S:g}s")
    return interval_s


def _print(status: ServerStatus, *, is_json: bool) -> None:
    if is_json:
        ui.print_line(msgspec.json.encode(status).decode())
    else:
        ui.print_lines(status_lines(status, ui.terminal_width()))


class _LogView:
    """Prints each state below the one before."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._is_first = True

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, status: ServerStatus, interval_s: float) -> None:
        if not self._is_first and not self._is_json:
            ui.print_line()
        self._is_first = False
        _print(status, is_json=self._is_json)
        ui.flush_output()

    def show_error(self, error: RunningServerError) -> None:
        ui.print_note(str(error))


class _ScreenView:
    """Redraws the terminal. The last state stays on it at the end."""

    def __init__(self) -> None:
        self._screen = ui.FullScreen()
        self._status: ServerStatus | None = None
        self._footer: list[str] = []

    def __enter__(self) -> None:
        self._screen.__enter__()

    def __exit__(self, *_: object) -> None:
        self._screen.__exit__()
        ui.print_lines(self._lines())

    def show(self, status: ServerStatus, interval_s: float) -> None:
        self._status = status
        clock = time.strftime("%H:%M:%S")
        self._footer = ["", ui.colorize(f"{clock}, every {interval_s:g} s; Ctrl-C ends it", "dim")]
        self._screen.draw([*self._lines(), *self._footer])

    def show_error(self, error: RunningServerError) -> None:
        self._screen.draw([ui.colorize(f"{time.strftime('%H:%M:%S')} {error}", "fail"), "", *self._lines()])

    def _lines(self) -> list[str]:
        return [] if self._status is None else status_lines(self._status, ui.terminal_width())


async def _watch(
    url: str, address: Address, status: ServerStatus, view: _LogView | _ScreenView, interval_s: float
) -> None:
    """Show the state again and again. A server that is away for a while ends nothing."""
    cancel_on_sigterm()  # so that the terminal is restored
    with view:
        view.show(status, interval_s)
        while True:
            await asyncio.sleep(interval_s)
            try:
                view.show(await query_status(url, address), interval_s)
            except RunningServerError as error:
                view.show_error(error)
