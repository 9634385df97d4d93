"""Reports of load tests, for tests: a rich one, one of two servers, one of a server that died, and one of nothing."""

from array import array
from collections.abc import Sequence
from random import Random

import msgspec

from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.report import AssertionResult, BenchReport, ClientLoad, MetricComparison, StepResult
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
"""Texts that try to get out of the place where they are shown."""


def record(number: int = 0, seed: int = 7, **changes: object) -> BenchRecord:
    """A request that went well: it begins a quarter of a second after the one before."""
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
    """A request that did not go well."""
    heard = (
        record(number).times[:5]
        if end in (RequestOutcome.CUT, RequestOutcome.FAILED, RequestOutcome.UNFINISHED)
        else array("d")
    )
    status = {RequestOutcome.REFUSED: 429, RequestOutcome.UNREACHABLE: None}.get(end, 200)
    return record(
        number, times=heard, content_s=None, tokens=len(heard) or None, end=end, why=why, finish="", status=status
    )


def step(id: str, records: Sequence[BenchRecord], **changes: object) -> StepResult:
    """A step of these records; `changes` say what they do not tell."""
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
    """A sweep of three steps with all that can happen: failures, skips, a broken rule, bounds, assertions."""
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
            own=ClientLoad(cpu=0.93, late_starts=12, max_delay_s=0.0315, is_bottleneck=True),
        ),
    )
    plain = BenchReport(
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
    return msgspec.structs.replace(plain, **changes)


def config(**changes: object) -> dict[str, object]:
    """What a run was told, under the names of the settings."""
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
    """The rich report without its records."""
    return rich(steps=tuple(msgspec.structs.replace(one, records=()) for one in rich().steps), **changes)


def against() -> BenchReport:
    """Two servers that were asked in turn."""
    first = [record(number) for number in range(30)]
    second = [record(number, seed=9, target=1) for number in range(30)]
    return rich(
        against=OTHER,
        kind="concurrency",
        steps=(step("concurrency@8", first, max_vus=8), step("concurrency@8", second, max_vus=8, target=OTHER)),
        compared=(
            MetricComparison(
                metric="concurrency@8 ttft.p50", first=0.152, second=0.149, ratio=1.02, low=0.97, high=1.07
            ),
            MetricComparison(
                metric="concurrency@8 token_rate", first=71.0, second=79.0, ratio=0.90, low=0.88, high=0.92
            ),
        ),
        checked=(),
    )


def failed() -> BenchReport:
    """A server that died in the middle: some good answers, some cut, then nobody."""
    records = [record(number) for number in range(5)]
    records += [broken(number, RequestOutcome.CUT, "the connection was lost") for number in (5, 6)]
    records += [broken(number, RequestOutcome.UNREACHABLE, "connection refused") for number in range(7, 40)]
    return rich(
        is_whole=False,
        why="stopped by Ctrl-C",
        kind="rate",
        config=config(rates=[4.0], kind="rate", prompt=None, decode=None, tokenizer=None, meta={}),
        steps=(
            step("constant@4.00req/s", records),
            step(
                "constant@8.00req/s",
                [broken(number, RequestOutcome.UNREACHABLE, "connection refused") for number in range(9)],
            ),
        ),
        checked=(),
        system={},
    )


def empty() -> BenchReport:
    """A run that was ended before its first step."""
    return rich(is_whole=False, why="nothing answers there", steps=(), checked=(), config={}, system={})


def hostile(text: str) -> BenchReport:
    """A report in which the text stands wherever one can stand."""
    odd = broken(3, RequestOutcome.FAILED, text)
    steps = tuple(
        msgspec.structs.replace(
            one,
            id=text,
            target=text,
            tokens_by=text,
            reasons={text: 3},
            rules={text: 1},
            records=(record(0, finish=text, rules=(text,)), msgspec.structs.replace(odd, finish_reason=text)),
        )
        for one in rich().steps
    )
    said = {"tool": text, "began": text, "ended": text, "url": text, "model": text, "tokenizer": text, "why": text}
    return rich(
        **said,
        against=text,
        is_whole=False,
        config={name: text if isinstance(value, str) and name != "kind" else value for name, value in config().items()}
        | {text: [text]},
        steps=steps,
        compared=tuple(msgspec.structs.replace(one, metric=text) for one in against().comparisons),
        checked=tuple(msgspec.structs.replace(one, text=text, step=text) for one in rich().assertion_results),
        system={"cpu": [text], "memory": text, "os_name": text, text: text},
    )
