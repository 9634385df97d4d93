"""`welldone fix`: repair a stream as it passes through.

Repair a stream as it passes through. The repaired stream is written to standard output, the list of repairs
to standard error. If the answer cannot be completed, it ends with an error event, and the exit code is 1.

examples:
  curl -sN http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone fix
  welldone fix capture.txt > repaired.txt
  welldone fix capture.txt --report repairs.json > repaired.txt
"""

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
from welldone.core import sse
from welldone.core.catalog import RULES
from welldone.core.envelope import Endpoint
from welldone.core.fields import openai_error_object, usage_object
from welldone.core.repair_log import RepairResult
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.rules.trace import Trace, guess_endpoint, read_capture
from welldone.rules.view.view import ReplyKind, TraceView
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline, make_pipeline

FIX_REPORT_VERSION = 2
_READ_BYTES = 65536
_SNIFF_BYTES = 65536  # read at most this much to detect the endpoint from the first chunk
_GRACE_S = 0.5  # wait for late chunks after [DONE]
_HTTP = b"HTTP/"
_FIRST_CHUNK = re.compile(rb'"(?:choices|error|type)"[^\r\n]*[\r\n]')


def run(arguments: list[str]) -> ExitCode:
    """Repair a capture or a live stream."""
    options = _parser().parse(arguments)
    request = captures.read_request(options.request, options.file)
    with _open_report(options.report, options.file) as report:
        pieces = _read_pieces(options.file)
        start = _read_start(pieces, is_endpoint_known=options.endpoint is not None)
        if _strip_bom(start).startswith((b"{", b"[", _HTTP)):
            # A capture with a response head, a trace, or a reply that was not streamed.
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
        if TraceView(trace).reply_kind is ReplyKind.ARRAY:
            raise UsageError(
                "a stream as a JSON array is not repaired; record it with alt=sse, or judge it: welldone lint"
            )
        pipeline = make_pipeline(
            Endpoint(trace.endpoint),
            trace.request,
            id_stem=os.urandom(12).hex(),
            created=int(time.time()),
            is_stream=is_stream,
            think=options.think,
            text=options.text,
        )
        result = _repair(pipeline, trace, pieces, is_stream=is_stream, is_live=options.file == captures.STDIN)
        _print_summary(result)
        if report is not None:
            fields = {
                "version": FIX_REPORT_VERSION,
                "error": None if result.failure is None else openai_error_object(result.failure)["error"],
                "usage": None if result.usage is None else usage_object(result.usage),
                "repairs": result.repairs,
            }
            report.write(msgspec.json.encode(fields) + b"\n")
    return ExitCode.OK if result.failure is None else ExitCode.FAILED


def _parser() -> CommandParser:
    parser = CommandParser("fix", __doc__)
    captures.add_arguments(parser)
    thinking = "move reasoning out of the text: tags, a leading <think> block; open, a block without its opening tag"
    parser.option("--think", thinking, choices=("no", "tags", "open"), default="no")
    text = "content of each chunk: delta, the new text; cumulative, the whole text so far"
    parser.option("--text", text, choices=("delta", "cumulative"), default="delta")
    parser.option("--report FILE", "write the repairs to this file, as JSON")
    return parser


def _repair(
    pipeline: StreamPipeline | BufferedPipeline | PassthroughRepairer,
    trace: Trace,
    pieces: Iterator[bytes],
    *,
    is_stream: bool,
    is_live: bool,
) -> RepairResult:
    if isinstance(pipeline, StreamPipeline) or (
        is_stream and isinstance(pipeline, PassthroughRepairer) and TraceView(trace).reply_kind is ReplyKind.STREAM
    ):
        ui.write_bytes(pipeline.feed(trace.body))
        while not (is_live and pipeline.is_done and _is_input_idle()) and (piece := next(pieces, b"")):
            ui.write_bytes(pipeline.feed(piece))
        ui.write_bytes(pipeline.close())
    else:
        ui.write_bytes(pipeline.feed_reply(trace.body) + pipeline.close())
        if not is_stream:
            ui.write_bytes(pipeline.body() + b"\n")
    return pipeline.result


def _is_input_idle() -> bool:
    """Whether nothing arrives on standard input, though it is open: some servers leave the body open after [DONE]."""
    return not select.select([sys.stdin.fileno()], [], [], _GRACE_S)[0]


def _read_pieces(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file or of standard input as they arrive."""
    if name == captures.STDIN:
        captures.check_stdin()
        while piece := os.read(sys.stdin.fileno(), _READ_BYTES):
            yield piece
        return
    with ui.file_errors("read", name), Path(name).open("rb") as file:
        while piece := file.read(_READ_BYTES):
            yield piece


def _read_start(pieces: Iterator[bytes], *, is_endpoint_known: bool) -> bytes:
    """Read enough bytes to detect the kind of the capture and its endpoint."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) > _SNIFF_BYTES or _is_recognizable(_strip_bom(start), is_endpoint_known=is_endpoint_known):
            break
    return start


def _read_all(start: bytes, pieces: Iterator[bytes]) -> bytes:
    """Read the rest of a capture that cannot be repaired piece by piece."""
    whole = bytearray(start)
    for piece in pieces:
        whole += piece
        captures.check_length(len(whole))
    return bytes(whole)


def _is_recognizable(start: bytes, *, is_endpoint_known: bool) -> bool:
    if len(start) < len(_HTTP):
        return False
    if start.startswith(_HTTP):
        return b"\n" in read_capture(start).body  # the first line of the body shows whether it has HTTP framing
    return is_endpoint_known or start.startswith((b"{", b"[")) or _FIRST_CHUNK.search(start) is not None


def _has_live_body(start: bytes) -> bool:
    """Whether a response head is followed by an SSE body without HTTP framing, which can be repaired as it arrives."""
    capture = read_capture(start)
    is_stream = not _strip_bom(capture.body).startswith((b"{", b"["))
    return start.startswith(_HTTP) and capture.chunk_sizes is None and is_stream


def _strip_bom(data: bytes) -> bytes:
    return data.removeprefix(sse.BOM).lstrip()


def _open_report(name: str | None, capture: str) -> AbstractContextManager[BinaryIO | None]:
    """Open the report file before the repair starts, so that a bad path costs nothing."""
    if name is None:
        return nullcontext()
    with ui.file_errors("write", name):
        if capture != captures.STDIN and Path(name).exists() and Path(name).samefile(capture):
            raise UsageError(f"the report would overwrite the capture {capture}; choose another file")
        return Path(name).open("wb")


def _print_summary(result: RepairResult) -> None:
    if not result.repairs:
        ui.print_note("fix: nothing to repair")
    for entry in result.repairs:
        times = "once" if entry.count == 1 else f"{entry.count:,} times"
        position = f", first in frame {entry.frame}" if entry.frame else ""
        ui.print_note(f"fix: {entry.rule} ({times}{position}): {RULES[entry.rule].repair}")
    if result.failure is not None:
        ui.print_note(f"fix: the answer is incomplete and ends with an error: {result.failure.message}")
