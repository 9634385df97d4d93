"""A record: all that is known of one request of a load test. Times are seconds from the start of its step."""

from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    Times: TypeAlias = array[float]
else:
    Times = array  # msgspec looks at it, and Python 3.11 has no array[float]


class RequestOutcome(StrEnum):
    """How a request ended. Only those that are `OK` are averaged."""

    OK = "ok"
    REFUSED = "refused"
    """A status of 400 or more."""
    FAILED = "failed"
    """The server said in the stream that it failed."""
    CUT = "cut"
    """The stream ended without a finish reason, or the connection was lost, also before anything was said."""
    BROKEN = "broken"
    """What came is no stream: another content type, no text, bytes that are no frames."""
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    """There was no connection."""
    UNFINISHED = "unfinished"
    """It was still under way when the step was over, and was left."""


class BenchRecord(msgspec.Struct):
    """One request. What did not happen is None."""

    target: int
    """0, or 1 for the server that it is compared with."""
    due_s: float
    """When it should have begun: with a rate, by the schedule; else when it began."""
    sent_s: float
    """When its first byte was sent: later than due where this tool, or its limit, was in the way."""
    prompt_tokens: int | None = None
    """As the server counts them; else as the tokenizer does."""
    max_tokens: int | None = None
    """The max_tokens that was asked for."""
    status: int | None = None
    head_s: float | None = None
    role_s: float | None = None
    reasoning_s: float | None = None
    content_s: float | None = None
    tool_s: float | None = None
    times: Times = msgspec.field(default_factory=lambda: array("d"))
    """When each chunk with new text (thought, call) came."""
    tokens: int | None = None
    """How many were made: by the server's usage, else by the tokenizer, else chunks."""
    tokenizer_tokens: int | None = None
    """The same by the tokenizer alone, where there is one."""
    ended_s: float = 0.0
    outcome: RequestOutcome = RequestOutcome.UNFINISHED
    error: str = ""
    finish_reason: str = ""
    rules: tuple[str, ...] = ()
    """The rules that its stream broke."""
