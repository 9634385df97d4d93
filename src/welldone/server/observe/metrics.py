"""Prometheus metrics: llama.cpp's names where it has them, so that its dashboards work, and `welldone_*`.

Counters are plain numbers, converted to Prometheus families on a scrape. Label values come from bounded sets; all
others become `other`. Updates belong to one event loop; `render` may run in another thread.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from welldone import __version__
from welldone.gateway.queue import RequestQueue
from welldone.protocol.catalog import RULES, Severity
from welldone.server.observe.counters import Histogram, MetricSeries, RecentCounts, TokenRate, UpstreamCounts
from welldone.server.observe.log import Redactor
from welldone.server.observe.timing import INTER_TOKEN_BUCKETS_S, StreamTimes
from welldone.server.reload import RELOAD_OUTCOMES
from welldone.server.resume.streams import StreamRegistry

OTHER = "other"

ENDPOINTS = frozenset(
    {"admin", "audio", "chat", "classify", "completions", "detokenize", "embeddings", "files", "health", "images"}
    | {"messages", "metrics", "models", "moderations", "ollama", "openapi", "page", "pooling", "rerank", "responses"}
    | {"gemini", "keys", "score", "slots", "sockets", "streams", "tokenize"}
)

CLIENT_LEFT = "left"
OUTCOMES = frozenset({"unreachable", "no_room", "lost", "cut", "unfinished", "unreadable", "timeout", CLIENT_LEFT})
"""Outcomes of attempts without a status. docs/observability.md explains them."""

RESUME_OUTCOMES = ("resumed", "not_found", "gone", "invalid")
"""Outcomes of requests to resume a stream: 200, 404, 410 (events are no longer kept), 400."""

_OUTCOMES_BY_COUNTER = {"welldone_resumes": RESUME_OUTCOMES, "welldone_reloads": RELOAD_OUTCOMES}

MODELS_LIMIT = 200
"""Models with their own series. Upstreams may list thousands, and behind a pattern clients choose the names."""

LABEL_LIMIT = 256
"""Characters of a label value. The longest model names have about 100."""

_REASONS_LIMIT = 32
"""Distinct reasons of stream failures: error codes, of which there are fewer."""

_STATUSES = frozenset(str(status) for status in range(100, 600))
_BREAKER_STATES = ("closed", "open", "half-open")

# A cached prompt has its first token within milliseconds; after a minute users have given up.
TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
_REQUEST_BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_QUEUE_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

_ENGINE_METRICS = {
    "llamacpp:n_decode_total": "Calls of llama_decode().",
    "llamacpp:n_tokens_max": "Largest number of tokens in a sequence.",
    "llamacpp:n_busy_slots_per_decode": "Average number of busy slots per call of llama_decode().",
}
"""Metrics that only the engine has; the last scraped values are reported."""
_ENGINE_METRIC_LINE = re.compile(rf"^({'|'.join(_ENGINE_METRICS)}) ([0-9.e+]{{1,32}})$", re.MULTILINE)


_TOKEN_COUNTERS = {
    "welldone_prompt_tokens": ("Prompt tokens.", "model"),
    "llamacpp:prompt_tokens": ("Prompt tokens.", "model"),
    "llamacpp:prompt_seconds": ("Time of prompt processing.", "model"),
    "welldone_completion_tokens": ("Completion tokens.", "model"),
    "llamacpp:tokens_predicted": ("Generated tokens.", "model"),
    "llamacpp:tokens_predicted_seconds": ("Time of token generation.", "model"),
}
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    # The help text, and the labels.
    **_TOKEN_COUNTERS,
    "welldone_requests": ("Finished requests.", "endpoint", "model", "status"),
    "welldone_findings": ("Repairs of streams, by rule.", "rule"),
    "welldone_stream_failures": ("Streams that ended with an error.", "reason"),
    "welldone_continuations": (
        "Answers that broke off, by way and result of the continuation.",
        "way",
        "outcome",
    ),
    "welldone_retries": ("Attempts that followed a failed one: retries and continuations.",),
    "welldone_client_disconnects": ("Clients that disconnected before the end.",),
    "welldone_resumes": ("Requests to resume a stream, by outcome.", "outcome"),
    "welldone_reloads": ("Reloads of the configuration, by outcome.", "outcome"),
    "welldone_engine_restarts": ("Restarts of engines.", "model"),
    "welldone_upstream_attempts": ("Attempts at the upstream, including failed ones.", "upstream"),
    "welldone_upstream_requests": ("Attempts at the upstream, by status or outcome.", "upstream", "status"),
    "welldone_repairs": ("Repairs of the upstream's streams, by rule.", "upstream", "rule"),
    "welldone_mirror": ("Requests that were mirrored to the upstream, by outcome.", "upstream", "outcome"),
    "welldone_broken_json": ("Invalid JSON in texts or tool call arguments.", "upstream", "what"),
}
_GAUGES: Mapping[str, tuple[str, ...]] = {
    "welldone_config_timestamp_seconds": ("Unix time when the present configuration was read.",),
    "welldone_config_last_reload_successful": ("Whether the last reload, if any, was successful.",),
    "welldone_rule_info": ("1 for the severity of each rule that was counted.", "rule", "severity"),
    "welldone_engine_up": ("Whether the engine is ready.", "model"),
    "welldone_engine_standby": ("Whether the standby engine is ready.", "model"),
    "welldone_upstream_up": ("Whether the upstream is healthy.", "upstream"),
    "welldone_upstream_failing": ("Whether all recent requests failed.", "upstream"),
    "welldone_upstream_breaker_state": ("1 for the current state of the circuit breaker.", "upstream", "state"),
}
_WATCHED: Mapping[str, tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str]] = {
    "welldone_limits_store_up": (GaugeMetricFamily, "Whether the store of limits is available."),
    "welldone_recordings_dropped": (CounterMetricFamily, "Recordings that were dropped."),
    "welldone_resumable_streams": (GaugeMetricFamily, "Streams that can be resumed, running and ended."),
    "welldone_resumable_bytes": (GaugeMetricFamily, "Memory of their events."),
    "welldone_ready": (GaugeMetricFamily, "Whether requests can be served: 1 if /health returns 200."),
    # Growth shows a leak before memory does.
    "welldone_tasks": (GaugeMetricFamily, "Tasks of the event loop."),
}
"""Values of other parts."""
_HISTOGRAMS = {
    # The help text, the bounds of the buckets, and the label.
    "welldone_time_to_first_token_seconds": ("Time from a request to its first token.", TTFT_BUCKETS_S, "model"),
    "welldone_inter_token_seconds": ("Time between two tokens of an answer.", INTER_TOKEN_BUCKETS_S, "model"),
    "welldone_request_seconds": ("Time from a request to the end of its answer.", _REQUEST_BUCKETS_S, "model"),
    "welldone_queue_seconds": ("Time that requests were queued.", _QUEUE_BUCKETS_S, "model"),
    "welldone_upstream_time_to_first_token_seconds": (
        "Time from an attempt at the upstream to its first token.",
        TTFT_BUCKETS_S,
        "upstream",
    ),
    "welldone_upstream_inter_token_seconds": ("Time between two of its tokens.", INTER_TOKEN_BUCKETS_S, "upstream"),
}


class Metrics(Collector):
    """All metrics of one server process.

    `models` and `upstreams` are the configured names. More models can be added, up to a limit; all other names are
    counted as `other`.
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
        self._upstreams: tuple[str, ...] = ()
        self._recent: dict[str, RecentCounts] = {}
        self._queues: Mapping[str, RequestQueue] = {}
        self._upstream_queues: Mapping[str, RequestQueue] = {}
        self._watched: dict[str, Callable[[], float]] = {}
        self._active_streams = 0
        self._speeds = {model: (TokenRate(), TokenRate()) for model in self._models}  # of prompts and completions
        known: dict[tuple[str, ...], list[tuple[str, ...]]] = {
            (): [()],
            ("model",): [(model,) for model in self._models[:-1]],
        }
        self._series = {
            name: MetricSeries(name, help_text, labels, is_gauge=families is _GAUGES)
            for families in (_COUNTERS, _GAUGES)
            for name, (help_text, *labels) in families.items()
        }
        for series in self._series.values():  # known series exist from the start: increase() misses their first value
            outcomes = [(outcome,) for outcome in _OUTCOMES_BY_COUNTER.get(series.name, ())]
            series.update(dict.fromkeys(known.get(series.labels, outcomes), 0.0))
        self._engine_metrics = {
            name: MetricSeries(name.removesuffix("_total"), help_text, ["model"], is_gauge=not name.endswith("_total"))
            for name, help_text in _ENGINE_METRICS.items()
        }
        self._histograms = {
            name: Histogram(name, help_text, bounds, label, self._models if label == "model" else ())
            for name, (help_text, bounds, label) in _HISTOGRAMS.items()
        }
        self._removed: set[str] = set()  # names of upstreams
        self.set_upstreams(upstreams)
        self._series["welldone_config_timestamp_seconds"][()] = time.time()
        self._series["welldone_config_last_reload_successful"][()] = 1.0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def reload(self, models: Iterable[str], upstreams: Iterable[str], secrets: Iterable[str]) -> None:
        """Use other names of models and upstreams, and hide other secrets."""
        self._redactor.reload(secrets)
        for name in models:
            self.add_model(name)
        self.set_upstreams(upstreams)

    def set_upstreams(self, names: Iterable[str]) -> None:
        """Set the names of the upstreams. The counters of removed ones stay until the next change: they still count."""
        before, self._upstreams = self._upstreams, tuple(dict.fromkeys(names))
        removed, expired = set(before).difference(self._upstreams), self._removed.difference(self._upstreams)
        added = set(self._upstreams).difference(before, self._removed)
        self._removed = removed
        self._recent = {
            name: self._recent.get(name) or RecentCounts(self._clock) for name in (*self._upstreams, *removed)
        }
        all_series = [series for series in self._series.values() if "upstream" in series.labels]
        for series in all_series:
            unused = expired | removed if series.is_gauge else expired
            for labels in [labels for labels in series if labels[0] in unused]:
                del series[labels]
            if len(series.labels) == 1:
                series.update({(name,): 0.0 for name in added})
        for histogram in self._histograms.values():
            if histogram.label == "upstream":
                for name in expired:
                    histogram.remove_series(name)
                for name in added:
                    histogram.add_series(name)
        for name in self._upstreams:
            if name not in before:
                self.count_broken_json(name)
                self.set_upstream_state(name, is_up=True, breaker="closed")  # until the first probe

    def _counts_upstream(self, name: str) -> bool:
        """Whether an upstream has counters. An answer may end long after its upstream was removed."""
        return name in self._upstreams or name in self._removed

    def count_reload(self, outcome: str) -> None:
        """Count a reload; the outcome is one of `RELOAD_OUTCOMES`."""
        self._series["welldone_reloads"][outcome,] += 1

    def set_reload(self, *, is_successful: bool) -> None:
        """Set the result of the last reload, and the time of the configuration."""
        self._series["welldone_config_last_reload_successful"][()] = float(is_successful)
        if is_successful:
            self._series["welldone_config_timestamp_seconds"][()] = time.time()

    def add_model(self, name: str) -> None:
        """Add series for a model, up to the limit. Names that look like secrets are not added."""
        if name in self._speeds or len(self._speeds) > MODELS_LIMIT:
            return
        if not _is_label(name) or self._redactor.redact(name) != name:
            return
        for counter in _TOKEN_COUNTERS:
            self._series[counter][name,] = 0.0
        for histogram in self._histograms.values():
            if histogram.label == "model":
                histogram.add_series(name)
        self._speeds[name] = (TokenRate(), TokenRate())

    def begin_stream(self) -> StreamTimes:
        """Count a new active stream; `end_stream` ends it."""
        self._active_streams += 1
        return StreamTimes(self._clock)

    def end_stream(self, times: StreamTimes, model: str) -> None:
        """Record the end of a stream. Repeated calls do nothing."""
        if times.is_finished:
            return
        times.is_finished = True
        self._active_streams -= 1
        name = self._model_label(model)
        if any(times.gaps):
            self._histograms["welldone_inter_token_seconds"].add_many(name, times.gaps, times.gaps_s)
        if times.ttft_s is not None:
            self._histograms["welldone_time_to_first_token_seconds"].observe(name, times.ttft_s)
        if times.queued_s is not None:
            self._histograms["welldone_queue_seconds"].observe(name, times.queued_s)

    def count_request(self, endpoint: str, model: str, status: int, duration_s: float) -> None:
        """Count a finished request."""
        name = self._model_label(model)
        endpoint = endpoint if endpoint in ENDPOINTS else OTHER
        code = str(status) if str(status) in _STATUSES else OTHER
        self._series["welldone_requests"][endpoint, name, code] += 1
        self._histograms["welldone_request_seconds"].observe(name, duration_s)

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
        """Count the tokens of an answer, and the engine's time for them (0: unknown).

        llama.cpp's counters exclude the `cached` prompt tokens.
        """
        name = self._model_label(model)
        processed = prompt - min(max(cached, 0), prompt)  # upstreams report any number
        numbers = (prompt, processed, prompt_s, completion, completion, completion_s)
        for counter, number in zip(_TOKEN_COUNTERS, numbers, strict=True):
            self._series[counter][name,] += number
        prompt_speed, completion_speed = self._speeds[name]
        prompt_speed.add(processed, prompt_s)
        completion_speed.add(completion, completion_s)

    def count_repairs(self, rules: Iterable[str]) -> None:
        """Count the repairs of a stream, by rule."""
        for rule in rules:
            self._series["welldone_findings"][rule if rule in RULES else OTHER,] += 1
            if rule in RULES:
                self._series["welldone_rule_info"][rule, RULES[rule].severity] = 1.0

    def count_retries(self, count: int) -> None:
        """Count the attempts at a request that followed a failed one."""
        self._series["welldone_retries"][()] += count

    def count_stream_failure(self, reason: str) -> None:
        """Count a stream that ended with an error event, by error code."""
        failures = self._series["welldone_stream_failures"]
        has_room = len(failures) < _REASONS_LIMIT and _is_label(reason)
        failures[reason if (reason,) in failures or has_room else OTHER,] += 1

    def count_continuation(self, way: str, outcome: str) -> None:
        """Count an answer that broke off after its first byte."""
        self._series["welldone_continuations"][way, outcome] += 1

    def count_disconnect(self) -> None:
        """Count a client that disconnected before the end of its answer."""
        self._series["welldone_client_disconnects"][()] += 1

    def count_resume(self, outcome: str) -> None:
        """Count a request to resume a stream; the outcome is one of `RESUME_OUTCOMES`."""
        self._series["welldone_resumes"][outcome,] += 1

    def set_engine_state(self, model: str, *, is_up: bool, restarts: int) -> None:
        """Set the state of a model's engine."""
        name = self._model_label(model)
        self._series["welldone_engine_up"][name,] = float(is_up)
        self._series["welldone_engine_restarts"][name,] = float(restarts)

    def set_standby(self, model: str, *, is_ready: bool) -> None:
        """Set whether the standby engine of a model is ready."""
        self._series["welldone_engine_standby"][self._model_label(model),] = float(is_ready)

    def add_engine_metrics(self, model: str, text: str) -> None:
        """Import the metrics that only the engine has."""
        for name, number in _ENGINE_METRIC_LINE.findall(text):
            with suppress(ValueError):
                self._engine_metrics[name][self._model_label(model),] = float(number)

    def watch_queues(self, queues: Mapping[str, RequestQueue]) -> None:
        """Report the running and queued requests of these models."""
        self._queues = {self._model_label(model): queue for model, queue in queues.items()}

    # Upstreams, by their configured names.

    def count_upstream_attempt(self, name: str, outcome: int | str, *, is_failure: bool = False) -> None:
        """Count an attempt at an upstream, by its status or one of `OUTCOMES`. `is_failure`: the upstream failed."""
        if not self._counts_upstream(name):
            return
        if outcome != CLIENT_LEFT:
            recent = self._recent[name].current()
            recent.requests += 1
            recent.failures += is_failure
        label = str(outcome)
        label = label if label in _STATUSES or label in OUTCOMES else OTHER
        self._series["welldone_upstream_attempts"][name,] += 1
        self._series["welldone_upstream_requests"][name, label] += 1

    def observe_upstream_times(self, name: str, times: StreamTimes) -> None:
        """Record the times of an upstream's answer, complete or not."""
        if not self._counts_upstream(name):
            return
        if any(times.gaps):
            self._histograms["welldone_upstream_inter_token_seconds"].add_many(name, times.gaps, times.gaps_s)
        if times.ttft_s is not None:
            self._histograms["welldone_upstream_time_to_first_token_seconds"].observe(name, times.ttft_s - times.sent_s)

    def count_upstream_repairs(self, name: str, rules: Iterable[str]) -> None:
        """Count the repairs of an upstream's stream, in addition to `count_repairs`."""
        if not self._counts_upstream(name):
            return
        rules = tuple(rules)
        recent = self._recent[name].current()
        recent.repaired += 1
        recent.breaking += any(rule in RULES and RULES[rule].severity is Severity.BREAKS for rule in rules)
        for rule in rules:
            self._series["welldone_repairs"][name, rule if rule in RULES else OTHER] += 1

    def count_broken_json(self, name: str, *, content: int = 0, arguments: int = 0) -> None:
        """Count invalid JSON in texts that should be JSON, and in arguments of tool calls."""
        if self._counts_upstream(name):
            self._series["welldone_broken_json"][name, "content"] += content
            self._series["welldone_broken_json"][name, "arguments"] += arguments

    def count_mirrored(self, name: str, outcome: str) -> None:
        """Count a request that was also sent to this upstream, or was dropped."""
        if self._counts_upstream(name):
            self._series["welldone_mirror"][name, outcome] += 1

    def set_upstream_state(self, name: str, *, is_up: bool, breaker: str, is_failing: bool = False) -> None:
        """Set the state of an upstream; `breaker` is closed, open or half-open."""
        self._series["welldone_upstream_up"][name,] = float(is_up)
        self._series["welldone_upstream_failing"][name,] = float(is_failing)
        for state in _BREAKER_STATES:
            self._series["welldone_upstream_breaker_state"][name, state] = float(state == breaker)

    def watch_upstream_queues(self, queues: Mapping[str, RequestQueue]) -> None:
        """Report the running and queued requests of these upstreams."""
        self._upstream_queues = queues

    def upstream_counts(self) -> dict[str, UpstreamCounts]:
        """Counts and load of each upstream, for the web page."""
        if not self._upstreams:
            return {}
        names = ("welldone_repairs", "welldone_upstream_requests")
        findings, attempts = (_group_by_first_label(self._series[name]) for name in names)
        return {
            name: UpstreamCounts(
                running=queue.running,
                waiting=queue.waiting,
                ttft_counts=self._histograms["welldone_upstream_time_to_first_token_seconds"].counts(name),
                findings=findings.get(name, {}),
                attempts=attempts.get(name, {}),
                window=self._recent[name].total(),
            )
            for name, queue in self._upstream_queues.items()
        }

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Report a value of `_WATCHED`, which is read on each scrape."""
        self._watched[name] = read

    def watch_streams(self, streams: StreamRegistry) -> None:
        """Report the number and the memory of resumable streams."""
        self.watch("welldone_resumable_streams", lambda: len(streams))
        self.watch("welldone_resumable_bytes", lambda: streams.size_bytes)

    def render(self) -> tuple[str, bytes]:
        """The content type and the body of /metrics."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metric families (prometheus_client's collector interface)."""
        is_gateway = bool(self._upstreams)
        yield from (_to_prometheus(one) for one in self._series.values() if is_gateway or "upstream" not in one.labels)
        histograms = (one for one in self._histograms.values() if is_gateway or one.label != "upstream")
        yield from map(_histogram_to_prometheus, histograms)
        yield from (_to_prometheus(series) for series in self._engine_metrics.values() if series)
        for name, help_text, label, values in self._gauges():
            gauge = GaugeMetricFamily(name, help_text, labels=[label])
            for value, number in values.items():
                gauge.add_metric([value], number)
            yield gauge
        yield GaugeMetricFamily("welldone_active_streams", "Answers in progress.", value=self._active_streams)
        for name, read in self._watched.items():
            family, help_text = _WATCHED[name]
            yield family(name, help_text, value=read())

    def _gauges(self) -> Iterator[tuple[str, str, str, dict[str, float]]]:
        """Name, help, label and values of the gauges that are computed on each scrape."""
        running, waiting, slots, limits = _load(self._queues)
        speeds = tuple(self._speeds.items())
        prompt_speed = {model: speed.tokens_per_s for model, (speed, _) in speeds}
        completion_speed = {model: speed.tokens_per_s for model, (_, speed) in speeds}
        yield "welldone_build_info", "The running version.", "version", {__version__: 1}
        yield "llamacpp:requests_processing", "Running requests.", "model", running
        yield "llamacpp:requests_deferred", "Queued requests.", "model", waiting
        yield "welldone_queue_depth", "Queued requests.", "model", waiting
        yield "welldone_queue_limit", "Requests that may be queued; further ones get 429.", "model", limits
        yield "welldone_slots", "Requests that may run at once.", "model", slots
        yield "llamacpp:prompt_tokens_seconds", "Prompt tokens per second.", "model", prompt_speed
        yield "llamacpp:predicted_tokens_seconds", "Generated tokens per second.", "model", completion_speed
        if self._upstreams:
            running, waiting, slots, limits = _load(self._upstream_queues)
            yield "welldone_upstream_running", "Running requests.", "upstream", running
            yield "welldone_upstream_waiting", "Queued requests.", "upstream", waiting
            yield "welldone_upstream_slots", "Requests that may run at once.", "upstream", slots
            yield "welldone_upstream_queue_limit", "Requests that may be queued.", "upstream", limits

    def _model_label(self, name: str) -> str:
        return name if name in self._speeds else OTHER


def _group_by_first_label(series: MetricSeries) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for (first, second), number in tuple(series.items()):
        counts.setdefault(first, {})[second] = int(number)
    return counts


def _is_label(text: str) -> bool:
    """Whether a text from clients or upstreams may be a label value: short, without line separators."""
    return len(text) <= LABEL_LIMIT and text.isprintable()


def _load(queues: Mapping[str, RequestQueue]) -> tuple[dict[str, float], ...]:
    """The running and the queued requests, and the largest number of each, by name of the queue."""
    known = tuple(queues.items())
    return (
        {name: queue.running for name, queue in known},
        {name: queue.waiting for name, queue in known},
        {name: queue.slots for name, queue in known},
        {name: queue.capacity - queue.slots for name, queue in known},
    )


def _to_prometheus(series: MetricSeries) -> Metric:
    kind = GaugeMetricFamily if series.is_gauge else CounterMetricFamily
    family = kind(series.name, series.help_text, labels=series.labels)
    for labels, number in tuple(series.items()):
        family.add_metric(labels, number)
    return family


def _histogram_to_prometheus(histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.help_text, labels=[histogram.label])
    for value, buckets, total_s in histogram.samples():
        family.add_metric([value], buckets, total_s)
    return family
