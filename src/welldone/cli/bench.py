"""`welldone bench`: load test of a server. Accepts the command lines of inference-benchmarker."""

import asyncio
import json
import os
import re
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from welldone.bench import load
from welldone.bench.client import BenchUnreachableError
from welldone.bench.dialects import DIALECTS
from welldone.bench.load import MAX_BURSTINESS
from welldone.bench.report import BenchReport, MetricComparison
from welldone.bench.reports import data, renderers, text
from welldone.bench.reports.text import format_metric, split_metric
from welldone.bench.run import STOPPED_BY_USER, BenchProgress, run_bench
from welldone.bench.settings import ArrivalProcess, Assertion, BenchmarkKind, BenchSettings, LengthSpec, parse_length
from welldone.bench.stats import (
    FIRST_IS_BETTER,
    NO_DIFFERENCE,
    SECOND_IS_BETTER,
    compare_reports,
    comparison_verdict,
    parse_assertion,
    parse_goodput_bound,
)
from welldone.bench.words import WORKLOAD_PROFILES, find_workload_profile
from welldone.cli import bench_ui, option_types, ui
from welldone.cli.option_types import check_report_path, make_writable_folder
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.model import DEFAULT_SLOTS
from welldone.http.redaction import API_KEY_VARIABLE
from welldone.reporting import sanitize_text

# `welldone bench compare`: compare two reports, with confidence intervals.

COMPARE_DESCRIPTION = """\
Compare two reports of welldone bench (--report FILE.json), step by step: the ratio of A to B with its 95 % confidence
interval, and a verdict on B: faster, slower, or no difference. The interval does not cover changes on the machine
between the two runs; to compare two servers, use --against, which alternates between them."""
COMPARE_EXAMPLES = """
welldone bench compare before.json after.json
welldone bench compare before.json after.json --fail-on-slower
"""
COMPARE_VERSION = 2
"""Version of the JSON output."""
_REPORT_LIMIT_BYTES = 512 * 1024 * 1024
"""Enough for the times of fifty million chunks; a laptop can hold two such reports."""
_VERDICT_WORDS = {FIRST_IS_BETTER: "slower", NO_DIFFERENCE: "no difference", SECOND_IS_BETTER: "faster"}
"""Verdicts on the second report."""
_SHARE_METRIC = "success_rate"
_SHARE_VERDICT_WORDS = {"slower": "worse", "faster": "better"}
"""Verdicts on a share of requests instead of a time or a rate."""
_VERDICT_COLORS = {FIRST_IS_BETTER: "fail", NO_DIFFERENCE: "dim", SECOND_IS_BETTER: "pass"}
_LOAD_SETTINGS = ("kind", "max_vus", "profile", "prompt", "decode", "dataset", "arrivals", "duration_s", "extra")
"""Settings that change the load."""


class _InferenceBenchmarkerReport(msgspec.Struct):
    """Fields that identify a report of inference-benchmarker."""

    results: list[msgspec.Raw]
    start_time: str


def run_compare(arguments: list[str]) -> ExitCode:
    """Compare two reports."""
    options = _compare_parser().parse(arguments)
    paths = (options.first, options.second)
    first, second = (_read_report(path) for path in paths)
    comparisons = compare_reports(first, second)
    for warning in _comparison_warnings(first, second, paths):
        ui.print_note(warning)
    if not comparisons:
        ui.print_note(_why_no_comparison(first, second))
        return ExitCode.NOTHING_TO_DO
    if options.json:
        ui.print_line(_comparison_json(comparisons))
    else:
        for line in _comparison_table(comparisons):
            ui.print_line(line)
    is_slower = any(comparison_verdict(comparison) == FIRST_IS_BETTER for comparison in comparisons)
    return ExitCode.FAILED if is_slower and options.fail_on_slower else ExitCode.OK


def _compare_parser() -> CommandParser:
    parser = CommandParser("bench compare", COMPARE_DESCRIPTION, COMPARE_EXAMPLES)
    parser.add_argument("first", metavar="A.json", type=Path, help="the reference report")
    parser.add_argument("second", metavar="B.json", type=Path, help="the report that is judged")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--fail-on-slower", action="store_true", help="exit 1 if B is significantly slower")
    return parser


def _read_report(path: Path) -> BenchReport:
    shown = ui.printable_name(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(_REPORT_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown}: {ui.error_text(error)}") from None
    if len(text) > _REPORT_LIMIT_BYTES:
        raise UsageError(f"{shown} is larger than {_REPORT_LIMIT_BYTES // 2**20} MB: it is not a report")
    try:
        return data.parse_report(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} {_why_not_a_report(text, error)}") from None


def _why_not_a_report(text: bytes, error: Exception) -> str:
    """Return why a file is not a report of this version."""
    try:
        msgspec.json.decode(text, type=_InferenceBenchmarkerReport)
    except (ValueError, RecursionError):
        return (
            f"is not a report of this version of welldone bench ({sanitize_text(ui.error_text(error))}); "
            "write one with --report FILE.json"
        )
    return (
        "is in the format of inference-benchmarker, which has no single requests to compute confidence intervals from; "
        "write reports to compare with welldone bench --report FILE.json"
    )


def _comparison_warnings(first: BenchReport, second: BenchReport, paths: tuple[Path, Path]) -> list[str]:
    """Return reasons other than the servers for which the results may differ."""
    warnings = [
        f"{ui.printable_name(str(path))} ended early: {sanitize_text(report.incomplete_reason)}"
        for path, report in zip(paths, (first, second), strict=True)
        if not report.is_complete
    ]
    different = [name for name in _LOAD_SETTINGS if first.config.get(name) != second.config.get(name)]
    different += [name for name in ("endpoint", "model") if getattr(first, name) != getattr(second, name)]
    return warnings + ([f"the loads of the two reports differ in {', '.join(different)}"] if different else [])


def _why_no_comparison(first: BenchReport, second: BenchReport) -> str:
    names = [[step.id for step in report.steps if step.id != "warmup"] for report in (first, second)]
    if set(names[0]) & set(names[1]):
        return "there is nothing to compare: too few requests succeeded"
    listed = (sanitize_text(", ".join(ids)) or "none" for ids in names)
    return "there is nothing to compare: no step is in both reports ({}; and {})".format(*listed)


def _comparison_table(comparisons: list[MetricComparison]) -> list[str]:
    width = max(len(split_metric(comparison)[1]) for comparison in comparisons) + 2
    lines: list[str] = []
    for step, rows in groupby(comparisons, key=lambda comparison: split_metric(comparison)[0]):
        lines += [sanitize_text(step), f"{'':<{width}}  {'A':>12}  {'B':>12}  {'A / B':>6}  interval"]
        lines += [_comparison_row(comparison, width) for comparison in rows]
        lines.append("")
    counts = Counter(_verdict_word(comparison) for comparison in comparisons)
    return [*lines, "B: " + ", ".join(f"{count} {word}" for word, count in counts.items())]


def _comparison_row(comparison: MetricComparison, width: int) -> str:
    metric = split_metric(comparison)[1]
    first, second = format_metric(metric, comparison.first), format_metric(metric, comparison.second)
    word = ui.colorize(_verdict_word(comparison), _VERDICT_COLORS[comparison_verdict(comparison)])
    interval = f"{comparison.low:.2f} to {comparison.high:<6.2f}"
    return f"{'  ' + metric:<{width}}  {first:>12}  {second:>12}  {comparison.ratio:>6.2f}  {interval}  {word}"


def _verdict_word(comparison: MetricComparison) -> str:
    word = _VERDICT_WORDS[comparison_verdict(comparison)]
    return _SHARE_VERDICT_WORDS.get(word, word) if split_metric(comparison)[1] == _SHARE_METRIC else word


def _comparison_json(comparisons: list[MetricComparison]) -> str:
    rows: list[dict[str, Any]] = []
    for comparison in comparisons:
        step, metric = split_metric(comparison)
        numbers = {name: getattr(comparison, name) for name in ("first", "second", "ratio", "low", "high")}
        rows.append({"step": step, "metric": metric, **numbers, "verdict": _verdict_word(comparison)})
    return json.dumps({"version": COMPARE_VERSION, "comparisons": rows}, indent=2)


DESCRIPTION = """\
Send a server the load of many clients, and report the time to the first token, the time between tokens, tokens per
second, and the number of requests that were skipped, refused, cut off or late. The command lines of
inference-benchmarker are accepted.

Without options it is a quick run of less than a minute, with one user and then with four, which is the concurrency of
the default server. -b sweep is the full run: it takes 22.5 minutes, with up to 128 users. The expected duration is
printed before a run starts.

welldone bench compare A.json B.json compares two reports."""
EXAMPLES = """
welldone bench http://127.0.0.1:8000/v1
welldone bench http://127.0.0.1:8000/v1 -b sweep --max-vus 32 --duration 30s
welldone bench http://127.0.0.1:8000/v1 -b rate --rates 2 --rates 4 --arrivals poisson --assert 'ttft.p90<800ms'
welldone bench http://127.0.0.1:8000/v1 -b concurrency --concurrency 1,4,16 --report bench.html
welldone bench http://127.0.0.1:8080/v1 --against http://127.0.0.1:8000/v1 -b throughput
welldone bench http://127.0.0.1:8000/v1 --endpoint responses -b throughput
welldone bench compare before.json after.json
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_parse_rate = option_types.positive_number(1e6)  # requests per second: more than any client can send
_parse_arrivals = option_types.enum_choice(ArrivalProcess)
_SEED_COUNT = 10**6
_QUICK_DEFAULTS = BenchSettings(
    url="",
    duration_s=15.0,
    warmup_s=5.0,
    grace_s=8.0,
    levels=(1, DEFAULT_SLOTS),
    decode=LengthSpec(num_tokens=64, min_tokens=64, max_tokens=64),
)
"""35 s, and less than a minute with late answers. A server with 5 tokens per second completes an answer in time."""
_FULL_DEFAULTS = BenchSettings(url="")
_UNSAFE_CHARACTERS = re.compile(r"[^\w-]+")

ValueT = TypeVar("ValueT")


def run(arguments: list[str]) -> ExitCode:
    """Measure a server, or compare two reports."""
    if arguments[:1] == ["compare"]:
        return run_compare(arguments[1:])
    options = _parser().parse(arguments)
    settings = _settings(options)
    for path in options.report:
        check_report_path(path, renderers.BENCH_REPORT_FORMATS)
    if options.results_dir is not None:
        make_writable_folder(options.results_dir)
    try:
        report = asyncio.run(_run_bench(settings, is_quiet=options.no_console or options.json))
    except BenchUnreachableError as error:
        ui.print_note(f"welldone bench: {error}")
        return ExitCode.UNREACHABLE
    except ValueError as error:
        raise UsageError(str(error)) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    _output_report(report, options)
    if report.incomplete_reason == STOPPED_BY_USER:
        raise KeyboardInterrupt  # the report is printed; exit like an interrupted command
    if settings.assertions and not report.assertion_results:
        ui.print_note("nothing was judged: no step after the warm-up ran")
        return ExitCode.NOTHING_TO_DO
    has_passed = report.is_complete and all(result.passed for result in report.assertion_results)
    return ExitCode.OK if has_passed else ExitCode.FAILED


def _parser() -> CommandParser:
    parser = CommandParser("bench", DESCRIPTION, EXAMPLES)
    _add_server(parser)
    _add_load(parser)
    _add_requests(parser)
    _add_results(parser)
    return parser


def _add_server(parser: CommandParser) -> None:
    add = parser.add_argument_group("the server").add_argument
    add("address", nargs="?", metavar="URL", help="base URL, including /v1 (http://127.0.0.1:8000/v1)")
    add("--url", "-u", metavar="URL", help="the same")
    add("--against", metavar="URL", help="a second server to compare with, measured in alternation: prints ratios")
    add("--endpoint", metavar="NAME", choices=tuple(DIALECTS), default="chat", help=f"{', '.join(DIALECTS)} (chat)")
    add("--against-api-key", metavar="KEY", help="its API key; --api-key and --header are for the first host only")
    add("--model-name", "--model", metavar="NAME", help="model to use (the tokenizer's, else the first listed)")
    add("--api-key", "-a", metavar="KEY", help=f"API key, or env:NAME (default: {API_KEY_VARIABLE})")
    add(
        "--header",
        metavar="LINE",
        type=option_types.parse_header,
        action="append",
        default=[],
        help="a header for every request",
    )
    add("--ca-file", metavar="FILE", help="CA certificates to trust (https)")
    add("--insecure", action="store_true", help="do not verify the certificate (https)")


def _add_load(parser: CommandParser) -> None:
    add = parser.add_argument_group("the load").add_argument
    add(
        "--benchmark-kind",
        "-b",
        metavar="KIND",
        type=option_types.enum_choice(BenchmarkKind),
        help=f"{', '.join(BenchmarkKind)} (quick)",
    )
    add(
        "--rates",
        "-r",
        metavar="N",
        type=_parse_rate,
        action="append",
        default=[],
        help="requests per second (repeatable)",
    )
    add("--num-rates", metavar="N", type=option_types.integer_between(1, 100), help="steps of a sweep (10)")
    add(
        "--max-vus", "-m", metavar="N", type=option_types.user_count, help="limit of concurrent users or requests (128)"
    )
    add(
        "--concurrency",
        metavar="N,N",
        type=option_types.user_counts,
        default=(),
        help="numbers of users, for -b concurrency",
    )
    add(
        "--replay",
        metavar="FILE",
        type=Path,
        help="arrival times for -b replay: JSONL, or one number of seconds per line",
    )
    add(
        "--arrivals",
        metavar="PROCESS",
        type=_parse_arrivals,
        help=f"arrival process of requests: {', '.join(ArrivalProcess)} (constant)",
    )
    add(
        "--burstiness",
        metavar="X",
        type=option_types.positive_number(MAX_BURSTINESS),
        help="of bursty arrivals; 1 equals poisson (4)",
    )
    add(
        "--duration",
        "-d",
        metavar="TIME",
        type=option_types.parse_duration,
        help="duration of each step, such as 30s or 2m (120s; quick: 15s)",
    )
    add(
        "--warmup",
        "-w",
        metavar="TIME",
        type=option_types.parse_duration_or_zero,
        help="duration of the warm-up (30s; quick: 5s); 0s: none",
    )
    add(
        "--timeout", metavar="TIME", type=option_types.parse_duration, default=300.0, help="limit for one answer (300s)"
    )
    add(
        "--grace",
        metavar="TIME",
        type=option_types.parse_duration_or_zero,
        help="time for running requests to finish when a step ends (30s; quick: 8s)",
    )
    add(
        "--seed",
        metavar="N",
        type=option_types.integer_between(0, _SEED_COUNT - 1),
        help="seed of the random numbers (random)",
    )


def _add_requests(parser: CommandParser) -> None:
    add = parser.add_argument_group("the requests").add_argument
    add("--profile", metavar="NAME", help=f"a predefined workload: {', '.join(WORKLOAD_PROFILES)}")
    add("--prompt-options", metavar="OPTIONS", help="num_tokens=200,max_tokens=220,min_tokens=180,variance=10")
    add("--decode-options", metavar="OPTIONS", help="the same for the answers: sent as max_tokens")
    add("--tokenizer-name", "-t", metavar="NAME", help="tokenizer.json, its folder, a GGUF, or `server` (/tokenize)")
    add("--dataset-file", metavar="FILE", type=Path, help="conversations: ShareGPT JSON, or JSONL")
    add("--dataset", metavar="NAME", help="ignored, for compatibility: prompts are generated, or come from a file")
    add(
        "--extra",
        metavar="JSON",
        type=option_types.parse_extra_fields,
        default={},
        help="additional fields for every request body",
    )


def _add_results(parser: CommandParser) -> None:
    add = parser.add_argument_group("the results").add_argument
    add(
        "--report",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help=f"write the report: {', '.join(renderers.BENCH_REPORT_FORMATS)}",
    )
    add("--json", action="store_true", help="print the report as JSON")
    add("--results-dir", metavar="DIR", type=Path, help="also write the JSON format of inference-benchmarker")
    add("--goodput", metavar="LIMIT", nargs="+", default=[], help="limits of a good answer, in ms: ttft:500 itl:50")
    add(
        "--assert", dest="assertions", metavar="TEXT", action="append", default=[], help="'ttft.p99<800ms', else exit 1"
    )
    add("--extra-meta", metavar="K=V,K=V", type=option_types.parse_key_values, default={}, help="stored in the report")
    add("--run-id", metavar="NAME", default="", help="stored in the report")
    add("--no-console", "-n", action="store_true", help="no live view")


def _settings(options: Namespace) -> BenchSettings:
    url = options.address or options.url or "http://127.0.0.1:8000/v1"
    if options.address and options.url:
        raise UsageError("two URLs are given: omit --url")
    kind = _benchmark_kind(options)
    defaults = _QUICK_DEFAULTS if kind is BenchmarkKind.QUICK else _FULL_DEFAULTS
    # A profile or a dataset has lengths of its own.
    has_lengths = options.profile is not None or options.dataset_file is not None
    return BenchSettings(
        url=option_types.server_url(url),
        against=None if options.against is None else option_types.server_url(options.against),
        endpoint=options.endpoint,
        model=options.model_name,
        key=option_types.server_key(options.api_key or None),
        against_key=_parse_optional(_against_key, options.against_api_key),
        ca_file=options.ca_file,
        is_verified=not options.insecure,
        headers=tuple((name, option_types.resolve_env(value, f"the header {name}")) for name, value in options.header),
        extra=options.extra,
        kind=kind,
        max_vus=128 if options.max_vus is None else options.max_vus,
        duration_s=defaults.duration_s if options.duration is None else options.duration,
        warmup_s=defaults.warmup_s if options.warmup is None else options.warmup,
        rates=tuple(options.rates),
        num_rates=options.num_rates or 10,
        levels=defaults.levels if kind is BenchmarkKind.QUICK else options.concurrency,
        replay=options.replay,
        arrivals=options.arrivals or ArrivalProcess.CONSTANT,
        burstiness=options.burstiness or 4.0,
        profile=None if options.profile is None else _parse(_check_profile, options.profile),
        prompt=_parse_optional(parse_length, options.prompt_options),
        decode=_parse_optional(parse_length, options.decode_options) or (None if has_lengths else defaults.decode),
        dataset=options.dataset_file,
        tokenizer=options.tokenizer_name,
        timeout_s=options.timeout,
        grace_s=defaults.grace_s if options.grace is None else options.grace,
        goodput=tuple(_parse(parse_goodput_bound, text) for text in options.goodput),
        assertions=_assertions(options),
        meta=options.extra_meta,
        run_id=options.run_id or os.urandom(4).hex()[:7],
        # Repeated prompts would be answered from the server's cache.
        seed=int.from_bytes(os.urandom(4)) % _SEED_COUNT if options.seed is None else options.seed,
    )


def _benchmark_kind(options: Namespace) -> BenchmarkKind:
    """Return the kind that is given, or that the other options imply."""
    required = {
        BenchmarkKind.RATE: "--rates",
        BenchmarkKind.CONCURRENCY: "--concurrency",
        BenchmarkKind.REPLAY: "--replay",
    }
    given = {
        BenchmarkKind.RATE: options.rates,
        BenchmarkKind.CONCURRENCY: options.concurrency,
        BenchmarkKind.REPLAY: options.replay,
    }
    is_sweep = options.arrivals or options.num_rates is not None or options.max_vus is not None
    default = BenchmarkKind.SWEEP if is_sweep else BenchmarkKind.QUICK
    implied, *more = [kind for kind, value in given.items() if value] or [default]
    if more:
        raise UsageError(f"{required[implied]} is for -b {implied}, {required[more[0]]} for -b {more[0]}: omit one")
    kind = implied if options.benchmark_kind is None else options.benchmark_kind
    if kind in required and kind is not implied:
        raise UsageError(f"-b {kind} needs {required[kind]}")
    if kind not in required and implied in required:
        raise UsageError(f"{required[implied]} is for -b {implied}, not for -b {kind}")
    if options.arrivals and kind not in (BenchmarkKind.RATE, BenchmarkKind.SWEEP):
        raise UsageError(f"--arrivals is for -b rate and -b sweep, not for -b {kind}")
    if options.burstiness and options.arrivals is not ArrivalProcess.BURSTY:
        raise UsageError("--burstiness is for --arrivals bursty")
    return kind


def _describe_plan(settings: BenchSettings) -> str:
    """Return the kind of the run and its expected duration."""
    expected = load.expected_duration_s(settings)
    if expected is None:
        return f"{settings.kind}: as long as the times in the file"
    seconds, most = expected
    users = f" with {', '.join(map(str, settings.levels))} users" if settings.levels else ""
    full = "; -b sweep is the full run" if settings.kind is BenchmarkKind.QUICK else ""
    return f"{settings.kind}{users}: about {_format_time(seconds)}, at most {_format_time(most)}{full}"


def _format_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def _assertions(options: Namespace) -> tuple[Assertion, ...]:
    assertions = tuple(_parse(parse_assertion, text) for text in options.assertions)
    for assertion in assertions:
        if assertion.metric == "goodput" and not options.goodput:
            raise UsageError(f"--assert {assertion.text!r} needs --goodput, which sets the limits of a good answer")
    return assertions


def _parse(parse: Callable[[str], ValueT], text: str) -> ValueT:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parse_optional(parse: Callable[[str], ValueT], text: str | None) -> ValueT | None:
    return None if text is None else _parse(parse, text)


def _check_profile(name: str) -> str:
    find_workload_profile(name)
    return name


def _against_key(value: str) -> str:
    return option_types.resolve_env(value, "--against-api-key")


async def _run_bench(settings: BenchSettings, *, is_quiet: bool) -> BenchReport:
    stop, progress = asyncio.Event(), BenchProgress()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def handle_signal() -> None:
        # Before the first step there is nothing to report, and a second signal ends the run at once.
        if stop.is_set() or progress.load is None:
            for number in _SIGNALS:
                signal.signal(
                    number, signal.SIG_DFL
                )  # a name lookup in a thread cannot be cancelled: a signal kills us
            task.cancel()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle_signal)
    async with bench_ui.live_view(progress, is_quiet=is_quiet):
        return await run_bench(
            settings, stop=stop, progress=progress, on_start=lambda: ui.print_note(_describe_plan(settings))
        )


def _output_report(report: BenchReport, options: Namespace) -> None:
    """Print the report and write its files; an error in one does not stop the other."""
    try:
        for line in [data.render_json(report)] if options.json else text.report_lines(report, ui.terminal_width()):
            ui.print_line(line)
        ui.flush_output()
    finally:
        written = _write_reports(report, options)
    if written and not options.json:
        ui.print_line(f"written: {', '.join(ui.printable_name(str(path)) for path in written)}")


def _write_reports(report: BenchReport, options: Namespace) -> list[Path]:
    """Write all files that can be written, then raise `UsageError` for the others."""
    outputs: list[tuple[Path, Callable[[BenchReport], str]]] = [
        (path, renderers.BENCH_REPORT_FORMATS[path.suffix.lower()]) for path in options.report
    ]
    if options.results_dir is not None:
        outputs.append((_results_path(report, options), data.render_inference_benchmarker))
    written, failed = [], []
    for path, render in outputs:
        try:
            path.write_bytes(f"{render(report)}\n".encode())
            written.append(path)
        except OSError as error:
            failed.append(f"cannot write {ui.printable_name(str(path))}: {ui.error_text(error)}")
    if failed:
        raise UsageError("; ".join(failed))
    return written


def _results_path(report: BenchReport, options: Namespace) -> Path:
    """Return the path that inference-benchmarker would write to."""
    name = _UNSAFE_CHARACTERS.sub("_", str(options.tokenizer_name or report.model))[:100]
    return Path(options.results_dir) / f"{name}_{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.json"
