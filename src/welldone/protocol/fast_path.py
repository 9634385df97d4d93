"""Fast path for chunks in the middle of an answer that differ only in their text.

Such a chunk is recognised by its prefix and suffix, without parsing. The bytes between them are the text, which is
copied unchanged between the bytes that the writer of the client's dialect puts around a text. Every other chunk takes
the slow path through reader and repair.

The invariant: `FastPath.rewrite` is set only while plain text of one choice passes reader, repair and writer unchanged
and changes nothing there but counters, which `leave` updates. Any input to the slow path is preceded by `leave`.
The tests check the invariant: `compared_paths` gives each pipeline a twin without a fast path.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from welldone.protocol.continuation import DELIVERED_LIMIT_BYTES, FastPathText
from welldone.protocol.dialects.base import Affixes, DialectWriter, TextEncoder
from welldone.protocol.dialects.chat import split_around_text
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Event, FieldLocation, Text, UnknownFields, Usage
from welldone.protocol.lenient_json import LITERAL_BYTES, decode_text, is_verbatim_text
from welldone.protocol.part import StreamPart

_USAGE_KEY = b'"usage":'
# Right counts at the end of a chunk. Usage of zeros is a placeholder, which changes state.
_COUNTS = re.compile(
    rb' ?\{"prompt_tokens": ?([1-9][0-9]{0,14}), ?"completion_tokens": ?(0|[1-9][0-9]{0,14}), ?'
    rb'"total_tokens": ?([1-9][0-9]{0,14})\}\}\n\n'
)
_USAGE_OBJECT = re.compile(rb'"usage": ?\{')
_RECORDED_ONCE = ("delta-content-incremental", "delta-role-content-empty", "use-not-zero")  # not for each such chunk
_CACHED_TEXT_LENGTH = 32  # bytes: tokens are shorter, and each cached length costs memory
_WORTHWHILE_CHUNKS = 8
"""Chunks that a fast path must handle to be worth learning, which costs as much as two chunks."""
_LEARNING_ATTEMPTS = 4
"""Chunks from which templates may be learnt. If chunks differ in more than their text, they are of no use."""
_PENDING_LIMIT_BYTES = 4096  # of text that is recorded later, together with other events


_Counts: TypeAlias = tuple[int, int, int]
"""Prompt, completion and total tokens."""


class TransferFraming(NamedTuple):
    """Bytes around a frame in the transport below, such as HTTP/1.1 chunks, when received and when sent."""

    received_affixes: Callable[[bytes], Affixes | None]
    """Prefix and suffix of the frame in received bytes; None if they are not exactly one frame."""
    sent_affixes: Callable[[int], Affixes]
    """Prefix and suffix of a sent frame of the given size."""


NO_FRAMING = TransferFraming(lambda data: (b"", b""), lambda size: (b"", b""))


_ChunkTemplate: TypeAlias = tuple[bytes, bytes, int, int, bytes, bytes, int]
"""Rewrite rule for received data of one length: the framing before it, its suffix with framing, start and stop of its
text, the framing and the suffix of the data to send, and the size of the frame. The prefixes, which are long, are the
same for all lengths."""


class FastPath:
    """Rewrites the text chunks of one part, and keeps reader, repair and log of the part up to date."""

    def __init__(self, part: StreamPart, *, is_allowed: bool, room: int = 0) -> None:
        self.rewrite: Callable[[bytes], bytes | None] | None = None
        """Returns the bytes to send for a frame, or None if it needs the slow path. None: no chunk can be rewritten."""
        self.has_framing: bool = False
        """Frames come with transfer framing, from a caller that offers them before it calls `feed`."""
        self.room: int = room
        """Characters that may still be buffered, in a dialect that repeats its texts."""
        self._part = part
        self._framing = NO_FRAMING
        self._is_allowed = is_allowed
        self._attempts = _LEARNING_ATTEMPTS if is_allowed else 0
        self._templates: ChunkTemplates | None = None
        self._choice = 0  # the choice whose text is rewritten

    def use_framing(self, framing: TransferFraming) -> None:
        """Expect and add transfer framing from now on."""
        self.leave()
        self._templates = None
        self._framing = framing
        self.has_framing = True

    def restart(self) -> None:
        """Learn again: another stream continues the answer."""
        self.leave()
        self._templates = None
        self._attempts = _LEARNING_ATTEMPTS if self._is_allowed else 0

    def disable(self) -> None:
        """Learn nothing until `restart`: the input has no chunks."""
        self._attempts = 0

    def leave(self) -> None:
        """Report the rewritten frames to the part, before it gets other input."""
        self.rewrite = None
        done = self._templates
        if done is not None and done.frames:
            self._part.record_fast_path(done.frames, done.bytes, done.last_bytes, done.rule_counts)
            if done.counts_characters:
                self.room -= done.characters
                self._part.record_fast_text(self._choice, done.characters)
            if done.counts is not None:
                self._part.record_fast_usage(Usage(*done.counts, {}))
            delivered = self._part.delivered
            if delivered is not None and done.texts is not None:
                delivered.pending.append(FastPathText(self._choice, done.texts, done.frames))
                if len(done.texts) > _PENDING_LIMIT_BYTES:
                    delivered.record_pending()
            elif delivered is not None:
                delivered.drop()
            done.reset_counts()

    def rules_before(self, data: bytes) -> Mapping[str, int] | None:
        """Return the violations so far, if something can be learnt from `data`."""
        if self._attempts == 0 or (self._templates is not None and self._templates.matches(data)):
            return None
        return self._part.repair_log.counts()

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
        if rules_before is not None and events and type(events[-1]) is Text:
            self._learn(data, sent, events, rules_before, writer)
        templates = self._templates
        if templates is not None and self._is_stateless(self._choice, writer):
            templates.room = self.room
            self.rewrite = templates.rewrite

    def _learn(
        self, data: bytes, sent: bytes, events: list[Event], before: Mapping[str, int], writer: DialectWriter
    ) -> None:
        """Learn from a chunk with one text and possibly unknown fields, which each such chunk repeats."""
        *fields, text = events
        if not (isinstance(text, Text) and self._is_stateless(text.index, writer)):
            return
        for event in fields:  # only fields that are sent with the next chunk leave no state
            if not isinstance(event, UnknownFields) or event.location is FieldLocation.DELTA or event.in_own_chunk:
                return
        after = self._part.repair_log.counts()
        new = {rule: count - before.get(rule, 0) for rule, count in after.items() if count > before.get(rule, 0)}
        if any(rule in new for rule in _RECORDED_ONCE):
            return
        if self._templates is None or not self._templates.is_worthwhile:
            self._attempts -= 1
        affixes = writer.split_text(text.index, sent)
        self._templates = learn_templates(data, affixes, new, self._framing, self._part.endpoint, allows_usage=True)
        if self._templates is not None and self._part.delivered is not None:
            self._templates.texts = bytearray()
        self._choice = text.index

    def _is_stateless(self, index: int, writer: DialectWriter) -> bool:
        """Whether plain text of this choice passes unchanged and changes no state."""
        return writer.accepts_text(index) and self._part.can_use_fast_path(index)


class ChunkTemplates:
    """Rewrite rules for chunks with a known prefix and suffix, and counts of the rewritten chunks."""

    def __init__(
        self, received: Affixes, sent: Affixes, rule_counts: Mapping[str, int], framing: TransferFraming
    ) -> None:
        self.frames: int = 0
        """Chunks rewritten since `reset_counts`."""
        self.bytes: int = 0
        self.last_bytes: int = 0
        """Size of the last chunk."""
        self.texts: bytearray | None = None
        """Texts of these chunks as the content of a JSON string, if they are stored."""
        self.counts: _Counts | None = None
        """Usage of the last chunk."""
        self.has_usage: bool = False
        """Whether each chunk ends with a usage of its own, which is not sent."""
        self.rule_counts = rule_counts
        """Violations by rule id of one such chunk."""
        self.counts_characters: bool = False
        """Whether `characters` is needed: completions have offsets of their text."""
        self.room: int = 0
        """See `FastPath.room`."""
        self._encoding_bytes = 0  # bytes of usage, and of the text beyond one for each character
        self._reported_frames = 0
        self._received_prefix, self._received_suffix = received
        self._sent_prefix, self._sent_suffix = sent
        self._framing = self._chunk_framing = framing
        self._templates: dict[int, _ChunkTemplate] = {}  # by length of the received data

    @property
    def is_worthwhile(self) -> bool:
        """Whether they rewrote enough chunks to be worth learning."""
        return self._reported_frames + self.frames >= _WORTHWHILE_CHUNKS

    @property
    def characters(self) -> int:
        """Characters of the text of the rewritten chunks, if they are counted."""
        around = len(self._received_prefix) + len(self._received_suffix)
        return self.bytes - self.frames * around - self._encoding_bytes

    def matches(self, data: bytes) -> bool:
        """Whether a frame has the known prefix and suffix."""
        data = _split_usage(data)[0] if self.has_usage else data
        return data.startswith(self._received_prefix) and data.endswith(self._received_suffix)

    def reset_counts(self) -> None:
        """Reset the counts after they were reported."""
        self._reported_frames += self.frames
        self.frames = self.bytes = self._encoding_bytes = 0
        if self.texts is not None:
            self.texts = bytearray()

    @property
    def rewrite(self) -> Callable[[bytes], bytes | None]:
        """Return the function that returns the bytes to send for a frame, or None if it needs the slow path."""
        return self._rewrite_with_usage if self.has_usage else self._rewrite

    def expect_usage(self, counts: _Counts | None) -> None:
        """Expect a usage at the end of each chunk; `counts` are those of the last one."""
        self.counts, self.has_usage = counts, True
        self._chunk_framing, self._framing = (
            self._framing,
            self._framing._replace(received_affixes=NO_FRAMING.received_affixes),
        )

    def _rewrite_with_usage(self, data: bytes) -> bytes | None:
        framing = self._chunk_framing.received_affixes(data)
        if framing is None:
            return None
        frame = data[len(framing[0]) : len(data) - len(framing[1])]
        chunk, counts = _split_usage(frame)
        sent = None if counts is None else self._rewrite(chunk)
        if sent is not None:
            self.counts = counts
            rest = len(frame) - len(chunk)
            self.bytes += rest
            self.last_bytes += rest
            self._encoding_bytes += rest
        return sent

    def _rewrite(self, data: bytes) -> bytes | None:
        template = self._templates.get(len(data)) or self._make_template(data)
        if template is None:
            return None
        before, suffix, start, stop, sent_before, sent_suffix, size = template
        prefix = self._received_prefix
        if not (data.startswith(before) and data.startswith(prefix, len(before)) and data.endswith(suffix)):
            return None
        text = data[start:stop]
        if text.translate(None, LITERAL_BYTES):
            if not is_verbatim_text(text):
                return None
            if self.counts_characters:
                self._encoding_bytes += len(text) - len(decode_text(text))
        texts = self.texts
        if texts is not None:
            texts += text
            if len(texts) > DELIVERED_LIMIT_BYTES:
                self.texts = None
        self.frames += 1
        self.bytes += size
        self.last_bytes = size
        return b"".join((sent_before, self._sent_prefix, text, sent_suffix))

    def _make_template(self, data: bytes) -> _ChunkTemplate | None:
        framing = self._framing.received_affixes(data)
        if framing is None:
            return None
        start, suffix = len(framing[0]) + len(self._received_prefix), self._received_suffix + framing[1]
        length = len(data) - start - len(suffix)
        if length <= 0:
            return None
        before, after = self._framing.sent_affixes(len(self._sent_prefix) + length + len(self._sent_suffix))
        size = len(data) - len(framing[0]) - len(framing[1])
        template = framing[0], suffix, start, -len(suffix), before, self._sent_suffix + after, size
        if length <= _CACHED_TEXT_LENGTH:
            self._templates[len(data)] = template
        return template


class _EncodedTemplates(ChunkTemplates):
    """The same for a dialect whose chunks are encoded one by one, and whose texts are buffered."""

    def __init__(
        self, received: Affixes, encode: TextEncoder, rule_counts: Mapping[str, int], framing: TransferFraming
    ) -> None:
        received_framing = framing._replace(sent_affixes=NO_FRAMING.sent_affixes)
        super().__init__(received, (b"", b""), rule_counts, received_framing)
        self.counts_characters = True
        self._encode = encode
        self._sent_framing = framing.sent_affixes

    def _rewrite(self, data: bytes) -> bytes | None:
        text = None if self.bytes + len(data) > self.room else super()._rewrite(data)
        if text is None:
            return None
        frame = self._encode(text)
        before, after = self._sent_framing(len(frame))
        return b"".join((before, frame, after))


def learn_templates(
    received: bytes,
    sent: Affixes | TextEncoder | None,
    rule_counts: Mapping[str, int],
    framing: TransferFraming = NO_FRAMING,
    endpoint: Endpoint = Endpoint.CHAT,
    *,
    allows_usage: bool = False,
) -> ChunkTemplates | None:
    """Learn from a received frame with one text, if possible. `sent`: see `DialectWriter.split_text`.

    With `allows_usage`, frames may differ in the usage at their end, which is not sent on.
    """
    affixes = split_around_text(received, endpoint)
    if affixes is None or sent is None:
        return None
    before, after = affixes
    rest, counts = _split_usage(after)
    if _USAGE_OBJECT.search(rest) or _USAGE_OBJECT.search(before):
        return None
    sends_usage = not callable(sent) and any(map(_USAGE_OBJECT.search, sent))
    has_usage = counts is not None and allows_usage and not sends_usage
    received_affixes = before, rest if has_usage else after
    if callable(sent):
        templates: ChunkTemplates = _EncodedTemplates(received_affixes, sent, rule_counts, framing)
    else:
        templates = ChunkTemplates(received_affixes, sent, rule_counts, framing)
        templates.counts_characters = endpoint is Endpoint.COMPLETIONS
    if has_usage:
        templates.expect_usage(counts)
    return templates


def _split_usage(data: bytes) -> tuple[bytes, _Counts | None]:
    """Split a chunk after the key of the usage at its end; all of it and None if it ends with anything else."""
    end = data.rfind(_USAGE_KEY) + len(_USAGE_KEY)
    found = _COUNTS.fullmatch(data, end)
    if found is None:
        return data, None
    prompt, completion, total = found.groups()
    counts = int(prompt), int(completion), int(total)
    return (data[:end], counts) if counts[0] + counts[1] == counts[2] else (data, None)
