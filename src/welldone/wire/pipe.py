"""Any server's bytes in, the bytes of a right stream out: reader, repair and writer in a row."""

from welldone.wire import sse
from welldone.wire.asked import Asked
from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
from welldone.wire.dialects.stream import KEEP_ALIVE, StreamWriter
from welldone.wire.events import Event, Failure, KeepAlive, Usage
from welldone.wire.forced import Forced
from welldone.wire.head import Endpoint, Head
from welldone.wire.merge import Merge, Parts
from welldone.wire.notes import Notes


class Pipe:
    """Repairs one stream as it comes, or several that make one answer.

    `fallback` is the envelope for what the server does not say; ids that have to be made are made of its id, so that
    the same input gives the same bytes. `model` is the name that the client knows, where the server may say another.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked | None = None,
        parts: Parts | None = None,
        forced: Forced | None = None,
        model: str | None = None,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._asked = asked or Asked()
        self._merge = Merge(
            endpoint,
            fallback=fallback,
            asked=self._asked,
            parts=parts,
            forced=forced,
            model=model,
            limit_bytes=limit_bytes,
        )
        self._writer: StreamWriter | None = None
        self._is_ended = False

    @property
    def notes(self) -> Notes:
        """What was mended."""
        return self._merge.notes

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]` on each part, or failed: nothing that matters can follow."""
        return self._merge.is_done

    @property
    def failure(self) -> Failure | None:
        """The error that the stream ends with, if it does."""
        return self._merge.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self._merge.usage

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        return self._write(self._merge.feed(data, part))

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
            self._writer = ChatWriter(head, usage_is_null=is_null, functions=self._asked.functions)
        else:
            self._writer = CompletionsWriter(head, usage_is_null=is_null)
        return self._writer
