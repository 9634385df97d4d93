"""Fast path for chunks in the middle of an answer that differ only in their text.

Such a chunk is recognised by its prefix and suffix, without parsing. The bytes between them are the text, which is
copied unchanged between the bytes that the writer of the client's dialect puts around a text. Every other chunk takes
the slow path through reader and repair.

The invariant: `FastPath.rewrite` is set only while plain text of one choice passes reader, repair and writer unchanged
and changes nothing there but counters, which `leave` updates. Any input to the slow path is preceded by `leave`.
The tests check the invariant: `compared_paths` gives each pipeline a twin without a fast path.
"""

from collections.abc import Callable, Mapping

from welldone.core.answer_format import DialectWriter
from welldone.core.continuation import FastPathText
from welldone.core.events import (
    Event,
    FieldLocation,
    Reasoning,
    Refusal,
    Text,
    TextEvent,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.core.template import NO_FRAMING, WORTHWHILE_CHUNKS, ChunkTemplate, TransferFraming, learn_chunk
from welldone.dialects.chat.writer import split_chunk
from welldone.stream.part import StreamPart

_RECORDED_ONCE = ("delta-content-incremental", "delta-role-content-empty", "use-not-zero")  # not for each such chunk
_TEXT_TYPES = (Text, Reasoning)
_BLOCK_EVENTS = frozenset((*_TEXT_TYPES, Refusal, ToolCall))
"""Events that end a block of another type, in dialects that have blocks: Messages and Responses."""
_LEARNING_ATTEMPTS = 4
"""Templates in a row that are of no use together, since chunks differ in more than their text."""
_PENDING_LIMIT_BYTES = 4096  # of text that is recorded later, together with other events


class FastPath:
    """Rewrites the text chunks of one part, and keeps reader, repair and log of the part up to date."""

    def __init__(self, stream_part: StreamPart, *, is_allowed: bool, room: int = 0) -> None:
        self.rewrite: Callable[[bytes], bytes | None] | None = None
        """Returns the bytes to send for a frame, or None if it needs the slow path. None: no chunk can be rewritten."""
        self.has_framing: bool = False
        """Frames come with transfer framing, from a caller that offers them before it calls `feed`."""
        self.room: int = room
        """Characters that may still be buffered, in a dialect that repeats its texts."""
        self._stream_part = stream_part
        self._framing = NO_FRAMING
        self._is_allowed = is_allowed
        self._attempts = _LEARNING_ATTEMPTS if is_allowed else 0
        self._rewritten = 0  # chunks since the attempts were last restored
        self._template: ChunkTemplate | None = None
        self._rule_counts: Mapping[str, int] = {}  # violations by rule id of one chunk of the template
        self._choice = 0  # the choice whose text is rewritten
        self._text_type: type[TextEvent] = Text  # and the type of its text

    def use_framing(self, framing: TransferFraming) -> None:
        """Expect and add transfer framing from now on."""
        self.leave()
        self._template = None
        self._framing = framing
        self.has_framing = True

    def restart(self) -> None:
        """Learn again: another stream continues the answer."""
        self.leave()
        self._template = None
        self._attempts = _LEARNING_ATTEMPTS if self._is_allowed else 0

    def disable(self) -> None:
        """Learn nothing until `restart`: the input has no chunks."""
        self._attempts = 0

    def leave(self) -> None:
        """Report the rewritten frames to the part, before it gets other input."""
        self.rewrite = None
        done = self._template
        if done is not None and done.frames:
            self._stream_part.record_fast_path(done.frames, done.bytes, done.last_bytes, self._rule_counts)
            if done.counts_characters:
                self.room -= done.characters
                self._stream_part.record_fast_text(self._choice, done.characters)
            if done.counts is not None:
                self._stream_part.record_fast_usage(Usage(*done.counts, {}))
            delivered = self._stream_part.delivered
            if delivered is not None and done.texts is not None:
                delivered.pending.append(FastPathText(self._text_type, self._choice, done.texts, done.frames))
                if len(done.texts) > _PENDING_LIMIT_BYTES:
                    delivered.record_pending()
            elif delivered is not None:
                delivered.drop()
            self._rewritten += done.frames
            if self._rewritten >= WORTHWHILE_CHUNKS:
                self._attempts, self._rewritten = _LEARNING_ATTEMPTS, 0
            done.reset_counts()

    def rules_before(self, data: bytes, writer: DialectWriter | None) -> Mapping[str, int] | None:
        """Return the violations so far, if something can be learnt from `data`."""
        if self._attempts == 0 or (self._template is not None and self._template.matches(data)):
            return None
        choice = self._choice
        if writer is None or writer.accepts_text(choice, Text) or writer.accepts_text(choice, Reasoning):
            return self._stream_part.repair_log.counts()
        return None  # the writer may add what an earlier chunk has left

    def enter(
        self,
        data: bytes,
        sent: bytes,
        events: list[Event],
        rules_before: Mapping[str, int] | None,
        writer: DialectWriter | None,
    ) -> None:
        """Learn from what the slow path did with `data`, and set `rewrite` if the next chunk may be like it."""
        if writer is None:
            return
        if self._template is not None and any(
            type(event) in _BLOCK_EVENTS and type(event) is not self._text_type for event in events
        ):
            self._template = None  # the next text is in another block
        if rules_before is not None and events and type(events[-1]) in _TEXT_TYPES:
            self._learn(data, sent, events, rules_before, writer)
        template = self._template
        if template is not None and self._is_stateless(self._choice, self._text_type, writer):
            template.room = self.room
            self.rewrite = template.rewrite

    def _learn(
        self, data: bytes, sent: bytes, events: list[Event], before: Mapping[str, int], writer: DialectWriter
    ) -> None:
        """Learn from a chunk with one text and possibly unknown fields, which each such chunk repeats."""
        *fields, text = events
        if not (isinstance(text, _TEXT_TYPES) and self._is_stateless(text.index, type(text), writer)):
            return
        for event in fields:  # only fields that are sent with the next chunk leave no state
            if not isinstance(event, UnknownFields) or event.location is FieldLocation.DELTA or event.in_own_chunk:
                return
        after = self._stream_part.repair_log.counts()
        new = {rule: count - before.get(rule, 0) for rule, count in after.items() if count > before.get(rule, 0)}
        if any(rule in new for rule in _RECORDED_ONCE):
            return
        self._attempts -= 1
        endpoint = self._stream_part.endpoint
        self._template = learn_chunk(
            split_chunk(data, endpoint, type(text)),
            writer.split_text(text.index, sent, type(text)),
            self._framing,
            counts_characters=not endpoint.is_chat,
            allows_usage=True,
        )
        self._rule_counts = new
        if self._template is not None and self._stream_part.delivered is not None:
            self._template.texts = bytearray()
        self._choice, self._text_type = text.index, type(text)

    def _is_stateless(self, index: int, text_type: type[TextEvent], writer: DialectWriter) -> bool:
        """Whether plain text of this choice passes unchanged and changes no state."""
        return writer.accepts_text(index, text_type) and self._stream_part.can_use_fast_path(index, text_type)
