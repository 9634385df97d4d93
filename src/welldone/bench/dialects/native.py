"""Hears streams of named events: what they say is written down as it comes, and the dialect's own mender notes which
rules they break. What it would say instead nobody hears."""

from abc import abstractmethod
from typing import NamedTuple

from welldone.bench.dialects.alike import Alike, Json, Path, learn
from welldone.bench.dialects.ear import SHOWN, Ear
from welldone.bench.record import Record
from welldone.wire import sse
from welldone.wire.native import Native

_LESSONS = 4
"""Events whose form may be learnt: of a server whose events differ in more than their text it is of no use."""
_OF_USE = 8
"""Events that a form must take, to be worth its lesson: that costs as much as a few."""
_REST_BYTES = 4096  # of an event that has no end yet: one of a token has some hundred
_KEPT = 1024
"""Texts that the mender hears of at once: few enough for one frame, and so many that each costs next to nothing."""


class More(NamedTuple):
    """What an event was that only says more of a text."""

    path: Path
    """Where in its value the text is."""
    into: list[str]
    """Where it was written down."""


class NativeEar(Ear):
    """Hears one stream of a dialect that has a mender of its own."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._native = self._mender()
        self._native.on_event = self._tell
        self._now = 0.0
        self._is_known = False  # what the mender hears now is written down already
        self._is_cut = False
        self._said: tuple[Json, More] | None = None  # the last event, where it only says more of a text
        self._rest = b""  # the beginning of an event
        self._has_returns = False  # lines may end in other ways
        self._alike: Alike | None = None
        self._is_open = False  # whether the next event may be like the last
        self._texts: list[str] = []  # that took the short way, and the mender has not heard yet
        self._into = self.texts  # where they belong
        self._lessons = _LESSONS

    # What a dialect says.

    @abstractmethod
    def _mender(self) -> Native:
        """Its mender."""

    @abstractmethod
    def _hear(self, value: Json, kind: str, now: float) -> More | None:
        """Write down what an event says, and whether others may be like it."""

    # What the listener asks.

    @property
    def is_done(self) -> bool:
        return self._native.is_done and self._native.failure is None

    @property
    def cut(self) -> str:
        failure = self._native.failure
        return failure.message[:SHOWN] if self._is_cut and failure is not None else ""

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._native.notes.counts())

    def feed(self, data: bytes, now: float) -> None:
        data = self._whole(data)
        if self._alike is not None and self._is_open:
            data = self._pass(self._alike, data, now)
        if data:
            self._now, self._said = now, None
            self._native.feed(data)
            self._look()
            self._learn(data)

    def _whole(self, data: bytes) -> bytes:
        """The events that have come whole: the mender would wait for more, too. It gets long ones as they come, and
        those that may end otherwise."""
        data = self._rest + data
        end = data.rfind(sse.END) + len(sse.END)
        self._has_returns = self._has_returns or b"\r" in data
        if self._has_returns or len(data) - end > _REST_BYTES:
            end = len(data)
        elif end < len(sse.END):
            end = 0
        self._rest = data[end:]
        return data[:end]

    def close(self, now: float) -> None:
        self._now = now
        self._leave()
        self._native.feed(self._rest)
        had_failed = self._native.failure is not None
        self._native.close()
        self._is_cut = not had_failed and self._native.failure is not None
        self._look()

    def _look(self) -> None:
        """See whether the answer has come to its end."""
        native = self._native
        if native.failure is not None:
            if not self._is_cut:
                self._fail(native.failure.message)
        elif native.is_done and native.usage is not None:  # counts that come sooner are not those of the whole answer
            self._count(native.usage)

    def _tell(self, value: Json, name: str) -> None:
        if not (self._is_known or self._native.is_done):
            kind = value.get("type")
            more = self._hear(value, kind if isinstance(kind, str) else name, self._now)
            self._said = None if more is None else (value, more)

    # The short way.

    def _pass(self, alike: Alike, data: bytes, now: float) -> bytes:
        """Write down the texts of events like the last one; what is left for the mender."""
        texts, data = alike.take(data)
        self._into += texts
        self._texts += texts
        self._record.times.extend([now] * len(texts))
        if data or len(self._texts) >= _KEPT:
            self._leave()
            self._is_open = not data
        return data

    def _leave(self) -> None:
        """Tell the mender what it did not hear."""
        self._is_open = False
        if self._alike is not None and self._texts:
            self._is_known = True
            self._native.feed(self._alike.joined(self._texts))
            self._is_known = False
            self._native.passed(len(self._texts) - 1)
            self._texts = []

    def _learn(self, data: bytes) -> None:
        """The next event may be like the last one."""
        if self._said is None or not data.endswith(sse.END):
            return
        value, more = self._said
        before = data.rfind(sse.END, 0, -len(sse.END))
        frame = data if before < 0 else data[before + len(sse.END) :]
        if self._alike is None or not self._alike.follow(frame, value):
            if not self._lessons:
                return
            if self._alike is None or self._alike.taken < _OF_USE:
                self._lessons -= 1
            self._alike, self._into = learn(frame, value, more.path), more.into
        self._is_open = self._alike is not None
