"""Fast path for chunks in the middle of an answer that differ only in their text.

Such a chunk is recognised by its prefix and suffix, without parsing. The bytes between them are the text, which is
copied unchanged into the template of a chunk that the slow path sent before. Every other chunk takes the slow path
through reader and repair.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from welldone.protocol import sse
from welldone.protocol.lenient_json import parse_strict

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
# Content of a JSON string that can be copied: complete characters, and no line separators.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\nt])+')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]|\\\\["\\\\nt])+')
# Bytes that need no escape in a JSON string.
_LITERAL_BYTES = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_CACHED_TEXT_LENGTH = 32  # bytes: tokens are shorter, and each cached length costs memory
_WORTHWHILE_CHUNKS = 8
"""Chunks that a fast path must handle to be worth learning, which costs as much as two chunks."""
_TEMPLATE_LIMIT_BYTES = 4096
"""Longest chunk from which a fast path is learnt, since each `content` in it is tried. Real ones have 300 bytes."""
_PLACEHOLDER = "\x1atext\x1a"
_PLACEHOLDER_BYTES = b"\\u001atext\\u001a"


Affixes: TypeAlias = tuple[bytes, bytes]
"""Prefix and suffix."""


class TransferFraming(NamedTuple):
    """Bytes around a frame in the transport below, such as HTTP/1.1 chunks, when received and when sent."""

    received_affixes: Callable[[bytes], Affixes | None]
    """Prefix and suffix of the frame in received bytes; None if they are not exactly one frame."""
    sent_affixes: Callable[[int], Affixes]
    """Prefix and suffix of a sent frame of the given size."""


NO_FRAMING = TransferFraming(lambda data: (b"", b""), lambda size: (b"", b""))


class _ChunkTemplate(NamedTuple):
    """Rewrite rule for received data of one length."""

    received_prefix: bytes
    received_suffix: bytes
    start: int
    stop: int
    sent_prefix: bytes
    sent_suffix: bytes
    frame_bytes: int


class FastPath:
    """Rewrites chunks with a known prefix and suffix."""

    def __init__(
        self, received: Affixes, sent: Affixes, rule_counts: Mapping[str, int], framing: TransferFraming
    ) -> None:
        self.rule_counts = rule_counts
        """Violations by rule id of one such chunk."""
        self.frames = 0
        """Chunks handled since `reset_counts`."""
        self.bytes = 0
        self.last_bytes = 0
        """Size of the last chunk."""
        self._reported_frames = 0
        self._received_prefix, self._received_suffix = received
        self._sent_prefix, self._sent_suffix = sent
        self._framing = framing
        self._templates: dict[int, _ChunkTemplate] = {}  # by length of the received data

    @property
    def is_worthwhile(self) -> bool:
        """Whether it handled enough chunks to be worth learning."""
        return self._reported_frames + self.frames >= _WORTHWHILE_CHUNKS

    def matches(self, data: bytes) -> bool:
        """Whether a frame has the known prefix and suffix."""
        return data.startswith(self._received_prefix) and data.endswith(self._received_suffix)

    def reset_counts(self) -> None:
        """Reset the counts after they were reported."""
        self._reported_frames += self.frames
        self.frames = self.bytes = 0

    def rewrite(self, data: bytes) -> bytes | None:
        """Return the bytes to send; None if `data` needs the slow path."""
        template = self._templates.get(len(data)) or self._make_template(data)
        if template is None:
            return None
        prefix, suffix, start, stop, sent_prefix, sent_suffix, size = template
        if not (data.startswith(prefix) and data.endswith(suffix)):
            return None
        text = data[start:stop]
        if text.translate(None, _LITERAL_BYTES) and not _is_verbatim_text(text):
            return None
        self.frames += 1
        self.bytes += size
        self.last_bytes = size
        return sent_prefix + text + sent_suffix

    def _make_template(self, data: bytes) -> _ChunkTemplate | None:
        framing = self._framing.received_affixes(data)
        if framing is None:
            return None
        prefix, suffix = framing[0] + self._received_prefix, self._received_suffix + framing[1]
        length = len(data) - len(prefix) - len(suffix)
        if length <= 0:
            return None
        before, after = self._framing.sent_affixes(len(self._sent_prefix) + length + len(self._sent_suffix))
        size = len(data) - len(framing[0]) - len(framing[1])
        template = _ChunkTemplate(
            prefix, suffix, len(prefix), -len(suffix), before + self._sent_prefix, self._sent_suffix + after, size
        )
        if length <= _CACHED_TEXT_LENGTH:
            self._templates[len(data)] = template
        return template


def learn_fast_path(
    received: bytes, sent: bytes, rule_counts: Mapping[str, int], framing: TransferFraming = NO_FRAMING
) -> FastPath | None:
    """Learn a fast path from a received frame with one text and the frame that was sent for it, if possible."""
    received_affixes, sent_affixes = _split_around_text(received), _split_around_text(sent)
    if received_affixes is None or sent_affixes is None:
        return None
    return FastPath(received_affixes, sent_affixes, rule_counts, framing)


def _split_around_text(frame: bytes) -> Affixes | None:
    """Prefix and suffix of the text of a chunk; None if the text cannot be copied."""
    if len(frame) > _TEMPLATE_LIMIT_BYTES or not sse.is_single_frame(frame):
        return None
    for found in _CONTENT.finditer(frame):
        before, after = frame[: found.start(1)], frame[found.end(1) :]
        if (
            _is_verbatim_text(found[1])
            and _single_choice_text((before + _PLACEHOLDER_BYTES + after)[len(sse.DATA_PREFIX) : -len(sse.FRAME_END)])
            == _PLACEHOLDER
        ):
            return before, after
    return None


def _single_choice_text(chunk: bytes) -> object:
    """The text of a chunk with one choice, if any."""
    match parse_strict(chunk):
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _is_verbatim_text(text: bytes) -> bool:
    """Whether a text with escapes or non-ASCII characters can be copied unchanged."""
    if text.isascii():
        return _PLAIN.fullmatch(text) is not None
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False
