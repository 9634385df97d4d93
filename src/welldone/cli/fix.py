"""`welldone fix`: a stream repaired as it passes through."""

import os
import re
import select
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import msgspec

from welldone.cli import captures, ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.protocol import sse
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.dialects.chat import openai_error_object
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Failure, Usage
from welldone.protocol.fields import usage_object
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline, make_pipeline
from welldone.protocol.repair_log import RepairEntry
from welldone.rules.trace import Trace, guess_endpoint, read_capture
from welldone.rules.view.view import ReplyKind, TraceView

EXAMPLES = """
curl -sN http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone fix
welldone fix capture.txt > right.txt
welldone fix capture.txt --report mended.json > right.txt
"""
_READ_BYTES = 65536
_SNIFF_BYTES = 65536  # how far the first chunk may be when the endpoint has to be seen in it
_GRACE_S = 0.5  # how long late chunks are awaited after [DONE]
_HTTP = b"HTTP/"
_FIRST_CHUNK = re.compile(rb'"(?:choices|error|type)"[^\r\n]*[\r\n]')


def run(arguments: list[str]) -> ExitCode:
    """Repair what comes in."""
    options = _parser().parse(arguments)
    request = captures.read_request(options.request, options.file)
    with _open_report(options.report, options.file) as report:
        pieces = _read_pieces(options.file)
        start = _read_start(pieces, is_endpoint_known=options.endpoint is not None)
        if _is_whole_capture(start):
            # A capture with its head, a trace, or a reply that was not streamed: more than a body as it comes.
            is_stream = _has_live_body(start)
            if not is_stream:
                start, pieces = _read_all(start, pieces), iter(())
            trace = captures.read_reply(start, options.file, endpoint=options.endpoint, request=request)
            is_stream = is_stream or TraceView(trace).reply_kind in (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM)
        else:
            captures.check_readable(start)
            trace = Trace(body=start, endpoint=options.endpoint or guess_endpoint(start), request=request)
            is_stream = True
        if not trace.body.strip():
            ui.print_note("nothing to fix: the capture is empty")
            return ExitCode.NOTHING_TO_DO
        stem, created = os.urandom(12).hex(), int(time.time())
        pipe = make_pipeline(
            Endpoint(trace.endpoint),
            trace.request,
            id_stem=stem,
            created=created,
            is_stream=is_stream,
            think=options.think,
            text=options.text,
        )
        done = _repair(pipe, trace, pieces, is_stream=is_stream, is_live=options.file == captures.STDIN)
        _print_summary(done)
        if report is not None:
            report.write(msgspec.json.encode(_report_json(done)) + b"\n")
    return ExitCode.OK if done.failure is None else ExitCode.FAILED


class _FixResult(msgspec.Struct):
    """What was done."""

    repairs: list[RepairEntry]
    failure: Failure | None
    usage: Usage | None = None


def _parser() -> CommandParser:
    parser = CommandParser(
        "fix",
        "Repair a stream as it passes through. The right stream goes to standard output, what was mended to standard\n"
        "error. The exit code is 1 where the answer could not be made whole: then it ends with an error event.",
        EXAMPLES,
    )
    captures.add_arguments(parser)
    parser.add_argument(
        "--think",
        choices=("no", "tags", "open"),
        default="no",
        help="take thoughts out of the text: tags, leading <think> tags; open, where the text begins inside one",
    )
    parser.add_argument(
        "--text",
        choices=("delta", "cumulative"),
        default="delta",
        help="what each chunk of the text is: delta, the new text; cumulative, all of the text so far",
    )
    parser.add_argument("--report", metavar="FILE", help="write what was mended to this file, as JSON")
    return parser


def _repair(
    pipeline: StreamPipeline | BufferedPipeline | PassthroughRepairer,
    trace: Trace,
    pieces: Iterator[bytes],
    *,
    is_stream: bool,
    is_live: bool,
) -> _FixResult:
    if isinstance(pipeline, StreamPipeline) or (
        is_stream and isinstance(pipeline, PassthroughRepairer) and TraceView(trace).reply_kind is ReplyKind.STREAM
    ):
        _repair_stream(pipeline, trace.body, pieces, is_live=is_live)
    else:
        ui.write_bytes((pipeline.feed_reply(trace.body) or b"") + (pipeline.close() or b""))
        if not is_stream:
            ui.write_bytes(pipeline.body() + b"\n")
    return _FixResult(pipeline.repair_log.entries(), pipeline.failure, pipeline.usage)


def _repair_stream(
    pipeline: StreamPipeline | PassthroughRepairer, body: bytes, pieces: Iterator[bytes], *, is_live: bool
) -> None:
    ui.write_bytes(pipeline.feed(body))
    while not (is_live and pipeline.is_done and _is_input_idle()) and (piece := next(pieces, b"")):
        ui.write_bytes(pipeline.feed(piece))
    ui.write_bytes(pipeline.close())


def _is_input_idle() -> bool:
    """Whether standard input has no more to say, though it is open: some servers leave the body open after [DONE]."""
    return not select.select([sys.stdin.fileno()], [], [], _GRACE_S)[0]


def _read_pieces(name: str) -> Iterator[bytes]:
    """The bytes of a file or of standard input, as they come."""
    if name == captures.STDIN:
        captures.check_stdin()
        while piece := os.read(sys.stdin.fileno(), _READ_BYTES):
            yield piece
        return
    try:
        with Path(name).open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
    except (OSError, ValueError) as error:
        raise captures.unreadable_error(name, error) from None


def _read_start(pieces: Iterator[bytes], *, is_endpoint_known: bool) -> bytes:
    """The first bytes: enough to tell what they are, and which endpoint they come from."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) > _SNIFF_BYTES or _is_recognizable(_strip_bom(start), is_endpoint_known=is_endpoint_known):
            break
    return start


def _read_all(start: bytes, pieces: Iterator[bytes]) -> bytes:
    """The whole of a capture that has to be seen at once."""
    whole = bytearray(start)
    for piece in pieces:
        whole += piece
        captures.check_length(len(whole))
    return bytes(whole)


def _is_recognizable(start: bytes, *, is_endpoint_known: bool) -> bool:
    if len(start) < len(_HTTP):
        return False
    if start.startswith(_HTTP):
        return b"\n" in read_capture(start).body  # by its first line a body shows whether HTTP's framing is in it
    return is_endpoint_known or start.startswith((b"{", b"[")) or _FIRST_CHUNK.search(start) is not None


def _is_whole_capture(start: bytes) -> bool:
    return _strip_bom(start).startswith((b"{", b"[", _HTTP))


def _has_live_body(start: bytes) -> bool:
    """Whether a head is followed by a stream as it comes: not a whole reply, and without the framing of HTTP."""
    capture = read_capture(start)
    is_stream = not _strip_bom(capture.body).startswith((b"{", b"["))
    return start.startswith(_HTTP) and capture.chunk_sizes is None and is_stream


def _strip_bom(data: bytes) -> bytes:
    """The bytes without what may stand before a reply and means nothing."""
    return data.removeprefix(sse.BOM).lstrip()


def _open_report(name: str | None, capture: str) -> AbstractContextManager[BinaryIO | None]:
    """The report's file, opened before anything is done, so that a wrong name costs nothing."""
    if name is None:
        return nullcontext()
    try:
        if capture != captures.STDIN and Path(name).exists() and Path(name).samefile(capture):
            raise UsageError(f"the report would overwrite the capture {capture}; name another file")
        return Path(name).open("wb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {ui.printable_name(name)}: {ui.error_text(error)}") from None


def _print_summary(result: _FixResult) -> None:
    """What was mended, for a person."""
    if not result.repairs:
        ui.print_note("fix: nothing to mend")
    for note in result.repairs:
        times = "once" if note.count == 1 else f"{note.count:,} times"
        place = f", first in frame {note.frame}" if note.frame else ""
        ui.print_note(f"fix: {note.rule} ({times}{place}): {RULES_BY_ID[note.rule].repair}")
    if result.failure is not None:
        ui.print_note(f"fix: the answer is not whole and ends with an error: {result.failure.message}")


def _report_json(result: _FixResult) -> dict[str, object]:
    return {
        "version": 1,
        "error": None if result.failure is None else openai_error_object(result.failure)["error"],
        "usage": None if result.usage is None else usage_object(result.usage),
        "mended": result.repairs,
    }
