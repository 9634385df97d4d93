"""What a pipeline tells about an answer: how far it has come, and the result."""

from collections.abc import Sequence
from enum import IntEnum, auto

import msgspec

from welldone.protocol.events import Failure, Usage
from welldone.protocol.repair_log import RepairEntry


class PartState(IntEnum):
    """How far a part has come."""

    WAITING = auto()
    """Only keep-alives were received."""
    ANSWERING = auto()
    FINISHED = auto()
    """Every choice has a finish reason; usage and `[DONE]` may follow."""
    FINISHED_WITH_USAGE = auto()
    """Usage was received as well, on a chunk of its own."""
    DONE = auto()
    """The end marker was received: nothing relevant can follow."""
    STOPPED = auto()
    """A stop string was found: the upstream request can be aborted."""
    FAILED = auto()
    CUT = auto()
    """The stream failed, and another one may continue it: see `Pipeline.continue_part` and `release_failure`."""


class RepairResult(msgspec.Struct, frozen=True):
    """What is known of an answer, at its end or so far."""

    usage: Usage | None
    """Usage reported by the server, even if the client did not request it."""
    failure: Failure | None
    """The failure that ended the answer, if any."""
    repairs: Sequence[RepairEntry]
    """Repairs of all parts, one entry per rule."""
    invalid_json_count: int = 0
    """Choices that the request wants as JSON and are not, although they were not truncated."""
    invalid_arguments_count: int = 0
    """Tool calls whose arguments are not a JSON object, although they were not truncated."""
    text_tool_calls: int = 0
    """Choices whose text looks like a tool call."""
    converted_calls: int = 0
    """Choices whose text became a tool call (`RepairOptions.json_calls`)."""
