"""What is counted, for Prometheus: llama.cpp's own names where it has them, so that its dashboards go on, and ours.

While requests run, counts are plain numbers: a stream gathers its times by itself and hands them over once, at its end.
They become Prometheus's families when someone asks. Labels come from bounded sets only: what is in none is `other`.
Counting belongs to one event loop; a page may be drawn in another thread.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from welldone import __version__
from welldone.wire.faults.catalogue import BY_ID

OTHER = "other"

ENDPOINTS = frozenset(
    {
        "chat",
        "completions",
        "detokenize",
        "embeddings",
        "health",
        "metrics",
        "models",
        "page",
        "props",
        "rerank",
        "slots",
        "tokenize",
    }
)

_REASONS_LIMIT = 32
"""Different reasons of failure. They are our own error codes, of which there are fewer."""

_STATUSES = frozenset(str(status) for status in range(100, 600))

# The smallest first token of a cached prompt takes some milliseconds; after a minute people have left.
_FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
# From a small model on a large GPU (1 ms) to a line that keep-alive comments hold open.
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_WHOLE_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_QUEUE_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

_REPORTED = {
    "llamacpp:n_decode_total": "Calls of llama_decode().",
    "llamacpp:n_tokens_max": "Most tokens that a sequence has had.",
    "llamacpp:n_busy_slots_per_decode": "Busy slots in a call of llama_decode(), on average.",
}
"""What only the engine itself can know. Kept as it last said."""
_REPORT = re.compile(rf"^({'|'.join(_REPORTED)}) ([0-9.e+]{{1,32}})$", re.MULTILINE)


class Busy(Protocol):
    """What runs and waits somewhere: a gate."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class StreamTimes:
    """When the pieces of one answer came. `more` is called for every piece, and costs half a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.queued_s: float | None = None
        """The longest that a part of the request waited for a place."""
        self.ttft_s: float | None = None
        """From the request to the first piece."""
        self.gaps = [0] * (len(_BETWEEN_S) + 1)
        """How many pieces came after a time up to each bound."""
        self.gaps_s = 0.0
        self.is_over = False
        self._clock = clock
        self._began = clock()
        self._last = self._began

    @property
    def has_begun(self) -> bool:
        """Whether a first piece came."""
        return self.ttft_s is not None

    @property
    def pieces(self) -> int:
        """How many came."""
        return sum(self.gaps) + self.has_begun

    @property
    def took_s(self) -> float:
        """Since the request came."""
        return self._clock() - self._began

    def queued(self, seconds: float) -> None:
        """A part of the request waited so long for a place."""
        self.queued_s = max(self.queued_s or 0.0, seconds)

    def first(self) -> None:
        """The first piece is here."""
        self._last = self._clock()
        self.ttft_s = self._last - self._began

    def more(self, pieces: int = 1) -> None:
        """So many more are here. Of those that come together each is said to have taken its share of the time."""
        if self.ttft_s is None:
            self.first()
            return
        now = self._clock()
        gap_s = now - self._last
        self._last = now
        self.gaps[bisect_left(_BETWEEN_S, gap_s / pieces)] += pieces
        self.gaps_s += gap_s


class _Numbers:
    """One family of counters or gauges: a number for each set of labels."""

    def __init__(self, name: str, says: str, labels: Sequence[str] = (), *, is_gauge: bool = False) -> None:
        self._head = (name, says)
        self._labels = tuple(labels)
        self._is_gauge = is_gauge
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, number: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + number

    def family(self) -> Metric:
        kind = GaugeMetricFamily if self._is_gauge else CounterMetricFamily
        family = kind(*self._head, labels=self._labels)
        for labels, number in tuple(self.values.items()):  # a copy in one step: the loop may add to it meanwhile
            family.add_metric(labels, number)
        return family


class _Histogram:
    """One family of histograms, by model. Unlike the library's it takes many observations in one go."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], models: Iterable[str]) -> None:
        self._head = (name, says)
        self._bounds = bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._counts = {model: [0] * len(self._names) for model in models}
        self._sums = dict.fromkeys(self._counts, 0.0)

    def observe(self, model: str, seconds: float) -> None:
        self._counts[model][bisect_left(self._bounds, seconds)] += 1
        self._sums[model] += seconds

    def add(self, model: str, counts: Sequence[int], total_s: float) -> None:
        self._counts[model] = [old + new for old, new in zip(self._counts[model], counts, strict=True)]
        self._sums[model] += total_s

    def family(self) -> Metric:
        family = HistogramMetricFamily(*self._head, labels=["model"])
        for model, counts in self._counts.items():
            buckets = list(zip(self._names, accumulate(counts), strict=True))
            family.add_metric([model], buckets, self._sums[model])
        return family


class _Speed:
    """Tokens a second over the last requests: each new one makes the older ones count a tenth less."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if seconds > 0:
            self._tokens = 0.9 * self._tokens + tokens
            self._seconds = 0.9 * self._seconds + seconds

    @property
    def per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0


class Metrics(Collector):
    """All counts of one server. `models` are the configured names: others are counted as `other`."""

    def __init__(self, models: Iterable[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models = (*dict.fromkeys(models), OTHER)
        self._gates: dict[str, Busy] = {}
        self._active = 0
        self._prompt_speed = {model: _Speed() for model in self._models}
        self._answer_speed = {model: _Speed() for model in self._models}
        self._counters: list[_Numbers] = []
        self._histograms: list[_Histogram] = []
        self._declare_work()
        self._declare_events()
        self._declare_times()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def begin(self) -> StreamTimes:
        """A stream begins. Its times are handed back to `end`."""
        self._active += 1
        return StreamTimes(self._clock)

    def end(self, times: StreamTimes, model: str) -> None:
        """A stream has ended, however it did. A second call for the same one does nothing."""
        if times.is_over:
            return
        times.is_over = True
        self._active -= 1
        name = self._model(model)
        self._between.add(name, times.gaps, times.gaps_s)
        if times.ttft_s is not None:
            self._first.observe(name, times.ttft_s)
        if times.queued_s is not None:
            self._queue.observe(name, times.queued_s)

    def request(self, endpoint: str, model: str, status: int, took_s: float) -> None:
        """A request was answered. Who left before counts with the status that it would have got."""
        name = self._model(model)
        where = endpoint if endpoint in ENDPOINTS else OTHER
        code = str(status) if str(status) in _STATUSES else OTHER
        self._requests.add(1, where, name, code)
        self._whole.observe(name, took_s)

    def tokens(
        self,
        model: str,
        prompt: int,
        completion: int,
        *,
        cached: int = 0,
        prompt_s: float = 0.0,
        completion_s: float = 0.0,
    ) -> None:
        """A model has read and written so many tokens, in so many seconds of its own (0: not known).

        `cached` of the prompt were known from before: llama.cpp's counts are of those that were read.
        """
        name = self._model(model)
        read = max(0, prompt - cached)
        self._prompt_tokens.add(prompt, name)
        self._llama_prompt_tokens.add(read, name)
        for family in (self._completion_tokens, self._llama_predicted):
            family.add(completion, name)
        self._llama_prompt_s.add(prompt_s, name)
        self._llama_predicted_s.add(completion_s, name)
        self._prompt_speed[name].add(read, prompt_s)
        self._answer_speed[name].add(completion, completion_s)

    def findings(self, rules: Iterable[str]) -> None:
        """An engine's stream broke these rules, and was mended."""
        for rule in rules:
            self._findings.add(1, rule if rule in BY_ID else OTHER)

    def failure(self, reason: str) -> None:
        """A stream that had begun ended with an error: our code for it."""
        known = (reason,) in self._failures.values or len(self._failures.values) < _REASONS_LIMIT
        self._failures.add(1, reason if known else OTHER)

    def disconnect(self) -> None:
        """A client left before its answer was whole."""
        self._disconnects.add(1)

    def engine(self, model: str, *, is_up: bool, restarts: int) -> None:
        """How a model's engine is now."""
        name = self._model(model)
        self._up.values[name,] = float(is_up)
        self._restarts.values[name,] = float(restarts)

    def engine_report(self, model: str, text: str) -> None:
        """What an engine's own metrics say that nobody else can know."""
        for name, number in _REPORT.findall(text):
            try:
                self._reported[name].values[self._model(model),] = float(number)
            except ValueError:
                continue

    def watch(self, model: str, gate: Busy) -> None:
        """Show how many run and wait at this gate."""
        self._gates[self._model(model)] = gate

    def render(self) -> tuple[str, bytes]:
        """The content type and the body of the page."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families, as they are now."""
        yield from (family.family() for family in self._counters)
        yield from (family.family() for family in self._histograms)
        yield from (family.family() for family in self._reported.values() if family.values)
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        running = {model: gate.running for model, gate in self._gates.items()}
        waiting = {model: gate.waiting for model, gate in self._gates.items()}
        reading = {model: speed.per_s for model, speed in self._prompt_speed.items()}
        writing = {model: speed.per_s for model, speed in self._answer_speed.items()}
        yield _gauge("llamacpp:requests_processing", "Requests that run.", running)
        yield _gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", waiting)
        yield _gauge("welldone_queue_depth", "Requests that wait for a slot.", waiting)
        yield _gauge("llamacpp:prompt_tokens_seconds", "Tokens of prompts read in a second, lately.", reading)
        yield _gauge("llamacpp:predicted_tokens_seconds", "Tokens written in a second, lately.", writing)
        yield GaugeMetricFamily("welldone_active_streams", "Answers that are being given.", value=self._active)
        info = GaugeMetricFamily("welldone_build_info", "The version that runs.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _declare_work(self) -> None:
        self._llama_prompt_tokens = self._by_model("llamacpp:prompt_tokens", "Tokens of prompts.")
        self._llama_prompt_s = self._by_model("llamacpp:prompt_seconds", "Time that reading prompts took.")
        self._llama_predicted = self._by_model("llamacpp:tokens_predicted", "Tokens written.")
        self._llama_predicted_s = self._by_model("llamacpp:tokens_predicted_seconds", "Time that writing took.")
        self._prompt_tokens = self._by_model("welldone_prompt_tokens", "Tokens of prompts.")
        self._completion_tokens = self._by_model("welldone_completion_tokens", "Tokens of answers.")
        self._reported = {
            name: _Numbers(name.removesuffix("_total"), says, ["model"], is_gauge=not name.endswith("_total"))
            for name, says in _REPORTED.items()
        }

    def _declare_events(self) -> None:
        labels = ("endpoint", "model", "status")
        self._requests = self._counter("welldone_requests", "Requests that were answered.", labels)
        self._findings = self._counter("welldone_findings", "Rules that engines broke; all mended.", ["rule"])
        self._failures = self._counter("welldone_stream_failures", "Streams that ended with an error.", ["reason"])
        self._disconnects = self._counter("welldone_client_disconnects", "Clients that left before the end.", ())
        self._disconnects.add(0)
        self._restarts = self._by_model("welldone_engine_restarts", "Engines that were started again.")
        self._up = self._by_model("welldone_engine_up", "Whether the engine answers.", is_gauge=True)

    def _declare_times(self) -> None:
        self._first = self._histogram("time_to_first_token", "From a request to its first token.", _FIRST_S)
        self._between = self._histogram("inter_token", "From one token of an answer to the next.", _BETWEEN_S)
        self._whole = self._histogram("request", "From a request to the end of its answer.", _WHOLE_S)
        self._queue = self._histogram("queue", "How long requests waited for a slot.", _QUEUE_S)

    def _counter(self, name: str, says: str, labels: Sequence[str], *, is_gauge: bool = False) -> _Numbers:
        self._counters.append(_Numbers(name, says, labels, is_gauge=is_gauge))
        return self._counters[-1]

    def _by_model(self, name: str, says: str, *, is_gauge: bool = False) -> _Numbers:
        """A number that is there for each model from the start: a series that appears later hides its first step."""
        family = self._counter(name, says, ["model"], is_gauge=is_gauge)
        for model in self._models[:-1]:
            family.add(0, model)
        return family

    def _histogram(self, name: str, says: str, bounds: tuple[float, ...]) -> _Histogram:
        self._histograms.append(_Histogram(f"welldone_{name}_seconds", says, bounds, self._models))
        return self._histograms[-1]

    def _model(self, name: str) -> str:
        return name if name in self._prompt_speed else OTHER


def _gauge(name: str, says: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=["model"])
    for model, number in values.items():
        family.add_metric([model], number)
    return family
