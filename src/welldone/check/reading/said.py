"""What every dialect says, put together."""

import json
from typing import Any

import msgspec


class ParsedToolCall(msgspec.Struct, frozen=True):
    """A call, put together."""

    id: str
    name: str
    arguments: str
    """As text, whatever came."""


class ParsedChoice(msgspec.Struct, frozen=True):
    """One choice of a reply."""

    index: int
    role: object
    text: str
    reasoning: str
    tool_calls: tuple[ParsedToolCall, ...]
    finish_reason: object
    """Why it ended, in the dialect's own word."""
    logprobs: tuple[Any, ...] = ()
    """The `logprobs` that are not null, one for each chunk that had some."""


class ParsedDelta(msgspec.Struct, frozen=True):
    """What one frame adds to a choice."""

    frame: int
    """Its number, from 1."""
    index: int = 0
    text: str = ""
    reasoning: str = ""
    has_other: bool = False
    """Whether it adds something else, such as a piece of a call."""

    @property
    def is_generated(self) -> bool:
        """Whether it took a token to make."""
        return bool(self.text or self.reasoning or self.has_other)


def arguments_text(value: object) -> str:
    """Arguments as text: some servers send the object itself."""
    return value if isinstance(value, str) else json.dumps(value)
