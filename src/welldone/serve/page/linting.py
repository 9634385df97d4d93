"""A captured reply judged and mended in one go: what `welldone lint` and `welldone fix` do, for the page."""

from collections.abc import Iterator
from typing import Any

import msgspec

from welldone.rules.capture import inline_body, read_capture, read_record, read_trace, timed_pieces, why_unreadable
from welldone.rules.heard import Form, Heard
from welldone.rules.judge import Finding, has_something, judge
from welldone.rules.trace import Trace
from welldone.serve.errors import ApiError, invalid
from welldone.serve.page.steps import Shown, shown
from welldone.wire.counts import usage_object
from welldone.wire.dialects.stream import error_object
from welldone.wire.events import Json
from welldone.wire.fixing import pipe_for
from welldone.wire.head import Endpoint
from welldone.wire.pipe import Pipe
from welldone.wire.replay import Replay, Step

LIMIT_BYTES = 4 * 2**20
"""The longest capture: what is longer takes more than two seconds to judge, and `welldone lint` does it."""
LINES = 100_000
"""Of a stream, for the same reason: each costs as much as some hundred bytes. It is one of 50,000 chunks."""
STEPS = 2_000
"""As many are told: a page draws them in a moment."""
FINDINGS = 2_000
_PIECE_BYTES = 65_536


class Linted(msgspec.Struct):
    """What the page is told."""

    endpoint: str
    form: str
    verdict: str
    findings: tuple[Finding, ...]
    steps: list[Shown]
    fixed: str
    error: Json | None
    usage: Json | None
    is_cut: bool
    """Whether there are more steps, or findings."""


def lint(capture: bytes, *, endpoint: str | None, request: Json | None, stem: str, created: int) -> Linted:
    """All that is to say of a capture. It takes a while: not for the event loop. For `stem` and so on see `pipe_for`.

    Raises:
        ApiError: it cannot be read.
    """
    trace, times = _read(capture, endpoint, request)
    heard = Heard(trace)
    if heard.form is Form.STREAM and trace.body.count(b"\n") + trace.body.count(b"\r") > LINES:
        raise ApiError(413, f"The stream has more than {LINES:,} lines: use welldone lint, which takes more.")
    judgement = judge(trace)
    is_stream = heard.form in (Form.STREAM, Form.INSTEAD)

    pipe = pipe_for(Endpoint(trace.endpoint), trace.request, stem=stem, created=created, is_stream=is_stream)
    is_fed = isinstance(pipe, Pipe) or heard.form is Form.STREAM
    steps: list[Shown] = []
    said: list[bytes] = []
    for at_s, step in _replay(Replay(pipe), _pieces(trace.body, times), is_fed=is_fed, is_stream=is_stream):
        said.append(step.said)
        if len(said) <= STEPS:
            steps.append(shown(step, len(steps), at_s=at_s))
    fixed = b"".join(said if is_stream else said[-1:])
    return Linted(
        endpoint=trace.endpoint,
        form=heard.form.value,
        verdict=judgement.verdict.value,
        findings=judgement.findings[:FINDINGS],
        steps=steps,
        fixed=fixed.decode("utf-8", "replace"),
        error=None if pipe.failure is None else error_object(pipe.failure)["error"],
        usage=None if pipe.usage is None else usage_object(pipe.usage),
        is_cut=len(said) > STEPS or len(judgement.findings) > FINDINGS,
    )


def _read(capture: bytes, endpoint: str | None, request: Json | None) -> tuple[Trace, list[tuple[float, int]]]:
    """The trace, and when its pieces came, as far as that is known."""
    record = read_record(capture)
    trace = read_capture(capture) if record is None else read_trace(record, _body(record))
    why = why_unreadable(trace.body)
    if why is not None:
        raise invalid(why[0].upper() + why[1:] + ".", param="capture")
    if not has_something(trace):
        raise invalid("The capture is empty.", param="capture")
    request = trace.request if request is None else request
    trace = msgspec.structs.replace(trace, endpoint=endpoint or trace.endpoint, request=request)
    return trace, [] if record is None else timed_pieces(record)


def _body(record: dict[str, Any]) -> bytes:
    try:
        body = inline_body(record)
    except ValueError:
        raise invalid("The body in the trace is no text, or no base64.", param="capture") from None
    if body is None:
        raise invalid("The trace names the file of its body; open that file.", param="capture", code="no_body")
    return body


def _replay(
    replay: Replay, pieces: Iterator[tuple[float | None, bytes]], *, is_fed: bool, is_stream: bool
) -> Iterator[tuple[float | None, Step]]:
    """What is mended, step by step, each with its time; the last has the reply where that is no stream."""
    at_s: float | None = None
    whole = bytearray()
    for at_s, piece in pieces:
        if is_fed:
            yield from ((at_s, step) for step in replay.feed(piece))
        else:
            whole += piece
    last = [] if is_fed else replay.whole(bytes(whole))
    last += replay.close()
    yield from ((at_s, step) for step in (last if is_stream else [*last, replay.body()]))


def _pieces(body: bytes, times: list[tuple[float, int]]) -> Iterator[tuple[float | None, bytes]]:
    """The body as it came, as far as that is known; the rest in pieces of which not too many steps come at once."""
    start = 0
    for at_s, size in times:
        yield at_s, body[start : start + size]
        start += size
    for place in range(start, len(body), _PIECE_BYTES):
        yield None, body[place : place + _PIECE_BYTES]
