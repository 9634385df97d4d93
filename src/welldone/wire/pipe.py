"""Any server's bytes in, the bytes of a right stream out: reader, repair and writer in a row."""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from welldone.wire.dialects.dialect import Writer
from welldone.wire.events import Event, Extra, Failure, KeepAlive, Place, Text
from welldone.wire.lane import BARE, Framing, Lane, learn
from welldone.wire.merge import Answered

_LESSONS = 4
"""Chunks of which a lane may be learnt: of a server whose chunks differ in more than their text it is of no use."""


class Pipe(Answered):
    """Repairs one stream as it comes, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = True

    def _start(self) -> None:
        self._writer: Writer | None = None
        self._is_ended = False
        self._lane: Lane | None = None
        self.short: Callable[[bytes], bytes | None] | None = None
        """Takes a frame and gives what goes out for it, if it may go a short way; None while there is none."""
        self._framing = BARE
        self._index = 0  # the choice that the lane is of
        is_plain = self.dialect.IS_CHAT and not self._asked.stops
        self._lessons = _LESSONS if is_plain else 0

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        if self.short is not None and self._framing is BARE:
            sent = self.short(data)
            if sent is not None:
                self.merge.has_content = True
                return sent
        return self._feed_slowly(data, part)

    @property
    def may_flow(self) -> bool:
        """Whether plain text may ever go a short way."""
        return self.dialect.IS_CHAT

    def take_short_way(self, framing: Framing) -> None:
        """From now on the caller asks `short` before `feed`, for frames in their framing."""
        self._leave_lane()
        self._lane = None
        self._framing = framing

    def _feed_slowly(self, data: bytes, part: int) -> bytes:
        """Through reader, repair and writer; and learn from it how the next text can go a shorter way."""
        self._leave_lane()
        is_lesson = self._lessons > 0 and (self._lane is None or not self._lane.is_of(data))
        before = self.merge.notes.counts() if is_lesson else {}
        events = self.merge.feed(data, part)
        sent = self.say(events)
        if is_lesson:
            self._learn(data, sent, events, before)
        if self._lane is not None and self._is_flowing(self._index):
            self.short = self._lane.take
        return sent

    def _learn(self, data: bytes, sent: bytes, events: list[Event], before: Mapping[str, int]) -> None:
        """Learn from a chunk that said one text, perhaps with unknown fields, of which each such chunk has the same."""
        *riders, text = events or (None,)
        if not (isinstance(text, Text) and self._is_flowing(text.index) and all(map(_rides, riders))):
            return
        if self._lane is None or not self._lane.is_of_use:
            self._lessons -= 1
        after = self.merge.notes.counts()
        faults = {rule: count - before.get(rule, 0) for rule, count in after.items() if count > before.get(rule, 0)}
        self._lane = learn(data, sent, faults, self._framing)
        self._index = text.index

    def _is_flowing(self, index: int) -> bool:
        """Whether a plain text of this choice would go out as it is, and nothing else would happen."""
        return self._writer is not None and self._writer.takes_text(index) and self.merge.is_flowing(index)

    def _leave_lane(self) -> None:
        """Tell reader and repair what they did not see."""
        self.short = None
        if self._lane is not None and self._lane.frames:
            self.merge.passed(self._lane)

    def keep_alive(self) -> bytes:
        """A sign of life, while the server is silent."""
        if self._writer is None or self.merge.is_over:
            return self.dialect.SILENCE
        return self._writer.send(KeepAlive())

    def whole(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send for a part that was not streamed: `data` is its whole reply. Then `close` it."""
        return b"".join(self.take_whole(data, part))

    def take_whole(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        return map(self.say, self.merge.whole(data, part))

    def close(self, part: int = 0) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        self._leave_lane()
        return self.say(self.merge.close(part)) + self.end()

    def fail(self, failure: Failure) -> bytes:
        """The bytes to send when the answer breaks off for a reason that the server did not tell."""
        self._leave_lane()
        return self.say(self.merge.fail(failure)) + self.end()

    def end(self) -> bytes:
        """What ends the stream, once."""
        if self._is_ended or not self.merge.is_over:
            return b""
        self._is_ended = True
        return (self._writer or self._make_writer()).end()

    def say(self, events: list[Event]) -> bytes:
        """The bytes that say events."""
        if self.dialect.KEEPS:
            events = self._bounded(events)
        writer = self._writer
        if len(events) == 1 and writer is not None:
            return writer.send(events[0])
        written = []
        for event in events:
            if writer is None:
                if type(event) is KeepAlive:
                    written.append(self.dialect.SILENCE)
                    continue
                writer = self._make_writer()
            written.append(writer.send(event))
        return b"".join(written)

    def _make_writer(self) -> Writer:
        merge = self.merge  # the writer does not hold us: rings are left to the collector, which stops all for a while
        self._writer = self.dialect.writer(self._head, lambda: merge.usage)
        return self._writer


def _rides(event: Event | None) -> bool:
    """Whether this goes out with the next chunk, and leaves nothing behind."""
    return isinstance(event, Extra) and event.place is not Place.DELTA and not event.alone
