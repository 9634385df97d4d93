"""What every dialect says, put together."""

import json
from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """A call, put together."""

    id: str
    name: str
    arguments: str
    """As text, whatever came."""


class Said(msgspec.Struct, frozen=True):
    """One choice of a reply."""

    index: int
    role: object
    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: object
    """Why it ended, in the dialect's own word."""
    logprobs: tuple[Any, ...] = ()
    """The `logprobs` that are not null, one for each chunk that had some."""


class Piece(msgspec.Struct, frozen=True):
    """What one frame adds to a choice."""

    frame: int
    """Its number, from 1."""
    index: int = 0
    text: str = ""
    reasoning: str = ""
    has_more: bool = False
    """Whether it adds something else, such as a piece of a call."""

    @property
    def is_spoken(self) -> bool:
        """Whether it took a token to make."""
        return bool(self.text or self.reasoning or self.has_more)


def as_arguments(value: object) -> str:
    """Arguments as text: some servers send the object itself."""
    return value if isinstance(value, str) else json.dumps(value)
