"""The capacity model of docs/scaling.md: what it says follows from figures, and no figure is without its source."""

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


def test_what_streams_need_is_what_their_chunks_and_requests_need() -> None:
    load = capacity.Load(streams=1_000, tokens_per_second=30.0, answer_tokens=500.0)
    found = capacity.need(load, FIGURES)
    assert load.chunks_per_second == 30_000
    assert load.requests_per_second == 60
    assert found.cores == pytest.approx((30_000 * 30e-6 + 60 * 500e-6) / 0.6)
    assert found.proxy_cores == pytest.approx(30_000 * 600e-6 / 0.6)
    assert found.memory_gb == pytest.approx(0.04 + 2 * 0.05)
    assert found.gbit == pytest.approx(30_000 * 250 * 8 / 1e9)
    assert found.redis_cores == pytest.approx(60 / 10_000)
    assert (found.files, found.machines, found.gpus) == (2_000, 1, 10)


def test_what_gives_out_first_comes_first() -> None:
    rows = capacity.limits(FIGURES, 30.0, 500.0)
    assert [count for _, count in rows] == sorted(count for _, count in rows)
    assert rows[0] == ("one GPU of the kind that was measured", 100.0)


def test_each_figure_of_the_page_says_what_it_is_and_by_what_it_was_measured() -> None:
    entries = capacity.read()
    assert entries.keys() == FIGURES.keys()
    for one in entries.values():
        assert one.keys() == {"value", "unit", "says", "by"}
        assert float(str(one["value"])) > 0
        assert one["by"]


def test_drawing_the_page_twice_is_drawing_it_once() -> None:
    once = capacity.draw((ROOT / "docs" / "scaling.md").read_text("utf-8"))
    assert capacity.draw(once) == once


def test_a_page_without_a_place_for_a_table_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no place for figures"):
        capacity.draw("# Beyond one machine\n")
