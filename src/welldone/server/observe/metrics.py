"""What is counted, for Prometheus: llama.cpp's own names where it has them, so that its dashboards go on, and ours.

While requests run, counts are plain numbers. They become Prometheus's families when someone asks. Labels come from
bounded sets only: what is in none is `other`. Counting belongs to one event loop; a page may be drawn in another
thread.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from welldone import __version__
from welldone.protocol.catalog import RULES_BY_ID
from welldone.server.observe.counters import Histogram, MetricSeries, TokenRate, UpstreamCounts
from welldone.server.observe.log import Redactor
from welldone.server.observe.timing import INTER_TOKEN_BUCKETS_S, StreamTimes

__all__ = [
    "ENDPOINTS",
    "TTFT_BUCKETS_S",
    "MODELS_LIMIT",
    "OTHER",
    "OUTCOMES",
    "QueueStats",
    "DropCounter",
    "Metrics",
    "StreamTimes",
]

OTHER = "other"

ENDPOINTS = frozenset(
    {
        "audio",
        "batches",
        "chat",
        "classify",
        "completions",
        "detokenize",
        "embeddings",
        "files",
        "health",
        "images",
        "messages",
        "metrics",
        "models",
        "moderations",
        "ollama",
        "openapi",
        "page",
        "pooling",
        "props",
        "rerank",
        "responses",
        "score",
        "slots",
        "tokenize",
    }
)

OUTCOMES = frozenset({"unreachable", "no_room", "lost", "timeout", "garbage", "left"})
"""How an attempt ends that got no status: no connection (`no_room`: this machine had none to give), it broke, nothing
came in time, it was no HTTP, or the client left first."""

MODELS_LIMIT = 200
"""Models that have numbers of their own. Upstreams may list thousands, and with a pattern clients choose the names."""

LABEL_LIMIT = 256
"""Characters of a name that has numbers of its own. The longest names of models have some 100."""

_REASONS_LIMIT = 32
"""Different reasons of failure. They are our own error codes, of which there are fewer."""

_STATUSES = frozenset(str(status) for status in range(100, 600))
_BREAKER_STATES = ("closed", "open", "half-open")

# The smallest first token of a cached prompt takes some milliseconds; after a minute people have left.
TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
_REQUEST_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_QUEUE_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

_ENGINE_METRICS = {
    "llamacpp:n_decode_total": "Calls of llama_decode().",
    "llamacpp:n_tokens_max": "Most tokens that a sequence has had.",
    "llamacpp:n_busy_slots_per_decode": "Busy slots in a call of llama_decode(), on average.",
}
"""What only the engine itself can know. Kept as it last said."""
_ENGINE_METRIC_LINE = re.compile(rf"^({'|'.join(_ENGINE_METRICS)}) ([0-9.e+]{{1,32}})$", re.MULTILINE)


class QueueStats(Protocol):
    """What runs and waits somewhere: a gate."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class DropCounter(Protocol):
    """What drops some of what it is given: a recorder."""

    @property
    def dropped(self) -> int: ...


class StoreStatus(Protocol):
    """What may be away: the store of shared limits."""

    @property
    def is_up(self) -> bool: ...


class Metrics(Collector):
    """All counts of one server.

    `models` and `upstreams` are the configured names. More models can be added, up to a limit; what has none of these
    names is counted as `other`.
    """

    def __init__(
        self,
        models: Iterable[str],
        upstreams: Iterable[str] = (),
        *,
        secrets: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redactor = Redactor(secrets)
        self._clock = clock
        self._models = (*dict.fromkeys(models), OTHER)
        self._upstreams = tuple(dict.fromkeys(upstreams))
        self._queues: dict[str, QueueStats] = {}
        self._upstream_queues: dict[str, QueueStats] = {}
        self._recorder: DropCounter | None = None
        self._store: StoreStatus | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._active_streams = 0
        self._prompt_speed = {model: TokenRate() for model in self._models}
        self._completion_speed = {model: TokenRate() for model in self._models}
        self._series: list[MetricSeries] = []
        self._model_series: list[MetricSeries] = []
        self._histograms: list[Histogram] = []
        self._declare_work()
        self._declare_events()
        self._declare_times()
        if self._upstreams:
            self._declare_upstreams()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def add_model(self, name: str) -> None:
        """Give a model numbers of its own, if there is room for one more. A key that came as a name gets none."""
        if name in self._prompt_speed or len(self._prompt_speed) > MODELS_LIMIT:
            return
        if not _is_label(name) or self._redactor.redact(name) != name:
            return
        for numbers in self._model_series:
            numbers.add(0, name)
        for histogram in self._histograms:
            if histogram.label == "model":
                histogram.add_series(name)
        self._completion_speed[name] = TokenRate()
        self._prompt_speed[name] = TokenRate()

    def begin_stream(self) -> StreamTimes:
        """A stream begins. Its times are handed back to `end`."""
        return self.start_stream(self.new_stream_times())

    def new_stream_times(self) -> StreamTimes:
        """The times of a stream that is to begin."""
        return StreamTimes(self._clock)

    def start_stream(self, times: StreamTimes) -> StreamTimes:
        """A stream begins. Its times are handed back to `end`."""
        self._active_streams += 1
        return times

    def end_stream(self, times: StreamTimes, model: str) -> None:
        """A stream has ended, however it did. A second call for the same one does nothing."""
        if times.is_finished:
            return
        times.is_finished = True
        self._active_streams -= 1
        name = self._model_label(model)
        self._inter_token.add_many(name, times.gaps, times.gaps_s)
        if times.ttft_s is not None:
            self._ttft.observe(name, times.ttft_s)
        if times.queued_s is not None:
            self._queue_wait.observe(name, times.queued_s)

    def count_request(self, endpoint: str, model: str, status: int, duration_s: float) -> None:
        """A request was answered. Who left before counts with the status that it would have got."""
        name = self._model_label(model)
        where = endpoint if endpoint in ENDPOINTS else OTHER
        code = str(status) if str(status) in _STATUSES else OTHER
        self._requests.add(1, where, name, code)
        self._request_duration.observe(name, duration_s)

    def count_tokens(
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
        name = self._model_label(model)
        read = max(0, prompt - cached)
        self._prompt_tokens.add(prompt, name)
        self._llama_prompt_tokens.add(read, name)
        for family in (self._completion_tokens, self._llama_predicted):
            family.add(completion, name)
        self._llama_prompt_s.add(prompt_s, name)
        self._llama_predicted_s.add(completion_s, name)
        self._prompt_speed[name].add(read, prompt_s)
        self._completion_speed[name].add(completion, completion_s)

    def count_repairs(self, rules: Iterable[str]) -> None:
        """An engine's stream broke these rules, and was mended."""
        for rule in rules:
            self._findings.add(1, _rule_label(rule))

    def count_stream_failure(self, reason: str) -> None:
        """A stream that had begun ended with an error: our code for it."""
        has_room = len(self._failures.values) < _REASONS_LIMIT and _is_label(reason)
        known = (reason,) in self._failures.values or has_room
        self._failures.add(1, reason if known else OTHER)

    def count_disconnect(self) -> None:
        """A client left before its answer was whole."""
        self._disconnects.add(1)

    def set_engine_state(self, model: str, *, is_up: bool, restarts: int) -> None:
        """How a model's engine is now."""
        name = self._model_label(model)
        self._engine_up.values[name,] = float(is_up)
        self._engine_restarts.values[name,] = float(restarts)

    def add_engine_metrics(self, model: str, text: str) -> None:
        """What an engine's own metrics say that nobody else can know."""
        for name, number in _ENGINE_METRIC_LINE.findall(text):
            try:
                self._engine_metrics[name].values[self._model_label(model),] = float(number)
            except ValueError:
                continue

    def watch_queue(self, model: str, queue: QueueStats) -> None:
        """Show how many run and wait at this gate."""
        self._queues[self._model_label(model)] = queue

    # Of upstreams. Their names are the configured ones.

    def count_upstream_attempt(self, name: str, outcome: int | str) -> None:
        """A request was sent to an upstream, or should have been: its status, or one of `OUTCOMES`."""
        word = str(outcome)
        self._attempts.add(1, name)
        self._attempts_by_outcome.add(1, name, word if word in _STATUSES or word in OUTCOMES else OTHER)

    def observe_upstream_times(self, name: str, times: StreamTimes) -> None:
        """An upstream has given an answer, whole or not, at these times."""
        self._upstream_inter_token.add_many(name, times.gaps, times.gaps_s)
        if times.upstream_ttft_s is not None:
            self._upstream_ttft.observe(name, times.upstream_ttft_s)

    def count_upstream_repairs(self, name: str, rules: Iterable[str]) -> None:
        """An upstream's stream broke these rules, and was mended. Beside `findings`, which counts all streams."""
        for rule in rules:
            self._repairs.add(1, name, _rule_label(rule))

    def count_broken_json(self, name: str, *, content: int = 0, arguments: int = 0) -> None:
        """So many texts, and so many arguments of tool calls, should have been JSON and are not."""
        self._broken_json.add(content, name, "content")
        self._broken_json.add(arguments, name, "arguments")

    def set_upstream_state(self, name: str, *, is_up: bool, breaker: str, is_failing: bool = False) -> None:
        """How an upstream is now; `breaker` is closed, open or half-open."""
        self._upstream_up.values[name,] = float(is_up)
        self._upstream_failing.values[name,] = float(is_failing)
        for state in _BREAKER_STATES:
            self._breaker_state.values[name, state] = float(state == breaker)

    def watch_upstream_queue(self, name: str, queue: QueueStats) -> None:
        """Show how many run and wait at an upstream's gate."""
        self._upstream_queues[name] = queue

    def upstream_counts(self) -> dict[str, UpstreamCounts]:
        """What was counted of each upstream, and what runs there."""
        if not self._upstreams:
            return {}
        findings, attempts = _group_by_first_label(self._repairs), _group_by_first_label(self._attempts_by_outcome)
        return {
            name: UpstreamCounts(
                running=gate.running,
                waiting=gate.waiting,
                ttft_counts=self._upstream_ttft.counts(name),
                findings=findings.get(name, {}),
                attempts=attempts.get(name, {}),
            )
            for name, gate in self._upstream_queues.items()
        }

    def watch_recorder(self, recorder: DropCounter) -> None:
        """Show how many recordings were dropped."""
        self._recorder = recorder

    def watch_store(self, store: StoreStatus) -> None:
        """Say whether it is there."""
        self._store = store

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Show how many tasks there are: more and more of them tell of a leak before memory does."""
        self._loop = loop

    def render(self) -> tuple[str, bytes]:
        """The content type and the body of the page."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families, as they are now."""
        yield from map(_to_prometheus, self._series)
        yield from map(_histogram_to_prometheus, self._histograms)
        yield from (_to_prometheus(numbers) for numbers in self._engine_metrics.values() if numbers.values)
        yield from self._gauges()
        if self._upstreams:
            yield from self._upstream_gauges()
        if self._recorder is not None:
            dropped = self._recorder.dropped
            yield CounterMetricFamily("welldone_recordings_dropped", "Recordings that were lost.", value=dropped)
        if self._store is not None:
            is_up = int(self._store.is_up)
            yield GaugeMetricFamily("welldone_limits_store_up", "Whether the store of limits is there.", value=is_up)
        if self._loop is not None:
            tasks = len(asyncio.all_tasks(self._loop))
            yield GaugeMetricFamily("welldone_tasks", "Tasks of the event loop.", value=tasks)

    def _gauges(self) -> Iterator[Metric]:
        running = {model: gate.running for model, gate in tuple(self._queues.items())}
        waiting = {model: gate.waiting for model, gate in tuple(self._queues.items())}
        reading = {model: speed.tokens_per_s for model, speed in tuple(self._prompt_speed.items())}
        writing = {model: speed.tokens_per_s for model, speed in tuple(self._completion_speed.items())}
        yield _gauge_family("llamacpp:requests_processing", "Requests that run.", running)
        yield _gauge_family("llamacpp:requests_deferred", "Requests that wait for a slot.", waiting)
        yield _gauge_family("welldone_queue_depth", "Requests that wait for a slot.", waiting)
        yield _gauge_family("llamacpp:prompt_tokens_seconds", "Tokens of prompts read in a second, lately.", reading)
        yield _gauge_family("llamacpp:predicted_tokens_seconds", "Tokens written in a second, lately.", writing)
        yield GaugeMetricFamily("welldone_active_streams", "Answers that are being given.", value=self._active_streams)
        info = GaugeMetricFamily("welldone_build_info", "The version that runs.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _upstream_gauges(self) -> Iterator[Metric]:
        running = {name: gate.running for name, gate in tuple(self._upstream_queues.items())}
        waiting = {name: gate.waiting for name, gate in tuple(self._upstream_queues.items())}
        yield _gauge_family("welldone_upstream_running", "Requests that run there.", running, "upstream")
        yield _gauge_family("welldone_upstream_waiting", "Requests that wait for a place there.", waiting, "upstream")

    def _declare_work(self) -> None:
        self._llama_prompt_tokens = self._by_model("llamacpp:prompt_tokens", "Tokens of prompts.")
        self._llama_prompt_s = self._by_model("llamacpp:prompt_seconds", "Time that reading prompts took.")
        self._llama_predicted = self._by_model("llamacpp:tokens_predicted", "Tokens written.")
        self._llama_predicted_s = self._by_model("llamacpp:tokens_predicted_seconds", "Time that writing took.")
        self._prompt_tokens = self._by_model("welldone_prompt_tokens", "Tokens of prompts.")
        self._completion_tokens = self._by_model("welldone_completion_tokens", "Tokens of answers.")
        self._engine_metrics = {
            name: MetricSeries(name.removesuffix("_total"), says, ["model"], is_gauge=not name.endswith("_total"))
            for name, says in _ENGINE_METRICS.items()
        }

    def _declare_events(self) -> None:
        labels = ("endpoint", "model", "status")
        self._requests = self._add_series("welldone_requests", "Requests that were answered.", labels)
        self._findings = self._add_series("welldone_findings", "Rules that engines broke; all mended.", ["rule"])
        self._failures = self._add_series("welldone_stream_failures", "Streams that ended with an error.", ["reason"])
        self._disconnects = self._add_series("welldone_client_disconnects", "Clients that left before the end.", ())
        self._disconnects.add(0)
        self._engine_restarts = self._by_engine("welldone_engine_restarts", "Engines that were started again.")
        self._engine_up = self._by_engine("welldone_engine_up", "Whether the engine answers.", is_gauge=True)

    def _declare_times(self) -> None:
        self._ttft = self._histogram_by_model(
            "time_to_first_token", "From a request to its first token.", TTFT_BUCKETS_S
        )
        self._inter_token = self._histogram_by_model(
            "inter_token", "From one token of an answer to the next.", INTER_TOKEN_BUCKETS_S
        )
        self._request_duration = self._histogram_by_model(
            "request", "From a request to the end of its answer.", _REQUEST_BUCKETS_S
        )
        self._queue_wait = self._histogram_by_model("queue", "How long requests waited for a slot.", _QUEUE_BUCKETS_S)

    def _declare_upstreams(self) -> None:
        by_outcome = ("upstream", "status")
        self._attempts = self._by_upstream("attempts", "Requests to the upstream, also failed ones.")
        self._attempts_by_outcome = self._add_series(
            "welldone_upstream_requests", "The same by how they ended.", by_outcome
        )
        self._repairs = self._add_series("welldone_repairs", "Rules that it broke; all mended.", ("upstream", "rule"))
        self._broken_json = self._add_series(
            "welldone_broken_json", "What should have been JSON.", ("upstream", "what")
        )
        self._upstream_up = self._by_upstream("up", "Whether the upstream answers.", is_gauge=True)
        self._upstream_failing = self._by_upstream("failing", "Whether all recent requests failed.", is_gauge=True)
        self._breaker_state = self._add_series(
            "welldone_upstream_breaker_state", "1 for the state that it is in.", ("upstream", "state"), is_gauge=True
        )
        for name in self._upstreams:
            self.count_broken_json(name)
            self.set_upstream_state(name, is_up=True, breaker="closed")  # until somebody finds out otherwise
        first = "From sending a request to the upstream to its first token."
        self._upstream_ttft = self._histogram_by_upstream("time_to_first_token", first, TTFT_BUCKETS_S)
        self._upstream_inter_token = self._histogram_by_upstream(
            "inter_token", "From one of its tokens to the next.", INTER_TOKEN_BUCKETS_S
        )

    def _add_series(self, name: str, help_text: str, labels: Sequence[str], *, is_gauge: bool = False) -> MetricSeries:
        self._series.append(MetricSeries(name, help_text, labels, is_gauge=is_gauge))
        return self._series[-1]

    def _by_engine(self, name: str, help_text: str, *, is_gauge: bool = False) -> MetricSeries:
        """A number that is there for each model from the start: a series that appears later hides its first step."""
        numbers = self._add_series(name, help_text, ["model"], is_gauge=is_gauge)
        for model in self._models[:-1]:
            numbers.add(0, model)
        return numbers

    def _by_model(self, name: str, help_text: str) -> MetricSeries:
        """The same, also for models that are added: they have no engine of ours, and still tokens."""
        self._model_series.append(self._by_engine(name, help_text))
        return self._model_series[-1]

    def _by_upstream(self, name: str, help_text: str, *, is_gauge: bool = False) -> MetricSeries:
        numbers = self._add_series(f"welldone_upstream_{name}", help_text, ["upstream"], is_gauge=is_gauge)
        for upstream in self._upstreams:
            numbers.add(0, upstream)
        return numbers

    def _histogram_by_model(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        self._histograms.append(Histogram(f"welldone_{name}_seconds", help_text, bounds, "model", self._models))
        return self._histograms[-1]

    def _histogram_by_upstream(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        whole_name = f"welldone_upstream_{name}_seconds"
        self._histograms.append(Histogram(whole_name, help_text, bounds, "upstream", self._upstreams))
        return self._histograms[-1]

    def _model_label(self, name: str) -> str:
        return name if name in self._prompt_speed else OTHER


def _group_by_first_label(series: MetricSeries) -> dict[str, dict[str, int]]:
    """Counts by their first label, and then by their second."""
    found: dict[str, dict[str, int]] = {}
    for (first, second), number in series.samples():
        found.setdefault(first, {})[second] = int(number)
    return found


def _is_label(text: str) -> bool:
    """Whether a text of clients or upstreams may be a label: short, and without marks that end a line somewhere."""
    return len(text) <= LABEL_LIMIT and text.isprintable()


def _rule_label(name: str) -> str:
    return name if name in RULES_BY_ID else OTHER


def _to_prometheus(series: MetricSeries) -> Metric:
    kind = GaugeMetricFamily if series.is_gauge else CounterMetricFamily
    family = kind(series.name, series.help_text, labels=series.labels)
    for labels, number in series.samples():
        family.add_metric(labels, number)
    return family


def _histogram_to_prometheus(histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.help_text, labels=[histogram.label])
    for value, buckets, total_s in histogram.samples():
        family.add_metric([value], buckets, total_s)
    return family


def _gauge_family(name: str, help_text: str, values: Mapping[str, float], label: str = "model") -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
