"""A captured reply judged and mended in one go: what `welldone lint` and `welldone fix` do, for the page."""

from collections.abc import Iterator
from typing import Any

import msgspec

from welldone.rules.capture import inline_body, read_capture, read_record, read_trace, timed_reads, unreadable_reason
from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.judge import LintFinding, has_content, judge
from welldone.rules.trace import Trace
from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.page.steps import StepView, step_view
from welldone.wire.counts import usage_object
from welldone.wire.dialects.stream import openai_error_object
from welldone.wire.events import Json
from welldone.wire.fixing import make_pipeline
from welldone.wire.head import Endpoint
from welldone.wire.pipe import StreamPipeline
from welldone.wire.replay import StreamReplay, StreamReplayStep

LINT_LIMIT_BYTES = 4 * 2**20
"""The longest capture: what is longer takes more than two seconds to judge, and `welldone lint` does it."""
LINT_LINES_LIMIT = 100_000
"""Of a stream, for the same reason: each costs as much as some hundred bytes. It is one of 50,000 chunks."""
LINT_STEPS_LIMIT = 2_000
"""As many are told: a page draws them in a moment."""
LINT_FINDINGS_LIMIT = 2_000
_PIECE_BYTES = 65_536


class LintResult(msgspec.Struct):
    """What the page is told."""

    endpoint: str
    reply_kind: str
    verdict: str
    findings: tuple[LintFinding, ...]
    steps: list[StepView]
    fixed: str
    error: Json | None
    usage: Json | None
    is_cut: bool
    """Whether there are more steps, or findings."""


def lint_capture(
    capture: bytes, *, endpoint: str | None, request: Json | None, id_stem: str, created: int
) -> LintResult:
    """All that is to say of a capture. It takes a while: not for the event loop. For `stem` and so on see `pipe_for`.

    Raises:
        ApiError: it cannot be read.
    """
    trace, times = _load_trace(capture, endpoint, request)
    heard = TraceView(trace)
    if heard.reply_kind is ReplyKind.STREAM and trace.body.count(b"\n") + trace.body.count(b"\r") > LINT_LINES_LIMIT:
        raise ApiError(
            413, f"The stream has more than {LINT_LINES_LIMIT:,} lines: use welldone lint, which takes more."
        )
    judgement = judge(trace)
    is_stream = heard.reply_kind in (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM)

    pipe = make_pipeline(Endpoint(trace.endpoint), trace.request, id_stem=id_stem, created=created, is_stream=is_stream)
    is_fed = isinstance(pipe, StreamPipeline) or heard.reply_kind is ReplyKind.STREAM
    steps: list[StepView] = []
    said: list[bytes] = []
    for at_s, step in _replay_steps(
        StreamReplay(pipe), _body_pieces(trace.body, times), is_incremental=is_fed, is_stream=is_stream
    ):
        said.append(step.sent)
        if len(said) <= LINT_STEPS_LIMIT:
            steps.append(step_view(step, len(steps), at_s=at_s))
    fixed = b"".join(said if is_stream else said[-1:])
    return LintResult(
        endpoint=trace.endpoint,
        reply_kind=heard.reply_kind.value,
        verdict=judgement.verdict.value,
        findings=judgement.findings[:LINT_FINDINGS_LIMIT],
        steps=steps,
        fixed=fixed.decode("utf-8", "replace"),
        error=None if pipe.failure is None else openai_error_object(pipe.failure)["error"],
        usage=None if pipe.usage is None else usage_object(pipe.usage),
        is_cut=len(said) > LINT_STEPS_LIMIT or len(judgement.findings) > LINT_FINDINGS_LIMIT,
    )


def _load_trace(capture: bytes, endpoint: str | None, request: Json | None) -> tuple[Trace, list[tuple[float, int]]]:
    """The trace, and when its pieces came, as far as that is known."""
    record = read_record(capture)
    trace = read_capture(capture) if record is None else read_trace(record, _record_body(record))
    why = unreadable_reason(trace.body)
    if why is not None:
        raise invalid_request(why[0].upper() + why[1:] + ".", param="capture")
    if not has_content(trace):
        raise invalid_request("The capture is empty.", param="capture")
    request = trace.request if request is None else request
    trace = msgspec.structs.replace(trace, endpoint=endpoint or trace.endpoint, request=request)
    return trace, [] if record is None else timed_reads(record)


def _record_body(record: dict[str, Any]) -> bytes:
    try:
        body = inline_body(record)
    except ValueError:
        raise invalid_request("The body in the trace is no text, or no base64.", param="capture") from None
    if body is None:
        raise invalid_request("The trace names the file of its body; open that file.", param="capture", code="no_body")
    return body


def _replay_steps(
    replay: StreamReplay, pieces: Iterator[tuple[float | None, bytes]], *, is_incremental: bool, is_stream: bool
) -> Iterator[tuple[float | None, StreamReplayStep]]:
    """What is mended, step by step, each with its time; the last has the reply where that is no stream."""
    at_s: float | None = None
    whole = bytearray()
    for at_s, piece in pieces:
        if is_incremental:
            yield from ((at_s, step) for step in replay.feed(piece))
        else:
            whole += piece
    last = [] if is_incremental else replay.feed_reply(bytes(whole))
    last += replay.close()
    yield from ((at_s, step) for step in (last if is_stream else [*last, replay.body()]))


def _body_pieces(body: bytes, times: list[tuple[float, int]]) -> Iterator[tuple[float | None, bytes]]:
    """The body as it came, as far as that is known; the rest in pieces of which not too many steps come at once."""
    start = 0
    for at_s, size in times:
        yield at_s, body[start : start + size]
        start += size
    for place in range(start, len(body), _PIECE_BYTES):
        yield None, body[place : place + _PIECE_BYTES]
