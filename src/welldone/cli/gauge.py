"""What is to be seen of a load test that runs.

It is looked at while others are timed, so a look costs little: each record is taken once, of very many that came at
once only some are averaged, and nothing is sorted.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.reports.words import failed_count
from welldone.bench.run import BenchProgress
from welldone.bench.stats import METRICS

BIN_S = 2.0
"""Long enough for some answers, and short enough to see a server stall."""
BIN_COUNT = 30
"""A minute: what a person remembers."""
RECENT_BINS = 5
"""Bins of which the means are told: ten seconds."""
_MAX_SAMPLED_RECORDS = 100
"""Records of one look whose times are taken: enough for a mean, and less than a millisecond of work."""
_NEUTRAL_OUTCOMES = (RequestOutcome.OK, RequestOutcome.UNFINISHED)


class MonitorBin(msgspec.Struct):
    """What came out of the requests that ended within a short while."""

    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    itl_count: int = 0
    itl_sum_s: float = 0.0
    tokens: int = 0

    @property
    def mean_ttft_s(self) -> float | None:
        return self.ttft_sum_s / self.ttft_count if self.ttft_count else None

    @property
    def mean_itl_s(self) -> float | None:
        return self.itl_sum_s / self.itl_count if self.itl_count else None


class BenchStepRow(msgspec.Struct, frozen=True):
    """A step, in short."""

    name: str
    state: str
    progress: float
    """How much of it is over."""
    errors: int
    request_rate: float
    token_rate: float


class BenchMonitor:
    """What a watch shows. `look` brings it up to date."""

    def __init__(self, progress: BenchProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = progress
        self._clock = clock
        self._begun = clock()
        self.spent_s = 0.0
        """Since the run began."""
        self._start_step(self._begun)

    def _start_step(self, now: float) -> None:
        """A step begins."""
        self._number = self.progress.number
        self._step_begun = now
        self._load = self.progress.load
        self._seen_records = 0
        self._skipped = 0
        self.elapsed_s = 0.0
        self.outcomes: Counter[RequestOutcome] = Counter()
        self.tokens = 0
        self.last_error = ""
        """The latest reason of a failure, as the server gave it: text from outside."""
        self.bins: deque[MonitorBin] = deque([MonitorBin()], maxlen=BIN_COUNT)
        self._bin_number = 0

    # ---- looking

    def refresh(self) -> None:
        """Take what is new."""
        now = self._clock()
        if self.progress.number != self._number:
            self._start_step(now)
        self.spent_s = now - self._begun
        self.elapsed_s = now - self._step_begun
        self._advance_bins()
        if self._load is not None:
            self._add_records(self._load.records[self._seen_records :])
        if self.progress.load is not self._load:  # another round of the same step
            self._skipped += 0 if self._load is None else self._load.counts.skipped
            self._load, self._seen_records = self.progress.load, 0
            self._add_records(self._load.records)

    def _advance_bins(self) -> None:
        number = int(self.elapsed_s / BIN_S)
        self.bins.extend(MonitorBin() for _ in range(min(number - self._bin_number, BIN_COUNT)))
        self._bin_number = number

    def _add_records(self, records: Sequence[BenchRecord]) -> None:
        self._seen_records += len(records)
        self.outcomes.update(record.outcome for record in records)
        tokens = sum(_token_count(record) for record in records)
        self.tokens += tokens
        current = self.bins[-1]
        current.tokens += tokens
        for record in records[-_MAX_SAMPLED_RECORDS:]:
            if record.outcome is RequestOutcome.OK:
                _add_times(current, record)
            elif record.outcome is not RequestOutcome.UNFINISHED:
                self.last_error = record.error

    # ---- telling

    @property
    def is_running(self) -> bool:
        """Whether a step runs; before the first, the server is looked at."""
        return self._load is not None

    @property
    def in_flight(self) -> int:
        """Requests that wait for their end."""
        return 0 if self._load is None else int(self._load.counts.under_way)

    @property
    def skipped(self) -> int:
        return self._skipped + (0 if self._load is None else int(self._load.counts.skipped))

    @property
    def recent(self) -> MonitorBin:
        """The last seconds in one."""
        some = list(self.bins)[-RECENT_BINS:]
        return MonitorBin(
            ttft_count=sum(one.ttft_count for one in some),
            ttft_sum_s=sum(one.ttft_sum_s for one in some),
            itl_count=sum(one.itl_count for one in some),
            itl_sum_s=sum(one.itl_sum_s for one in some),
            tokens=sum(one.tokens for one in some),
        )

    @property
    def recent_token_rate(self) -> float:
        """Tokens per second of late."""
        begun_s = max(0, self._bin_number - RECENT_BINS + 1) * BIN_S
        return self.recent.tokens / max(self.elapsed_s - begun_s, BIN_S)

    def running_step(self) -> BenchStepRow:
        """The step that runs."""
        watch, elapsed_s = self.progress, self.elapsed_s
        is_over = elapsed_s >= watch.seconds
        return BenchStepRow(
            name=watch.step,
            state="ending" if is_over else "running",
            progress=1.0 if is_over else elapsed_s / watch.seconds,
            errors=sum(count for end, count in self.outcomes.items() if end not in _NEUTRAL_OUTCOMES),
            request_rate=self.outcomes[RequestOutcome.OK] / elapsed_s if elapsed_s else 0.0,
            token_rate=self.tokens / elapsed_s if elapsed_s else 0.0,
        )

    def finished_steps(self, since: int = 0) -> list[BenchStepRow]:
        """The steps that are over, but for the first ones. Of two servers the second is named so."""
        steps = self.progress.steps
        return [
            BenchStepRow(
                name=step.id + (" (against)" if step.target != steps[0].target else ""),
                state="done",
                progress=1.0,
                errors=failed_count(step),
                request_rate=step.request_rate,
                token_rate=step.token_rate,
            )
            for step in steps[since:]
        ]


def _token_count(record: BenchRecord) -> int:
    """As the server counts them; the tokenizer's turn comes after the step, and until then a chunk is a token."""
    return len(record.times) if record.tokens is None else record.tokens


def _add_times(current: MonitorBin, record: BenchRecord) -> None:
    first_s = METRICS["ttft"](record)
    if first_s is not None:
        current.ttft_count += 1
        current.ttft_sum_s += first_s
    tokens = _token_count(record)
    if tokens > 1 and len(record.times) > 1:
        current.itl_count += 1
        current.itl_sum_s += (record.times[-1] - record.times[0]) / (tokens - 1)
