"""Captured replies: read a file or a pipe into a trace."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import UsageError
from welldone.core.catalog import ALL_ENDPOINTS
from welldone.rules.trace import Trace, inline_body, read_capture, read_record, read_trace, unreadable_reason

CAPTURE_LIMIT_BYTES = 512 * 1024 * 1024
"""The largest capture that is read into memory."""
ENDPOINTS = ALL_ENDPOINTS
STDIN = "-"


def read_bytes(name: str) -> bytes:
    """Read a file, or standard input for `-`."""
    if name == STDIN:
        check_stdin()
        data = sys.stdin.buffer.read(CAPTURE_LIMIT_BYTES + 1)
    else:
        data = read_file(Path(name), CAPTURE_LIMIT_BYTES + 1)
    check_length(len(data))
    return data


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read at most so many bytes of a file."""
    with ui.file_errors("read", path), path.open("rb") as file:
        return file.read(max_bytes)


def check_length(length: int) -> None:
    """Raise `UsageError` if a capture is too large to be held in memory."""
    if length > CAPTURE_LIMIT_BYTES:
        raise UsageError(
            f"the capture is larger than {CAPTURE_LIMIT_BYTES // 2**20} MB; cut it, for example with head -c"
        )


def add_arguments(parser: CommandParser) -> None:
    """Add the options of a command that reads one captured reply."""
    forms = "its body, the output of curl -i or curl -i --raw, or a trace"
    parser.option("FILE", f"a captured reply: {forms} (default: standard input)", dest="file", nargs="?", default=STDIN)
    parser.option("--request FILE", "the request body as JSON, for the rules that depend on it")
    parser.option("--endpoint", "the endpoint of the reply (default: detected)", choices=ENDPOINTS)


def check_stdin() -> None:
    """Raise `UsageError` if standard input is closed; if it is a terminal, print what to do."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; name a file")
    if sys.stdin.isatty():
        ui.print_note("reading the stream from the terminal; end it with Ctrl-D, or name a file")


def read_reply(data: bytes, name: str, *, endpoint: str | None, request: dict[str, Any] | None) -> Trace:
    """Read captured bytes into a trace. `endpoint` and `request` override what the capture contains."""
    record = read_record(data)
    trace = read_capture(data) if record is None else read_trace(record, _body_of(record, name))
    check_readable(trace.body)
    request = trace.request if request is None else request
    return msgspec.structs.replace(trace, endpoint=endpoint or trace.endpoint, request=request)


def read_trace_file(name: str) -> tuple[dict[str, Any], bytes]:
    """Read the record of a trace and its body."""
    record = read_record(read_bytes(name))
    if record is None:
        raise UsageError(
            f"{ui.printable_name(name)} is not a trace: JSON that holds the body, or the name of the body's file"
        )
    return record, _body_of(record, name)


def check_readable(body: bytes) -> None:
    """Raise `UsageError` for bytes that a tool compressed or re-encoded: the server is not at fault."""
    reason = unreadable_reason(body)
    if reason is not None:
        raise UsageError(reason)


def read_request(name: str | None, capture_name: str) -> dict[str, Any] | None:
    """Read the request body from a JSON file or from a trace; None without a file name."""
    if name is None:
        return None
    if name == capture_name == STDIN:
        raise UsageError("standard input cannot be both the capture and the request; name a file for one of them")
    try:
        request = json.loads(read_bytes(name))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}; it must hold the body of the request") from None
    if isinstance(request, dict) and isinstance(request.get("request"), dict):
        request = request["request"]  # a trace
    if not isinstance(request, dict):
        raise UsageError(f"{name} does not hold a JSON object; it must hold the body of the request")
    return request


def _body_of(record: dict[str, Any], name: str) -> bytes:
    try:
        body = inline_body(record)
    except ValueError as error:
        raise UsageError(
            f"the body in the trace {ui.printable_name(name)} cannot be read: {ui.error_text(error)}"
        ) from None
    if body is not None:
        return body
    file_name = record["body"]
    if "/" in file_name or "\\" in file_name or file_name in ("", ".", ".."):
        raise UsageError(f"the trace has {file_name!r} as its body; it must name a file in the folder of the trace")
    folder = Path() if name == STDIN else Path(name).parent
    return read_bytes(str(folder / file_name))
