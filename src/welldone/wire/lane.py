"""A short way for the common case: chunks in the middle of an answer that are right, and differ in their text alone.

Such a chunk is known by its first and its last bytes, without being parsed: what stands between them is its text, which
goes out as it came, in a chunk of ours. All that is not surely so takes the long way, through reader and repair.
"""

import re

from welldone.wire import sse
from welldone.wire.lenient import strict

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
# The inside of a JSON string that means the same in any chunk: no half of a character, and no line break as such.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\nt])+')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]|\\\\["\\\\nt])+')
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"


class Lane:
    """Where a chunk's text stands in what the server sends, and where it goes in what we send."""

    def __init__(self, first: bytes, last: bytes, before: bytes, after: bytes) -> None:
        self.frames = 0
        """How many went this way since they were last asked for."""
        self.bytes = 0
        self._first = first
        self._last = last
        self._least = len(first) + len(last)
        self._start = len(first)
        self._stop = -len(last)
        self._before = before
        self._after = after

    def take(self, data: bytes) -> bytes | None:
        """The chunk to send; None where this is not surely one that goes this way."""
        size = len(data)
        if size <= self._least or not (data.startswith(self._first) and data.endswith(self._last)):
            return None
        text = data[self._start : self._stop]
        if _PLAIN.fullmatch(text) is None and not _is_plain_beyond_ascii(text):
            return None
        self.frames += 1
        self.bytes += size
        return self._before + text + self._after


def learn(data: bytes, before: bytes, after: bytes) -> Lane | None:
    """The lane of a frame that said one text; `before` and `after` are the chunk of ours without its quoted text."""
    whole = strict(data[len(sse.DATA) : -len(sse.END)])
    for found in _CONTENT.finditer(data):
        first, last = data[: found.start(1)], data[found.end(1) :]
        marked = strict((first + _MARK_BYTES + last)[len(sse.DATA) : -len(sse.END)])
        if _text(marked) == _MARK and _with_text(marked, _text(whole)) == whole:
            return Lane(first, last, before + b'"', b'"' + after)
    return None


def _is_plain_beyond_ascii(text: bytes) -> bool:
    if text.isascii():
        return False
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False


def _text(chunk: object) -> object:
    """The text of a chunk with one choice; None where there is none."""
    match chunk:
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _with_text(chunk: object, text: object) -> object:
    match chunk:
        case {"choices": [{"delta": {"content": _} as delta}]}:
            delta["content"] = text
        case _:
            pass
    return chunk
