"""Any server's streams in, one whole reply out: what a client gets that did not ask for a stream."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from welldone.wire.collect import collect
from welldone.wire.dialects.stream import openai_error_object, escape_line_breaks
from welldone.wire.events import Event, Failure, KeepAlive
from welldone.wire.merge import Pipeline

_MANY_EVENTS = 2_000


class BufferedPipeline(Pipeline):
    """Collects one stream, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = False

    def _init_output(self) -> None:
        self._events: list[Event] = []

    def keep_alive(self) -> bytes:
        """Nobody waits for one who did not ask for a stream."""
        return b""

    def feed(self, data: bytes, part: int = 0) -> None:
        """More of a part's stream."""
        self.write_events(self.merger.feed(data, part))

    def feed_reply(self, data: bytes, part: int = 0) -> None:
        """A part that was not streamed: `data` is its whole reply. Then `close` it."""
        for _ in self.feed_reply_in_steps(data, part):
            pass

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        return map(self.write_events, self.merger.feed_reply_in_steps(data, part))

    def close(self, part: int = 0) -> None:
        """A part's stream has ended, however it did."""
        self.write_events(self.merger.close(part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off for a reason that the server did not tell."""
        self.write_events(self.merger.fail(failure))

    @property
    def is_body_slow(self) -> bool:
        """Whether `body` may take longer than one turn of the event loop: each event costs 15 us."""
        return len(self._events) > _MANY_EVENTS

    def body(self) -> bytes:
        """The reply, when all parts have ended: the answer, or the error that it failed with, in OpenAI's shape."""
        if self.failure is not None:
            return escape_line_breaks(msgspec.json.encode(openai_error_object(self.failure)))
        reply = collect(self._events)
        reply.usage = self.usage
        return self.dialect.encode_reply(self._envelope, reply)

    def write_events(self, events: list[Event]) -> bytes:
        """They are kept: what is said is the body."""
        self._events += [event for event in self._limit_buffered(events) if type(event) is not KeepAlive]
        return b""

    def end(self) -> bytes:
        """There is no stream to end."""
        return b""
