"""Fast path of pass-through repair: text deltas that differ only in their text and sequence number.

Such an event is recognised by its bytes, without parsing. Its template is learnt from an event that was parsed, found
right, and sent as plain text of the part that is open.
"""

import re

from welldone.protocol.lenient_json import LITERAL_BYTES, decode_text, is_verbatim_text, parse_strict

_TEXT = re.compile(rb'"(?:text|thinking|delta)": ?"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(rb'(?<="sequence_number":)( ?)([0-9]+)')
_LIMIT_BYTES = 4096  # longest event from which a template is learnt, since each text in it is tried
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"


class TextDeltaTemplate:
    """Bytes of a text delta before and after its text, each split where the sequence number stands."""

    def __init__(self, before: list[bytes], after: list[bytes]) -> None:
        self._before = before
        self._after = after

    def read(self, event: bytes, number: int) -> str | None:
        """Return the text of an event with this sequence number; None if the event has to be parsed."""
        digits = b"%d" % number
        before, after = digits.join(self._before), digits.join(self._after)
        text = event[len(before) : len(event) - len(after)]
        if not text or not event.startswith(before) or not event.endswith(after):
            return None
        if not text.translate(None, LITERAL_BYTES):
            return text.decode()
        return decode_text(text) if is_verbatim_text(text) else None


def learn_text_delta(event: bytes, number: int | None) -> TextDeltaTemplate | None:
    """Make a template from a text delta, whose dialect may have sequence numbers; None if it has another form."""
    if len(event) > _LIMIT_BYTES:
        return None
    for found in _TEXT.finditer(event):
        sides = event[: found.start(1)], event[found.end(1) :]
        if is_verbatim_text(found[1]) and _has_text_at(_MARK_BYTES.join(sides), number):
            return TextDeltaTemplate(*([side] if number is None else _split_at_number(side) for side in sides))
    return None


def _has_text_at(event: bytes, number: int | None) -> bool:
    """Whether the mark is the text of this event, and its only sequence number is that of the event."""
    data = event.partition(b"data:")[2]
    match parse_strict(data):
        case {"delta": str(text), "sequence_number": int(own)}:
            return text == _MARK and own == number and len(_NUMBER.findall(data)) == 1
        case {"delta": {"type": "text_delta", "text": text} | {"type": "thinking_delta", "thinking": text}}:
            return text == _MARK and number is None
        case _:
            return False


def _split_at_number(side: bytes) -> list[bytes]:
    found = _NUMBER.search(side)
    return [side] if found is None else [side[: found.start(2)], side[found.end(2) :]]
