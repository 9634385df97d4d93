"""Lint and repair of an uploaded capture: `welldone lint` and `welldone fix` for the page.

Long captures are linted in a child process (`python -m welldone.server.inspector.lint`), so that seconds of work do not
delay streams. The child reads a `LintJob` in MessagePack from stdin and writes to stdout a line with the status, then
the body: a `LintResult`, or OpenAI's error object if the status is not 200.
"""

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

from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.core.fields import openai_error_object, usage_object
from welldone.gateway.errors import ApiError, invalid_request
from welldone.rules import trace as traces
from welldone.rules.judge import LintFinding, has_content, judge
from welldone.rules.trace import Trace
from welldone.rules.view.view import ReplyKind, TraceView
from welldone.server.inspector.children import start_child
from welldone.server.inspector.steps import StepView, step_view
from welldone.server.requests import fields
from welldone.server.requests.fields import read_body
from welldone.stream.pipeline import StreamPipeline, make_pipeline
from welldone.stream.replay import StreamReplay, StreamReplayStep

LINT_LIMIT_BYTES = 4 * 2**20
"""The longest capture. Linting it takes about two seconds; `welldone lint` has no such limit."""
LINT_LINES_LIMIT = 100_000
"""The most lines of a stream (50,000 chunks): a line costs as much time as some hundred bytes."""
LINT_STEPS_LIMIT = 2_000
"""Steps in a result: as many as a browser renders without a visible delay."""
LINT_FINDINGS_LIMIT = 2_000
LINT_TIMEOUT_S = 60.0
"""Enough for the longest capture on a busy machine; on an idle one it takes two seconds."""
_PIECE_BYTES = 65_536
_CHILD_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""Environment variables of the child. None contains a secret."""
_CHILD_MODULE = "welldone.server.inspector.lint"
_CHILD_NICENESS = 10  # streams have priority


class LintRequest(msgspec.Struct):
    """What a client tells about a capture."""

    endpoint: Endpoint | None = None
    request: dict[str, Any] | None = None


class LintResult(msgspec.Struct):
    """Findings, repair steps and the repaired reply of one capture."""

    endpoint: str
    reply_kind: str
    verdict: str
    findings: tuple[LintFinding, ...]
    steps: list[StepView]
    fixed: str
    error: Json | None
    usage: Json | None
    is_cut: bool
    """Whether steps or findings were left out."""


def lint_capture(
    capture: bytes, *, endpoint: str | None, request: Json | None, id_stem: str, created: int
) -> LintResult:
    """Lint and repair a capture. CPU-bound: not for the event loop. For `id_stem` and `created` see `make_pipeline`.

    Raises:
        ApiError: the capture is not readable, or is too long.
    """
    trace, read_times = _load_trace(capture, endpoint, request)
    reply_kind = TraceView(trace).reply_kind
    if reply_kind is ReplyKind.STREAM and trace.body.count(b"\n") + trace.body.count(b"\r") > LINT_LINES_LIMIT:
        raise ApiError(
            413, f"The stream has more than {LINT_LINES_LIMIT:,} lines. Use welldone lint, which accepts more."
        )
    if reply_kind is ReplyKind.ARRAY:
        raise ApiError(
            400, "A stream as a JSON array is not repaired here. Record it with alt=sse, or use welldone lint."
        )
    report = judge(trace)
    is_stream = reply_kind in (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM)

    pipeline = make_pipeline(
        Endpoint(trace.endpoint), trace.request, id_stem=id_stem, created=created, is_stream=is_stream
    )
    is_incremental = isinstance(pipeline, StreamPipeline) or reply_kind is ReplyKind.STREAM
    steps: list[StepView] = []
    sent: list[bytes] = []
    for at_s, step in _replay_steps(
        StreamReplay(pipeline), _body_pieces(trace.body, read_times), is_incremental=is_incremental, is_stream=is_stream
    ):
        sent.append(step.sent)
        if len(sent) <= LINT_STEPS_LIMIT:
            steps.append(step_view(step, len(steps), at_s=at_s))
    fixed = b"".join(sent if is_stream else sent[-1:])
    return LintResult(
        endpoint=trace.endpoint,
        reply_kind=reply_kind.value,
        verdict=report.verdict.value,
        findings=report.findings[:LINT_FINDINGS_LIMIT],
        steps=steps,
        fixed=fixed.decode("utf-8", "replace"),
        error=None if pipeline.failure is None else openai_error_object(pipeline.failure)["error"],
        usage=None if pipeline.usage is None else usage_object(pipeline.usage),
        is_cut=len(sent) > LINT_STEPS_LIMIT or len(report.findings) > LINT_FINDINGS_LIMIT,
    )


def _load_trace(capture: bytes, endpoint: str | None, request: Json | None) -> tuple[Trace, list[tuple[float, int]]]:
    """Return the trace, and (time, size) of each read as far as they were recorded."""
    record = traces.read_record(capture)
    trace = traces.read_capture(capture) if record is None else traces.read_trace(record, _record_body(record))
    reason = traces.unreadable_reason(trace.body)
    if reason is not None:
        raise invalid_request(reason[0].upper() + reason[1:] + ".", param="capture")
    if not has_content(trace):
        raise invalid_request("The capture is empty.", param="capture")
    request = trace.request if request is None else request
    trace = msgspec.structs.replace(trace, endpoint=endpoint or trace.endpoint, request=request)
    return trace, [] if record is None else traces.timed_reads(record)


def _record_body(record: dict[str, Any]) -> bytes:
    try:
        body = traces.inline_body(record)
    except ValueError:
        message = "The trace has a 'body_text' that is not a string, or a 'body_base64' that is not base64."
        raise invalid_request(message, param="capture") from None
    if body is None:
        message = "The trace names the file of its body instead of including it. Open that file."
        raise invalid_request(message, param="capture", code="no_body")
    return body


def _replay_steps(
    replay: StreamReplay, pieces: Iterator[tuple[float | None, bytes]], *, is_incremental: bool, is_stream: bool
) -> Iterator[tuple[float | None, StreamReplayStep]]:
    """Yield each step with its time. If the reply is not a stream, the last step contains the whole reply."""
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
    """Yield the body split as it was read, as far as that was recorded; the rest in pieces of bounded length."""
    start = 0
    for at_s, size in times:
        yield at_s, body[start : start + size]
        start += size
    for offset in range(start, len(body), _PIECE_BYTES):
        yield None, body[offset : offset + _PIECE_BYTES]


class LintJob(msgspec.Struct, frozen=True):
    """The body of a lint request, and the headers that decide how it is parsed."""

    data: bytes
    content_type: str | None
    is_browser: bool


async def lint_in_child(job: LintJob) -> bytes:
    """Run a job in a child process and return the `LintResult` as JSON.

    Raises:
        ApiError: the capture is not readable or takes too long, or the child does not start.
    """
    environment = {name: os.environ[name] for name in _CHILD_ENVIRONMENT if name in os.environ}
    child = await start_child(_CHILD_MODULE, environment, "to lint this capture")
    try:
        async with asyncio.timeout(LINT_TIMEOUT_S):
            output, _ = await child.communicate(msgspec.msgpack.encode(job))
    except TimeoutError:
        message = f"Linting this capture takes more than {LINT_TIMEOUT_S:g} seconds. Use welldone lint."
        raise ApiError(413, message) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    status, _, body = output.partition(b"\n")
    if status == b"200":
        return body
    if not status:  # the kernel ended it
        raise ApiError(413, "Linting this capture takes too much memory or time. Use welldone lint.")
    error = msgspec.json.decode(body)["error"]
    raise ApiError(int(status), error["message"], param=error["param"], code=error["code"])


def run_lint_job(job: LintJob) -> bytes:
    """Return the `LintResult` of a job as JSON. CPU-bound: not for the event loop."""
    body = read_body(job.data, job.content_type, is_browser=job.is_browser)
    about = fields.read_fields(body, LintRequest)
    result = lint_capture(
        _decode_capture(body),
        endpoint=about.endpoint,
        request=about.request,
        id_stem=secrets.token_hex(12),
        created=int(time.time()),
    )
    return msgspec.json.encode(result)


def _decode_capture(body: Json) -> bytes:
    text, encoded = body.get("capture"), body.get("capture_base64")
    if isinstance(text, str):
        capture = text.encode()
    elif isinstance(encoded, str):
        try:
            capture = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise invalid_request("'capture_base64' is not valid base64.", param="capture_base64") from None
    else:
        raise invalid_request(
            "The capture is missing: send it as text in 'capture', or in 'capture_base64'.", param="capture"
        )
    if len(capture) > LINT_LIMIT_BYTES:
        limit = LINT_LIMIT_BYTES // 2**20
        raise ApiError(413, f"The capture is longer than {limit} MiB. Use welldone lint, which accepts more.")
    return capture


def main() -> None:
    """Run as the child process."""
    os.nice(_CHILD_NICENESS)
    seconds = int(LINT_TIMEOUT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # holds even if the parent has died
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LintJob)
    try:
        output = b"200\n" + run_lint_job(job)
    except ApiError as error:
        output = b"%d\n%b" % (error.status, error.body())
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
