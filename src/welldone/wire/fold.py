"""Any server's streams in, one whole reply out: what a client gets that did not ask for a stream."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from welldone.wire.collect import collect
from welldone.wire.dialects.stream import error_object, escape
from welldone.wire.events import Event, Failure, KeepAlive
from welldone.wire.merge import Answered

_LONG_EVENTS = 2_000


class Fold(Answered):
    """Collects one stream, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = False

    def _start(self) -> None:
        self._events: list[Event] = []

    def keep_alive(self) -> bytes:
        """Nobody waits for one who did not ask for a stream."""
        return b""

    def feed(self, data: bytes, part: int = 0) -> None:
        """More of a part's stream."""
        self.say(self.merge.feed(data, part))

    def whole(self, data: bytes, part: int = 0) -> None:
        """A part that was not streamed: `data` is its whole reply. Then `close` it."""
        for _ in self.take_whole(data, part):
            pass

    def take_whole(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        return map(self.say, self.merge.whole(data, part))

    def close(self, part: int = 0) -> None:
        """A part's stream has ended, however it did."""
        self.say(self.merge.close(part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off for a reason that the server did not tell."""
        self.say(self.merge.fail(failure))

    @property
    def is_long(self) -> bool:
        """Whether `body` may take longer than one turn of the event loop: each event costs 15 us."""
        return len(self._events) > _LONG_EVENTS

    def body(self) -> bytes:
        """The reply, when all parts have ended: the answer, or the error that it failed with, in OpenAI's shape."""
        if self.failure is not None:
            return escape(msgspec.json.encode(error_object(self.failure)))
        reply = collect(self._events)
        reply.usage = self.usage
        return self.dialect.whole(self._head, reply)

    def say(self, events: list[Event]) -> bytes:
        """They are kept: what is said is the body."""
        self._events += [event for event in self._bounded(events) if type(event) is not KeepAlive]
        return b""

    def end(self) -> bytes:
        """There is no stream to end."""
        return b""
