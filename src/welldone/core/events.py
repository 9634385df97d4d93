"""Events of an answer: a closed union of small frozen values, used by readers and writers.

After `repair`, events are legal: texts are not empty; tool calls are numbered from 0 and have an id and a name. Before
it, a tool call may have the index -1 (the server sent none) and an empty id or name.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

# Exceptions report mistakes of the calling program. Malformed upstream streams are values, never exceptions.


class WelldoneError(Exception):
    """Base class of all exceptions of this package."""


class EventOrderError(WelldoneError):
    """An event was sent that is not legal in the current state."""

    def __init__(self, event: str, state: str, legal: str) -> None:
        super().__init__(f"{event} while {state}; legal now: {legal or 'nothing'}")
        self.event = event
        self.state = state
        self.legal = legal


Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""


class ChoiceStart(msgspec.Struct, frozen=True, gc=False):
    """Start of a choice; carries the role `assistant`."""

    index: int


class Text(msgspec.Struct, frozen=True, gc=False):
    """Piece of the visible answer. Never empty."""

    index: int
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Piece of the reasoning. Never empty."""

    index: int
    text: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Piece of a refusal. Never empty."""

    index: int
    text: str


class ToolCall(msgspec.Struct, frozen=True):
    """Start of a tool call."""

    index: int
    call_index: int
    """Position within the choice, from 0."""
    id: str
    name: str
    extra_fields: Json = {}
    """Members of the call that OpenAI does not define, such as a signature that clients send back."""
    is_custom: bool = False
    """Whether this calls a custom tool, whose input is free text instead of JSON."""
    inner_extra_fields: Json = {}
    """Unknown members of the inner object, `function` or `custom`."""


CALL_TYPE_AND_ARGUMENTS_FIELD = {False: ("function", "arguments"), True: ("custom", "input")}
"""By `is_custom`: the call type, which is also the name of the inner object, and the member with the arguments."""


class ToolArguments(msgspec.Struct, frozen=True):
    """Piece of a call's arguments (JSON text) or of a custom call's input. Empty only if it has extra fields."""

    index: int
    call_index: int
    text: str
    extra_fields: Json = {}
    is_custom: bool = False
    inner_extra_fields: Json = {}


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the shape of the endpoint. They are sent with the next chunk of their choice."""

    index: int
    value: Json


class Finish(msgspec.Struct, frozen=True, gc=False):
    """End of a choice, with an OpenAI finish reason."""

    index: int
    reason: str
    stop_string: str | None = None
    """The stop string that ended the choice, if known."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of the whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    extra_fields: Json
    """Details and all other members of the usage object."""

    @property
    def max_tokens_counted(self) -> int:
        """The larger of the total and the sum: some providers count reasoning tokens in the total alone."""
        return max(self.total_tokens, self.prompt_tokens + self.completion_tokens)


class Failure(msgspec.Struct, frozen=True):
    """The answer failed. No event follows."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    extra_fields: Json = {}
    """Members of the error object that OpenAI does not define."""


FailureMapper: TypeAlias = Callable[[Failure], Failure]
"""Maps an upstream's failure to the one that is sent to the client."""


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """Sign of life without content."""

    is_chunk: bool = False
    """Sent as an empty chunk instead of a comment, for clients whose timeout counts events rather than bytes."""


class FieldLocation(StrEnum):
    """The object of a chunk that has an unknown field."""

    CHUNK = "chunk"
    CHOICE = "choice"
    DELTA = "delta"


class UnknownFields(msgspec.Struct, frozen=True):
    """Fields without a meaning here, forwarded on the next chunk or, with `in_own_chunk`, on a chunk of their own.

    With `in_own_chunk` and no fields, the event flushes whatever is pending for the next chunk.
    """

    index: int
    """The choice; for `FieldLocation.CHUNK`, one of the choices of that chunk."""
    location: FieldLocation
    fields: Json
    in_own_chunk: bool = False


ChoiceEvent: TypeAlias = (
    ChoiceStart | Text | Reasoning | Refusal | ToolCall | ToolArguments | Logprobs | Finish | UnknownFields
)
Event: TypeAlias = ChoiceEvent | Usage | Failure | KeepAlive
TextEvent: TypeAlias = Text | Reasoning | Refusal | ToolArguments
"""An event with a piece of text."""
TEXT_EVENTS: tuple[type[TextEvent], ...] = (Text, Reasoning, Refusal, ToolArguments)
