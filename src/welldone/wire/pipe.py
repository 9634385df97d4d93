"""Any server's bytes in, the bytes of a right stream out: reader, repair and writer in a row."""

from collections.abc import Callable

from welldone.wire import faults, sse
from welldone.wire.asked import Asked
from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
from welldone.wire.dialects.stream import KEEP_ALIVE, StreamWriter
from welldone.wire.events import Event, Failure, KeepAlive, Usage
from welldone.wire.head import Endpoint, Head
from welldone.wire.notes import Notes
from welldone.wire.reader import Reader
from welldone.wire.repair import Repair

_EARLY_LIMIT = 64  # chunks without an envelope whose fields are kept; real servers send one


class Pipe:
    """Repairs one stream as it comes.

    `fallback` is the envelope for what the server does not say; ids that have to be made are made of its id, so that
    the same input gives the same bytes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked | None = None,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self.notes = Notes(endpoint)
        self._endpoint = endpoint
        self._fallback = fallback
        self._asked = asked or Asked()
        self._reader = Reader(endpoint, fallback=fallback, asked=self._asked, notes=self.notes, limit_bytes=limit_bytes)
        self._repair = Repair(endpoint, asked=self._asked, notes=self.notes, mint=minter(fallback.id))
        self._writer: StreamWriter | None = None
        self._early: list[Event] = []  # fields that came before there was an envelope

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]`, or failed: nothing that matters can follow."""
        return self._reader.is_done or self.failure is not None

    @property
    def failure(self) -> Failure | None:
        """The error that the stream ends with, if it does."""
        return self._repair.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self._repair.usage

    def feed(self, data: bytes) -> bytes:
        """The bytes to send on."""
        written = self._read(self._reader.frames(data))
        if self._reader.is_overrun:
            written.append(self._write(self._repair.feed(self._reader.check())))
        return written[0] if len(written) == 1 else b"".join(written)

    def close(self) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        written = self._read(self._reader.last_frames())
        events = self._repair.feed(self._reader.check() + self._reader.end())
        events += self._repair.close(is_done=self._reader.is_done)
        if self._asked.usage and not self._reader.has_usage_chunk and self.failure is None:
            self.notes.note(faults.use.FINAL_CHUNK)
            if self._endpoint is Endpoint.COMPLETIONS:
                self.notes.note(faults.cmpl.USAGE_CHUNK)
        written.append(self._write(events))
        written.append((self._writer or self._make_writer()).end())
        return b"".join(written)

    def _read(self, frames: list[sse.Frame]) -> list[bytes]:
        """What is to be said for each frame: one at a time, so that each note knows its place."""
        written = []
        for frame in frames:
            if self._repair.failure is not None and not self._reader.has_failed:
                break  # what follows would only be kept, and never sent
            written.append(self._write(self._repair.feed(self._reader.read(frame))))
        return written

    def _write(self, events: list[Event]) -> bytes:
        if not events:
            return b""
        writer = self._writer
        if writer is None:
            if self._reader.head is None and not isinstance(events[-1], Failure):
                return self._keep(events)
            writer = self._make_writer()
            events = self._early + events
        if len(events) == 1:
            return writer.send(events[0])
        return b"".join([writer.send(event) for event in events])

    def _keep(self, events: list[Event]) -> bytes:
        """Before the first real chunk: signs of life go out, and fields that came alone wait for its envelope."""
        if len(self._early) < _EARLY_LIMIT:
            self._early += [event for event in events if not isinstance(event, KeepAlive)]
        return KEEP_ALIVE * sum(isinstance(event, KeepAlive) for event in events)

    def _make_writer(self) -> StreamWriter:
        head = self._reader.head or self._fallback
        is_null = self._asked.usage is True
        if self._endpoint is Endpoint.CHAT:
            self._writer = ChatWriter(head, usage_is_null=is_null, functions=self._asked.functions)
        else:
            self._writer = CompletionsWriter(head, usage_is_null=is_null)
        return self._writer


def minter(stream_id: str) -> Callable[[], str]:
    """Makes ids of tool calls out of a stream's id, so that the same input gives the same bytes."""
    count = 0
    stem = stream_id.rpartition("-")[2]

    def mint() -> str:
        nonlocal count
        count += 1
        return f"call_{stem}{count}"

    return mint
