"""Hears streams of named events: what they say is written down as it comes, and the dialect's own mender notes which
rules they break. What it would say instead nobody hears."""

from abc import abstractmethod
from typing import NamedTuple

from welldone.bench.dialects.alike import EventTemplate, Json, FieldPath, learn_event_template
from welldone.bench.dialects.ear import MAX_MESSAGE_CHARS, StreamTimer
from welldone.bench.record import BenchRecord
from welldone.wire import sse
from welldone.wire.native import PassthroughRepairer

_MAX_EVENT_LESSONS = 4
"""Events whose form may be learnt: of a server whose events differ in more than their text it is of no use."""
_MIN_TEMPLATE_MATCHES = 8
"""Events that a form must take, to be worth its lesson: that costs as much as a few."""
_MAX_PARTIAL_EVENT_BYTES = 4096  # of an event that has no end yet: one of a token has some hundred
_MAX_PENDING_TEXTS = 1024
"""Texts that the mender hears of at once: few enough for one frame, and so many that each costs next to nothing."""


class DeltaTarget(NamedTuple):
    """What an event was that only says more of a text."""

    path: FieldPath
    """Where in its value the text is."""
    sink: list[str]
    """Where it was written down."""


class EventStreamTimer(StreamTimer):
    """Hears one stream of a dialect that has a mender of its own."""

    def __init__(self, record: BenchRecord) -> None:
        super().__init__(record)
        self._repairer = self._make_repairer()
        self._repairer.on_event = self._on_repairer_event
        self._now = 0.0
        self._is_replaying = False  # what the mender hears now is written down already
        self._is_cut = False
        self._last_delta: tuple[Json, DeltaTarget] | None = None  # the last event, where it only says more of a text
        self._partial = b""  # the beginning of an event
        self._has_carriage_returns = False  # lines may end in other ways
        self._template: EventTemplate | None = None
        self._may_match = False  # whether the next event may be like the last
        self._pending_texts: list[str] = []  # that took the short way, and the mender has not heard yet
        self._sink = self.texts  # where they belong
        self._lessons_left = _MAX_EVENT_LESSONS

    # What a dialect says.

    @abstractmethod
    def _make_repairer(self) -> PassthroughRepairer:
        """Its mender."""

    @abstractmethod
    def _record_event(self, value: Json, kind: str, now: float) -> DeltaTarget | None:
        """Write down what an event says, and whether others may be like it."""

    # What the listener asks.

    @property
    def is_done(self) -> bool:
        return self._repairer.is_done and self._repairer.failure is None

    @property
    def truncation(self) -> str:
        failure = self._repairer.failure
        return failure.message[:MAX_MESSAGE_CHARS] if self._is_cut and failure is not None else ""

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._repairer.repair_log.counts())

    def feed(self, data: bytes, now: float) -> None:
        data = self._complete_events(data)
        if self._template is not None and self._may_match:
            data = self._take_fast_path(self._template, data, now)
        if data:
            self._now, self._last_delta = now, None
            self._repairer.feed(data)
            self._check_end()
            self._learn(data)

    def _complete_events(self, data: bytes) -> bytes:
        """The events that have come whole: the mender would wait for more, too. It gets long ones as they come, and
        those that may end otherwise."""
        data = self._partial + data
        end = data.rfind(sse.FRAME_END) + len(sse.FRAME_END)
        self._has_carriage_returns = self._has_carriage_returns or b"\r" in data
        if self._has_carriage_returns or len(data) - end > _MAX_PARTIAL_EVENT_BYTES:
            end = len(data)
        elif end < len(sse.FRAME_END):
            end = 0
        self._partial = data[end:]
        return data[:end]

    def close(self, now: float) -> None:
        self._now = now
        self._sync_repairer()
        self._repairer.feed(self._partial)
        had_failed = self._repairer.failure is not None
        self._repairer.close()
        self._is_cut = not had_failed and self._repairer.failure is not None
        self._check_end()

    def _check_end(self) -> None:
        """See whether the answer has come to its end."""
        native = self._repairer
        if native.failure is not None:
            if not self._is_cut:
                self._on_failure(native.failure.message)
        elif native.is_done and native.usage is not None:  # counts that come sooner are not those of the whole answer
            self._on_usage(native.usage)

    def _on_repairer_event(self, value: Json, name: str) -> None:
        if not (self._is_replaying or self._repairer.is_done):
            kind = value.get("type")
            more = self._record_event(value, kind if isinstance(kind, str) else name, self._now)
            self._last_delta = None if more is None else (value, more)

    # The short way.

    def _take_fast_path(self, template: EventTemplate, data: bytes, now: float) -> bytes:
        """Write down the texts of events like the last one; what is left for the mender."""
        texts, data = template.take(data)
        self._sink += texts
        self._pending_texts += texts
        self._record.times.extend([now] * len(texts))
        if data or len(self._pending_texts) >= _MAX_PENDING_TEXTS:
            self._sync_repairer()
            self._may_match = not data
        return data

    def _sync_repairer(self) -> None:
        """Tell the mender what it did not hear."""
        self._may_match = False
        if self._template is not None and self._pending_texts:
            self._is_replaying = True
            self._repairer.feed(self._template.merged_event(self._pending_texts))
            self._is_replaying = False
            self._repairer.record_fast_path(len(self._pending_texts) - 1)
            self._pending_texts = []

    def _learn(self, data: bytes) -> None:
        """The next event may be like the last one."""
        if self._last_delta is None or not data.endswith(sse.FRAME_END):
            return
        value, more = self._last_delta
        before = data.rfind(sse.FRAME_END, 0, -len(sse.FRAME_END))
        frame = data if before < 0 else data[before + len(sse.FRAME_END) :]
        if self._template is None or not self._template.resync(frame, value):
            if not self._lessons_left:
                return
            if self._template is None or self._template.matched < _MIN_TEMPLATE_MATCHES:
                self._lessons_left -= 1
            self._template, self._sink = learn_event_template(frame, value, more.path), more.sink
        self._may_match = self._template is not None
