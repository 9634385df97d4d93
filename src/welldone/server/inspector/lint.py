"""A captured reply judged and mended in one go: what `welldone lint` and `welldone fix` do, for the page."""

import asyncio
import base64
import os
import resource
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from welldone.engines.plan import PYTHON_MODULE
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.dialects.chat import openai_error_object
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.protocol.fields import usage_object
from welldone.protocol.pipeline import StreamPipeline, make_pipeline
from welldone.protocol.replay import StreamReplay, StreamReplayStep
from welldone.rules.judge import LintFinding, has_content, judge
from welldone.rules.trace import (
    Trace,
    inline_body,
    read_capture,
    read_record,
    read_trace,
    timed_reads,
    unreadable_reason,
)
from welldone.rules.view.view import ReplyKind, TraceView
from welldone.server.inspector.captures import StepView, step_view
from welldone.server.requests import fields
from welldone.server.requests.fields import read_body

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


# A capture judged in a process of its own: what takes seconds must not hold up streams.
#
# The request goes to the child's standard input, and its reply comes from standard output: a line with the status, and
# the body, which is the error where the status is not 200.


LINT_TIMEOUT_S = 60.0
"""For a capture of the longest kind, on a busy machine; on a quiet one it takes two seconds."""
_CHILD_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""Variables that the child gets: none has a secret."""
_CHILD_MODULE = "welldone.server.inspector.lint"
_ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)
_CHILD_NICENESS = 10  # streams go before it


class LintJob(msgspec.Struct, frozen=True):
    """A request for a verdict, as it came."""

    data: bytes
    content_type: str | None
    is_browser: bool


class _LintError(msgspec.Struct, frozen=True):
    """An error of the request."""

    message: str
    param: str | None = None
    code: str | None = None


async def lint_in_child(job: LintJob) -> bytes:
    """What is said of a capture.

    Raises:
        ApiError: it cannot be read, takes too long, or there is no child.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *PYTHON_MODULE,
            _CHILD_MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _CHILD_ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
    except OSError:
        raise ApiError(503, "No process can be started to judge it.", code="server_busy", retry_after_s=1.0) from None
    try:
        async with asyncio.timeout(LINT_TIMEOUT_S):
            said, _ = await child.communicate(msgspec.msgpack.encode(job))
    except TimeoutError:
        message = f"It takes more than {LINT_TIMEOUT_S:g} seconds to judge this capture: use welldone lint."
        raise ApiError(413, message) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    status, _, body = said.partition(b"\n")
    if status == b"200":
        return body
    if not status:
        raise ApiError(413, "This capture takes too much memory or time to judge: use welldone lint.")
    refusal = msgspec.json.decode(body, type=_LintError)
    raise ApiError(int(status), refusal.message, param=refusal.param, code=refusal.code)


def run_lint_job(job: LintJob) -> bytes:
    """What is said of a capture. It takes a while: not for the event loop."""
    body = read_body(job.data, job.content_type, is_browser=job.is_browser)
    found = lint_capture(
        _decode_capture(body),
        endpoint=fields.choice(body, "endpoint", _ENDPOINTS),
        request=fields.json_object(body, "request"),
        id_stem=secrets.token_hex(12),
        created=int(time.time()),
    )
    return msgspec.json.encode(found)


def _decode_capture(body: Json) -> bytes:
    """The bytes of the capture, which came as text or in base64."""
    text, encoded = body.get("capture"), body.get("capture_base64")
    if isinstance(text, str):
        capture = text.encode()
    elif isinstance(encoded, str):
        try:
            capture = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise invalid_request("This is no base64.", param="capture_base64") from None
    else:
        raise invalid_request(
            "The capture is missing: send it as text in 'capture', or in 'capture_base64'.", param="capture"
        )
    if len(capture) > LINT_LIMIT_BYTES:
        limit = LINT_LIMIT_BYTES // 2**20
        raise ApiError(413, f"The capture has more than {limit} MiB: use welldone lint, which takes more.")
    return capture


def main() -> None:
    """What the child does."""
    os.nice(_CHILD_NICENESS)
    seconds = int(LINT_TIMEOUT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # also where its parent is gone
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LintJob)
    try:
        said = b"200\n" + run_lint_job(job)
    except ApiError as error:
        said = b"%d\n" % error.status + msgspec.json.encode(_LintError(error.message, error.param, error.code))
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
