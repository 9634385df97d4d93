"""Timer for streams of named events. The repairer of the dialect reads them, and detects broken rules."""

from abc import abstractmethod
from typing import Any, TypeAlias

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, OutputKind, StreamTimer
from welldone.bench.record import BenchRecord
from welldone.protocol import sse
from welldone.protocol.dialects.same_dialect import PassthroughRepairer

Json: TypeAlias = dict[str, Any]
_MAX_PARTIAL_EVENT_BYTES = 4096  # of an incomplete event: one of a token has some hundred bytes


class EventStreamTimer(StreamTimer):
    """Times a stream of a dialect with a pass-through repairer."""

    def __init__(self, record: BenchRecord, repairer: PassthroughRepairer) -> None:
        super().__init__(record)
        self._repairer = repairer
        self._repairer.on_event = self._on_event
        self._repairer.on_text = self._on_text
        self._now = 0.0
        self._is_cut = False
        self._partial = b""  # an incomplete event
        self._last_kind: OutputKind = "text"

    # For the dialects.

    @abstractmethod
    def _record_event(self, value: Json, kind: str, now: float) -> None:
        """Record an event."""

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
        """Pass on event by event: the fast path of the repairer is for single ones."""
        self._now = now
        data = self._partial + data
        start = 0
        while end := data.find(sse.FRAME_END, start) + 1:
            self._repairer.feed(data[start : end + 1])
            start = end + 1
        self._partial = data[start:]
        # The repairer would wait for the rest of an event as well. It limits its length, and knows all line ends.
        if len(self._partial) > _MAX_PARTIAL_EVENT_BYTES or b"\r" in self._partial:
            self._repairer.feed(self._partial)
            self._partial = b""
        self._check_end()

    def close(self, now: float) -> None:
        self._now = now
        self._repairer.feed(self._partial)
        had_failed = self._repairer.failure is not None
        self._repairer.close()
        self._is_cut = not had_failed and self._repairer.failure is not None
        self._check_end()

    def _check_end(self) -> None:
        """Check whether the answer is complete."""
        native = self._repairer
        if native.failure is not None:
            if not self._is_cut:
                self._on_failure(native.failure.message)
        elif native.is_done and native.usage is not None:  # earlier counts do not cover the whole answer
            self._on_usage(native.usage)

    def _on_event(self, value: Json, name: str) -> None:
        if not self._repairer.is_done:
            kind = value.get("type")
            self._record_event(value, kind if isinstance(kind, str) else name, self._now)

    def _on_text(self, text: str) -> None:
        """Record the text of an event like the one before."""
        self._on_output(self._last_kind, self._now, text)

    def _on_output(self, kind: OutputKind, now: float, text: str = "") -> None:
        self._last_kind = kind
        super()._on_output(kind, now, text)
