"""Prometheus metrics: llama.cpp's names where it has them, so that its dashboards work, and `welldone_*`.

The families are the rows of `metrics.json` in this folder. Counters are plain numbers, converted to Prometheus families
on a scrape. Label values come from bounded sets; all others become `other`. Updates belong to one event loop; `render`
may run in another thread.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pkgutil import get_data
from typing import Literal, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from welldone import __version__
from welldone.core.catalog import BREAKING_RULES, RULES
from welldone.gateway.queue import RequestQueue
from welldone.server.observe.counters import (
    INTER_TOKEN_BUCKETS_S,
    Histogram,
    RecentCounts,
    StreamTimes,
    TokenRate,
    UpstreamCounts,
)
from welldone.server.observe.log import Redactor
from welldone.server.reload import ReloadOutcome

OTHER = "other"

ENDPOINTS = frozenset(
    {"admin", "audio", "chat", "classify", "completions", "detokenize", "embeddings", "files", "health", "images"}
    | {"messages", "metrics", "models", "moderations", "ollama", "openapi", "page", "pooling", "rerank", "responses"}
    | {"gemini", "keys", "score", "slots", "sockets", "streams", "tokenize"}
)

CLIENT_LEFT = "left"
OUTCOMES = frozenset({"unreachable", "no_room", "lost", "cut", "unfinished", "unreadable", "timeout", CLIENT_LEFT})
"""Outcomes of attempts without a status. docs/observability.md explains them."""

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

_BUCKETS_S = {
    "first token": TTFT_BUCKETS_S,
    "token": INTER_TOKEN_BUCKETS_S,
    "request": _REQUEST_BUCKETS_S,
    "queue": _QUEUE_BUCKETS_S,
}


class MetricFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    source: Literal["server", "engine", "scrape", "workers"] = "server"
    """Who updates it: this class, the engine (the last scraped values are reported), or it is read on each scrape;
    or it is about all workers together."""
    is_summed: bool = False
    """A gauge that is added up over all workers. Of any other (up, start time, speed) the largest value is reported."""
    buckets: str = ""
    """The bounds of a histogram."""
    known: tuple[str, ...] = ()
    """Values of its label that exist from the start."""


_FAMILIES = msgspec.json.decode(get_data("welldone.server.observe", "metrics.json") or b"", type=list[MetricFamily])
FAMILIES_BY_NAME = {family.name: family for family in _FAMILIES}
_TOKEN_COUNTERS = _FAMILIES[:6]
"""In the order in which `Metrics.count_tokens` counts."""
_ENGINE_FAMILIES = {
    f"{family.name}_total" if family.kind == "counter" else family.name: family.name
    for family in _FAMILIES
    if family.source == "engine"
}
"""By name of the sample."""
_ENGINE_METRIC_LINE = re.compile(rf"^({'|'.join(_ENGINE_FAMILIES)}) ([0-9.e+]{{1,32}})$", re.MULTILINE)

_Samples: TypeAlias = Mapping[tuple[str, ...], float]


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
        self._series: dict[str, defaultdict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in _FAMILIES:
            if family.kind == "histogram":
                values = self._models if family.labels == ("model",) else ()
                self._histograms[family.name] = Histogram(_BUCKETS_S[family.buckets], values)
            elif family.source in ("server", "engine"):
                # Known series exist from the start: increase() misses their first value.
                start = known.get(family.labels, [(value,) for value in family.known])
                self._series[family.name] = defaultdict(
                    float, dict.fromkeys(start if family.source == "server" else (), 0.0)
                )
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
        for family in _FAMILIES:
            if family.labels[:1] != ("upstream",) or family.source != "server":
                continue
            if family.kind == "histogram":
                self._histograms[family.name].set_series(expired, added)
                continue
            series, unused = self._series[family.name], expired | removed if family.kind == "gauge" else expired
            for labels in [labels for labels in series if labels[0] in unused]:
                del series[labels]
            if len(family.labels) == 1:
                series.update({(name,): 0.0 for name in added})
        for name in self._upstreams:
            if name not in before:
                self.count_broken_json(name)
                self.set_upstream_state(name, is_up=True, breaker="closed")  # until the first probe

    def _counts_upstream(self, name: str) -> bool:
        """Whether an upstream has counters. An answer may end long after its upstream was removed."""
        return name in self._upstreams or name in self._removed

    def record_reload(self, outcome: ReloadOutcome, *, is_counted: bool) -> None:
        """Set the result of the last reload, and the time of the configuration. Of several workers one counts it."""
        self._series["welldone_reloads"][outcome,] += is_counted
        self._series["welldone_config_last_reload_successful"][()] = float(outcome != "failed")
        if outcome != "failed":
            self._series["welldone_config_timestamp_seconds"][()] = time.time()

    def add_model(self, name: str) -> None:
        """Add series for a model, up to the limit. Names that look like secrets are not added."""
        if name in self._speeds or len(self._speeds) > MODELS_LIMIT:
            return
        if not _is_label(name) or self._redactor.redact(name) != name:
            return
        for counter in _TOKEN_COUNTERS:
            self._series[counter.name][name,] = 0.0
        for family, histogram in self._histograms.items():
            if FAMILIES_BY_NAME[family].labels == ("model",):
                histogram.set_series((), [name])
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
            self._series[counter.name][name,] += number
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
        """Count a request to resume a stream: 200, 404, 410 (events are no longer kept) or 400."""
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
                self._series[_ENGINE_FAMILIES[name]][self._model_label(model),] = float(number)

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
        recent.breaking += not BREAKING_RULES.isdisjoint(rules)
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
        """Report a value that is read on each scrape."""
        self._watched[name] = read

    def render(self) -> tuple[str, bytes]:
        """The content type and the body of /metrics."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metric families (prometheus_client's collector interface)."""
        values = {**self._series, **self._read()}
        for family in _FAMILIES:
            if family.labels[:1] == ("upstream",) and not self._upstreams:
                continue
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
                for value, buckets, total_s in self._histograms[family.name].samples():
                    histogram.add_metric([value], buckets, total_s)
                yield histogram
            elif (samples := values.get(family.name)) is not None and (samples or family.source != "engine"):
                family_type = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
                metric = family_type(family.name, family.help, labels=family.labels)
                for labels, number in tuple(samples.items()):
                    metric.add_metric(labels, number)
                yield metric

    def _read(self) -> dict[str, _Samples]:
        """The values that are read on each scrape."""
        running, waiting, slots, limits = _load(self._queues)
        upstream_running, upstream_waiting, upstream_slots, upstream_limits = _load(self._upstream_queues)
        speeds = tuple(self._speeds.items())
        return {
            "welldone_build_info": {(__version__,): 1},
            "llamacpp:requests_processing": running,
            "llamacpp:requests_deferred": waiting,
            "welldone_queue_depth": waiting,
            "welldone_queue_limit": limits,
            "welldone_slots": slots,
            "llamacpp:prompt_tokens_seconds": {(model,): speed.tokens_per_s for model, (speed, _) in speeds},
            "llamacpp:predicted_tokens_seconds": {(model,): speed.tokens_per_s for model, (_, speed) in speeds},
            "welldone_upstream_running": upstream_running,
            "welldone_upstream_waiting": upstream_waiting,
            "welldone_upstream_slots": upstream_slots,
            "welldone_upstream_queue_limit": upstream_limits,
            "welldone_active_streams": {(): self._active_streams},
            **{name: {(): read()} for name, read in tuple(self._watched.items())},
        }

    def _model_label(self, name: str) -> str:
        return name if name in self._speeds else OTHER


def _group_by_first_label(series: _Samples) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for (first, second), number in tuple(series.items()):
        counts.setdefault(first, {})[second] = int(number)
    return counts


def _is_label(text: str) -> bool:
    """Whether a text from clients or upstreams may be a label value: short, without line separators."""
    return len(text) <= LABEL_LIMIT and text.isprintable()


def _load(queues: Mapping[str, RequestQueue]) -> tuple[_Samples, ...]:
    """The running and the queued requests, and the largest number of each, by name of the queue."""
    known = tuple(queues.items())
    return (
        {(name,): queue.running for name, queue in known},
        {(name,): queue.waiting for name, queue in known},
        {(name,): queue.slots for name, queue in known},
        {(name,): queue.capacity - queue.slots for name, queue in known},
    )
