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

from welldone.cli import captures, show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.rules.capture import guess_endpoint, read_capture
from welldone.rules.heard import Form, Heard
from welldone.rules.trace import Trace
from welldone.wire import sse
from welldone.wire.counts import usage_object
from welldone.wire.dialects.stream import error_object
from welldone.wire.events import Failure, Usage
from welldone.wire.faults.catalogue import BY_ID
from welldone.wire.fixing import pipe_for
from welldone.wire.fold import Fold
from welldone.wire.head import Endpoint
from welldone.wire.native import Native
from welldone.wire.notes import Note
from welldone.wire.pipe import Pipe

EXAMPLES = """
curl -sN http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone fix
welldone fix capture.txt > right.txt
welldone fix capture.txt --report mended.json > right.txt
"""
_PIECE_BYTES = 65536
_LOOK_BYTES = 65536  # how far the first chunk may be when the endpoint has to be seen in it
_GRACE_S = 0.5  # how long late chunks are awaited after [DONE]
_HTTP = b"HTTP/"
_FIRST_CHUNK = re.compile(rb'"(?:choices|error|type)"[^\r\n]*[\r\n]')


def run(arguments: list[str]) -> Exit:
    """Repair what comes in."""
    options = _parser().read(arguments)
    request = captures.read_request(options.request, options.file)
    with _report(options.report, options.file) as report:
        pieces = _pieces(options.file)
        start = _start(pieces, is_endpoint_known=options.endpoint is not None)
        if _is_capture(start):
            # A capture with its head, a trace, or a reply that was not streamed: more than a body as it comes.
            is_stream = _has_live_body(start)
            if not is_stream:
                start, pieces = _all(start, pieces), iter(())
            trace = captures.read_reply(start, options.file, endpoint=options.endpoint, request=request)
            is_stream = is_stream or Heard(trace).form in (Form.STREAM, Form.INSTEAD)
        else:
            captures.check_readable(start)
            trace = Trace(body=start, endpoint=options.endpoint or guess_endpoint(start), request=request)
            is_stream = True
        if not trace.body.strip():
            show.note("nothing to fix: the capture is empty")
            return Exit.NOTHING
        stem, created = os.urandom(12).hex(), int(time.time())
        pipe = pipe_for(
            Endpoint(trace.endpoint),
            trace.request,
            stem=stem,
            created=created,
            is_stream=is_stream,
            think=options.think,
            text=options.text,
        )
        done = _fix(pipe, trace, pieces, is_stream=is_stream, is_live=options.file == captures.STDIN)
        _tell(done)
        if report is not None:
            report.write(msgspec.json.encode(_as_json(done)) + b"\n")
    return Exit.RIGHT if done.failure is None else Exit.FOUND


class _Done(msgspec.Struct):
    """What was done."""

    notes: list[Note]
    failure: Failure | None
    usage: Usage | None = None


def _parser() -> Parser:
    parser = Parser(
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


def _fix(pipe: Pipe | Fold | Native, trace: Trace, pieces: Iterator[bytes], *, is_stream: bool, is_live: bool) -> _Done:
    if isinstance(pipe, Pipe) or (is_stream and isinstance(pipe, Native) and Heard(trace).form is Form.STREAM):
        _pass(pipe, trace.body, pieces, is_live=is_live)
    else:
        show.write((pipe.whole(trace.body) or b"") + (pipe.close() or b""))
        if not is_stream:
            show.write(pipe.body() + b"\n")
    return _Done(pipe.notes.all(), pipe.failure, pipe.usage)


def _pass(pipe: Pipe | Native, body: bytes, pieces: Iterator[bytes], *, is_live: bool) -> None:
    show.write(pipe.feed(body))
    while not (is_live and pipe.is_done and _is_silent()) and (piece := next(pieces, b"")):
        show.write(pipe.feed(piece))
    show.write(pipe.close())


def _is_silent() -> bool:
    """Whether standard input has no more to say, though it is open: some servers leave the body open after [DONE]."""
    return not select.select([sys.stdin.fileno()], [], [], _GRACE_S)[0]


def _pieces(name: str) -> Iterator[bytes]:
    """The bytes of a file or of standard input, as they come."""
    if name == captures.STDIN:
        captures.check_stdin()
        while piece := os.read(sys.stdin.fileno(), _PIECE_BYTES):
            yield piece
        return
    try:
        with Path(name).open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except (OSError, ValueError) as error:
        raise captures.unreadable(name, error) from None


def _start(pieces: Iterator[bytes], *, is_endpoint_known: bool) -> bytes:
    """The first bytes: enough to tell what they are, and which endpoint they come from."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) > _LOOK_BYTES or _is_told(_bare(start), is_endpoint_known=is_endpoint_known):
            break
    return start


def _all(start: bytes, pieces: Iterator[bytes]) -> bytes:
    """The whole of a capture that has to be seen at once."""
    whole = bytearray(start)
    for piece in pieces:
        whole += piece
        captures.check_length(len(whole))
    return bytes(whole)


def _is_told(start: bytes, *, is_endpoint_known: bool) -> bool:
    if len(start) < len(_HTTP):
        return False
    if start.startswith(_HTTP):
        return b"\n" in read_capture(start).body  # by its first line a body shows whether HTTP's framing is in it
    return is_endpoint_known or start.startswith((b"{", b"[")) or _FIRST_CHUNK.search(start) is not None


def _is_capture(start: bytes) -> bool:
    return _bare(start).startswith((b"{", b"[", _HTTP))


def _has_live_body(start: bytes) -> bool:
    """Whether a head is followed by a stream as it comes: not a whole reply, and without the framing of HTTP."""
    capture = read_capture(start)
    is_stream = not _bare(capture.body).startswith((b"{", b"["))
    return start.startswith(_HTTP) and capture.pieces is None and is_stream


def _bare(data: bytes) -> bytes:
    """The bytes without what may stand before a reply and means nothing."""
    return data.removeprefix(sse.BOM).lstrip()


def _report(name: str | None, capture: str) -> AbstractContextManager[BinaryIO | None]:
    """The report's file, opened before anything is done, so that a wrong name costs nothing."""
    if name is None:
        return nullcontext()
    try:
        if capture != captures.STDIN and Path(name).exists() and Path(name).samefile(capture):
            raise UsageError(f"the report would overwrite the capture {capture}; name another file")
        return Path(name).open("wb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {show.name(name)}: {show.why(error)}") from None


def _tell(done: _Done) -> None:
    """What was mended, for a person."""
    if not done.notes:
        show.note("fix: nothing to mend")
    for note in done.notes:
        times = "once" if note.count == 1 else f"{note.count:,} times"
        place = f", first in frame {note.frame}" if note.frame else ""
        show.note(f"fix: {note.rule} ({times}{place}): {BY_ID[note.rule].how}")
    if done.failure is not None:
        show.note(f"fix: the answer is not whole and ends with an error: {done.failure.message}")


def _as_json(done: _Done) -> dict[str, object]:
    return {
        "version": 1,
        "error": None if done.failure is None else error_object(done.failure)["error"],
        "usage": None if done.usage is None else usage_object(done.usage),
        "mended": done.notes,
    }
