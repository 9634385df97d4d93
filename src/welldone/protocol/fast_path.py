"""A short way for the common case: chunks in the middle of an answer that differ in their text alone.

Such a chunk is known by its first and its last bytes, without being parsed: what stands between them is its text, which
goes out as it came, in a chunk like the one that went out the long way before. All that is not surely so takes the long
way, through reader and repair.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from welldone.protocol import sse
from welldone.protocol.lenient_json import parse_strict

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
# The inside of a JSON string that means the same in any chunk: no half of a character, and no line break as such.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\nt])+')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]|\\\\["\\\\nt])+')
_LITERAL_BYTES = bytes(
    byte for byte in range(0x20, 0x7F) if byte not in b'"\\'
)  # what stands for itself in a JSON string
_CACHED_TEXT_LENGTH = 32  # letters: a token has fewer; longer texts are rare, and each length that is kept costs memory
_WORTHWHILE_CHUNKS = 8
"""Chunks that a lane must take, to be worth its lesson: that costs as much as two."""
_TEMPLATE_LIMIT_BYTES = 4096
"""Bytes of a chunk that a lane is learnt of, since each text in it is tried: a chunk of one token has some hundred."""
_PLACEHOLDER = "\x1atext\x1a"
_PLACEHOLDER_BYTES = b"\\u001atext\\u001a"


Affixes: TypeAlias = tuple[bytes, bytes]
"""What stands before something, and after it."""


class TransferFraming(NamedTuple):
    """What stands around frames on their way to us, and from us: they may travel in chunks of a protocol below."""

    received_affixes: Callable[[bytes], Affixes | None]
    """Around the frame in what came; None where there is not just one frame."""
    sent_affixes: Callable[[int], Affixes]
    """Around a frame of so many bytes that goes out."""


NO_FRAMING = TransferFraming(lambda data: (b"", b""), lambda size: (b"", b""))


class _ChunkTemplate(NamedTuple):
    """All that is to know of what came with one length."""

    received_prefix: bytes
    received_suffix: bytes
    start: int
    stop: int
    sent_prefix: bytes
    sent_suffix: bytes
    frame_bytes: int


class FastPath:
    """Where a chunk's text stands in what the server sends, and where it goes in what we send."""

    def __init__(
        self, received: Affixes, sent: Affixes, rule_counts: Mapping[str, int], framing: TransferFraming
    ) -> None:
        self.rule_counts = rule_counts
        """How often each rule is broken by such a chunk."""
        self.frames = 0
        """How many went this way since they were last asked for."""
        self.bytes = 0
        self.last_bytes = 0
        """Of the last of them."""
        self._reported_frames = 0
        self._received_prefix, self._received_suffix = received
        self._sent_prefix, self._sent_suffix = sent
        self._framing = framing
        self._templates: dict[int, _ChunkTemplate] = {}  # by the length of what came

    @property
    def is_worthwhile(self) -> bool:
        """Whether it took more than learning it cost."""
        return self._reported_frames + self.frames >= _WORTHWHILE_CHUNKS

    def matches(self, data: bytes) -> bool:
        """Whether a frame is one of these, whatever its text."""
        return data.startswith(self._received_prefix) and data.endswith(self._received_suffix)

    def reset_counts(self) -> None:
        """What went this way has been told."""
        self._reported_frames += self.frames
        self.frames = self.bytes = 0

    def rewrite(self, data: bytes) -> bytes | None:
        """The bytes to send; None where this is not surely a chunk that goes this way."""
        place = self._templates.get(len(data)) or self._make_template(data)
        if place is None:
            return None
        first, last, start, stop, before, after, size = place
        if not (data.startswith(first) and data.endswith(last)):
            return None
        text = data[start:stop]
        if text.translate(None, _LITERAL_BYTES) and not _is_verbatim_text(text):
            return None
        self.frames += 1
        self.bytes += size
        self.last_bytes = size
        return before + text + after

    def _make_template(self, data: bytes) -> _ChunkTemplate | None:
        around = self._framing.received_affixes(data)
        if around is None:
            return None
        first, last = around[0] + self._received_prefix, self._received_suffix + around[1]
        length = len(data) - len(first) - len(last)
        if length <= 0:
            return None
        before, after = self._framing.sent_affixes(len(self._sent_prefix) + length + len(self._sent_suffix))
        size = len(data) - len(around[0]) - len(around[1])
        place = _ChunkTemplate(
            first, last, len(first), -len(last), before + self._sent_prefix, self._sent_suffix + after, size
        )
        if length <= _CACHED_TEXT_LENGTH:
            self._templates[len(data)] = place
        return place


def learn_fast_path(
    received: bytes, sent: bytes, rule_counts: Mapping[str, int], framing: TransferFraming = NO_FRAMING
) -> FastPath | None:
    """The lane of a frame that said one text, and of the frame that went out for it."""
    came, goes = _split_around_text(received), _split_around_text(sent)
    return None if came is None or goes is None else FastPath(came, goes, rule_counts, framing)


def _split_around_text(frame: bytes) -> Affixes | None:
    """What stands before and after the text of a chunk, if nothing is odd about the text itself."""
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
    """The text of a chunk with one choice, if it has one."""
    match parse_strict(chunk):
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _is_verbatim_text(text: bytes) -> bool:
    """Whether the text means the same in any chunk, though it has escapes or is not ASCII."""
    if text.isascii():
        return _PLAIN.fullmatch(text) is not None
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False
