"""The report as inference-benchmarker writes it, so that what reads its files reads ours: its dashboard, for one.

It has one server, no percentile without a value and no request but those that ended. What it has no place for is in
our own form.
"""

from typing import Any

import msgspec

from welldone.bench.report import BenchReport, Distribution, StepResult
from welldone.bench.reports.words import without_records, failed_count, finished_count, settings_of_report
from welldone.bench.settings import LengthSpec

_PEER_PERCENTILES = ("p50", "p60", "p70", "p80", "p90", "p95", "p99")
_NOT_AVAILABLE = "N/A"
_EMPTY_DISTRIBUTION = Distribution(count=0, mean=None, minimum=None, maximum=None, percentiles={})


def render_inference_benchmarker(report: BenchReport) -> str:
    """The report of the first server. Where there is no number, it has 0: its readers want them all."""
    report = without_records(report)
    drawn = {
        "config": _peer_config(report),
        "results": [_peer_result(step) for step in report.steps if step.target == report.url],
        "start_time": report.began,
        "end_time": report.ended,
        "system": _peer_system(report),
    }
    return msgspec.json.encode(drawn).decode()


def _peer_config(report: BenchReport) -> dict[str, Any]:
    settings = settings_of_report(report)
    return {
        "max_vus": settings.max_vus,
        "duration_secs": round(settings.duration_s),
        "benchmark_kind": settings.kind.title(),
        "warmup_duration_secs": round(settings.warmup_s),
        "rates": [float(rate) for rate in settings.rates] or None,
        "num_rates": settings.num_rates,
        "prompt_options": _peer_length(settings.prompt),
        "decode_options": _peer_length(settings.decode),
        "tokenizer": settings.tokenizer or report.model,
        "model_name": report.model,
        "profile": settings.profile,
        "meta": dict(settings.meta) or None,
        "run_id": settings.run_id,
    }


def _peer_length(length: LengthSpec | None) -> dict[str, int] | None:
    if length is None:
        return None
    return {
        "num_tokens": length.num_tokens,
        "min_tokens": length.min_tokens,
        "max_tokens": length.max_tokens,
        "variance": length.variance,
    }


def _peer_result(step: StepResult) -> dict[str, Any]:
    return {
        "id": step.id,
        "executor_type": "ConstantArrivalRate" if step.is_open else "ConstantVUs",
        "config": {"max_vus": step.max_vus, "duration_secs": round(step.seconds), "rate": step.rate},
        "total_requests": finished_count(step),
        "total_tokens": step.total_tokens,
        "token_throughput_secs": float(step.token_rate),
        "duration_ms": round(step.seconds * 1000),
        "time_to_first_token_ms": _peer_distribution(step, "ttft"),
        "inter_token_latency_ms": _peer_distribution(step, "itl"),
        "failed_requests": failed_count(step),
        "successful_requests": step.ok,
        "request_rate": float(step.request_rate),
        "total_tokens_sent": step.total_prompt_tokens,
        "e2e_latency_ms": _peer_distribution(step, "e2e"),
    }


def _peer_distribution(step: StepResult, name: str) -> dict[str, float]:
    spread = step.times.get(name, _EMPTY_DISTRIBUTION)
    numbers = {percentile: spread.all_percentiles.get(percentile) for percentile in _PEER_PERCENTILES}
    return {name: round((number or 0.0) * 1000, 3) for name, number in {**numbers, "avg": spread.mean}.items()}


def _peer_system(report: BenchReport) -> dict[str, Any]:
    """The machine. Its dashboard takes the first of the processors, so that there must be one."""
    names = ("memory", "os_name", "os_version", "kernel", "hostname")
    known = {name: str(report.system.get(name, _NOT_AVAILABLE)) for name in names}
    return {"cpu": report.system.get("cpu") or [_NOT_AVAILABLE], **known}
