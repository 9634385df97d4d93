"""The tables of `welldone status`."""

import time
from collections.abc import Iterator, Sequence
from functools import partial

from welldone.cli import ui
from welldone.cli.server_status import (
    ERRORS_STATE,
    FAILING_STATE,
    LOADED_STATE,
    ModelStatus,
    RequestStatus,
    ServerStatus,
    UpstreamStatus,
)
from welldone.reporting import format_table, pluralize, single_line, wrap_text

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
    label, kind = ("ready", "pass") if status.is_ready else ("not ready", "fail")
    first, *lines = wrap_text(f"{label}  ", _headline(status), width)
    lines.insert(0, ui.colorize(label, kind) + first[len(label) :])
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
        if any(one.window is not None for one in status.upstreams):
            lines += wrap_text("  ", _LEGEND, width)
        lines += _reasons([(one.name, text) for one in status.upstreams for text in _upstream_reasons(one)], width)
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
        running = sum(model.running for model in status.models) + sum(one.running for one in status.upstreams)
        parts.append(f"{running:,} in progress")
    return ", ".join(parts)


def _table(rows: Sequence[Sequence[str]], width: int | None, numbers: range) -> list[str]:
    return format_table(rows, width, right_aligned=frozenset(numbers), paint=partial(_paint, rows))


def _paint(rows: Sequence[Sequence[str]], row: int, column: int, cell: str) -> str:
    state = rows[row][1]
    if row == 0 or column != 1 or state in _NEUTRAL_STATES:
        return cell
    return ui.colorize(cell, _KINDS.get(state, "warn"))


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
