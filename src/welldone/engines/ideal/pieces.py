"""Events as the pieces of a reply: each event of a stream in one piece, after the pause that a token takes."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from welldone.engines.scripts import Piece
from welldone.wire.dialects.dialect import KEEP_ALIVE, Writer
from welldone.wire.events import Event, Reasoning, Text, ToolArguments, ToolCall

TOKENS = (Text, Reasoning, ToolCall, ToolArguments)
_SILENCE_S = 10.0
"""The longest silence in a stream: load balancers close a connection after 60 s of it, and some after 15 s."""


def side_by_side(choices: list[list[Event]]) -> Iterator[list[Event]]:
    """The events of all choices in rows, as a server sends them that computes them together."""
    for row in zip_longest(*choices):
        yield [event for event in row if event is not None]


def streamed(rows: Iterable[list[Event]], writer: Writer, gap_s: float) -> Iterator[Piece]:
    """A stream up to its end. A row with tokens comes after a pause."""
    for row in rows:
        wait_s = gap_s if has_token(row) else 0.0
        for event in row:
            data = writer.send(event)
            if data:
                yield from _after(wait_s, data)
                wait_s = 0.0
    yield Piece(base64=writer.end())


def has_token(row: list[Event]) -> bool:
    """Whether computing it takes time."""
    return any(isinstance(event, TOKENS) for event in row)


def _after(wait_s: float, data: bytes) -> Iterator[Piece]:
    while wait_s > _SILENCE_S:
        wait_s -= _SILENCE_S
        yield Piece(base64=KEEP_ALIVE, after_s=_SILENCE_S)
    yield Piece(base64=data, after_s=wait_s)
