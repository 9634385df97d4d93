"""Formats of reports. JSON: our own format with every request, its schema and parser; and inference-benchmarker's."""

from array import array
from typing import Any

import msgspec

from welldone.bench.report import REPORT_VERSION, BenchReport, StepResult
from welldone.bench.reports.text import settings_of_report, without_records
from welldone.reporting import sanitize

_TIME_DIGITS = 6
"""Microseconds, finer than any network clock. Long files of times consist mostly of digits."""


def render_json(report: BenchReport) -> str:
    """Return the report as one line of JSON: it may hold the times of a million chunks."""
    return msgspec.json.encode(sanitize(report), enc_hook=_encode_array).decode()


def parse_report(text: bytes | str) -> BenchReport:
    """Parse a JSON report.

    Raises:
        ValueError: the text is not a report, or of another version.
    """
    report = msgspec.json.decode(text, type=BenchReport, dec_hook=_decode_array)
    if report.version != REPORT_VERSION:
        raise ValueError(f"it is a report of version {report.version}, not {REPORT_VERSION}")
    return report


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of the report. Readers must ignore unknown fields: newer reports may have more."""
    schema = msgspec.json.schema(BenchReport, schema_hook=_array_schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"welldone bench report, version {REPORT_VERSION}",
        **schema,
    }


def _encode_array(value: object) -> list[float]:
    if isinstance(value, array):
        return [round(time, _TIME_DIGITS) for time in value]
    raise NotImplementedError


def _decode_array(value_type: type, value: Any) -> Any:  # noqa: ANN401 - JSON
    return array("d", value) if value_type is array else value


def _array_schema(value_type: type) -> dict[str, Any]:
    if value_type is array:
        return {"type": "array", "items": {"type": "number"}}
    if value_type is object:
        return {"description": "A setting, or a fact about the machine."}
    raise NotImplementedError


# The JSON of inference-benchmarker, for tools that read it, such as its dashboard. It has one server, no percentile
# without a value, and only finished requests.


_PEER_PERCENTILES = ("p50", "p60", "p70", "p80", "p90", "p95", "p99")
_NOT_AVAILABLE = "N/A"


def render_inference_benchmarker(report: BenchReport) -> str:
    """Return the report of the first server. Missing numbers are 0: readers of the format require all of them."""
    report = without_records(report)
    settings = settings_of_report(report)
    config = {
        "max_vus": settings.max_vus,
        "duration_secs": round(settings.duration_s),
        "benchmark_kind": settings.kind.title(),
        "warmup_duration_secs": round(settings.warmup_s),
        "rates": [float(rate) for rate in settings.rates] or None,
        "num_rates": settings.num_rates,
        "prompt_options": msgspec.to_builtins(settings.prompt),
        "decode_options": msgspec.to_builtins(settings.decode),
        "tokenizer": settings.tokenizer or report.model,
        "model_name": report.model,
        "profile": settings.profile,
        "meta": dict(settings.meta) or None,
        "run_id": settings.run_id,
    }
    names = ("memory", "os_name", "os_version", "kernel", "hostname")
    system = {name: str(report.system.get(name, _NOT_AVAILABLE)) for name in names}
    result = {
        "config": config,
        "results": [_peer_result(step) for step in report.steps if step.target == report.url],
        "start_time": report.began,
        "end_time": report.ended,
        # The dashboard reads the first CPU, so there must be one.
        "system": {"cpu": report.system.get("cpu") or [_NOT_AVAILABLE], **system},
    }
    return msgspec.json.encode(result).decode()


def _peer_result(step: StepResult) -> dict[str, Any]:
    return {
        "id": step.id,
        "executor_type": "ConstantArrivalRate" if step.is_open else "ConstantVUs",
        "config": {"max_vus": step.max_vus, "duration_secs": round(step.seconds), "rate": step.rate},
        "total_requests": step.finished,
        "total_tokens": step.total_tokens,
        "token_throughput_secs": float(step.token_rate),
        "duration_ms": round(step.seconds * 1000),
        "time_to_first_token_ms": _peer_distribution(step, "ttft"),
        "inter_token_latency_ms": _peer_distribution(step, "itl"),
        "failed_requests": step.failed,
        "successful_requests": step.ok,
        "request_rate": float(step.request_rate),
        "total_tokens_sent": step.total_prompt_tokens,
        "e2e_latency_ms": _peer_distribution(step, "e2e"),
    }


def _peer_distribution(step: StepResult, name: str) -> dict[str, float]:
    percentiles = step.times[name].all_percentiles if name in step.times else {}
    numbers = {percentile: percentiles.get(percentile) for percentile in _PEER_PERCENTILES}
    numbers["avg"] = step.statistic(name, "mean")
    return {name: round((number or 0.0) * 1000, 3) for name, number in numbers.items()}
