"""What is to be seen of a load test that runs.

It is looked at while others are timed, so a look costs little: each record is taken once, of very many that came at
once only some are averaged, and nothing is sorted.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from welldone.bench.record import End, Record
from welldone.bench.reports.words import failed
from welldone.bench.run import Watch
from welldone.bench.stats import MEASURES

BIN_S = 2.0
"""Long enough for some answers, and short enough to see a server stall."""
BINS = 30
"""A minute: what a person remembers."""
LATELY = 5
"""Bins of which the means are told: ten seconds."""
_SAMPLED = 100
"""Records of one look whose times are taken: enough for a mean, and less than a millisecond of work."""
_NO_FAULT = (End.OK, End.UNFINISHED)


class Bin(msgspec.Struct):
    """What came out of the requests that ended within a short while."""

    firsts: int = 0
    first_s: float = 0.0
    betweens: int = 0
    between_s: float = 0.0
    tokens: int = 0

    @property
    def first_token_s(self) -> float | None:
        return self.first_s / self.firsts if self.firsts else None

    @property
    def between_tokens_s(self) -> float | None:
        return self.between_s / self.betweens if self.betweens else None


class Row(msgspec.Struct, frozen=True):
    """A step, in short."""

    name: str
    state: str
    share: float
    """How much of it is over."""
    errors: int
    request_rate: float
    token_rate: float


class Gauge:
    """What a watch shows. `look` brings it up to date."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self.watch = watch
        self._clock = clock
        self._begun = clock()
        self.spent_s = 0.0
        """Since the run began."""
        self._start(self._begun)

    def _start(self, now: float) -> None:
        """A step begins."""
        self._number = self.watch.number
        self._step_begun = now
        self._load = self.watch.load
        self._taken = 0
        self._skipped = 0
        self.elapsed_s = 0.0
        self.ends: Counter[End] = Counter()
        self.tokens = 0
        self.why = ""
        """The latest reason of a failure, as the server gave it: text from outside."""
        self.bins: deque[Bin] = deque([Bin()], maxlen=BINS)
        self._bin_number = 0

    # ---- looking

    def look(self) -> None:
        """Take what is new."""
        now = self._clock()
        if self.watch.number != self._number:
            self._start(now)
        self.spent_s = now - self._begun
        self.elapsed_s = now - self._step_begun
        self._turn_bins()
        if self._load is not None:
            self._take(self._load.records[self._taken :])
        if self.watch.load is not self._load:  # another round of the same step
            self._skipped += 0 if self._load is None else self._load.counts.skipped
            self._load, self._taken = self.watch.load, 0
            self._take(self._load.records)

    def _turn_bins(self) -> None:
        number = int(self.elapsed_s / BIN_S)
        self.bins.extend(Bin() for _ in range(min(number - self._bin_number, BINS)))
        self._bin_number = number

    def _take(self, records: Sequence[Record]) -> None:
        self._taken += len(records)
        self.ends.update(record.end for record in records)
        tokens = sum(_tokens(record) for record in records)
        self.tokens += tokens
        current = self.bins[-1]
        current.tokens += tokens
        for record in records[-_SAMPLED:]:
            if record.end is End.OK:
                _take_times(current, record)
            elif record.end is not End.UNFINISHED:
                self.why = record.why

    # ---- telling

    @property
    def is_running(self) -> bool:
        """Whether a step runs; before the first, the server is looked at."""
        return self._load is not None

    @property
    def under_way(self) -> int:
        """Requests that wait for their end."""
        return 0 if self._load is None else int(self._load.counts.under_way)

    @property
    def skipped(self) -> int:
        return self._skipped + (0 if self._load is None else int(self._load.counts.skipped))

    @property
    def lately(self) -> Bin:
        """The last seconds in one."""
        some = list(self.bins)[-LATELY:]
        return Bin(
            firsts=sum(one.firsts for one in some),
            first_s=sum(one.first_s for one in some),
            betweens=sum(one.betweens for one in some),
            between_s=sum(one.between_s for one in some),
            tokens=sum(one.tokens for one in some),
        )

    @property
    def late_rate(self) -> float:
        """Tokens per second of late."""
        begun_s = max(0, self._bin_number - LATELY + 1) * BIN_S
        return self.lately.tokens / max(self.elapsed_s - begun_s, BIN_S)

    def running(self) -> Row:
        """The step that runs."""
        watch, elapsed_s = self.watch, self.elapsed_s
        is_over = elapsed_s >= watch.seconds
        return Row(
            name=watch.step,
            state="ending" if is_over else "running",
            share=1.0 if is_over else elapsed_s / watch.seconds,
            errors=sum(count for end, count in self.ends.items() if end not in _NO_FAULT),
            request_rate=self.ends[End.OK] / elapsed_s if elapsed_s else 0.0,
            token_rate=self.tokens / elapsed_s if elapsed_s else 0.0,
        )

    def over(self, since: int = 0) -> list[Row]:
        """The steps that are over, but for the first ones. Of two servers the second is named so."""
        steps = self.watch.steps
        return [
            Row(
                name=step.id + (" (against)" if step.target != steps[0].target else ""),
                state="done",
                share=1.0,
                errors=failed(step),
                request_rate=step.request_rate,
                token_rate=step.token_rate,
            )
            for step in steps[since:]
        ]


def _tokens(record: Record) -> int:
    """As the server counts them; the tokenizer's turn comes after the step, and until then a chunk is a token."""
    return len(record.times) if record.tokens is None else record.tokens


def _take_times(current: Bin, record: Record) -> None:
    first_s = MEASURES["ttft"](record)
    if first_s is not None:
        current.firsts += 1
        current.first_s += first_s
    tokens = _tokens(record)
    if tokens > 1 and len(record.times) > 1:
        current.betweens += 1
        current.between_s += (record.times[-1] - record.times[0]) / (tokens - 1)
