"""The capacity model of docs/scaling.md: it follows from the figures, and each figure has a source."""

from pathlib import Path

import pytest

from tools import capacity

ROOT = Path(__file__).parents[2]
FIGURES = {
    "chunk_us": 30.0,
    "request_us": 500.0,
    "stream_kb": 40.0,
    "process_mb": 50.0,
    "chunk_bytes": 250.0,
    "proxy_chunk_us": 600.0,
    "store_per_second": 10_000.0,
    "gpu_tokens_per_second": 3_000.0,
}


def test_the_resources_of_streams_follow_from_their_chunks_and_requests() -> None:
    load = capacity.Load(streams=1_000, tokens_per_second=30.0, answer_tokens=500.0)
    found = capacity.required_resources(load, FIGURES)
    assert load.chunks_per_second == 30_000
    assert load.requests_per_second == 60
    assert found.cores == pytest.approx((30_000 * 30e-6 + 60 * 500e-6) / 0.6)
    assert found.proxy_cores == pytest.approx(30_000 * 600e-6 / 0.6)
    assert found.memory_gb == pytest.approx(0.04 + 2 * 0.05)
    assert found.gbit == pytest.approx(30_000 * 250 * 8 / 1e9)
    assert found.redis_cores == pytest.approx(60 / 10_000)
    assert (found.files, found.machines, found.gpus) == (2_000, 1, 10)


def test_the_smallest_limit_comes_first() -> None:
    rows = capacity.stream_limits(FIGURES, 30.0, 500.0)
    assert [count for _, count in rows] == sorted(count for _, count in rows)
    assert rows[0] == ("one GPU as measured", 100.0)


def test_each_figure_has_a_description_and_a_source() -> None:
    entries = capacity.read_figures()
    assert entries.keys() == FIGURES.keys()
    for entry in entries.values():
        assert entry.keys() == {"value", "unit", "description", "source"}
        assert float(str(entry["value"])) > 0
        assert entry["source"]


def test_rendering_the_page_twice_changes_nothing() -> None:
    once = capacity.render((ROOT / "docs" / "scaling.md").read_text("utf-8"))
    assert capacity.render(once) == once


def test_a_page_without_the_comments_of_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no comments <!-- figures -->"):
        capacity.render("# Beyond one machine\n")
