"""Templates: frames of a stream with typed holes. A later frame of the same form is read without being parsed.

A template is learnt from a frame that was parsed and repaired. Its values (text, sequence number, id, time, counts) are
left out: each leaves a hole that accepts one type of value. A later frame is recognised if all bytes outside of the
holes are the same, and is checked by the types of its values. It is rewritten by filling the values into the bytes that
were sent for the first frame. Any other frame takes the slow path, through reader, repair and writer.

There are three forms. `ChunkTemplate` rewrites chunks that differ in their text, for `FastPath`: this is the hot
path. `EventTemplate` reads text deltas, which may have sequence numbers, for pass-through repair. `StreamTemplate`
(`stream_template.py`) has any holes, for a `TemplatedStream`. A text is copied only if it has the same meaning in any
frame (`is_verbatim_text`).
"""

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.core.answer_format import Affixes, TextEncoder
from welldone.core.continuation import DELIVERED_LIMIT_BYTES
from welldone.core.lenient_json import LITERAL_BYTES, decode_text, is_verbatim_text, parse_strict

# Where the text of a frame stands.

_TEXT_FIELD = re.compile(rb'"(?:content|delta|text|thinking|reasoning(?:_content)?)": ?"((?:[^"\\]|\\.)*)"')
_LIMIT_BYTES = 4096
"""Longest frame from which a template is learnt, since each text in it is tried. Real chunks have 300 bytes."""
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"
TextFinder: TypeAlias = Callable[[object], object]
"""Returns the text of a decoded frame of a dialect; None if it is no piece of text."""


def split_around_text(frame: bytes, text_of: TextFinder) -> Affixes | None:
    """Return the bytes before and after the text of a frame; None if it has no text to be copied."""
    if len(frame) > _LIMIT_BYTES:
        return None
    for match in _TEXT_FIELD.finditer(frame):
        before, after = frame[: match.start(1)], frame[match.end(1) :]
        if is_verbatim_text(match[1]):
            marked = parse_strict((before + _MARK_BYTES + after).partition(b"data:")[2])
            if text_of(marked) == _MARK:
                return before, after
    return None


# Chunks that differ in their text.

_CACHED_TEXT_LENGTH = 32  # bytes: tokens are shorter, and each cached length costs memory
WORTHWHILE_CHUNKS = 8
"""Chunks that templates must rewrite to be worth learning, which costs as much as two chunks."""
_USAGE_KEY = b'"usage":'
# Right counts at the end of a chunk. Usage of zeros is a placeholder, which changes state.
_COUNTS = re.compile(
    rb' ?\{"prompt_tokens": ?([1-9][0-9]{0,14}), ?"completion_tokens": ?(0|[1-9][0-9]{0,14}), ?'
    rb'"total_tokens": ?([1-9][0-9]{0,14})\}\}\n\n'
)
_USAGE_OBJECT = re.compile(rb'"usage": ?\{')

_Counts: TypeAlias = tuple[int, int, int]
"""Prompt, completion and total tokens."""


class TransferFraming(NamedTuple):
    """Bytes around a frame in the transport below, such as HTTP/1.1 chunks, when received and when sent."""

    received_affixes: Callable[[bytes], Affixes | None]
    """Prefix and suffix of the frame in received bytes; None if they are not exactly one frame."""
    sent_affixes: Callable[[int], Affixes]
    """Prefix and suffix of a sent frame of the given size."""


NO_FRAMING = TransferFraming(lambda data: (b"", b""), lambda size: (b"", b""))

_SizedTemplate: TypeAlias = tuple[bytes, bytes, int, int, bytes, bytes, int]
"""Template for received data of one length: the framing before it, its suffix with framing, start and stop of its
text, the framing and the suffix of the data to send, and the size of the frame. The prefixes, which are long, are the
same for all lengths."""


class ChunkTemplate:
    """Rewrites chunks with one prefix and suffix, and counts them.

    With `counts`, each chunk ends with a usage of its own, which is not sent; `counts` are those of the last one.
    """

    def __init__(
        self, received: Affixes, sent: Affixes, framing: TransferFraming = NO_FRAMING, counts: _Counts | None = None
    ) -> None:
        self.frames: int = 0
        """Chunks rewritten since `reset_counts`."""
        self.bytes: int = 0
        self.last_bytes: int = 0
        """Size of the last chunk."""
        self.texts: bytearray | None = None
        """Texts of these chunks as the content of a JSON string, if they are stored."""
        self.counts = counts
        self.counts_characters: bool = False
        """Whether `characters` is needed: completions have offsets of their text."""
        self.room: int = 0
        """See `FastPath.room`."""
        self._encoding_bytes = 0  # bytes of usage, and of the text beyond one for each character
        self._received_prefix, self._received_suffix = received
        self._sent_prefix, self._sent_suffix = sent
        self._usage_framing = framing
        if counts is not None:  # the framing of received data is removed with the usage
            framing = framing._replace(received_affixes=NO_FRAMING.received_affixes)
        self._framing = framing
        self._sized: dict[int, _SizedTemplate] = {}  # by length of the received data

    @property
    def characters(self) -> int:
        """Characters of the text of the rewritten chunks, if they are counted."""
        around = len(self._received_prefix) + len(self._received_suffix)
        return self.bytes - self.frames * around - self._encoding_bytes

    def matches(self, data: bytes) -> bool:
        """Whether a frame has the known prefix and suffix."""
        data = data if self.counts is None else _split_usage(data)[0]
        return data.startswith(self._received_prefix) and data.endswith(self._received_suffix)

    def reset_counts(self) -> None:
        """Reset the counts after they were reported."""
        self.frames = self.bytes = self._encoding_bytes = 0
        if self.texts is not None:
            self.texts = bytearray()

    @property
    def rewrite(self) -> Callable[[bytes], bytes | None]:
        """Return the function that returns the bytes to send for a frame, or None if it needs the slow path."""
        return self._rewrite if self.counts is None else self._rewrite_with_usage

    def _rewrite_with_usage(self, data: bytes) -> bytes | None:
        framing = self._usage_framing.received_affixes(data)
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
        sized = self._sized.get(len(data)) or self._make_sized(data)
        if sized is None:
            return None
        before, suffix, start, stop, sent_before, sent_suffix, size = sized
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

    def _make_sized(self, data: bytes) -> _SizedTemplate | None:
        framing = self._framing.received_affixes(data)
        if framing is None:
            return None
        start, suffix = len(framing[0]) + len(self._received_prefix), self._received_suffix + framing[1]
        length = len(data) - start - len(suffix)
        if length <= 0:
            return None
        before, after = self._framing.sent_affixes(len(self._sent_prefix) + length + len(self._sent_suffix))
        size = len(data) - len(framing[0]) - len(framing[1])
        sized = framing[0], suffix, start, -len(suffix), before, self._sent_suffix + after, size
        if length <= _CACHED_TEXT_LENGTH:
            self._sized[len(data)] = sized
        return sized


class _EncodedTemplate(ChunkTemplate):
    """The same for a dialect whose chunks are encoded one by one, and whose texts are buffered."""

    def __init__(
        self, received: Affixes, encode: TextEncoder, framing: TransferFraming, counts: _Counts | None
    ) -> None:
        super().__init__(received, (b"", b""), framing._replace(sent_affixes=NO_FRAMING.sent_affixes), counts)
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


def learn_chunk(
    received: Affixes | None,
    sent: Affixes | TextEncoder | None,
    framing: TransferFraming = NO_FRAMING,
    *,
    counts_characters: bool = False,
    allows_usage: bool = False,
) -> ChunkTemplate | None:
    """Learn from the bytes around the text of a received frame, if possible. `sent`: see `DialectWriter.split_text`.

    With `allows_usage`, frames may differ in the usage at their end, which is not sent on.
    """
    if received is None or sent is None:
        return None
    before, after = received
    rest, counts = _split_usage(after)
    if _USAGE_OBJECT.search(rest) or _USAGE_OBJECT.search(before):
        return None
    if counts is not None and not (allows_usage and (callable(sent) or not any(map(_USAGE_OBJECT.search, sent)))):
        return None  # a usage that is sent on differs from chunk to chunk
    if callable(sent):
        return _EncodedTemplate((before, rest), sent, framing, counts)
    template = ChunkTemplate((before, rest), sent, framing, counts)
    template.counts_characters = counts_characters
    return template


def _split_usage(data: bytes) -> tuple[bytes, _Counts | None]:
    """Split a chunk after the key of the usage at its end; all of it and None if it ends with anything else."""
    end = data.rfind(_USAGE_KEY) + len(_USAGE_KEY)
    match = _COUNTS.fullmatch(data, end)
    if match is None:
        return data, None
    prompt, completion, total = map(int, match.groups())
    return (data[:end], (prompt, completion, total)) if prompt + completion == total else (data, None)


# Text deltas that may differ in their sequence number.

_SEQUENCE_NUMBER = re.compile(rb'(?:(?<="sequence_number":)|(?<="sequence_number": ))[0-9]+')


class EventTemplate(msgspec.Struct, frozen=True):
    """Bytes of a text delta before and after its text, each split where the sequence number stands."""

    before: list[bytes]
    after: list[bytes]

    def read(self, event: bytes, number: int) -> str | None:
        """Return the text of an event with this sequence number; None if the event has to be parsed."""
        digits = b"%d" % number
        before, after = digits.join(self.before), digits.join(self.after)
        text = event[len(before) : len(event) - len(after)]
        if not text or not event.startswith(before) or not event.endswith(after):
            return None
        if not text.translate(None, LITERAL_BYTES):
            return text.decode()
        return decode_text(text) if is_verbatim_text(text) else None


def learn_event(received: Affixes | None, number: int | None) -> EventTemplate | None:
    """Make a template from the bytes around the text of a delta, which has this sequence number; None if it has not.

    Without a number it is of a dialect that has none.
    """
    if received is None:
        return None
    if number is None:
        return EventTemplate([received[0]], [received[1]])
    numbers = [digits for side in received for digits in _SEQUENCE_NUMBER.findall(side)]
    is_numbered = numbers == [b"%d" % number]
    return EventTemplate(*map(_SEQUENCE_NUMBER.split, received)) if is_numbered else None
