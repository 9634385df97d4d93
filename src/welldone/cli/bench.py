"""`welldone bench`: load test of a server. Accepts the command lines of inference-benchmarker.

Send a server the load of many clients, and report the time to the first token, the time between tokens, tokens per
second, and the number of requests that were skipped, refused, cut off or late. The command lines of
inference-benchmarker are accepted.

Without options it is a quick run of about two minutes, with one user and then with as many as the server has slots
(four where it does not tell). -b sweep is the full run: it takes 22.5 minutes, with up to 128 users. The expected
duration is printed before a run starts.

welldone bench compare A.json B.json compares two reports.

examples:
  welldone bench http://127.0.0.1:8000/v1
  welldone bench http://127.0.0.1:8000/v1 -b sweep --max-vus 32 --duration 30s
  welldone bench http://127.0.0.1:8000/v1 -b rate --rates 2 --rates 4 --arrivals poisson --assert 'ttft.p90<800ms'
  welldone bench http://127.0.0.1:8000/v1 -b concurrency --concurrency 1,4,16 --report bench.html
  welldone bench http://127.0.0.1:8080/v1 --against http://127.0.0.1:8000/v1 -b throughput
  welldone bench http://127.0.0.1:8000/v1 --endpoint responses -b throughput
  welldone bench compare before.json after.json
"""

import asyncio
import json
import os
import re
import signal
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from welldone.bench import stats
from welldone.bench.dialects import DIALECTS
from welldone.bench.report import BenchReport, MetricComparison
from welldone.bench.reports import BENCH_REPORT_FORMATS, data, text
from welldone.bench.reports.text import format_metric, split_metric
from welldone.bench.settings import (
    MAX_BURSTINESS,
    ArrivalProcess,
    Assertion,
    BenchmarkKind,
    BenchSettings,
    LengthSpec,
    parse_length,
)
from welldone.bench.words import WORKLOAD_PROFILES, find_workload_profile
from welldone.cli import bench_ui, captures, option_types, ui
from welldone.cli.option_types import check_report_path, make_writable_folder, write_reports
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.model import DEFAULT_SLOTS
from welldone.reporting import sanitize_text

# `welldone bench compare`: compare two reports, with confidence intervals.

COMPARE_VERSION = 2
"""Version of the JSON output."""
_REPORT_LIMIT_BYTES = 512 * 1024 * 1024
"""Enough for the times of fifty million chunks; a laptop can hold two such reports."""
_VERDICTS = {
    stats.FIRST_IS_BETTER: ("slower", "worse", "fail"),
    stats.NO_DIFFERENCE: ("no difference", "no difference", "dim"),
    stats.SECOND_IS_BETTER: ("faster", "better", "pass"),
}
"""Verdicts on the second report: on a time or a rate, on a share of requests, and the colour."""
_LOAD_SETTINGS = ("kind", "max_vus", "profile", "prompt", "decode", "dataset", "arrivals", "duration_s", "extra")
"""Settings that change the load."""


class _InferenceBenchmarkerReport(msgspec.Struct):
    """Fields that identify a report of inference-benchmarker."""

    results: list[msgspec.Raw]
    start_time: str


def run_compare(arguments: list[str]) -> ExitCode:
    """Compare two reports.

    Compare two reports of welldone bench (--report FILE.json), step by step: the ratio of A to B with its 95 %
    confidence interval, and a verdict on B: faster, slower, or no difference. The interval does not cover changes on
    the machine between the two runs; to compare two servers, use --against, which alternates between them.

    examples:
      welldone bench compare before.json after.json
      welldone bench compare before.json after.json --fail-on-slower
    """
    parser = CommandParser("bench compare", run_compare.__doc__)
    parser.option("A.json", "the reference report", Path, dest="first")
    parser.option("B.json", "the report that is judged", Path, dest="second")
    parser.option("--json", "print the result as JSON")
    parser.option("--fail-on-slower", "exit 1 if B is significantly slower")
    options = parser.parse(arguments)
    paths = (options.first, options.second)
    first, second = (_read_report(path) for path in paths)
    comparisons = stats.compare_reports(first, second)
    for warning in _comparison_warnings(first, second, paths):
        ui.print_note(warning)
    if not comparisons:
        ui.print_note(_why_no_comparison(first, second))
        return ExitCode.NOTHING_TO_DO
    if options.json:
        ui.print_line(_comparison_json(comparisons))
    else:
        ui.print_lines(_comparison_table(comparisons))
    is_slower = any(stats.comparison_verdict(comparison) == stats.FIRST_IS_BETTER for comparison in comparisons)
    return ExitCode.FAILED if is_slower and options.fail_on_slower else ExitCode.OK


def _read_report(path: Path) -> BenchReport:
    shown = ui.printable_name(path)
    text = captures.read_file(path, _REPORT_LIMIT_BYTES + 1)
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
        f"{ui.printable_name(path)} ended early: {sanitize_text(report.incomplete_reason)}"
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
        lines += [sanitize_text(step), f"{'':<{width}}  {'A':>11}  {'B':>11}  {'A / B':>6}  interval"]
        lines += [_comparison_row(comparison, width) for comparison in rows]
        lines.append("")
    counts = Counter(_verdict_word(comparison) for comparison in comparisons)
    return [*lines, "B: " + ", ".join(f"{count} {word}" for word, count in counts.items())]


def _comparison_row(comparison: MetricComparison, width: int) -> str:
    metric = split_metric(comparison)[1]
    first, second = format_metric(metric, comparison.first), format_metric(metric, comparison.second)
    word = ui.colorize(_verdict_word(comparison), _VERDICTS[stats.comparison_verdict(comparison)][2])
    interval = f"{comparison.low:.2f} to {comparison.high:<6.2f}"
    return f"{'  ' + metric:<{width}}  {first:>11}  {second:>11}  {comparison.ratio:>6.2f}  {interval}  {word}"


def _verdict_word(comparison: MetricComparison) -> str:
    is_share = split_metric(comparison)[1] == "success_rate"
    return _VERDICTS[stats.comparison_verdict(comparison)][is_share]


def _comparison_json(comparisons: list[MetricComparison]) -> str:
    rows: list[dict[str, Any]] = []
    for comparison in comparisons:
        step, metric = split_metric(comparison)
        numbers = {name: getattr(comparison, name) for name in ("first", "second", "ratio", "low", "high")}
        rows.append({"step": step, "metric": metric, **numbers, "verdict": _verdict_word(comparison)})
    return json.dumps({"version": COMPARE_VERSION, "comparisons": rows}, indent=2)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_parse_rate = option_types.number_up_to(1e6)  # requests per second: more than any client can send
_parse_arrivals = option_types.enum_choice(ArrivalProcess)
_SEED_COUNT = 10**6
_QUICK_DEFAULTS = BenchSettings(
    url="",
    duration_s=45.0,
    warmup_s=10.0,
    grace_s=8.0,
    levels=(1, DEFAULT_SLOTS),
    decode=LengthSpec(num_tokens=64, min_tokens=64, max_tokens=64),
)
"""100 s, and about two minutes with late answers. A server with 5 tokens per second completes an answer in time."""
_DEFAULT_WIDTH = 80  # in a file or a pipe; the table of results would have up to 200 columns
_UNSAFE_CHARACTERS = re.compile(r"[^\w-]+")


def run(arguments: list[str]) -> ExitCode:
    """Measure a server, or compare two reports."""
    if arguments[:1] == ["compare"]:
        return run_compare(arguments[1:])
    options = _parser().parse(arguments)
    with ui.usage_errors(ValueError):
        settings = _settings(options)
    for path in options.report:
        check_report_path(path, BENCH_REPORT_FORMATS)
    if options.results_dir is not None:
        make_writable_folder(options.results_dir)
    # The HTTP client is an extra; --help, usage errors and `compare` work without it.
    from welldone.bench.client import BenchUnreachableError
    from welldone.bench.run import STOPPED_BY_USER

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
    parser = CommandParser("bench", __doc__)
    add = parser.option  # `dest` is the name of a setting
    duration, duration_or_zero = option_types.parse_duration, option_types.parse_duration_or_zero
    formats = ", ".join(BENCH_REPORT_FORMATS)
    parser.start_group("the server")
    add("URL", "base URL, including /v1 (http://127.0.0.1:8000/v1)", dest="address", nargs="?")
    add("--url -u URL", "the same")
    add("--against URL", "a second server to compare with, measured in alternation: prints ratios")
    add("--endpoint NAME", f"{', '.join(DIALECTS)} (chat)", choices=tuple(DIALECTS), default="chat")
    add("--against-api-key KEY", "its API key; --api-key and --header are for the first host only")
    add("--model-name --model NAME", "model to use (the tokenizer's, else the first listed)", dest="model")
    option_types.add_tested_server_options(parser, "--api-key -a KEY")
    parser.start_group("the load")
    add("--benchmark-kind -b KIND", f"{', '.join(BenchmarkKind)} (quick)", option_types.enum_choice(BenchmarkKind))
    add("--rates -r N...", "requests per second (repeatable)", _parse_rate)
    add("--num-rates N", "steps of a sweep (10)", option_types.integer_between(1, 100))
    add("--max-vus -m N", "limit of concurrent users or requests (128)", option_types.user_count)
    add("--concurrency N,N", "numbers of users, for -b concurrency", option_types.user_counts, dest="levels")
    add("--replay FILE", "arrival times for -b replay: JSONL, or one number of seconds per line", Path)
    add("--arrivals PROCESS", f"arrival process of requests: {', '.join(ArrivalProcess)} (constant)", _parse_arrivals)
    add("--burstiness X", "of bursty arrivals; 1 equals poisson (4)", option_types.number_up_to(MAX_BURSTINESS))
    add(
        "--duration -d TIME", "duration of each step, such as 30s or 2m (120s; quick: 45s)", duration, dest="duration_s"
    )
    add("--warmup -w TIME", "duration of the warm-up (30s; quick: 10s); 0s: none", duration_or_zero, dest="warmup_s")
    add("--timeout TIME", "limit for one answer (300s)", duration, dest="timeout_s")
    grace = "time for running requests to finish when a step ends (30s; quick: 8s)"
    add("--grace TIME", grace, duration_or_zero, dest="grace_s")
    add("--seed N", "seed of the random numbers (random)", option_types.integer_between(0, _SEED_COUNT - 1))
    parser.start_group("the requests")
    add("--profile NAME", f"a predefined workload: {', '.join(WORKLOAD_PROFILES)}")
    add("--prompt-options OPTIONS", "num_tokens=200,max_tokens=220,min_tokens=180,variance=10", dest="prompt")
    add("--decode-options OPTIONS", "the same for the answers: sent as max_tokens", dest="decode")
    add("--tokenizer-name -t NAME", "tokenizer.json, its folder, a GGUF, or `server` (/tokenize)", dest="tokenizer")
    add("--dataset-file FILE", "conversations: ShareGPT JSON, or JSONL", Path, dest="dataset")
    unused = "ignored, for compatibility: prompts are generated, or come from a file"
    add("--dataset NAME", unused, dest="unused_dataset")
    add("--extra JSON", "additional fields for every request body", option_types.parse_extra_fields)
    parser.start_group("the results")
    add("--report FILE...", f"write the report: {formats}", Path)
    add("--json", "print the report as JSON")
    add("--results-dir DIR", "also write the JSON format of inference-benchmarker", Path)
    add("--goodput LIMIT", "limits of a good answer, in ms: ttft:500 itl:50", nargs="+", default=[])
    add("--assert TEXT...", "'ttft.p99<800ms', else exit 1", dest="assertions")
    add("--extra-meta K=V,K=V", "stored in the report", option_types.parse_key_values, dest="meta")
    add("--run-id NAME", "stored in the report", default="")
    add("--no-console -n", "no live view")
    return parser


def _settings(options: Namespace) -> BenchSettings:
    """Return the settings of the run. Raises `ValueError`."""
    if options.address and options.url:
        raise UsageError("two URLs are given: omit --url")
    if options.profile is not None:
        find_workload_profile(options.profile)
    benchmark_kind = _benchmark_kind(options)
    defaults = _QUICK_DEFAULTS if benchmark_kind is BenchmarkKind.QUICK else BenchSettings(url="")
    # A profile or a dataset has lengths of its own.
    decode = defaults.decode if options.profile is None and options.dataset is None else None
    against_key = options.against_api_key
    names = BenchSettings.__struct_fields__
    changes = {name: value for name, value in vars(options).items() if name in names and value is not None}
    changes |= {
        "url": option_types.server_url(options.address or options.url or "http://127.0.0.1:8000/v1"),
        "against": None if options.against is None else option_types.server_url(options.against),
        **option_types.tested_server_settings(options),
        "key": option_types.server_key(options.api_key or None),  # inference-benchmarker takes an empty key
        "against_key": None if against_key is None else option_types.resolve_env(against_key, "--against-api-key"),
        "kind": benchmark_kind,
        "rates": tuple(options.rates),
        "prompt": None if options.prompt is None else parse_length(options.prompt),
        "decode": decode if options.decode is None else parse_length(options.decode),
        "goodput": tuple(map(stats.parse_goodput_bound, options.goodput)),
        "assertions": _assertions(options),
        "run_id": options.run_id or os.urandom(4).hex()[:7],
        # Repeated prompts would be answered from the server's cache.
        "seed": int.from_bytes(os.urandom(4)) % _SEED_COUNT if options.seed is None else options.seed,
    }
    return msgspec.structs.replace(defaults, **changes)


def _benchmark_kind(options: Namespace) -> BenchmarkKind:
    """Return the kind that is given, or that the other options imply."""
    required = {
        BenchmarkKind.RATE: ("--rates", options.rates),
        BenchmarkKind.CONCURRENCY: ("--concurrency", options.levels),
        BenchmarkKind.REPLAY: ("--replay", options.replay),
    }
    flags = {benchmark_kind: flag for benchmark_kind, (flag, _) in required.items()}
    is_sweep = options.arrivals or options.num_rates is not None or options.max_vus is not None
    default = BenchmarkKind.SWEEP if is_sweep else BenchmarkKind.QUICK
    implied, *more = [benchmark_kind for benchmark_kind, (_, value) in required.items() if value] or [default]
    if more:
        raise UsageError(f"{flags[implied]} is for -b {implied}, {flags[more[0]]} for -b {more[0]}: omit one")
    chosen = implied if options.benchmark_kind is None else options.benchmark_kind
    if chosen in required and chosen is not implied:
        raise UsageError(f"-b {chosen} needs {flags[chosen]}")
    if chosen not in required and implied in required:
        raise UsageError(f"{flags[implied]} is for -b {implied}, not for -b {chosen}")
    if options.arrivals and chosen not in (BenchmarkKind.RATE, BenchmarkKind.SWEEP):
        raise UsageError(f"--arrivals is for -b rate and -b sweep, not for -b {chosen}")
    if options.burstiness and options.arrivals is not ArrivalProcess.BURSTY:
        raise UsageError("--burstiness is for --arrivals bursty")
    return chosen


def _describe_plan(settings: BenchSettings) -> str:
    """Return the kind of the run and its expected duration."""
    from welldone.bench import load

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
    assertions = tuple(map(stats.parse_assertion, options.assertions))
    for assertion in assertions:
        if assertion.metric == "goodput" and not options.goodput:
            raise UsageError(f"--assert {assertion.text!r} needs --goodput, which sets the limits of a good answer")
    return assertions


async def _run_bench(settings: BenchSettings, *, is_quiet: bool) -> BenchReport:
    from welldone.bench.run import BenchProgress, run_bench

    stop, progress = asyncio.Event(), BenchProgress()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def handle_signal() -> None:
        # Before the first step there is nothing to report, and a second signal ends the run at once.
        if stop.is_set() or progress.load is None:
            for number in _SIGNALS:
                # A name lookup in a thread cannot be cancelled: a signal kills us.
                signal.signal(number, signal.SIG_DFL)
            task.cancel()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle_signal)
    async with bench_ui.live_view(progress, is_quiet=is_quiet):
        return await run_bench(
            settings, stop=stop, progress=progress, on_start=lambda plan: ui.print_note(_describe_plan(plan))
        )


def _output_report(report: BenchReport, options: Namespace) -> None:
    """Print the report and write its files; an error in one does not stop the other."""
    try:
        width = ui.terminal_width() or _DEFAULT_WIDTH
        ui.print_lines([data.render_json(report)] if options.json else text.report_lines(report, width))
        ui.flush_output()
    finally:
        outputs = [(path, BENCH_REPORT_FORMATS) for path in options.report]
        if options.results_dir is not None:
            # The path that inference-benchmarker would write to.
            name = _UNSAFE_CHARACTERS.sub("_", str(options.tokenizer or report.model))[:100]
            path = options.results_dir / f"{name}_{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.json"
            outputs.append((path, {".json": data.render_inference_benchmarker}))
        written = write_reports(report, outputs)
    if written and not options.json:
        ui.print_line(f"written: {', '.join(ui.printable_name(path) for path in written)}")
