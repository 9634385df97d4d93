"""What can happen in an answer: a closed union of small frozen values.

The same events are read and written. After `repair` they are legal: texts are not empty, tool calls are numbered from
zero and have an id and a name. Before it, as the reader gives them, a tool call may have the number -1 (the server did
not say) and an empty id or name.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import msgspec

# The exceptions of the core: a mistake of our own caller, never a peer's odd stream.
#
# WelldoneError
# └── OutOfTurnError   an event was sent that may not come now


class WelldoneError(Exception):
    """The root: catch it to catch all of ours."""


class EventOrderError(WelldoneError):
    """An event that may not come now."""

    def __init__(self, event: str, phase: str, legal: str) -> None:
        super().__init__(f"{event} while {phase}; legal now: {legal or 'nothing'}")
        self.event = event
        self.phase = phase
        self.legal = legal


Json: TypeAlias = dict[str, Any]
"""A JSON object as it came in."""


class ChoiceStart(msgspec.Struct, frozen=True, gc=False):
    """A choice begins; the assistant speaks."""

    index: int


class Text(msgspec.Struct, frozen=True, gc=False):
    """More of the visible answer. Never empty."""

    index: int
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thinks before it answers. Never empty."""

    index: int
    text: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """More of why the model will not answer. Never empty."""

    index: int
    text: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool begins."""

    index: int
    call_index: int
    """Its number within the choice, from 0."""
    id: str
    name: str
    extra_fields: Json = {}
    """Members of the call that OpenAI's does not have, such as a signature to be sent back."""
    is_custom: bool = False
    """Whether it calls a custom tool: its input is free text, and not JSON."""
    inner_extra_fields: Json = {}
    """Unknown members of the object that has the name: `function` or `custom`."""


CALL_TYPE_AND_ARGUMENTS_FIELD = {False: ("function", "arguments"), True: ("custom", "input")}
"""By `is_custom`: the type of a call, which is also the name of its object, and the member that has its arguments."""


class ToolArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, as JSON text, or of a custom call's input. Empty only where it has other members."""

    index: int
    call_index: int
    text: str
    extra_fields: Json = {}
    is_custom: bool = False
    inner_extra_fields: Json = {}


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the dialect's own shape. They ride on the next chunk of their choice."""

    index: int
    value: Json


class Finish(msgspec.Struct, frozen=True, gc=False):
    """A choice ends, with OpenAI's word for why."""

    index: int
    reason: str
    stop_string: str | None = None
    """The stop string that it ended at, where that is known."""


class Usage(msgspec.Struct, frozen=True):
    """The tokens of the whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    extra_fields: Json
    """Details and whatever else the server counts."""

    @property
    def max_tokens_counted(self) -> int:
        """The larger of the total and the sum: some providers count reasoning tokens in the total alone."""
        return max(self.total_tokens, self.prompt_tokens + self.completion_tokens)


class Failure(msgspec.Struct, frozen=True):
    """The answer broke off. Nothing follows."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    extra_fields: Json = {}
    """Members of the server's error object that OpenAI's does not have."""


FailureMapper: TypeAlias = Callable[[Failure], Failure]
"""Makes what may be told of a failure."""


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """Nothing happened yet, but the line is alive."""

    is_chunk: bool = False
    """Said as a chunk that changes nothing, for clients whose clock counts events and not bytes."""


class FieldLocation(Enum):
    """Where in a chunk an unknown field stood."""

    CHUNK = "chunk"
    CHOICE = "choice"
    DELTA = "delta"


class UnknownFields(msgspec.Struct, frozen=True):
    """Fields that we do not know. They are carried on, on the next chunk or, if `alone`, on one of their own.

    One that is `alone` and has no fields lets out what waits for the next chunk, if anything does.
    """

    index: int
    """The choice; where they stood at the top of a chunk, one that the chunk had."""
    location: FieldLocation
    fields: Json
    in_own_chunk: bool = False


ChoiceEvent: TypeAlias = (
    ChoiceStart | Text | Reasoning | Refusal | ToolCall | ToolArguments | Logprobs | Finish | UnknownFields
)
Event: TypeAlias = ChoiceEvent | Usage | Failure | KeepAlive
