"""Events as the pieces of a reply: each event of a stream in one piece, after the pause that a token takes."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from welldone.engines.scripts import MockChunk
from welldone.wire.dialects.dialect import KEEP_ALIVE, DialectWriter
from welldone.wire.events import Event, Reasoning, Text, ToolArguments, ToolCall

TOKEN_EVENTS = (Text, Reasoning, ToolCall, ToolArguments)
_KEEP_ALIVE_S = 10.0
"""The longest silence in a stream: load balancers close a connection after 60 s of it, and some after 15 s."""


def interleave_choices(choices: list[list[Event]]) -> Iterator[list[Event]]:
    """The events of all choices in rows, as a server sends them that computes them together."""
    for row in zip_longest(*choices):
        yield [event for event in row if event is not None]


def stream_chunks(rows: Iterable[list[Event]], writer: DialectWriter, token_delay_s: float) -> Iterator[MockChunk]:
    """A stream up to its end. A row with tokens comes after a pause."""
    for row in rows:
        wait_s = token_delay_s if has_token(row) else 0.0
        for event in row:
            data = writer.send(event)
            if data:
                yield from _delayed_chunks(wait_s, data)
                wait_s = 0.0
    yield MockChunk(base64=writer.end())


def has_token(row: list[Event]) -> bool:
    """Whether computing it takes time."""
    return any(isinstance(event, TOKEN_EVENTS) for event in row)


def _delayed_chunks(delay_s: float, data: bytes) -> Iterator[MockChunk]:
    while delay_s > _KEEP_ALIVE_S:
        delay_s -= _KEEP_ALIVE_S
        yield MockChunk(base64=KEEP_ALIVE, after_s=_KEEP_ALIVE_S)
    yield MockChunk(base64=data, after_s=delay_s)
