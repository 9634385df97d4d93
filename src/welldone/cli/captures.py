"""Captured replies: from a file or a pipe to a trace."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import UsageError
from welldone.protocol.envelope import Endpoint
from welldone.rules.trace import Trace, inline_body, read_capture, read_record, read_trace, unreadable_reason

CAPTURE_LIMIT_BYTES = 512 * 1024 * 1024
"""The largest capture that is read into memory."""
ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)  # plain strings, as a mistake shows them
STDIN = "-"


def read_bytes(name: str) -> bytes:
    """All bytes of a file, or of standard input for `-`."""
    if name == STDIN:
        check_stdin()
        data = sys.stdin.buffer.read(CAPTURE_LIMIT_BYTES + 1)
    else:
        try:
            with Path(name).open("rb") as file:
                data = file.read(CAPTURE_LIMIT_BYTES + 1)
        except (OSError, ValueError) as error:
            raise unreadable_error(name, error) from None
    check_length(len(data))
    return data


def check_length(length: int) -> None:
    """Refuse a capture that is too large to be kept."""
    if length > CAPTURE_LIMIT_BYTES:
        raise UsageError(
            f"the capture is larger than {CAPTURE_LIMIT_BYTES // 2**20} MB; cut it, for example with head -c"
        )


def unreadable_error(name: str, error: OSError | ValueError) -> UsageError:
    """The error of a file that cannot be read, or whose name cannot be one."""
    return UsageError(f"cannot read {ui.printable_name(name)}: {ui.error_text(error)}")


def add_arguments(parser: CommandParser) -> None:
    """The options of a command that looks at one captured reply."""
    parser.add_argument(
        "file",
        nargs="?",
        default=STDIN,
        metavar="FILE",
        help="a reply: its body, what curl -i or curl -i --raw printed, or a trace; - or none: standard input",
    )
    parser.add_argument("--request", metavar="FILE", help="the JSON of the request, for the rules that depend on it")
    parser.add_argument("--endpoint", choices=ENDPOINTS, help="which endpoint answered (otherwise seen in the reply)")


def check_stdin() -> None:
    """Say what is awaited when a person forgot to name a file."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; name a file")
    if sys.stdin.isatty():
        ui.print_note("reading a stream from the terminal; end it with Ctrl-D, or name a file")


def read_reply(data: bytes, name: str, *, endpoint: str | None, request: dict[str, Any] | None) -> Trace:
    """The trace that captured bytes hold; what the user says counts more than what they say."""
    record = read_record(data)
    trace = read_capture(data) if record is None else read_trace(record, _body_of(record, name))
    check_readable(trace.body)
    request = trace.request if request is None else request
    return msgspec.structs.replace(trace, endpoint=endpoint or trace.endpoint, request=request)


def read_record(name: str) -> tuple[dict[str, Any], bytes]:
    """The record of a trace, and its body."""
    record = read_record(read_bytes(name))
    if record is None:
        raise UsageError(
            f"{ui.printable_name(name)} is no trace: JSON that holds its body, or names the file of it, beside it"
        )
    return record, _body_of(record, name)


def check_readable(body: bytes) -> None:
    """Bytes that are no text of a server, but what a tool made of it: say so before anybody is blamed."""
    why = unreadable_reason(body)
    if why is not None:
        raise UsageError(why)


def read_request(name: str | None, capture_name: str) -> dict[str, Any] | None:
    """The JSON request in a file; None where no file was named. `beside` is where the capture is read from."""
    if name is None:
        return None
    if name == capture_name == STDIN:
        raise UsageError("standard input cannot be both the capture and the request; name a file for one of them")
    try:
        request = json.loads(read_bytes(name))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no JSON: {error}; it should hold the body of the request") from None
    if isinstance(request, dict) and isinstance(request.get("request"), dict):
        request = request["request"]  # a whole trace does as well
    if not isinstance(request, dict):
        raise UsageError(f"{name} holds no JSON object; it should hold the body of the request")
    return request


def _body_of(record: dict[str, Any], name: str) -> bytes:
    """The body that the record holds, or the file that it names."""
    try:
        body = inline_body(record)
    except ValueError as error:
        raise UsageError(
            f"the body in the trace {ui.printable_name(name)} cannot be read: {ui.error_text(error)}"
        ) from None
    return _body_file(name, record) if body is None else body


def _body_file(name: str, record: dict[str, Any]) -> bytes:
    body = record["body"]
    if "/" in body or "\\" in body or body in ("", ".", ".."):
        raise UsageError(f"the trace names its body {body!r}; it should be a file beside it")
    folder = Path() if name == STDIN else Path(name).parent
    return read_bytes(str(folder / body))
