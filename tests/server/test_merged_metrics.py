"""Merged /metrics pages of several workers: counts are added, states take the maximum."""

from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.table import table
from welldone.gateway.queue import RequestQueue
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import merge_metrics_pages


class FakeQueue:
    """A fake queue."""

    running = 3
    waiting = 2
    slots = 4
    capacity = 14


def _worker(*, is_up: bool, breaker: str) -> str:
    metrics = Metrics(["m"], ["lab"])
    metrics.watch_upstream_queues({"lab": cast("RequestQueue", FakeQueue())})
    metrics.count_request("chat", "m", 200, 0.2)
    metrics.begin_stream()
    metrics.set_upstream_state("lab", is_up=is_up, breaker=breaker)
    return metrics.render()[1].decode()


def _values(page: str) -> dict[str, float]:
    """Values by sample and labels, as a scraper reads them."""
    return {
        " ".join([sample.name, *(sample.labels[name] for name in sorted(sample.labels))]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


MERGED = merge_metrics_pages([_worker(is_up=True, breaker="closed"), _worker(is_up=False, breaker="open")], 1, (0, 0))


@table(
    ("sample", "value"),
    [
        ("welldone_requests_total chat m 200", 2),
        ("welldone_request_seconds_bucket 0.1 m", 0),
        ("welldone_request_seconds_bucket 0.25 m", 2),
        ("welldone_request_seconds_count m", 2),
        ("welldone_request_seconds_sum m", 0.4),
        ("welldone_active_streams", 2),
        ("welldone_upstream_running lab", 6),
        ("welldone_upstream_waiting lab", 4),
        ("welldone_upstream_slots lab", 8),
        ("welldone_upstream_queue_limit lab", 20),
        ("welldone_upstream_up lab", 1),
        ("welldone_upstream_breaker_state closed lab", 1),
        ("welldone_upstream_breaker_state open lab", 1),
        ("welldone_upstream_breaker_state half-open lab", 0),
        ("welldone_workers_missing", 1),
    ],
)
def test_values_of_all_workers_are_merged(sample: str, value: float) -> None:
    assert _values(MERGED)[sample] == pytest.approx(value)


def test_info_metrics_are_not_added() -> None:
    values = _values(MERGED)
    assert all(value == 1 for name, value in values.items() if name.split()[0].endswith("_info"))


def test_a_single_page_is_unchanged() -> None:
    page = _worker(is_up=True, breaker="closed")
    merged = _values(merge_metrics_pages([page], 0, (0, 0)))
    own = ("workers_missing", "worker_deaths_total", "worker_cut_requests_total")
    assert [merged.pop(f"welldone_{name}") for name in own] == [0, 0, 0]
    assert merged == _values(page)


def test_each_family_appears_once_with_its_help() -> None:
    lines = MERGED.splitlines()
    heads = [line for line in lines if line.startswith("#")]
    assert len(heads) == len(set(heads))
    assert all(lines[index + 1].startswith("# TYPE ") for index, line in enumerate(lines) if line.startswith("# HELP "))


def test_series_of_a_single_worker_are_included() -> None:
    one, other = Metrics([], ["lab"]), Metrics([], ["lab"])
    one.count_upstream_attempt("lab", 200)
    other.count_upstream_attempt("lab", 503)
    other.add_model('odd "name" {x} \\ y')
    values = _values(merge_metrics_pages([one.render()[1].decode(), other.render()[1].decode()], 0, (0, 0)))
    assert values["welldone_upstream_requests_total 200 lab"] == 1
    assert values["welldone_upstream_requests_total 503 lab"] == 1
    assert values['welldone_prompt_tokens_total odd "name" {x} \\ y'] == 0


ODD_NAMES = [
    "a\u2028b",
    "a\u2029b",
    "a\nb",
    "a\r\nb",
    "a\x85b",
    "a\x1cb",
    'a"b',
    "a\\b",
    "a\\nb",
    "a} 5",
    "é 模",
    "# HELP x",
]


@table("name", ODD_NAMES, ids=ascii)
@table("is_configured", [True, False])
def test_no_model_name_breaks_the_page(name: str, is_configured: bool) -> None:
    metrics = Metrics([name] if is_configured else ["m"])
    metrics.add_model(name)
    metrics.count_request("chat", name, 200, 0.2)
    metrics.count_stream_failure(name)
    page = metrics.render()[1].decode()
    lines = [
        line
        for line in merge_metrics_pages([page, page], 0, (0, 0)).split("\n")
        if line.startswith("welldone_requests_total")
    ]
    assert [line.rpartition(" ")[2] for line in lines] == ["2.0"]
    assert ('model="other"' in lines[0]) is not (is_configured or name.isprintable())


@pytest.mark.parametrize("name", ["a\ud800b", "x" * 257])
def test_an_invalid_label_is_counted_as_other(name: str) -> None:
    metrics = Metrics(["m"])
    metrics.add_model(name)
    metrics.count_request("chat", name, 200, 0.2)
    metrics.count_stream_failure(name)
    values = _values(metrics.render()[1].decode())
    assert values["welldone_requests_total chat other 200"] == 1
    assert values["welldone_stream_failures_total other"] == 1
