"""Metrics: stable names, consistent numbers, and bounded labels."""

import asyncio
import math
import random
from collections.abc import Mapping
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.table import table
from welldone.core.catalog import RULES
from welldone.gateway.queue import RequestQueue
from welldone.server.observe.counters import StreamTimes
from welldone.server.observe.metrics import MODELS_LIMIT, OTHER, Metrics
from welldone.server.reload import ReloadOutcome


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeQueue:
    """A fake queue."""

    running = 3
    waiting = 2
    slots = 4
    capacity = 14


def _read(metrics: Metrics) -> dict[str, dict[str, dict[tuple[str, ...], float]]]:
    """A scrape: by family, sample and label values (in the order of their names)."""
    kind, body = metrics.render()
    assert kind.startswith("text/plain")
    families: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            families.setdefault(family.name, {}).setdefault(sample.name, {})[labels] = sample.value
    return families


def _values(metrics: Metrics, sample: str) -> Mapping[tuple[str, ...], float]:
    return next(family[sample] for family in _read(metrics).values() if sample in family)


NAMES = [
    "llamacpp:prompt_tokens_total",
    "llamacpp:prompt_seconds_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:tokens_predicted_seconds_total",
    "llamacpp:n_decode_total",
    "llamacpp:prompt_tokens_seconds",
    "llamacpp:predicted_tokens_seconds",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "welldone_requests_total",
    "welldone_time_to_first_token_seconds_bucket",
    "welldone_inter_token_seconds_bucket",
    "welldone_request_seconds_bucket",
    "welldone_queue_seconds_bucket",
    "welldone_active_streams",
    "welldone_queue_depth",
    "welldone_queue_limit",
    "welldone_slots",
    "welldone_findings_total",
    "welldone_stream_failures_total",
    "welldone_client_disconnects_total",
    "welldone_engine_restarts_total",
    "welldone_engine_up",
    "welldone_engine_standby",
    "welldone_prompt_tokens_total",
    "welldone_completion_tokens_total",
    "welldone_build_info",
    "python_info",
]


def _used() -> Metrics:
    clock = Clock()
    metrics = Metrics(["m"], clock=clock)
    metrics.watch_queues({"m": cast("RequestQueue", FakeQueue())})
    metrics.count_request("chat", "m", 200, 1.5)
    metrics.count_tokens("m", 100, 50, prompt_s=0.5, completion_s=2.0)
    metrics.count_repairs(["delta-role-once", "delta-role-once"])
    metrics.count_stream_failure("engine_died")
    metrics.count_disconnect()
    metrics.count_retries(3)
    metrics.watch("welldone_ready", lambda: False)
    metrics.set_engine_state("m", is_up=True, restarts=2)
    metrics.set_standby("m", is_ready=True)
    metrics.add_engine_metrics("m", "# HELP x\nllamacpp:n_decode_total 17\nllamacpp:prompt_tokens_total 1\n")
    return metrics


@table("name", NAMES)
def test_a_scrape_has_every_name(name: str) -> None:
    assert _values(_used(), name)


@table(
    ("name", "value"),
    [
        ("welldone_requests_total", {("chat", "m", "200"): 1}),
        ("welldone_findings_total", {("delta-role-once",): 2}),
        ("welldone_rule_info", {("delta-role-once", RULES["delta-role-once"].severity): 1}),
        ("welldone_retries_total", {(): 3}),
        ("welldone_ready", {(): 0}),
        ("welldone_slots", {("m",): 4}),
        ("welldone_queue_limit", {("m",): 10}),
        ("welldone_stream_failures_total", {("engine_died",): 1}),
        ("welldone_client_disconnects_total", {(): 1}),
        ("welldone_engine_up", {("m",): 1}),
        ("welldone_engine_standby", {("m",): 1}),
        ("welldone_engine_restarts_total", {("m",): 2}),
        ("welldone_prompt_tokens_total", {("m",): 100}),
        ("llamacpp:tokens_predicted_seconds_total", {("m",): 2}),
        ("llamacpp:predicted_tokens_seconds", {("m",): 25, (OTHER,): 0}),
        ("llamacpp:prompt_tokens_seconds", {("m",): 200, (OTHER,): 0}),
        ("llamacpp:requests_processing", {("m",): 3}),
        ("llamacpp:requests_deferred", {("m",): 2}),
        ("llamacpp:n_decode_total", {("m",): 17}),
        ("welldone_request_seconds_sum", {("m",): 1.5, (OTHER,): 0}),
    ],
)
def test_reported_values_are_the_counted_ones(name: str, value: dict[tuple[str, ...], float]) -> None:
    assert _values(_used(), name) == value


@table(("cached", "processed"), [(-1, 5), (0, 5), (2, 3), (5, 0), (6, 0)])
def test_prompt_tokens_without_the_cached_ones_are_between_zero_and_all(cached: int, processed: int) -> None:
    metrics = Metrics(["m"])
    metrics.count_tokens("m", 5, 1, cached=cached)
    assert _values(metrics, "llamacpp:prompt_tokens_total") == {("m",): processed}


def test_two_servers_in_one_process_share_nothing() -> None:
    one, other = Metrics(["m"]), Metrics(["m"])
    one.count_disconnect()
    assert _values(other, "welldone_client_disconnects_total") == {(): 0}


def test_a_scrape_changes_nothing() -> None:
    metrics = _used()
    assert [_values(metrics, name) for name in NAMES] == [_values(metrics, name) for name in NAMES]


def test_series_of_configured_models_exist_before_the_first_request() -> None:
    metrics = Metrics(["m"])
    assert _values(metrics, "welldone_completion_tokens_total") == {("m",): 0}
    assert _values(metrics, "welldone_engine_up") == {("m",): 0}
    assert "_created" not in metrics.render()[1].decode()


def test_unbounded_labels_are_counted_as_other() -> None:
    metrics = Metrics(["m"])
    for number in range(1000):
        metrics.count_request(f"/path/{number}", f"model-{number}", 1000 + number, 1.0)
        metrics.count_tokens(f"model-{number}", 1, 1)
        metrics.count_repairs([f"rule-{number}"])
        metrics.count_stream_failure(f"reason-{number}")
        metrics.end_stream(metrics.begin_stream(), f"model-{number}")
        metrics.set_engine_state(f"model-{number}", is_up=False, restarts=number)
    assert _values(metrics, "welldone_requests_total") == {(OTHER, OTHER, OTHER): 1000}
    assert _values(metrics, "welldone_findings_total") == {(OTHER,): 1000}
    assert len(_values(metrics, "welldone_stream_failures_total")) == 33
    assert sum(_values(metrics, "welldone_stream_failures_total").values()) == 1000
    assert len(_values(metrics, "welldone_prompt_tokens_total")) == 2


def test_the_times_of_a_stream_are_recorded_once_at_its_end() -> None:
    clock = Clock()
    metrics = Metrics(["m"], clock=clock)
    times = metrics.begin_stream()
    assert _values(metrics, "welldone_active_streams") == {(): 1}
    times.record_attempt(0.2)
    times.record_attempt(0.1)
    clock.now = 0.25
    times.record_chunk()
    for _ in range(10):
        clock.now += 0.02
        times.record_chunk()
    clock.now += 0.6
    times.record_chunk()
    assert (times.ttft_s, times.queued_s) == (0.25, 0.2)
    assert times.elapsed_s == pytest.approx(1.05)
    for _ in range(2):
        metrics.end_stream(times, "m")
    assert _values(metrics, "welldone_active_streams") == {(): 0}
    first = _values(metrics, "welldone_time_to_first_token_seconds_bucket")
    assert (first["0.1", "m"], first["0.25", "m"], first["+Inf", "m"]) == (0, 1, 1)
    between = _values(metrics, "welldone_inter_token_seconds_bucket")
    assert (between["0.015", "m"], between["0.03", "m"], between["0.15", "m"]) == (0, 10, 10)
    assert (between["0.5", "m"], between["+Inf", "m"]) == (10, 11)
    assert _values(metrics, "welldone_inter_token_seconds_sum")["m",] == pytest.approx(0.8)
    assert _values(metrics, "welldone_queue_seconds_count")["m",] == 1


def test_the_first_chunk_sets_the_time_to_first_token() -> None:
    clock = Clock()
    times = StreamTimes(clock)
    clock.now = 2.0
    assert times.ttft_s is None
    times.record_chunk()
    assert times.ttft_s is not None
    assert (times.ttft_s, sum(times.gaps)) == (2.0, 0)


def test_a_stream_without_chunks_has_no_time_to_first_token() -> None:
    metrics = Metrics(["m"])
    metrics.end_stream(metrics.begin_stream(), "m")
    assert _values(metrics, "welldone_time_to_first_token_seconds_count")["m",] == 0
    assert _values(metrics, "welldone_active_streams") == {(): 0}


@given(st.lists(st.floats(0, 20), max_size=40), st.randoms(use_true_random=False))
def test_histograms_add_up(gaps: list[float], chance: random.Random) -> None:
    clock = Clock()
    metrics = Metrics(["m", "n"], clock=clock)
    open_streams = [metrics.begin_stream() for _ in range(3)]
    for times in open_streams:
        times.record_chunk()
    for gap_s in gaps:
        clock.now += gap_s
        chance.choice(open_streams).record_chunk()
    for times in open_streams:
        metrics.end_stream(times, "m")
    buckets = [
        value for (_, model), value in _values(metrics, "welldone_inter_token_seconds_bucket").items() if model == "m"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == len(gaps) == _values(metrics, "welldone_inter_token_seconds_count")["m",]


@table(
    "text", ["", "nonsense", "llamacpp:n_decode_total", "llamacpp:n_decode_total ..", "llamacpp:n_decode_total e9e9"]
)
def test_invalid_engine_metrics_are_ignored(text: str) -> None:
    metrics = Metrics(["m"])
    metrics.add_engine_metrics("m", text)
    assert "n_decode" not in metrics.render()[1].decode()


def test_the_token_rate_follows_recent_requests() -> None:
    metrics = Metrics(["m"])
    for speed in [10] * 50 + [100] * 50:
        metrics.count_tokens("m", 0, speed, completion_s=1.0)
    assert math.isclose(_values(metrics, "llamacpp:predicted_tokens_seconds")["m",], 100, rel_tol=0.01)


def _used_upstreams() -> Metrics:
    """Metrics of a server with two upstreams, one of which was used."""
    clock = Clock()
    metrics = Metrics([], ["lab", "cloud"], clock=clock)
    metrics.watch_upstream_queues({"lab": cast("RequestQueue", FakeQueue())})
    metrics.watch("welldone_recordings_dropped", lambda: 4)
    metrics.count_upstream_attempt("lab", 200)
    metrics.count_upstream_attempt("lab", "unreachable")
    metrics.count_upstream_repairs("lab", ["delta-role-once", "delta-role-once", "no rule"])
    metrics.count_broken_json("lab", arguments=1)
    metrics.set_upstream_state("lab", is_up=False, is_failing=True, breaker="half-open")
    times = metrics.begin_stream()
    clock.now = 3.0
    times.record_attempt(0.0)
    clock.now = 3.2
    times.record_chunk()
    times.record_attempt(0.0)
    clock.now = 3.25
    times.record_chunk()
    metrics.observe_upstream_times("lab", times)
    return metrics


@table(
    ("name", "value"),
    [
        ("welldone_upstream_attempts_total", {("lab",): 2, ("cloud",): 0}),
        ("welldone_upstream_requests_total", {("200", "lab"): 1, ("unreachable", "lab"): 1}),
        ("welldone_repairs_total", {("delta-role-once", "lab"): 2, (OTHER, "lab"): 1}),
        (
            "welldone_broken_json_total",
            {
                ("lab", "content"): 0,
                ("lab", "arguments"): 1,
                ("cloud", "content"): 0,
                ("cloud", "arguments"): 0,
            },
        ),
        ("welldone_upstream_up", {("lab",): 0, ("cloud",): 1}),
        ("welldone_upstream_failing", {("lab",): 1, ("cloud",): 0}),
        (
            "welldone_upstream_breaker_state",
            {
                ("closed", "lab"): 0,
                ("open", "lab"): 0,
                ("half-open", "lab"): 1,
                ("closed", "cloud"): 1,
                ("open", "cloud"): 0,
                ("half-open", "cloud"): 0,
            },
        ),
        ("welldone_upstream_running", {("lab",): 3}),
        ("welldone_upstream_waiting", {("lab",): 2}),
        ("welldone_upstream_slots", {("lab",): 4}),
        ("welldone_upstream_queue_limit", {("lab",): 10}),
        ("welldone_upstream_time_to_first_token_seconds_count", {("lab",): 1, ("cloud",): 0}),
        ("welldone_upstream_inter_token_seconds_count", {("lab",): 1, ("cloud",): 0}),
        ("welldone_recordings_dropped_total", {(): 4}),
    ],
)
def test_upstream_metrics_are_counted_by_upstream(name: str, value: dict[tuple[str, ...], float]) -> None:
    assert _values(_used_upstreams(), name) == value


def test_the_time_to_first_token_of_an_upstream_starts_with_the_attempt() -> None:
    first = _values(_used_upstreams(), "welldone_upstream_time_to_first_token_seconds_sum")
    assert first["lab",] == pytest.approx(0.2)


def test_an_upstream_without_chunks_has_no_time_to_first_token() -> None:
    metrics = Metrics([], ["lab"])
    metrics.observe_upstream_times("lab", metrics.begin_stream())
    assert _values(metrics, "welldone_upstream_time_to_first_token_seconds_count") == {("lab",): 0}


def test_outcomes_of_attempts_are_a_bounded_set() -> None:
    metrics = Metrics([], ["lab"])
    for number in range(1000):
        metrics.count_upstream_attempt("lab", f"outcome {number}")
        metrics.count_upstream_attempt("lab", 600 + number)
    assert _values(metrics, "welldone_upstream_requests_total") == {(OTHER, "lab"): 2000}


def test_a_server_without_upstreams_has_no_upstream_metrics() -> None:
    page = Metrics(["m"]).render()[1].decode()
    assert "upstream" not in page
    assert "recordings" not in page


def test_models_can_be_added_up_to_a_limit() -> None:
    metrics = Metrics(["m"], ["lab"])
    names = [f"model-{number}" for number in range(2 * MODELS_LIMIT)]
    for name in names:
        for _ in range(2):
            metrics.add_model(name)
        metrics.count_tokens(name, 1, 1)
        metrics.count_request("chat", name, 200, 1.0)
        metrics.end_stream(metrics.begin_stream(), name)
    expected = {(name,): 1 for name in names[: MODELS_LIMIT - 1]} | {("m",): 0, (OTHER,): MODELS_LIMIT + 1}
    families = _read(metrics)
    assert families["welldone_prompt_tokens"]["welldone_prompt_tokens_total"] == expected
    assert len(families["welldone_request_seconds"]["welldone_request_seconds_count"]) == MODELS_LIMIT + 1
    assert families["welldone_engine_up"]["welldone_engine_up"] == {("m",): 0}


@table("name", ["a-key-of-ours", "x a-key-of-ours", "sk-0123456789abcdef", "wd-0123456789abcdef"])
def test_a_key_sent_as_a_model_name_is_not_a_label(name: str) -> None:
    metrics = Metrics([], ["lab"], secrets=["a-key-of-ours"])
    metrics.add_model(name)
    metrics.count_tokens(name, 1, 1)
    assert _values(metrics, "welldone_prompt_tokens_total") == {(OTHER,): 1}


def test_an_added_model_is_reported_before_its_first_answer() -> None:
    metrics = Metrics([], ["lab"])
    metrics.add_model("m")
    assert _values(metrics, "welldone_completion_tokens_total") == {("m",): 0}
    assert _values(metrics, "llamacpp:predicted_tokens_seconds") == {("m",): 0, (OTHER,): 0}


def test_tasks_are_counted_from_another_thread() -> None:
    async def work() -> list[float]:
        metrics = Metrics(["m"])
        loop = asyncio.get_running_loop()
        metrics.watch("welldone_tasks", lambda: len(asyncio.all_tasks(loop)))
        counts = [_values(metrics, "welldone_tasks")[()]]
        other = asyncio.create_task(asyncio.Event().wait())
        counts.append((await asyncio.to_thread(_values, metrics, "welldone_tasks"))[()])
        other.cancel()
        await asyncio.wait({other})
        return [*counts, _values(metrics, "welldone_tasks")[()]]

    assert asyncio.run(work()) == [1, 2, 1]


def test_every_outcome_of_a_reload_exists_from_the_start() -> None:
    assert {labels[0] for labels in _values(Metrics([]), "welldone_reloads_total")} == {*get_args(ReloadOutcome)}
