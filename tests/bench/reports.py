"""Sample reports: a rich one, one of two servers, one of a server that died, and an empty one."""

import functools
from array import array
from collections.abc import Sequence
from random import Random

import msgspec

from welldone.bench.report import (
    AssertionResult,
    BenchRecord,
    BenchReport,
    ClientLoad,
    MetricComparison,
    RequestOutcome,
    StepResult,
)
from welldone.bench.stats import summarize_step

URL = "http://127.0.0.1:8000/v1"
OTHER = "http://127.0.0.1:9000/v1"
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "]]>&nope;",
    "\x00\x07\x1b[31m\x7f\x85\ufffe",
    "\ud800 lone \udfff",
    "\u202eevil\u2066\u200b",
    "line\r\n\n\n# heading\u2028\n---",
    "| a | b │ c",
    '=HYPERLINK("http://evil.example","x")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "'\" onload=alert(1) style=position:fixed",
    "m" * 2**20,
    "",
)
"""Texts with control characters and markup."""


def record(number: int = 0, seed: int = 7, **changes: object) -> BenchRecord:
    """Return a successful request, sent a quarter of a second after the one before."""
    chance = Random(f"{seed} {number}")
    begun = number * 0.25 + chance.uniform(0, 0.002)
    first = begun + chance.uniform(0.05, 0.25)
    times = array("d", [first])
    for _ in range(19):
        times.append(times[-1] + chance.uniform(0.01, 0.03))
    plain = BenchRecord(
        target=0,
        due_s=number * 0.25,
        sent_s=begun,
        prompt_tokens=200 + number % 5,
        max_tokens=20,
        status=200,
        head_s=begun + 0.004,
        role_s=begun + 0.02,
        content_s=first,
        times=times,
        tokens=20,
        tokenizer_tokens=20,
        ended_s=times[-1] + 0.001,
        outcome=RequestOutcome.OK,
        finish_reason="length",
    )
    return msgspec.structs.replace(plain, **changes)


def broken(number: int, end: RequestOutcome, why: str) -> BenchRecord:
    """Return a request that was not successful."""
    heard = (
        record(number).times[:5]
        if end in (RequestOutcome.CUT, RequestOutcome.FAILED, RequestOutcome.UNFINISHED)
        else array("d")
    )
    status = {RequestOutcome.REFUSED: 429, RequestOutcome.UNREACHABLE: None}.get(end, 200)
    return record(
        number,
        times=heard,
        content_s=None,
        tokens=len(heard) or None,
        outcome=end,
        error=why,
        finish_reason="",
        status=status,
    )


def step(id: str, records: Sequence[BenchRecord], **changes: object) -> StepResult:
    """Return a step of these records, with changed fields."""
    rate = float(id.partition("@")[2].removesuffix("req/s")) if id.startswith("constant") else None
    plain = summarize_step(
        records,
        id=id,
        target=URL,
        is_open=rate is not None,
        max_vus=128,
        rate=rate,
        seconds=max((one.ended_s for one in records), default=1.0),
        due=len(records),
        skipped=0,
        tokens_by="usage",
        client=ClientLoad(cpu=0.09, late_starts=0, max_delay_s=0.0, is_bottleneck=False),
        goodput=(),
    )
    return msgspec.structs.replace(plain, **changes)


def rich(**changes: object) -> BenchReport:
    """Return a sweep of three steps with failures, skipped requests, a broken rule, limits and assertions."""
    return msgspec.structs.replace(_sweep(), **changes)


@functools.cache
def _sweep() -> BenchReport:
    odd = [
        broken(120, RequestOutcome.CUT, "the stream ended without a finish reason"),
        broken(121, RequestOutcome.TIMED_OUT, "no whole answer within 300 s"),
        broken(122, RequestOutcome.REFUSED, "429: too many requests"),
        broken(123, RequestOutcome.UNFINISHED, ""),
        record(124, rules=("delta-role-once",)),
    ]
    busy = [record(number, seed=8) for number in range(40)]
    steps = (
        step("warmup", [record(number) for number in range(10)], max_vus=1),
        step("throughput", [*(record(number) for number in range(120)), *odd], good=110),
        step(
            "constant@1.20req/s",
            busy,
            due=45,
            skipped=5,
            good=40,
            client=ClientLoad(cpu=0.93, late_starts=12, max_delay_s=0.0315, is_bottleneck=True),
        ),
    )
    return BenchReport(
        tool="0.6.0",
        began="2026-01-02T03:04:05Z",
        ended="2026-01-02T03:06:07Z",
        url=URL,
        against=None,
        model="qwen3-0.6b",
        kind="sweep",
        config=config(),
        tokenizer="the server's usage numbers",
        is_complete=True,
        steps=steps,
        assertion_results=(
            AssertionResult(text="ttft.p50<800ms", step="throughput", value=0.151, passed=True),
            AssertionResult(text="token_rate>100", step="throughput", value=79.25, passed=False),
            AssertionResult(text="ttft.p99<800ms", step="constant@1.20req/s", value=None, passed=False),
        ),
        system={
            "cpu": ["Some Processor", "Some Processor"],
            "memory": "15.61 GB",
            "os_name": "Debian GNU/Linux",
            "os_version": "12",
            "kernel": "6.1.0",
            "hostname": "lab",
        },
    )


def config(**changes: object) -> dict[str, object]:
    """Return the settings of a run."""
    length = {"num_tokens": 200, "min_tokens": 180, "max_tokens": 220, "variance": 10}
    plain: dict[str, object] = {
        "url": URL,
        "kind": "sweep",
        "max_vus": 128,
        "duration_s": 30.0,
        "warmup_s": 5.0,
        "rates": [],
        "num_rates": 1,
        "profile": None,
        "prompt": length,
        "decode": length,
        "tokenizer": "microsoft/phi-4",
        "meta": {"engine": "llama.cpp", "device": "cpu"},
        "run_id": "a1b2c3d",
    }
    return plain | changes


def bare(**changes: object) -> BenchReport:
    """Return the rich report without its records."""
    return rich(steps=tuple(msgspec.structs.replace(one, records=()) for one in rich().steps), **changes)


@functools.cache
def against() -> BenchReport:
    """Return a report of two servers."""
    first = [record(number) for number in range(30)]
    second = [record(number, seed=9, target=1) for number in range(30)]
    return rich(
        against=OTHER,
        kind="concurrency",
        steps=(step("concurrency@8", first, max_vus=8), step("concurrency@8", second, max_vus=8, target=OTHER)),
        comparisons=(
            MetricComparison(
                metric="concurrency@8 ttft.p50", first=0.152, second=0.149, ratio=1.02, low=0.97, high=1.07
            ),
            MetricComparison(
                metric="concurrency@8 token_rate", first=71.0, second=79.0, ratio=0.90, low=0.88, high=0.92
            ),
        ),
        assertion_results=(),
    )


@functools.cache
def failed() -> BenchReport:
    """Return a report of a server that died: some good answers, some cut off, then no connection."""
    records = [record(number) for number in range(5)]
    records += [broken(number, RequestOutcome.CUT, "the connection was lost") for number in (5, 6)]
    records += [broken(number, RequestOutcome.UNREACHABLE, "connection refused") for number in range(7, 40)]
    return rich(
        is_complete=False,
        incomplete_reason="stopped by Ctrl-C",
        kind="rate",
        config=config(rates=[4.0], kind="rate", prompt=None, decode=None, tokenizer=None, meta={}),
        steps=(
            step("constant@4.00req/s", records),
            step(
                "constant@8.00req/s",
                [broken(number, RequestOutcome.UNREACHABLE, "connection refused") for number in range(9)],
            ),
        ),
        assertion_results=(),
        system={},
    )


def empty() -> BenchReport:
    """Return a report of a run that ended before its first step."""
    return rich(
        is_complete=False,
        incomplete_reason="nothing answers there",
        steps=(),
        assertion_results=(),
        config={},
        system={},
    )


@functools.cache
def hostile(text: str) -> BenchReport:
    """Return a report with the text in every text field."""
    odd = broken(3, RequestOutcome.FAILED, text)
    steps = tuple(
        msgspec.structs.replace(
            one,
            id=text,
            target=text,
            tokens_by=text,
            reasons={text: 3},
            rules={text: 1},
            records=(record(0, finish_reason=text, rules=(text,)), msgspec.structs.replace(odd, finish_reason=text)),
        )
        for one in rich().steps
    )
    said = {
        "tool": text,
        "began": text,
        "ended": text,
        "url": text,
        "model": text,
        "tokenizer": text,
        "incomplete_reason": text,
    }
    return rich(
        **said,
        against=text,
        is_complete=False,
        config={name: text if isinstance(value, str) and name != "kind" else value for name, value in config().items()}
        | {text: [text]},
        steps=steps,
        comparisons=tuple(msgspec.structs.replace(one, metric=text) for one in against().comparisons),
        assertion_results=tuple(msgspec.structs.replace(one, text=text, step=text) for one in rich().assertion_results),
        system={"cpu": [text], "memory": text, "os_name": text, text: text},
    )
