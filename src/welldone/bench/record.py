"""Record of one request of a load test. Times are seconds from the start of its step."""

from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    Times: TypeAlias = array[float]
else:
    Times = array  # msgspec evaluates it, and Python 3.11 has no array[float]


class RequestOutcome(StrEnum):
    """How a request ended. Only `OK` requests count in the metrics."""

    OK = "ok"
    REFUSED = "refused"
    """A status of 400 or more."""
    FAILED = "failed"
    """The server sent an error in the stream."""
    CUT = "cut"
    """The stream ended without a finish reason, or the connection was lost, even before the reply."""
    BROKEN = "broken"
    """The reply is not a valid stream: another content type, no text, bytes that are not frames."""
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    """No connection."""
    UNFINISHED = "unfinished"
    """In flight at the end of the step, and abandoned."""


class BenchRecord(msgspec.Struct):
    """One request. Times of events that did not happen are None."""

    target: int
    """0, or 1 for the server that is compared with."""
    due_s: float
    """When it should have been sent: with a rate, by the schedule; otherwise equal to `sent_s`."""
    sent_s: float
    """When its first byte was sent: later than `due_s` if this client was late, or at its limit."""
    prompt_tokens: int | None = None
    """From the server's usage, else from the tokenizer."""
    max_tokens: int | None = None
    """The `max_tokens` of the request."""
    status: int | None = None
    head_s: float | None = None
    role_s: float | None = None
    reasoning_s: float | None = None
    content_s: float | None = None
    tool_s: float | None = None
    times: Times = msgspec.field(default_factory=lambda: array("d"))
    """When each chunk with new text, reasoning or tool call arguments arrived."""
    tokens: int | None = None
    """Generated tokens: from the server's usage, else from the tokenizer, else the number of chunks."""
    tokenizer_tokens: int | None = None
    """The same from the tokenizer, if there is one."""
    ended_s: float = 0.0
    outcome: RequestOutcome = RequestOutcome.UNFINISHED
    error: str = ""
    finish_reason: str = ""
    rules: tuple[str, ...] = ()
    """The rules that its stream broke."""

    @property
    def token_count(self) -> int:
        """The generated tokens; a chunk is a token as long as they are not counted."""
        return len(self.times) if self.tokens is None else self.tokens
