"""Any server's bytes in, the bytes of a right stream out: reader, repair and writer in a row."""

from typing import ClassVar

from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
from welldone.wire.dialects.stream import KEEP_ALIVE, StreamWriter
from welldone.wire.events import Event, Failure, KeepAlive
from welldone.wire.head import Endpoint
from welldone.wire.merge import Answered


class Pipe(Answered):
    """Repairs one stream as it comes, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = True

    def _start(self) -> None:
        self._writer: StreamWriter | None = None
        self._is_ended = False

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        return self._write(self._merge.feed(data, part))

    def whole(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send for a part that was not streamed: `data` is its whole reply. Then `close` it."""
        return self._write(self._merge.whole(data, part))

    def close(self, part: int = 0) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        return self._write(self._merge.close(part)) + self._end()

    def fail(self, failure: Failure) -> bytes:
        """The bytes to send when the answer breaks off for a reason that the server did not tell."""
        return self._write(self._merge.fail(failure)) + self._end()

    def _end(self) -> bytes:
        """What ends the stream, once."""
        if self._is_ended or not self._merge.is_over:
            return b""
        self._is_ended = True
        return (self._writer or self._make_writer()).end()

    def _write(self, events: list[Event]) -> bytes:
        writer = self._writer
        if len(events) == 1 and writer is not None:
            return writer.send(events[0])
        written = []
        for event in events:
            if writer is None:
                if type(event) is KeepAlive:
                    written.append(KEEP_ALIVE)
                    continue
                writer = self._make_writer()
            written.append(writer.send(event))
        return b"".join(written)

    def _make_writer(self) -> StreamWriter:
        head = self._merge.head or self._fallback
        is_null = self._asked.usage is True
        if self._endpoint is Endpoint.CHAT:
            functions = self._asked.functions
            self._writer = ChatWriter(head, usage_is_null=is_null, functions=functions, reasoning=self._reasoning)
        else:
            self._writer = CompletionsWriter(head, usage_is_null=is_null)
        return self._writer
