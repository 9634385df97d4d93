"""/v1/chat/completions. The reader of the dialect decodes the stream; repair is used only to detect broken rules."""

from welldone.bench.dialects.base import BenchDialect, OutputKind, StreamTimer
from welldone.bench.report import BenchRecord
from welldone.core import events as ev
from welldone.core import sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event
from welldone.core.lenient_json import decode_text
from welldone.core.repair import EventRepairer
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.core.template import WORTHWHILE_CHUNKS, ChunkTemplate, learn_chunk
from welldone.dialects.chat.reader import EventReader
from welldone.dialects.chat.writer import split_chunk

# Fast path for most of an answer: a chunk that differs from an earlier one only in its text is not parsed.
#
# Time spent in the client delays the next chunk. Every other chunk goes through the reader; a rule that all chunks of
# this form break was recorded when the first of them was read.


_MAX_CHUNK_LESSONS = 4
"""Attempts to learn a template; for servers whose chunks differ in more than their text the fast path is useless."""
_MAX_PARTIAL_CHUNK_BYTES = 4096  # of an incomplete frame: a chunk of one token has some hundred bytes


class ChunkFastPath:
    """Extracts the text of chunks once the reader has parsed one of the same form."""

    def __init__(self, reader: EventReader, repair: EventRepairer) -> None:
        self._reader = reader
        self._repair = repair
        self._template: ChunkTemplate | None = None
        self._lessons_left = _MAX_CHUNK_LESSONS
        self._rewritten = 0  # chunks since the lessons were last restored
        self._index = 0  # of the choice that the template is for
        self._is_open = False
        self._partial = b""

    def take(self, data: bytes) -> tuple[list[str], bytes]:
        """Return the texts of the chunks that match the template, and the bytes that are left for the reader."""
        texts: list[str] = []
        template = self._template
        if template is None or not self._is_open:
            return texts, data
        data = self._partial + data
        self._partial = b""
        start = 0
        while end := data.find(sse.FRAME_END, start) + 1:
            text = template.rewrite(data[start : end + 1])
            if text is None:
                break
            texts.append(decode_text(text) if b"\\" in text else text.decode())
            start = end + 1
        data = data[start:]
        if not end and len(data) <= _MAX_PARTIAL_CHUNK_BYTES and b"\n" not in data and b"\r" not in data:
            self._partial, data = data, b""  # the reader would wait for more as well
        else:
            self._sync_reader(template)
        return texts, data

    def learn(self, frame: bytes, events: list[Event]) -> None:
        """Learn a template from the last frame that the reader has parsed."""
        template = self._template
        if (
            self._lessons_left
            and len(events) == 1
            and isinstance(events[0], ev.Text)
            and not (template and template.matches(frame))
        ):
            self._lessons_left -= 1
            self._template = learn_chunk(split_chunk(frame), (b"", b""))
            self._index = events[0].index
        self._is_open = (
            self._template is not None and self._reader.is_idle and self._repair.can_use_fast_path(self._index, ev.Text)
        )

    def close(self) -> bytes:
        """Return the bytes that are left for the reader at the end of the stream."""
        rest, self._partial = self._partial, b""
        if self._template is not None:
            self._sync_reader(self._template)
        return rest

    def _sync_reader(self, template: ChunkTemplate) -> None:
        """Tell reader and repair about the chunks that bypassed them."""
        self._is_open = False
        if template.frames:
            self._reader.record_fast_path(template.frames, template.bytes, template.last_bytes)
            self._repair.record_fast_path()
            self._rewritten += template.frames
            if self._rewritten >= WORTHWHILE_CHUNKS:
                self._lessons_left, self._rewritten = _MAX_CHUNK_LESSONS, 0
            template.reset_counts()


_CHAT_ENVELOPE = Envelope("chatcmpl-bench", 0, "bench")
_OUTPUT_KINDS: dict[type[Event], OutputKind] = {
    ev.ChoiceStart: "role",
    ev.Text: "text",
    ev.Reasoning: "reasoning",
    ev.Refusal: "refusal",
    ev.ToolCall: "tool",
    ev.ToolArguments: "tool",
}
"""Events that are output. Others are keep-alives, log probabilities, unknown fields, and the end of the answer."""


class ChatStreamTimer(StreamTimer):
    """Times a stream of chat completions."""

    def __init__(self, record: BenchRecord, facts: RequestFacts) -> None:
        super().__init__(record)
        endpoint = Endpoint.CHAT
        self._repair_log = RepairLog(endpoint)
        self._reader = EventReader(endpoint, fallback=_CHAT_ENVELOPE, facts=facts, repair_log=self._repair_log)
        self._repair = EventRepairer(
            endpoint, facts=facts, repair_log=self._repair_log, new_call_id=lambda: "call_bench"
        )
        self._fast_path = ChunkFastPath(self._reader, self._repair)

    @property
    def is_done(self) -> bool:
        return self._reader.is_done

    @property
    def truncation(self) -> str:
        is_whole = self._reader.is_done or self._record.finish_reason
        return "" if is_whole else "the stream ended without a finish_reason"

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._repair_log.counts())

    def feed(self, data: bytes, now: float) -> None:
        texts, data = self._fast_path.take(data)
        self.texts.extend(texts)
        self._record.times.extend([now] * len(texts))
        if data:
            self._read(data, now)

    def close(self, now: float) -> None:
        self._read(self._fast_path.close(), now)
        self._record_events(self._reader.close(), now)
        self._repair.close(is_done=self._reader.is_done)

    def _read(self, data: bytes, now: float) -> None:
        """Parse what does not match the template, and learn from it."""
        frame, events = None, []
        for frame in self._reader.decode_frames(data):
            events = self._reader.read_frame(frame)
            self._record_events(events, now)
        if frame is not None:
            self._fast_path.learn(frame.raw, events)

    def _record_events(self, events: list[Event], now: float) -> None:
        for event in events:
            if output_kind := _OUTPUT_KINDS.get(type(event)):
                self._on_output(output_kind, now, getattr(event, "text", ""))
            elif isinstance(event, ev.Finish):
                self._record.finish_reason = event.reason
            elif isinstance(event, ev.Usage):
                self._on_usage(event)
            elif isinstance(event, ev.Failure):
                self._on_failure(event.message)
        self._repair.feed(events)


CHAT = BenchDialect(
    "/chat/completions",
    lambda record, body: ChatStreamTimer(record, read_request_facts(body)),
    preferred_fields={"stream_options": {"include_usage": True}},
)
