"""Report of a load test: the settings, the results of each step, and the record of each request.

All formats are rendered from it. Times of a record are seconds from the start of its step.
"""

from array import array
from collections.abc import Mapping
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


REPORT_VERSION = 2
"""Version of the JSON format."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a metric, mostly in seconds."""

    count: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    percentiles: Mapping[str, float]
    """By name, `p50` to `p99.9`; only those with at least ten samples above them."""
    all_percentiles: Mapping[str, float] = {}
    """All of them, even with few samples: the format of inference-benchmarker requires them."""


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of this client itself: a busy client distorts the measurement."""

    cpu: float
    """Share of one core, over the step."""
    late_starts: int
    """Requests sent more than 5 ms after they were due, although a slot was free."""
    max_delay_s: float
    """The largest of these delays."""
    is_bottleneck: bool


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one server."""

    id: str
    """`warmup`, `throughput`, `constant@1.20req/s`, `concurrency@8`, `replay`."""
    target: str
    """The server's URL."""
    is_open: bool
    """Whether requests follow a schedule regardless of the server (open loop), or each user waits (closed loop)."""
    max_vus: int
    rate: float | None
    """Target rate."""
    seconds: float
    """Measured duration of the step."""
    due: int
    """Requests that were due."""
    skipped: int
    """Due requests that were not sent, because `max_vus` were in flight."""
    outcomes: Mapping[str, int]
    """Requests by outcome: ok, refused, failed, cut, broken, timed out, unreachable, unfinished."""
    reasons: Mapping[str, int]
    """Error messages of requests that are not ok, the most frequent first; bounded."""
    invalid_streams: int
    """Streams that broke a rule."""
    rules: Mapping[str, int]
    """Streams by broken rule."""
    good: int | None
    """Requests within all limits of --goodput; None without limits."""
    request_rate: float
    """Successful requests per second. A request that ended after the step counts by its share within the step."""
    token_rate: float
    """Tokens per second of all answers, received within the step."""
    prompt_tokens: float | None
    """Mean per request."""
    decoded_tokens: float | None
    total_tokens: int
    total_prompt_tokens: int
    tokens_by: str
    """Source of the token counts: `usage`, `tokenizer`, `chunks`."""
    times: Mapping[str, Distribution]
    """By name: head, role, ttft (first token of any kind), reasoning, content, tool, itl (mean time between tokens of
    a request), gap (between chunks, over all requests), stall (longest gap of a request), e2e, and rate (tokens/s of a
    request; not a time)."""
    client: ClientLoad
    records: tuple[BenchRecord, ...] = ()
    """The requests, for plots and the JSON report."""

    @property
    def requests(self) -> int:
        """The number of requests sent."""
        return sum(self.outcomes.values())

    @property
    def ok(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def failed(self) -> int:
        """The number of failed requests. Requests that were abandoned at the end of the step do not count."""
        return self.finished - self.ok

    @property
    def finished(self) -> int:
        return self.requests - self.outcomes.get("unfinished", 0)

    @property
    def error_rate(self) -> float | None:
        """The share of finished requests that failed. Unfinished and skipped requests do not count."""
        return self.failed / self.finished if self.finished else None

    @property
    def is_warmup(self) -> bool:
        return self.id == "warmup"

    def statistic(self, metric: str, name: str) -> float | None:
        """Return the mean, min, max or a percentile of a metric; None if there are too few samples."""
        if (values := self.times.get(metric)) is None:
            return None
        return {"mean": values.mean, "min": values.minimum, "max": values.maximum, **values.percentiles}.get(name)


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A metric on two servers that were measured in alternation, or in two reports."""

    metric: str
    """`ttft.p50`, `token_rate`, …"""
    first: float
    second: float
    ratio: float
    """First divided by second."""
    low: float
    high: float
    """95 % confidence interval of the ratio."""


class AssertionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an assertion."""

    text: str
    step: str
    value: float | None
    """None: too few samples, which counts as failed."""
    passed: bool


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run."""

    version: int = REPORT_VERSION
    tool: str
    began: str
    """ISO 8601 in UTC."""
    ended: str
    url: str
    against: str | None
    endpoint: str = "chat"
    """The API: chat, responses or messages."""
    model: str
    kind: str
    config: Mapping[str, object]
    """The settings, without secrets."""
    tokenizer: str
    """Source of the token counts, in words."""
    is_complete: bool
    """False if the run ended early."""
    incomplete_reason: str = ""
    """Why it ended early."""
    steps: tuple[StepResult, ...]
    comparisons: tuple[MetricComparison, ...] = ()
    assertion_results: tuple[AssertionResult, ...] = ()
    system: Mapping[str, object] = {}
    """The machine of the client: CPU, memory, operating system."""
