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

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

import msgspec

from welldone.cli import ui
from welldone.cli.option_types import add_running_server_options, duration_from, server_url
from welldone.cli.options import CommandParser
from welldone.cli.running_server import RunningServerError, find_running_server
from welldone.cli.server_status import (
    ERRORS_STATE,
    FAILING_STATE,
    LOADED_STATE,
    ModelStatus,
    RequestStatus,
    ServerStatus,
    UpstreamStatus,
    query_status,
)
from welldone.cli.ui import ExitCode, UsageError, cancel_on_sigterm
from welldone.http.address import Address
from welldone.reporting import format_table, pluralize, single_line, wrap_text

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
    add(
        "--watch SECONDS",
        f"show it again after this time, such as 10s or 1m ({_INTERVAL_S:g}s)",
        duration_from(_MIN_INTERVAL_S),
    )
    add("--json", "print it as JSON, once or, with --watch, one line each time")
    add_running_server_options(parser)
    return parser


def _print(status: ServerStatus, *, is_json: bool) -> None:
    if is_json:
        ui.print_line(msgspec.json.encode(status).decode())
    else:
        ui.print_lines(status_lines(status, ui.terminal_width()))


class _LogView(contextlib.nullcontext[None]):
    """Prints each state below the one before."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json
        self._is_first = True

    def show(self, status: ServerStatus, interval_s: float) -> None:
        if not self._is_first and not self._is_json:
            ui.print_line()
        self._is_first = False
        _print(status, is_json=self._is_json)
        ui.flush_output()

    def show_error(self, error: RunningServerError) -> None:
        ui.print_note(str(error))


class _ScreenView(ui.FullScreen):
    """Redraws the terminal. The last state stays on it at the end."""

    def __init__(self) -> None:
        self._status: ServerStatus | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        ui.print_lines(self._lines())

    def show(self, status: ServerStatus, interval_s: float) -> None:
        self._status = status
        clock = time.strftime("%H:%M:%S")
        self.draw([*self._lines(), "", ui.colorize(f"{clock}, every {interval_s:g} s; Ctrl-C ends it", "dim")])

    def show_error(self, error: RunningServerError) -> None:
        self.draw([ui.colorize(f"{time.strftime('%H:%M:%S')} {error}", "fail"), "", *self._lines()])

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


_MAX_TEXT_CHARS = 300
_SHOWN_ERRORS = 5
_NARROW = 70
"""Columns that all of an upstream need, with its name in a line of its own."""
_KINDS = {LOADED_STATE: "pass", "ok": "pass", "failed": "fail", "down": "fail", FAILING_STATE: "fail", "open": "fail"}
"""Colours of states; all others are warnings, but unloaded models."""
_NEUTRAL_STATES = ("unloaded", "stopped")
_MODEL_HEADS = ("model", "state", "restarts", "slots", "queue")
_LEGEND = "of the last five minutes; p50, p95: time to first token since the start"
_UPSTREAM_HEADS = ("upstream", "state", "requests", "errors", "repaired", "p50", "p95", "slots", "queue")


def status_lines(status: ServerStatus, width: int | None) -> list[str]:
    """Format the state of a server for a terminal of this width."""
    label, outcome = ("ready", "pass") if status.is_ready else ("not ready", "fail")
    first, *lines = wrap_text(f"{label}  ", _headline(status), width)
    lines.insert(0, ui.colorize(label, outcome) + first[len(label) :])
    if status.problem is not None:
        lines += wrap_text(" " * len(f"{label}  "), single_line(status.problem, _MAX_TEXT_CHARS), width)
    if status.models:
        rows = [_MODEL_HEADS, *map(_model_cells, status.models)]
        lines += ["", *_table(rows, width, range(2, len(_MODEL_HEADS)))]
        lines += _reasons([(model.id, model.error) for model in status.models], width)
    if status.upstreams:
        rows = [_UPSTREAM_HEADS, *map(_upstream_cells, status.upstreams)]
        if width is not None and width < _NARROW:
            rows = [(*row[:5], *row[7:]) for row in rows]  # without latencies
        lines += ["", *_table(rows, width, range(2, len(_UPSTREAM_HEADS)))]
        if any(upstream.window is not None for upstream in status.upstreams):
            lines += wrap_text("  ", _LEGEND, width)
        reasons = [(upstream.name, text) for upstream in status.upstreams for text in _upstream_reasons(upstream)]
        lines += _reasons(reasons, width)
    if status.errors:
        lines += ["", "recent errors"]
        for row in status.errors[:_SHOWN_ERRORS]:
            lines += _error_lines(row, width)
    for note in status.notes:
        lines += ["", *wrap_text("note: ", note, width)]
    return lines


def _headline(status: ServerStatus) -> str:
    version = f"welldone {status.server_version}" if status.server_version else "welldone"
    parts = [f"{version} at {status.url}"]
    if status.uptime_s is not None:
        parts.append(f"up {_format_uptime(status.uptime_s)}")
    if status.workers is not None and status.workers > 1:
        parts.append(pluralize(status.workers, "worker"))
    if status.models or status.upstreams:
        running = sum(model.running for model in status.models) + sum(upstream.running for upstream in status.upstreams)
        parts.append(f"{running:,} in progress")
    return ", ".join(parts)


def _table(rows: Sequence[Sequence[str]], width: int | None, numbers: range) -> list[str]:
    def paint(row: int, column: int, cell: str) -> str:
        state = rows[row][1]
        is_plain = row == 0 or column != 1 or state in _NEUTRAL_STATES
        return cell if is_plain else ui.colorize(cell, _KINDS.get(state, "warn"))

    return format_table(rows, width, right_aligned=frozenset(numbers), paint=paint)


def _model_cells(model: ModelStatus) -> tuple[str, ...]:
    return (
        ui.printable_name(model.id),
        ui.printable_name(model.state),
        f"{model.restarts:,}",
        f"{model.running}/{model.slots}",
        f"{model.waiting}/{model.queue}",
    )


def _upstream_cells(upstream: UpstreamStatus) -> tuple[str, ...]:
    window = upstream.window
    rates: tuple[str, ...] = ("-", "-", "-")
    if window is not None:
        requests = window.requests
        shares = [f"{count / requests:.1%}" if requests else "-" for count in (window.failures, window.repaired)]
        rates = (f"{requests:,}", *shares)
    return (
        ui.printable_name(upstream.name),
        ui.printable_name(upstream.state),
        *rates,
        _format_latency(upstream.ttft_s.p50),
        _format_latency(upstream.ttft_s.p95),
        f"{upstream.running}/{upstream.limit}",
        f"{upstream.waiting}",
    )


def _upstream_reasons(upstream: UpstreamStatus) -> Iterator[str]:
    """Why it is not ok, and its problem: one that is ok may have one, such as a list of models that cannot be read."""
    window = upstream.window
    if upstream.state == ERRORS_STATE and window is not None:
        yield f"{window.failures:,} of {window.requests:,} requests failed"
    elif upstream.state == FAILING_STATE:
        yield "all recent requests failed" + (f", the last: {upstream.failing}" if upstream.failing else "")
    elif upstream.state == "open":
        yield "the circuit breaker is open: it gets no requests until a probe succeeds"
    elif upstream.state == "down" and upstream.trouble is None:
        yield "it does not answer health probes"
    if upstream.trouble is not None:
        yield upstream.trouble


def _reasons(rows: Sequence[tuple[str, str | None]], width: int | None) -> list[str]:
    return [
        line
        for name, reason in rows
        if reason
        for line in wrap_text(f"  {ui.printable_name(name)}: ", single_line(reason, _MAX_TEXT_CHARS), width)
    ]


def _error_lines(row: RequestStatus, width: int | None) -> list[str]:
    target = row.model or row.path
    words = [target if row.upstream is None else f"{target} → {row.upstream}", row.error or ""]
    words += [f"({', '.join(row.failed)})" if row.failed else "", row.request_id]
    label = f"  {time.strftime('%H:%M:%S', time.localtime(row.at))}  {row.status}  "
    return wrap_text(label, single_line(" ".join(filter(None, words)), _MAX_TEXT_CHARS), width)


def _format_latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _format_uptime(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 1:
        return f"{minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"
