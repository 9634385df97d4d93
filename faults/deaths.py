"""What becomes of a right answer when its server dies while it says it: any of these, at any byte."""

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from msgspec.structs import replace

from welldone.mock.script import MockChunk, MockReply, ReplyEnd, cut_at, with_raw_http

Death: TypeAlias = Callable[[MockReply, Random], MockReply]
GARBAGE = MockChunk(base64=b'\xff\x00{]"\n\n')
"""With a quote, which ends a text that it falls into. Without it the text would say the garbage, and be right."""


def _closed(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(right, draw, "cut")


def _reset(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(right, draw, "reset")


def _too_short(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(replace(right, framing="length"), draw, "cut")


def _unframed(right: MockReply, draw: Random) -> MockReply:
    """HTTP cannot tell that something is missing: whenever the connection is closed, that is the end."""
    return cut_at(replace(right, framing="close"), _byte(right, draw), "whole")


def _ended(right: MockReply, draw: Random) -> MockReply:
    """HTTP says that nothing is missing."""
    return cut_at(right, _byte(right, draw), "whole")


def _without_end(right: MockReply, draw: Random) -> MockReply:
    """The same, but the last event that comes is whole."""
    return replace(right, pieces=right.pieces[: draw.randrange(len(right.pieces))])


def _garbled(right: MockReply, draw: Random) -> MockReply:
    return _with_garbage(right, _byte(right, draw))


def _misframed(right: MockReply, draw: Random) -> MockReply:
    """The same bytes where HTTP counts them."""
    raw = with_raw_http(right)
    return _with_garbage(raw, _byte(raw, draw))


DEATHS: Mapping[str, Death] = {
    "closed": _closed,
    "reset": _reset,
    "shorter than its length": _too_short,
    "closed, where that is the end": _unframed,
    "ended by HTTP within an event": _ended,
    "ended by HTTP after an event": _without_end,
    "garbage in it": _garbled,
    "garbage in its HTTP": _misframed,
}


def _byte(right: MockReply, draw: Random) -> int:
    """A byte of the body."""
    head = len(right.pieces[0].data) if right.raw else 0
    return draw.randrange(head, len(right.body))


def _broken_off(right: MockReply, draw: Random, end: ReplyEnd) -> MockReply:
    raw = with_raw_http(right)
    return cut_at(raw, _byte(raw, draw), end)


def _with_garbage(right: MockReply, byte: int) -> MockReply:
    rest = MockChunk(base64=right.body[byte:])
    return replace(right, pieces=(*cut_at(right, byte).pieces, GARBAGE, rest))
