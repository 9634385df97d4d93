"""Reader of the streams of a dialect other than chat: its repairer, with an emitter that makes events.

The repairer handles all that a server of the dialect may do wrong, and records it. A further dialect needs a
`PassthroughRepairer` whose emitter is an `EventSink`; `dialects/registry` names it.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from welldone.core import events as ev
from welldone.core import sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.reader import EventReader
from welldone.dialects.event_sink import EventSink
from welldone.dialects.registry import DIALECTS, passthrough_repairer_for
from welldone.dialects.same_dialect import PassthroughRepairer


class DialectReader(EventReader):
    """Reads one stream or reply. `endpoint` is that of the client: chat or completions."""

    RETAINS_INPUT: ClassVar[bool] = True

    def __init__(
        self,
        repairer: PassthroughRepairer,
        sink: EventSink,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts,
        repair_log: RepairLog,
    ) -> None:
        super().__init__(endpoint, fallback=fallback, facts=facts, repair_log=repair_log)
        self.decoder: sse.SseDecoder = repairer.decoder
        self._repairer = repairer
        self._sink = sink
        self._usage = repairer.usage

    @property
    def is_idle(self) -> bool:
        """Return False: the fast path is for chunks."""
        return False

    def decode_frames(self, data: bytes) -> Iterable[sse.Frame]:
        """Return the frames that `data` completes."""
        return self._repairer.decode_frames(data)

    def read_frame(self, frame: sse.Frame) -> list[Event]:
        """Return the events of one frame."""
        return self._take_events(self._repairer.feed_frame(frame))

    def flush(self) -> list[Event]:
        """Return the events at the end of the stream."""
        self._repairer.unfinished = self.unfinished
        return self._take_events(self._repairer.close())

    def read_reply_in_steps(self, data: bytes) -> Iterator[list[Event]]:
        """Yield the events of a non-streaming reply."""
        for output in self._repairer.feed_reply_in_steps(data):
            yield self._take_events(output)

    def _take_events(self, output: bytes) -> list[Event]:
        """Return the new events. The only output of a repairer whose emitter makes events is keep-alives and errors."""
        sink, repairer = self._sink, self._repairer
        events, sink.events = sink.events, []
        if self.chunks.envelope is None:
            self.chunks.envelope = sink.envelope
        if repairer.usage is not self._usage:
            self._usage = repairer.usage
            events += [] if self._usage is None else [self._usage]
        if repairer.is_done:
            self.is_done = True
            self.chunks.has_usage_chunk = self._usage is not None
            failure = repairer.failure or sink.failure
            if failure is not None and self.failure is None:
                self.failure: Failure | None = failure
                events.append(failure)
        elif output:
            events.append(ev.KeepAlive())
        return events


def dialect_reader_for(
    dialect: Endpoint, endpoint: Endpoint, *, fallback: Envelope, facts: RequestFacts, repair_log: RepairLog
) -> DialectReader:
    """Return the reader of one answer in this dialect, for a client of chat or completions (`endpoint`)."""
    events = DIALECTS[dialect].make_events(fallback, endpoint)
    repairer = passthrough_repairer_for(dialect, fallback=fallback, output=events, repair_log=repair_log)
    return DialectReader(repairer, events, endpoint, fallback=fallback, facts=facts, repair_log=repair_log)
