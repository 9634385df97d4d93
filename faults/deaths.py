"""Ways for an upstream to die in the middle of a reply, at any byte."""

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from msgspec.structs import replace

from welldone.mock.script import MockChunk, MockReply, ReplyEnd, cut_at, with_raw_http

Death: TypeAlias = Callable[[MockReply, Random], MockReply]
GARBAGE = MockChunk(base64=b'\xff\x00{]"\n\n')
"""Garbage with a quote, which ends a JSON string; without it the garbage would be valid text."""


def _closed(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(right, draw, "cut")


def _reset(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(right, draw, "reset")


def _too_short(right: MockReply, draw: Random) -> MockReply:
    return _broken_off(replace(right, framing="length"), draw, "cut")


def _unframed(right: MockReply, draw: Random) -> MockReply:
    """The body ends with the connection, so HTTP cannot detect the truncation."""
    return cut_at(replace(right, framing="close"), _byte(right, draw), "whole")


def _ended(right: MockReply, draw: Random) -> MockReply:
    """The HTTP framing is complete."""
    return cut_at(right, _byte(right, draw), "whole")


def _without_end(right: MockReply, draw: Random) -> MockReply:
    """The same, but the last event is complete."""
    return replace(right, pieces=right.pieces[: draw.randrange(len(right.pieces))])


def _garbled(right: MockReply, draw: Random) -> MockReply:
    return _with_garbage(right, _byte(right, draw))


def _misframed(right: MockReply, draw: Random) -> MockReply:
    """The same bytes with Content-Length."""
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
    """Draw a position in the body."""
    head = len(right.pieces[0].data) if right.raw else 0
    return draw.randrange(head, len(right.body))


def _broken_off(right: MockReply, draw: Random, end: ReplyEnd) -> MockReply:
    raw = with_raw_http(right)
    return cut_at(raw, _byte(raw, draw), end)


def _with_garbage(right: MockReply, byte: int) -> MockReply:
    rest = MockChunk(base64=right.body[byte:])
    return replace(right, pieces=(*cut_at(right, byte).pieces, GARBAGE, rest))
