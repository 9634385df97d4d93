"""One answer that a page watches: what servers said, kept as it comes, and told step by step.

While the answer is given nothing of it is read twice. A watch keeps the pieces that came, their times, and how to make
the same pipe again; when the page asks, they are played once more, from where it last stopped.
"""

import asyncio
import base64
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import TypeAlias

import msgspec

from welldone.http.redaction import SecretRedactor
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    FailureMapper,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.lenient_json import clean_unicode
from welldone.protocol.repair_log import RepairEntry
from welldone.protocol.replay import AnyPipeline, StreamReplay, StreamReplayStep
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.server.generation.observer import SAFE_HEADERS

# The steps of a replay, as the page is told them.


_EVENT_TYPES: dict[type[Event], str] = {
    ChoiceStart: "opening",
    Text: "text",
    Reasoning: "reasoning",
    Refusal: "refusal",
    ToolCall: "tool_call",
    ToolArguments: "tool_arguments",
    Logprobs: "logprobs",
    Finish: "finish",
    Usage: "usage",
    Failure: "failure",
    KeepAlive: "keep_alive",
    UnknownFields: "extra",
}
_OVERHEAD_BYTES = 512  # of a step in memory, besides its texts
_UNENCODABLE_EVENTS = msgspec.Raw(
    b'[{"type":"unshown"}]'
)  # of events that cannot be JSON again: half a character, a deep nest
_encode = msgspec.json.encode


class RepairView(msgspec.Struct, frozen=True):
    """What was found wrong in a frame, and mended."""

    rule: str
    severity: str
    repairability: str
    repair: str
    expected: str
    observed: str
    count: int


class StepView(msgspec.Struct, frozen=True):
    """One step."""

    n: int
    """From 0, over all parts and attempts."""
    part: int
    attempt: int
    """Which of the attempts it is of."""
    at_s: float | None
    """When its last byte came, since the request began; None where no times are known."""
    byte: int
    received: str
    events: msgspec.Raw
    repairs: list[RepairView]
    sent: str
    received_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Only where the bytes are no UTF-8."""

    @property
    def size(self) -> int:
        """About what it takes in memory, where a text with one emoji has four bytes for each character."""
        texts = sum(map(getsizeof, (self.received, self.received_base64, self.sent)))
        return _OVERHEAD_BYTES + texts + len(bytes(self.events)) + 200 * len(self.repairs)


def step_view(
    step: StreamReplayStep,
    n: int,
    *,
    attempt: int = 0,
    at_s: float | None = None,
    secrets: SecretRedactor | None = None,
) -> StepView:
    """A step as it is shown. Secrets are blotted out of what was heard; of what was said they were before."""
    heard, encoded = _decode_text(step.received)
    events, notes = _encode_events(step.events), [_repair_view(note) for note in step.repairs]
    if secrets is not None and secrets.occur_in(step.received):
        heard, encoded, events = secrets.redact(heard), msgspec.UNSET, msgspec.Raw(secrets.redact_json(bytes(events)))
        notes = [msgspec.structs.replace(note, observed=secrets.redact(note.observed)) for note in notes]
    said = step.sent.decode("utf-8", "replace")
    return StepView(n, step.part, attempt, at_s, step.byte, heard, events, notes, said, encoded)


def _decode_text(data: bytes) -> tuple[str, str | msgspec.UnsetType]:
    try:
        return data.decode(), msgspec.UNSET
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode()


def _encode_events(events: Sequence[Event | Json]) -> msgspec.Raw:
    try:
        return msgspec.Raw(_encode([_event_object(event) for event in events]))
    except (RecursionError, UnicodeEncodeError):
        return _UNENCODABLE_EVENTS


def _event_object(event: Event | Json) -> Json:
    if isinstance(event, dict):
        return {"type": "", **event}
    fields = msgspec.structs.asdict(event)
    if isinstance(event, Failure):
        fields["error_type"] = fields.pop("type")
    return {"type": _EVENT_TYPES[type(event)], **fields}


def _repair_view(note: RepairEntry) -> RepairView:
    fault = RULES_BY_ID[note.rule]
    # What was heard may have half a character, which JSON cannot say.
    return RepairView(
        note.rule,
        fault.severity,
        fault.repairability,
        fault.repair,
        fault.summary,
        clean_unicode(note.observed),
        note.count,
    )


# What was kept of a watched answer, played again: the steps that it was made of.


PipelineFactory: TypeAlias = Callable[[], AnyPipeline]
"""Makes the same pipe again."""


class CaptureReplayer:
    """Plays what happened, in the order in which it did. Each step is made, and kept, when it is asked for."""

    def __init__(self, secrets: SecretRedactor) -> None:
        self.steps: list[StepView] = []
        self.admin_only: set[int] = set()
        """Steps whose bytes are for admins alone: what a server says when it refuses is told to others in our words."""
        self.at_s = 0.0
        """When that came which is being played."""
        self._attempts: dict[int, int] = {}  # the attempt that each part is in
        self._secrets = secrets
        self._replay: StreamReplay | None = None
        self._first_step = 0  # the first step of this pipe
        self._fed: dict[int, int] = {}
        self._unfed: dict[int, int] = {}  # bytes that no pipe was given

    def pipeline_created(self, factory: PipelineFactory) -> None:
        """A pipe was made. What one before it had said is taken back: nobody has heard it."""
        self._clear_sent(self._first_step)
        self._first_step = len(self.steps)
        self._replay = StreamReplay(factory())
        self._fed, self._unfed = {}, {}

    def attempt_started(self, part: int, attempt: int) -> None:
        """A part was asked for. If it was before, nothing of that is in the pipe: else there is a new one."""
        self._attempts[part] = attempt
        self._unfed[part] = 0

    def tune(self, part: int, think: ThinkMode, text: TextMode, strict: frozenset[str], reword: FailureMapper) -> None:
        """A part's server needs this."""
        self._active_replay.pipeline.configure(part, think=think, text=text, strict=strict, map_failure=reword)

    def feed(self, data: bytes, part: int) -> Iterator[StepView]:
        """More of a part's stream."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._active_replay.feed(data, part))

    def buffered_reply(self, data: bytes, part: int) -> Iterator[StepView]:
        """A part's reply, which was not streamed."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._active_replay.feed_reply(data, part))

    def unfed_data(self, data: bytes, part: int) -> Iterator[StepView]:
        """What came of a part, and was not taken for a stream: signs of life, or a refusal."""
        is_silence = all(line[:1] in (b"", b":") for line in data.splitlines())
        step = StreamReplayStep(part, self._fed.get(part, 0), data, [KeepAlive()] if is_silence else [])
        yield from self._add([step], is_private=not is_silence)
        self._unfed[part] = self._unfed.get(part, 0) + len(data)

    def close(self, part: int) -> Iterator[StepView]:
        """A part has ended."""
        return self._add(self._active_replay.close(part))

    def fail(self, failure: Failure) -> Iterator[StepView]:
        """The answer broke off."""
        return self._add(self._active_replay.fail(failure))

    def keep_alive(self) -> Iterator[StepView]:
        """We sent a sign of life."""
        return self._add(self._active_replay.keep_alive())

    def send_body(self) -> Iterator[StepView]:
        """The reply went out, which is not streamed."""
        return self._add([self._active_replay.body()])

    def request_rejected(self, body: bytes) -> Iterator[StepView]:
        """Nothing went out but this error, perhaps before anybody was asked."""
        self._clear_sent(0)
        return self._add([StreamReplayStep(0, 0, b"", sent=body)])

    def stop(self) -> None:
        """Nothing more will be played: only the steps are kept."""
        self._replay = None

    @property
    def _active_replay(self) -> StreamReplay:
        assert self._replay is not None
        return self._replay

    def _add(self, steps: Iterable[StreamReplayStep], *, is_private: bool = False) -> Iterator[StepView]:
        for step in steps:
            placed = msgspec.structs.replace(step, byte=step.byte + self._unfed.get(step.part, 0))
            n, attempt = len(self.steps), self._attempts.get(step.part, 0)
            if step.received and (is_private or self._active_replay.pipeline.failure is not None):
                self.admin_only.add(n)
            self.steps.append(step_view(placed, n, attempt=attempt, at_s=self.at_s, secrets=self._secrets))
            yield self.steps[n]

    def _clear_sent(self, first: int) -> None:
        for n in range(first, len(self.steps)):
            self.steps[n] = msgspec.structs.replace(self.steps[n], sent="")


CAPTURE_LIMIT_BYTES = 8 * 2**20
"""What came of one answer, each piece with what it takes to keep it: some twenty thousand frames."""
STEPS_LIMIT_BYTES = 16 * 2**20
"""What its steps may take: each tells what came, what was made of it, and what went out."""
REQUEST_LIMIT_BYTES = 256 * 2**10
"""The longest request that is shown: it is told each time the page asks."""
STEPS_PER_REPLY = 2_000
"""As many are told at once: a page draws them in a moment."""
REPLY_LIMIT_BYTES = 2**20
"""What the steps that are told at once may have, unless it is one: as JSON they are written in a millisecond or two."""
REPLAY_TURN_S = 0.002
"""For so long an answer is played before others have their turn in the event loop: a gap that no reader notices."""
_CALL_OVERHEAD_BYTES = 256  # of one in memory, besides its data
_NO_REQUEST, _NO_EVENTS = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")

RecordedCall: TypeAlias = Callable[[], Iterable[StepView] | None]
"""Plays what happened then."""


class CapturedAttempt(msgspec.Struct):
    """One time that a server was asked."""

    server: str
    part: int
    began_s: float
    is_local: bool
    status: int | None = None
    headers: list[tuple[str, str]] = []
    error: str | None = None
    """Why it failed, in words."""


class CaptureView(msgspec.Struct):
    """What the page is told."""

    id: str
    endpoint: str
    model: str
    is_stream: bool
    is_done: bool
    """Whether nothing follows these steps."""
    is_cut: bool
    """Whether it grew too long, so that what came later is not here."""
    attempts: list[CapturedAttempt]
    request: msgspec.Raw
    steps: list[StepView]
    next: int
    """Where to go on."""


class StreamCapture:
    """Is told what the answer's pipe is told, right before it. `on_growth` is called when it takes more memory."""

    def __init__(
        self,
        id: str,
        *,
        endpoint: str,
        model: str,
        is_stream: bool,
        secrets: SecretRedactor,
        now: Callable[[], float],
        on_growth: Callable[[], None],
    ) -> None:
        self.now = now
        """Seconds since the request came."""
        self._recorded_bytes = 0  # in all
        self._pending_bytes = 0  # of what is not played yet
        self._unfed_bytes = 0  # of what came, and may yet go to the pipe
        self._steps_bytes = 0
        self._request_bytes = 0
        self._id = id
        self._endpoint = endpoint
        self._model = model
        self._is_stream = is_stream
        self._secrets = secrets
        self._on_growth = on_growth
        self._is_truncated = False
        self._is_ended = False
        self._attempts: list[CapturedAttempt] = []
        self._request = _NO_REQUEST
        self._attempt_captures: dict[int, AttemptCapture] = {}
        self._replayer = CaptureReplayer(secrets)
        self._pending_calls: deque[tuple[float, int, RecordedCall]] = deque()
        self._current_steps: Iterator[StepView] | None = None  # of the moment that is being played

    @property
    def size(self) -> int:
        """What it takes in memory."""
        return self._pending_bytes + self._unfed_bytes + self._steps_bytes + self._request_bytes

    # What the answer tells.

    def pipeline_created(self, factory: PipelineFactory) -> None:
        """A pipe was made; where there was another, what that one had said is forgotten."""
        self._flush_unfed()
        self._record_call(partial(self._replayer.pipeline_created, factory))

    def begin_attempt(self, part: int, server: str, body: bytes, *, is_local: bool) -> "AttemptCapture":
        """A tape for a part that a server is asked for."""
        self._flush_unfed(part)
        attempt = CapturedAttempt(server, part, self.now(), is_local)
        self._attempts.append(attempt)
        if len(body) <= REQUEST_LIMIT_BYTES:
            self._request, self._request_bytes = msgspec.Raw(self._secrets.redact_json(body)), len(body)
        # What is kept of the request counts as much as all of it: how to make its pipe may hold its longest fields.
        self._record_call(partial(self._replayer.attempt_started, part, len(self._attempts) - 1), len(body))
        tape = self._attempt_captures[part] = AttemptCapture(self, part, attempt)
        return tape

    def tune(
        self, part: int, *, think: ThinkMode, text: TextMode, strict: frozenset[str], reword: FailureMapper
    ) -> None:
        """A part's server needs this."""
        self._record_call(partial(self._replayer.tune, part, think, text, strict, reword))

    def feed(self, data: bytes, part: int) -> None:
        """More of a part's stream."""
        self._attempt_captures[part].mark_fed(len(data))
        self._record_call(partial(self._replayer.feed, data, part), len(data))

    def buffered_reply(self, data: bytes, part: int) -> None:
        """A part's reply, which was not streamed."""
        self._attempt_captures[part].mark_fed(len(data))
        self._record_call(partial(self._replayer.buffered_reply, data, part), len(data))

    def close(self, part: int) -> None:
        """A part has ended."""
        self._flush_unfed(part)
        self._record_call(partial(self._replayer.close, part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off."""
        self._flush_unfed()
        self._record_call(partial(self._replayer.fail, failure))

    def keep_alive(self) -> None:
        """A sign of life goes out."""
        self._flush_comments()
        self._record_call(self._replayer.keep_alive)

    def send_body(self) -> None:
        """The reply goes out, which is not streamed."""
        self._record_call(self._replayer.send_body)

    def request_rejected(self, body: bytes) -> None:
        """Nothing goes out but this error."""
        self._flush_unfed()
        self._record_call(partial(self._replayer.request_rejected, body), len(body))

    def end(self) -> None:
        """Nothing more will come, be it that the client has left."""
        self._flush_unfed()
        self._is_ended = True

    def _flush_unfed(self, part: int | None = None) -> None:
        """What came of a part, or of all, and was not given to the pipe, never will be."""
        for number, tape in self._attempt_captures.items():
            if part in (None, number):
                tape.mark_fed(0)

    def _flush_comments(self) -> None:
        for tape in self._attempt_captures.values():
            tape.flush_comments()

    # What its tapes tell.

    def reserve_unfed(self, size: int) -> bool:
        """Whether there is room for so much more of what may go to the pipe, or not."""
        if self._unfed_bytes + size > CAPTURE_LIMIT_BYTES:
            self._is_truncated = True
        if self._is_truncated:
            return False
        self._unfed_bytes += size
        self._on_growth()
        return True

    def release_unfed(self, size: int) -> None:
        """So much is not held any more."""
        self._unfed_bytes -= size

    def unfed_data(self, data: bytes, part: int, at_s: float) -> None:
        """What came of a part, and its pipe was not given."""
        self._record_call(partial(self._replayer.unfed_data, data, part), len(data), at_s)

    # What the page asks.

    async def read_steps(self, start: int, *, is_admin: bool) -> CaptureView:
        """The steps from `start` on; who is no admin hears nothing of the servers behind this one."""
        self._flush_comments()
        await self._replay_until(start + STEPS_PER_REPLY)
        player = self._replayer
        steps = self._steps_from(start)
        attempts = self._attempts
        if not is_admin:
            steps = [_without_bytes(step) if step.n in player.admin_only else step for step in steps]
            attempts = [_without_upstream(one) for one in attempts]
        is_all = self._is_replayed and start + len(steps) >= len(player.steps)
        return CaptureView(
            id=self._id,
            endpoint=self._endpoint,
            model=self._model,
            is_stream=self._is_stream,
            is_done=(self._is_ended or self._is_truncated) and is_all,
            is_cut=self._is_truncated,
            attempts=attempts,
            request=self._request,
            steps=steps,
            next=start + len(steps),
        )

    def stop(self) -> None:
        """Keep no more, and play no more of what was kept."""
        self._is_truncated = True
        self._pending_calls.clear()
        self._pending_bytes = 0
        self._current_steps = None
        self._replayer.stop()

    def clear(self) -> None:
        """Let go of all at once: what refers to each other in here would wait for a collector, which comes seldom."""
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
        """Play on, up to so many steps in all; two who do so at once help each other."""
        turn_ends = self.now() + REPLAY_TURN_S
        while not self._is_replayed and len(self._replayer.steps) < step_count:
            if self.now() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self.now() + REPLAY_TURN_S
                continue
            if self._current_steps is None:
                self._replayer.at_s, size, moment = self._pending_calls.popleft()
                self._pending_bytes -= size
                self._current_steps = iter(moment() or ())
            self._replay_step(self._current_steps)
        if self._is_replayed and self._is_ended:
            self._replayer.stop()
        self._on_growth()

    def _replay_step(self, steps: Iterator[StepView]) -> None:
        step = next(steps, None)
        if step is None:
            self._current_steps = None
            return
        self._steps_bytes += step.size
        if self._steps_bytes > STEPS_LIMIT_BYTES:
            self.stop()

    @property
    def _is_replayed(self) -> bool:
        return self._current_steps is None and not self._pending_calls

    def _steps_from(self, start: int) -> list[StepView]:
        """As many steps as are told at once."""
        found = self._replayer.steps[start : start + STEPS_PER_REPLY]
        size = 0
        for place, step in enumerate(found):
            size += step.size
            if size > REPLY_LIMIT_BYTES and place:
                return found[:place]
        return found


class AttemptCapture:
    """What comes of one part. What its pipe is given too is told by the watch; here is all the rest."""

    def __init__(self, capture: StreamCapture, part: int, attempt: CapturedAttempt) -> None:
        self._capture = capture
        self._part = part
        self._attempt = attempt
        self._unfed: list[tuple[float, bytes]] = []

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self._attempt.status = status
        self._attempt.headers = [(name, value) for name, value in headers.items() if name.lower() in SAFE_HEADERS]

    def data(self, data: bytes) -> None:
        """More of its body."""
        if self._capture.reserve_unfed(len(data)):
            self._unfed.append((self._capture.now(), data))

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """It has ended; the first word on why it failed counts."""
        if self._attempt.error is None:
            self._attempt.error = error

    def mark_fed(self, count: int) -> None:
        """The last bytes that came go to the pipe; those before them never will."""
        self._capture.release_unfed(sum(len(data) for _, data in self._unfed))
        while count > 0 and self._unfed:
            count -= len(self._unfed.pop()[1])
        for at_s, data in self._unfed:
            self._capture.unfed_data(data, self._part, at_s)
        self._unfed.clear()

    def flush_comments(self) -> None:
        """What begins with a comment is a stream: what its pipe was not given at once, it never will be."""
        if self._unfed and self._unfed[0][1].startswith(b":"):
            self.mark_fed(0)


def _without_upstream(attempt: CapturedAttempt) -> CapturedAttempt:
    """The same for those who may not see the servers behind this one: that it failed, and not how."""
    error = None if attempt.error is None else "the attempt failed"
    return CapturedAttempt("", attempt.part, attempt.began_s, attempt.is_local, attempt.status, error=error)


def _without_bytes(step: StepView) -> StepView:
    return msgspec.structs.replace(step, received="", received_base64=msgspec.UNSET, events=_NO_EVENTS, repairs=[])


# The answers that pages have watched: kept in memory for a while, each for who asked for it.
#
# Without a page there is no watch, and nothing is kept.


CAPTURE_HEADER = "x-welldone-tape"
"""The header by which a page asks for a tape, with the name under which it will look for it."""
CAPTURES_LIMIT = 64
"""As many as are kept: of a few pages, the last few answers each."""
ALL_CAPTURES_LIMIT_BYTES = 64 * 2**20
"""What all of them may take in memory; the oldest goes first."""
_CAPTURE_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")


class CaptureStore:
    """The last answers that were watched."""

    def __init__(self, secrets: SecretRedactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._clock = clock
        self._captures: OrderedDict[tuple[str, str], StreamCapture] = OrderedDict()

    def begin(
        self, principal: str, id: str, *, endpoint: str, model: str, is_stream: bool, began: float
    ) -> StreamCapture | None:
        """A watch of an answer; None where nothing can be called `id`. `began`: when its request came."""
        if _CAPTURE_ID.fullmatch(id) is None:
            return None
        watch = StreamCapture(
            id,
            endpoint=endpoint,
            model=model,
            is_stream=is_stream,
            secrets=self._secrets,
            now=lambda: round(self._clock() - began, 6),
            on_growth=self._evict,
        )
        old = self._captures.pop((principal, id), None)
        if old is not None:
            old.clear()
        self._captures[principal, id] = watch
        self._evict()
        return watch

    def find(self, principal: str, id: str) -> StreamCapture | None:
        """The watch of this name that is theirs."""
        return self._captures.get((principal, id))

    def _evict(self) -> None:
        """Let the oldest go, where there is too much."""
        total = sum(watch.size for watch in self._captures.values())
        while len(self._captures) > CAPTURES_LIMIT or total > ALL_CAPTURES_LIMIT_BYTES:
            _, oldest = self._captures.popitem(last=False)
            total -= oldest.size
            oldest.clear()
