"""Report formats: each contains the values of the report, that of inference-benchmarker has its schema, and hostile
texts are escaped."""

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tests.bench.reports import HOSTILE, OTHER, URL, against, bare, config, empty, failed, hostile, record, rich, step
from tests.table import table
from welldone import reporting
from welldone.bench.report import BenchReport, MetricComparison, RequestOutcome
from welldone.bench.reports import BENCH_REPORT_FORMATS, data
from welldone.bench.reports.text import (
    CSV_COLUMNS,
    comparison_lines,
    format_duration,
    format_metric,
    render_csv,
    report_lines,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "bench-report.schema.json").read_text("utf-8"))


def an_object(**members: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these fields."""
    return {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}


WHOLE = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number", "minimum": 0}
TEXT = {"type": "string"}
OPTIONS = {
    "anyOf": [
        {"type": "null"},
        an_object(num_tokens=WHOLE, min_tokens=WHOLE, max_tokens=WHOLE, variance=WHOLE),
    ]
}
SPREAD = an_object(p50=NUMBER, p60=NUMBER, p70=NUMBER, p80=NUMBER, p90=NUMBER, p95=NUMBER, p99=NUMBER, avg=NUMBER)
PEER = an_object(
    config=an_object(
        max_vus=WHOLE,
        duration_secs=WHOLE,
        benchmark_kind={"enum": ["Sweep", "Throughput", "Rate"]},
        warmup_duration_secs=WHOLE,
        rates={"type": ["array", "null"], "items": NUMBER},
        num_rates=WHOLE,
        prompt_options=OPTIONS,
        decode_options=OPTIONS,
        tokenizer=TEXT,
        model_name=TEXT,
        profile={"type": ["string", "null"]},
        meta={"type": ["object", "null"], "additionalProperties": TEXT},
        run_id=TEXT,
    ),
    results={
        "type": "array",
        "items": an_object(
            id=TEXT,
            executor_type={"enum": ["ConstantVUs", "ConstantArrivalRate"]},
            config=an_object(max_vus=WHOLE, duration_secs=WHOLE, rate={"type": ["number", "null"]}),
            total_requests=WHOLE,
            total_tokens=WHOLE,
            token_throughput_secs=NUMBER,
            duration_ms=WHOLE,
            time_to_first_token_ms=SPREAD,
            inter_token_latency_ms=SPREAD,
            failed_requests=WHOLE,
            successful_requests=WHOLE,
            request_rate=NUMBER,
            total_tokens_sent=WHOLE,
            e2e_latency_ms=SPREAD,
        ),
    },
    start_time=TEXT,
    end_time=TEXT,
    system=an_object(
        cpu={"type": "array", "items": TEXT, "minItems": 1},
        memory=TEXT,
        os_name=TEXT,
        os_version=TEXT,
        kernel=TEXT,
        hostname=TEXT,
    ),
)
"""The format of inference-benchmarker, written by hand from its documentation."""


def schema_errors(schema: dict[str, Any], text: str) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(json.loads(text))]


def shown(report: BenchReport) -> str:
    return "\n".join(report_lines(report))


def cells(report: BenchReport) -> list[list[str]]:
    """Return the cells of all boxed tables."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in report_lines(report) if line.startswith("│")]


def plain() -> list[BenchReport]:
    """Return reports of every kind."""
    return [rich(), bare(), against(), failed(), empty()]


def reports() -> list[BenchReport]:
    """Return these, and reports with hostile texts."""
    return [*plain(), *map(hostile, HOSTILE)]


# The format of inference-benchmarker.


@table("report", reports)
def test_the_peer_format_has_exactly_the_fields_of_inference_benchmarker(report: BenchReport) -> None:
    assert schema_errors(PEER, data.render_inference_benchmarker(report)) == []


def test_the_peer_format_has_the_values_of_the_report() -> None:
    report = rich(config=config(rates=[1, 2.5]))
    drawn = json.loads(data.render_inference_benchmarker(report))
    told, (warmup, throughput, constant) = drawn["config"], drawn["results"]
    assert (told["rates"], told["meta"]["engine"], told["run_id"]) == ([1.0, 2.5], "llama.cpp", "a1b2c3d")
    assert (told["tokenizer"], told["model_name"]) == ("microsoft/phi-4", "qwen3-0.6b")
    assert told["prompt_options"] == {"num_tokens": 200, "min_tokens": 180, "max_tokens": 220, "variance": 10}
    assert (warmup["id"], warmup["executor_type"], warmup["config"]["rate"]) == ("warmup", "ConstantVUs", None)
    assert (constant["executor_type"], constant["config"]["rate"]) == ("ConstantArrivalRate", 1.2)
    first = report.steps[1].times["ttft"]
    assert first.mean is not None
    assert throughput["time_to_first_token_ms"]["avg"] == pytest.approx(1000 * first.mean, abs=0.001)
    assert throughput["time_to_first_token_ms"]["p99"] == pytest.approx(1000 * first.all_percentiles["p99"], abs=0.001)
    assert throughput["duration_ms"] == round(1000 * report.steps[1].seconds)
    assert (throughput["total_tokens"], throughput["total_tokens_sent"]) == (
        121 * 20,
        report.steps[1].total_prompt_tokens,
    )


def test_the_peer_format_counts_finished_requests_only() -> None:
    throughput = json.loads(data.render_inference_benchmarker(rich()))["results"][1]
    assert (throughput["successful_requests"], throughput["failed_requests"]) == (121, 3)
    assert throughput["total_requests"] == 124


def test_the_peer_format_has_0_for_missing_values() -> None:
    dead = json.loads(data.render_inference_benchmarker(failed()))["results"][1]
    assert set(dead["e2e_latency_ms"].values()) == {0.0}


def test_the_peer_format_covers_the_first_server_only() -> None:
    assert len(json.loads(data.render_inference_benchmarker(against()))["results"]) == 1


def test_the_peer_format_has_defaults_for_missing_settings() -> None:
    told = json.loads(data.render_inference_benchmarker(failed()))["config"]
    assert (told["tokenizer"], told["meta"], told["prompt_options"]) == ("qwen3-0.6b", None, None)


# JSON.


def test_the_documented_schema_is_valid_and_up_to_date() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(data.report_schema())) == SCHEMA


@table("report", reports)
def test_the_json_report_conforms_to_its_schema(report: BenchReport) -> None:
    assert schema_errors(SCHEMA, data.render_json(report)) == []


@table("change", [{"version": "1"}, {"url": None}, {"steps": [{}]}, {"is_complete": 1}])
def test_the_schema_rejects_invalid_reports(change: dict[str, Any]) -> None:
    assert schema_errors(SCHEMA, json.dumps(json.loads(data.render_json(rich())) | change)) != []


@table("report", plain)
def test_a_json_report_is_parsed_back_unchanged(report: BenchReport) -> None:
    again = data.parse_report(data.render_json(report))
    assert data.render_json(again) == data.render_json(report)
    for old, new in zip(report.steps, again.steps, strict=True):
        assert msgspec.structs.replace(new, records=()) == msgspec.structs.replace(old, records=())
        for before, after in zip(old.records, new.records, strict=True):
            assert after.outcome is before.outcome
            assert list(after.times) == pytest.approx(list(before.times), abs=1e-6)


@table("text", lambda: ["", "[]", "{}", data.render_json(rich()).replace('"version":2', '"version":1', 1)])
def test_an_invalid_report_is_not_parsed(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        data.parse_report(text)


def test_a_report_with_invalid_times_is_not_parsed() -> None:
    drawn = json.loads(data.render_json(rich()))
    drawn["steps"][0]["records"][0]["times"] = ["soon"]
    with pytest.raises(ValueError, match="times"):
        data.parse_report(json.dumps(drawn))


# CSV.


@table("report", reports)
def test_every_request_is_a_csv_row_with_all_columns(report: BenchReport) -> None:
    drawn = render_csv(report)
    head, *found = csv.reader(drawn.splitlines())
    assert tuple(head) == CSV_COLUMNS
    assert len(found) == sum(len(one.records) for one in report.steps) == len(drawn.splitlines()) - 1
    assert {len(row) for row in found} <= {len(CSV_COLUMNS)}


def test_a_csv_row_has_the_values_of_the_record() -> None:
    report = rich()
    found = list(csv.DictReader(render_csv(report).splitlines()))
    first, one = found[0], report.steps[0].records[0]
    assert (first["step"], first["target"], first["outcome"], first["status"]) == ("warmup", URL, "ok", "200")
    assert float(first["ttft"]) == pytest.approx(one.times[0] - one.due_s, abs=1e-6)
    assert float(first["last_s"]) == pytest.approx(one.times[-1], abs=1e-6)
    assert (first["chunks"], first["tokens"], first["reasoning_s"]) == ("20", "20", "")
    (late,) = (row for row in found if row["outcome"] == "timed out")
    assert (late["ttft"], late["e2e"], late["error"]) == ("", "", "no whole answer within 300 s")


@table("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_text_from_a_server_is_not_a_formula(text: str) -> None:
    found = list(csv.DictReader(render_csv(hostile(text)).splitlines()))
    assert {row["error"] for row in found} <= {"", f"'{text}"}
    assert {row["rules"] for row in found} == {f"'{text}", ""}


# Terminal.


def test_the_tables_are_those_of_inference_benchmarker() -> None:
    found = cells(rich())
    assert [row[0] for row in found[:11]] == [
        *("Parameter", "Max VUs", "Duration", "Warmup Duration", "Benchmark Kind", "Rates", "Num Rates"),
        *("Prompt Options", "Decode Options", "Tokenizer", "Extra Metadata"),
    ]
    assert found[7][1] == "num_tokens=200,min_tokens=180,max_tokens=220,variance=10"
    assert found[11] == [
        *("Benchmark", "QPS", "E2E Latency (avg)", "TTFT (avg)", "ITL (avg)", "Throughput", "Error Rate"),
        *("Successful Requests", "Prompt tokens per req (avg)", "Decoded tokens per req (avg)"),
    ]
    assert found[13] == [
        *("throughput", "3.84 req/s", "0.54 sec", "159.07 ms", "20.10 ms", "77.11 tokens/sec", "2.42%"),
        *("121/124", "202.02", "20.00"),
    ]


@table("report", reports)
def test_tables_are_aligned_and_lines_are_printable(report: BenchReport) -> None:
    lines = report_lines(report)
    assert all(line.isprintable() for line in lines)
    for group in "\n".join(lines).split("\n\n"):
        assert len({len(line) for line in group.splitlines() if line.startswith(tuple("┌│├└"))}) <= 1


@table("report", plain)
def test_all_lines_fit_80_columns(report: BenchReport) -> None:
    assert [line for line in report_lines(report, 80) if len(line) > 80] == []


def test_a_percentile_is_shown_only_with_enough_samples() -> None:
    (line,) = (line for line in report_lines(rich()) if "first token" in line and " 121 " in line)
    assert line.split()[3:] == ["121", "166", "ms", "231", "ms", "-", "251", "ms"]


def test_failures_are_shown_by_kind() -> None:
    text = shown(rich())
    for said in (
        "3 of 124   1 cut, 1 timed out, 1 refused",
        "1 x 429: too many requests",
        "1 in flight at the end, abandoned",
        "1 stream broke a rule: delta-role-once (1)",
        "5 of 45, because 128 were in flight",
        "40 of 45 due requests within all limits",
        "93% of a core, 12 late starts, by up to 31.5 ms: it is the bottleneck",
        "ttft.p50<800ms   passed   throughput: 151 ms",
        "token_rate>100   failed   throughput: 79.25/s",
        "ttft.p99<800ms   failed   constant@1.20req/s: too few samples",
    ):
        assert said in text


def test_the_load_of_a_step_is_shown() -> None:
    text = shown(rich())
    assert "throughput: closed loop, 128 concurrent streams" in text
    assert "constant@1.20req/s: open loop, 1.20 requests/s, at most 128 in flight" in text
    replay = rich(steps=(msgspec.structs.replace(step("replay", [record()]), is_open=True),))
    assert "replay: open loop, at given times" in shown(replay)


def test_of_one_step_all_metrics_are_shown_and_of_several_the_main_ones() -> None:
    one = shown(rich(steps=rich().steps[:2]))
    assert all(word in one for word in ("headers", "longest gap", "tokens/s per request", "no late start"))
    assert all(word not in shown(rich()) for word in ("headers", "longest gap", "tokens/s per request"))
    assert "0 streams broke a rule" in shown(against())


def test_the_first_content_is_shown_if_it_is_not_the_first_token() -> None:
    thought = [record(number, reasoning_s=number * 0.25 + 0.01) for number in range(3)]
    assert "first content" not in shown(rich(steps=(step("throughput", [record()]),)))
    assert "first reasoning" in shown(rich(steps=(step("throughput", thought),)))
    assert "first content" in shown(rich(steps=(step("throughput", thought),)))


def test_the_source_of_token_counts_is_shown_if_it_is_not_usage() -> None:
    counted = step("throughput", [record()], tokens_by="chunks")
    assert "of all answers, counted by chunks" in shown(rich(steps=(counted,)))


def test_two_servers_are_shown_side_by_side() -> None:
    text = shown(against())
    assert f"concurrency@8 at {OTHER}: closed loop" in text
    assert "concurrency@8 (against)" in text
    assert "1.02 (0.97 to 1.07), no difference" in text
    assert "0.90 (0.88 to 0.92)\n" in text + "\n"


def test_the_reason_of_an_early_end_is_shown_last() -> None:
    assert report_lines(failed())[-1] == "ended early: stopped by Ctrl-C"
    assert report_lines(empty())[-1] == "ended early: nothing answers there"
    assert "ended early" not in shown(rich())


def test_a_step_without_successful_requests_has_no_metrics() -> None:
    (row,) = (row for row in cells(failed()) if row[0] == "constant@8.00req/s")
    assert row[1:] == ["0.00 req/s", "-", "-", "-", "0.00 tokens/sec", "100.00%", "0/9", "-", "-"]


def test_a_step_without_requests_has_no_error_rate() -> None:
    (row,) = (row for row in cells(rich(steps=(step("throughput", []),))) if row[0] == "throughput")
    assert row[6:8] == ["-", "0/0"]


def test_without_comparisons_there_is_no_table() -> None:
    assert comparison_lines([]) == []
    wide = MetricComparison(metric="error_rate", first=0.5, second=0.25, ratio=2.0, low=1.5, high=2.5)
    assert "50.0%" in comparison_lines([wide])[1]


# Formatting and files.


@table(
    ("seconds", "text"),
    [(0, "0.00 ms"), (0.0181, "18.1 ms"), (0.2123, "212 ms"), (0.9996, "1.00 s"), (2.534, "2.53 s"), (1234, "1,234 s")],
)
def test_a_duration_has_three_significant_digits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("metric", "number", "text"),
    [("ttft.p99", 0.5, "500 ms"), ("goodput>95%", 0.5, "50.0%"), ("request_rate>=4", 3.5, "3.50/s")],
)
def test_a_value_has_the_unit_of_its_metric(metric: str, number: float, text: str) -> None:
    assert format_metric(metric, number) == text


def test_every_outcome_of_a_request_is_shown() -> None:
    ends = [end for end in RequestOutcome if end not in (RequestOutcome.OK, RequestOutcome.UNFINISHED)]
    text = shown(rich(steps=(step("throughput", [record(outcome=end, error="so") for end in ends]),)))
    assert all(f"1 {end}" in text for end in ends)
    assert f"{len(ends)} of {len(ends)}" in text


@table("suffix", [".json", ".csv", ".html", ".JSON"])
def test_the_extension_of_a_file_selects_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix}"
    reporting.write_report(rich(), path, BENCH_REPORT_FORMATS)
    assert path.read_text("utf-8") == BENCH_REPORT_FORMATS[suffix.lower()](rich()) + "\n"


def test_an_unknown_extension_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json, \.csv, \.html"):
        reporting.write_report(rich(), tmp_path / "report.pdf", BENCH_REPORT_FORMATS)
    assert not list(tmp_path.iterdir())


@table("text", HOSTILE)
def test_a_hostile_text_can_be_written_in_every_format(text: str, tmp_path: Path) -> None:
    for suffix in BENCH_REPORT_FORMATS:
        reporting.write_report(hostile(text), tmp_path / f"report{suffix}", BENCH_REPORT_FORMATS)
        assert len((tmp_path / f"report{suffix}").read_bytes()) < 10 * 2**20
