"""Captures of streams for the inspector, kept in memory for the client that requested them.

While a response is produced, a capture only stores the calls made to its pipeline, with their data and times. When the
page reads the capture, the calls are replayed on an identical pipeline, from where the last read stopped, and yield the
steps. A server without a page captures nothing.
"""

import asyncio
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from welldone.core.continuation import Continuation, ContinuationWay
from welldone.core.events import Failure, KeepAlive
from welldone.core.request_facts import RepairOptions
from welldone.http.redaction import SecretRedactor
from welldone.server.inspector.steps import StepView, step_view
from welldone.server.observe.recording import SAFE_HEADERS
from welldone.stream.replay import AnyPipeline, StreamReplay, StreamReplayStep

CAPTURE_HEADER = "x-welldone-tape"
"""Request header with which a page requests a capture; its value becomes the id of the capture."""
CAPTURES_LIMIT = 64
"""Captures kept: the last few responses of a few pages."""
ALL_CAPTURES_LIMIT_BYTES = 64 * 2**20
"""Memory of all captures together. The oldest is discarded first."""
CAPTURE_LIMIT_BYTES = 8 * 2**20
"""Data received for one response, with the overhead of each chunk: about twenty thousand frames."""
STEPS_LIMIT_BYTES = 16 * 2**20
"""Memory of the steps of one capture."""
REQUEST_LIMIT_BYTES = 256 * 2**10
"""The longest request that is shown: each read of the capture returns it."""
STEPS_PER_REPLY = 2_000
"""Steps per read: as many as a browser renders without a visible delay."""
REPLY_LIMIT_BYTES = 2**20
"""Size of the steps per read, unless it is a single step: encoding them as JSON takes a millisecond or two."""
REPLAY_TURN_S = 0.002
"""Time that a replay may hold the event loop."""
_CALL_OVERHEAD_BYTES = 256  # memory of a recorded call without its data
_CAPTURE_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")
_NO_REQUEST, _NO_EVENTS = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")

PipelineFactory: TypeAlias = Callable[[], AnyPipeline]
"""Creates a pipeline identical to the one that produced the response."""
RecordedCall: TypeAlias = Callable[[], Iterable[StepView] | None]
"""Replays one recorded call."""


class CaptureReplayer:
    """Replays the recorded calls in their order. Each step is made when it is read, and kept."""

    def __init__(self, secrets: SecretRedactor) -> None:
        self.steps: list[StepView] = []
        self.admin_only: set[int] = set()
        """Steps whose bytes only admins see: error bodies of upstreams, which clients receive in mapped form."""
        self.at_s: float = 0.0
        """Time of the call that is being replayed."""
        self._attempts: dict[int, int] = {}  # current attempt of each part
        self._secrets = secrets
        self._replay: StreamReplay | None = None
        self._first_step = 0  # first step of this pipeline
        self._fed: dict[int, int] = {}
        self._unfed: dict[int, int] = {}  # bytes that were not fed to a pipeline

    def pipeline_created(self, factory: PipelineFactory) -> None:
        """Start a new pipeline. The output of the one before it is dropped, since none of it was sent."""
        self._clear_sent(self._first_step)
        self._first_step = len(self.steps)
        self._replay = StreamReplay(factory())
        self._fed, self._unfed = {}, {}

    def attempt_started(self, part: int, attempt: int) -> None:
        """Start an attempt. Data of an earlier attempt at the part was not fed: else the pipeline would be new."""
        self._attempts[part] = attempt
        self._unfed[part] = 0

    def configure(self, part: int, options: RepairOptions) -> None:
        """Apply the upstream's settings to a part."""
        self._active_replay.pipeline.configure(part, options)

    def feed(self, data: bytes, part: int, *, is_whole: bool) -> Iterator[StepView]:
        """Feed more data of a part's stream, or its whole reply, which was not streamed."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        replay = self._active_replay
        return self._add(replay.feed_reply(data, part) if is_whole else replay.feed(data, part))

    def replay(self, call: Callable[[StreamReplay], Iterable[StreamReplayStep]]) -> Iterator[StepView]:
        """Make another call to the pipeline."""
        return self._add(call(self._active_replay))

    def unfed_data(self, data: bytes, part: int) -> Iterator[StepView]:
        """Add data that was not fed to the pipeline: keep-alive comments, or the body of an error."""
        is_keep_alive = all(line[:1] in (b"", b":") for line in data.splitlines())
        step = StreamReplayStep(part, self._fed.get(part, 0), data, [KeepAlive()] if is_keep_alive else [])
        yield from self._add([step], is_private=not is_keep_alive)
        self._unfed[part] = self._unfed.get(part, 0) + len(data)

    def request_rejected(self, body: bytes) -> Iterator[StepView]:
        """Send only this error, perhaps before any attempt."""
        self._clear_sent(0)
        return self._add([StreamReplayStep(0, 0, b"", sent=body)])

    def stop(self) -> None:
        """Drop the pipeline; only the steps are kept."""
        self._replay = None

    @property
    def _active_replay(self) -> StreamReplay:
        assert self._replay is not None
        return self._replay

    def _add(self, steps: Iterable[StreamReplayStep], *, is_private: bool = False) -> Iterator[StepView]:
        for step in steps:
            located = msgspec.structs.replace(step, byte=step.byte + self._unfed.get(step.part, 0))
            n, attempt = len(self.steps), self._attempts.get(step.part, 0)
            if step.received and (is_private or self._active_replay.pipeline.failure is not None):
                self.admin_only.add(n)
            self.steps.append(step_view(located, n, attempt=attempt, at_s=self.at_s, secrets=self._secrets))
            yield self.steps[n]

    def _clear_sent(self, first: int) -> None:
        for n in range(first, len(self.steps)):
            self.steps[n] = msgspec.structs.replace(self.steps[n], sent="")


class CapturedAttempt(msgspec.Struct):
    """One attempt at one part."""

    server: str
    part: int
    began_s: float
    is_local: bool
    status: int | None = None
    headers: list[tuple[str, str]] = []
    error: str | None = None
    """Why it failed, for people."""
    continues: ContinuationWay | None = None
    """How it continues the attempt before it."""


class CapturedRequest(msgspec.Struct):
    """The request whose response is captured."""

    id: str
    """Of the capture."""
    endpoint: str
    model: str
    is_stream: bool


class CaptureView(CapturedRequest):
    """The reply to a read of a capture."""

    is_done: bool
    """Whether these are the last steps."""
    is_cut: bool
    """Whether the capture grew too long, so that the rest is missing."""
    attempts: list[CapturedAttempt]
    request: msgspec.Raw
    steps: list[StepView]
    next: int
    """The step to read from next."""


class StreamCapture:
    """Records the calls to a response's pipeline, each right before it is made. `on_growth` is called when it grows."""

    def __init__(
        self, about: CapturedRequest, secrets: SecretRedactor, now: Callable[[], float], on_growth: Callable[[], None]
    ) -> None:
        self.now = now
        """Seconds since the request arrived."""
        self._recorded_bytes = 0  # total
        self._pending_bytes = 0  # of calls that are not replayed yet
        self._unfed_bytes = 0
        self._steps_bytes = 0
        self._request_bytes = 0
        self._about = about
        self._secrets = secrets
        self._on_growth = on_growth
        self._is_truncated = False
        self._is_ended = False
        self._attempts: list[CapturedAttempt] = []
        self._request = _NO_REQUEST
        self._unfed: dict[int, list[tuple[float, bytes]]] = {}  # received by each part, and possibly fed later
        self._replayer = CaptureReplayer(secrets)
        self._pending_calls: deque[tuple[float, int, RecordedCall]] = deque()
        self._current_steps: Iterator[StepView] | None = None  # of the call that is being replayed

    @property
    def size(self) -> int:
        """Approximate memory."""
        return self._pending_bytes + self._unfed_bytes + self._steps_bytes + self._request_bytes

    # Called by the answer.

    def pipeline_created(self, factory: PipelineFactory) -> None:
        """Record a new pipeline. It replaces an earlier one, whose output is dropped."""
        self._flush_unfed()
        self._record_call(partial(self._replayer.pipeline_created, factory))

    def begin_attempt(
        self, part: int, server: str, body: bytes, *, is_local: bool, way: ContinuationWay | None = None
    ) -> "AttemptCapture":
        """Record the start of an attempt and return its observer."""
        self._flush_unfed(part)
        attempt = CapturedAttempt(server, part, self.now(), is_local, continues=way)
        self._attempts.append(attempt)
        if len(body) <= REQUEST_LIMIT_BYTES:
            self._request, self._request_bytes = msgspec.Raw(self._secrets.redact_json(body)), len(body)
        # Count the whole request, shown or not: the pipeline factory may hold its longest fields.
        self._record_call(partial(self._replayer.attempt_started, part, len(self._attempts) - 1), len(body))
        return AttemptCapture(self, attempt)

    def configure(self, part: int, options: RepairOptions) -> None:
        """Record the upstream's settings for a part."""
        options = msgspec.structs.replace(options, on_reasoning=None)  # a replay must not change what was learnt since
        self._record_call(partial(self._replayer.configure, part, options))

    def feed(self, data: bytes, part: int, *, is_whole: bool = False) -> None:
        """Record more data of a part's stream, or its whole reply, which was not streamed."""
        self._mark_fed(part, len(data))
        self._record_call(partial(self._replayer.feed, data, part, is_whole=is_whole), len(data))

    def continue_part(self, part: int, continuation: Continuation) -> None:
        """Record that the next stream continues a part."""
        self._flush_unfed(part)
        self._record_replay(lambda replay: replay.continue_part(part, continuation))

    def release_failure(self, part: int) -> None:
        """Record that a part which was cut is not continued."""
        self._record_replay(lambda replay: replay.release_failure(part))

    def close(self, part: int) -> None:
        """Record the end of a part."""
        self._flush_unfed(part)
        self._record_replay(lambda replay: replay.close(part))

    def fail(self, failure: Failure) -> None:
        """Record that the response ends with a failure."""
        self._flush_unfed()
        self._record_replay(lambda replay: replay.fail(failure))

    def keep_alive(self) -> None:
        """Record a keep-alive that is sent."""
        self._flush_comments()
        self._record_replay(lambda replay: replay.keep_alive())

    def send_body(self) -> None:
        """Record that the whole reply is sent, which is not streamed."""
        self._record_replay(lambda replay: [replay.body()])

    def _record_replay(self, call: Callable[[StreamReplay], Iterable[StreamReplayStep]]) -> None:
        self._record_call(partial(self._replayer.replay, call))

    def request_rejected(self, body: bytes) -> None:
        """Record that only this error is sent."""
        self._flush_unfed()
        self._record_call(partial(self._replayer.request_rejected, body), len(body))

    def end(self) -> None:
        """Record the end of the request, also if the client disconnected."""
        self._flush_unfed()
        self._is_ended = True

    def receive(self, data: bytes, part: int) -> None:
        """Keep received data until it is recorded that the pipeline was fed with it."""
        if self._unfed_bytes + len(data) > CAPTURE_LIMIT_BYTES:
            self._is_truncated = True
        if not self._is_truncated:
            self._unfed_bytes += len(data)
            self._unfed.setdefault(part, []).append((self.now(), data))
            self._on_growth()

    def _mark_fed(self, part: int, count: int = 0) -> None:
        """Settle that the last `count` bytes received are fed to the pipeline, and those before them never."""
        unfed = self._unfed.pop(part, [])
        self._unfed_bytes -= sum(len(data) for _, data in unfed)
        while count > 0 and unfed:
            count -= len(unfed.pop()[1])
        for at_s, data in unfed:
            self._record_call(partial(self._replayer.unfed_data, data, part), len(data), at_s)

    def _flush_unfed(self, part: int | None = None) -> None:
        """Settle that what a part, or all, received and did not feed to the pipeline will never be fed."""
        for index in tuple(self._unfed) if part is None else (part,):
            self._mark_fed(index)

    def _flush_comments(self) -> None:
        """Settle data that begins with an SSE comment: a stream is fed at once, so this data will not be."""
        for part in [part for part, unfed in self._unfed.items() if unfed[0][1].startswith(b":")]:
            self._mark_fed(part)

    # Called by the inspector API and the store.

    async def read_steps(self, start: int, *, is_admin: bool) -> CaptureView:
        """Return steps from `start` on. Only admins see the servers behind this one."""
        self._flush_comments()
        await self._replay_until(start + STEPS_PER_REPLY)
        replayer = self._replayer
        steps = self._steps_from(start)
        attempts = self._attempts
        if not is_admin:
            hidden = {"received": "", "received_base64": msgspec.UNSET, "events": _NO_EVENTS, "repairs": []}
            private = replayer.admin_only
            steps = [msgspec.structs.replace(step, **hidden) if step.n in private else step for step in steps]
            attempts = [
                msgspec.structs.replace(
                    one, server="", headers=[], error=None if one.error is None else "the attempt failed"
                )
                for one in attempts
            ]
        is_last = self._is_replayed and start + len(steps) >= len(replayer.steps)
        return CaptureView(
            **msgspec.structs.asdict(self._about),
            is_done=(self._is_ended or self._is_truncated) and is_last,
            is_cut=self._is_truncated,
            attempts=attempts,
            request=self._request,
            steps=steps,
            next=start + len(steps),
        )

    def stop(self) -> None:
        """Record no more, and replay no more of what was recorded."""
        self._is_truncated = True
        self._pending_calls.clear()
        self._pending_bytes = 0
        self._current_steps = None
        self._replayer.stop()

    def clear(self) -> None:
        """Free all memory at once: the reference cycles in here would wait for a run of the garbage collector."""
        self.stop()
        self._flush_unfed()
        self._replayer = CaptureReplayer(self._secrets)
        self._request = _NO_REQUEST
        self._steps_bytes = self._request_bytes = 0

    def _record_call(self, call: RecordedCall, size: int = 0, at_s: float | None = None) -> None:
        size += _CALL_OVERHEAD_BYTES
        if self._is_truncated or self._is_ended:
            return
        if self._recorded_bytes + size > CAPTURE_LIMIT_BYTES:
            self._is_truncated = True
            return
        self._recorded_bytes += size
        self._pending_bytes += size
        self._pending_calls.append((self.now() if at_s is None else at_s, size, call))
        self._on_growth()

    async def _replay_until(self, step_count: int) -> None:
        """Replay until there are `step_count` steps. Concurrent reads of a capture share the work."""
        turn_ends = self.now() + REPLAY_TURN_S
        while not self._is_replayed and len(self._replayer.steps) < step_count:
            if self.now() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self.now() + REPLAY_TURN_S
                continue
            if self._current_steps is None:
                self._replayer.at_s, size, call = self._pending_calls.popleft()
                self._pending_bytes -= size
                self._current_steps = iter(call() or ())
            step = next(self._current_steps, None)
            if step is None:
                self._current_steps = None
                continue
            self._steps_bytes += step.size
            if self._steps_bytes > STEPS_LIMIT_BYTES:
                self.stop()
        if self._is_replayed and self._is_ended:
            self._replayer.stop()
        self._on_growth()

    @property
    def _is_replayed(self) -> bool:
        return self._current_steps is None and not self._pending_calls

    def _steps_from(self, start: int) -> list[StepView]:
        steps = self._replayer.steps[start : start + STEPS_PER_REPLY]
        size = 0
        for index, step in enumerate(steps):
            size += step.size
            if size > REPLY_LIMIT_BYTES and index:
                return steps[:index]
        return steps


class AttemptCapture(msgspec.Struct):
    """Observer of one attempt."""

    capture: StreamCapture
    attempt: CapturedAttempt

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Record status and headers."""
        self.attempt.status = status
        self.attempt.headers = [(name, value) for name, value in headers.items() if name.lower() in SAFE_HEADERS]

    def data(self, data: bytes) -> None:
        """Record more of the body."""
        self.capture.receive(data, self.attempt.part)

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Record the end; the first error counts."""
        if self.attempt.error is None:
            self.attempt.error = error


class CaptureStore:
    """The most recent captures, by principal and id."""

    def __init__(self, secrets: SecretRedactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.secrets: SecretRedactor = secrets
        self._clock = clock
        self._captures: OrderedDict[tuple[str, str], StreamCapture] = OrderedDict()

    def begin(
        self, principal: str, id: str, *, endpoint: str, model: str, is_stream: bool, began: float
    ) -> StreamCapture | None:
        """Start a capture of a request that arrived at `began`; None if `id` is not valid."""
        if _CAPTURE_ID.fullmatch(id) is None:
            return None
        about = CapturedRequest(id, endpoint, model, is_stream)
        capture = StreamCapture(about, self.secrets, lambda: round(self._clock() - began, 6), self._evict)
        previous = self._captures.pop((principal, id), None)
        if previous is not None:
            previous.clear()
        self._captures[principal, id] = capture
        self._evict()
        return capture

    def find(self, principal: str, id: str) -> StreamCapture | None:
        """Return the capture of a principal."""
        return self._captures.get((principal, id))

    def _evict(self) -> None:
        total = sum(capture.size for capture in self._captures.values())
        while len(self._captures) > CAPTURES_LIMIT or total > ALL_CAPTURES_LIMIT_BYTES:
            _, oldest = self._captures.popitem(last=False)
            total -= oldest.size
            oldest.clear()
