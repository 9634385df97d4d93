"""`welldone bench`: how fast a server answers many at once. The command lines of inference-benchmarker work here."""

import argparse
import asyncio
import json
import os
import re
import signal
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from welldone.bench.assertions import read_assertion, read_bound
from welldone.bench.lengths import read_length
from welldone.bench.profiles import PROFILES, profile_named
from welldone.bench.report import BenchReport
from welldone.bench.reports import data, forms, peer, tables
from welldone.bench.run import UnreachableError, Watch, bench
from welldone.bench.settings import Arrivals, BenchSettings, Kind
from welldone.cli import board, comparing, show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.net.address import base_url

DESCRIPTION = """\
Ask a server as many clients would, and say how it did: time to the first token, time between tokens, tokens per second,
and every request that was skipped, refused, cut or late, each counted apart. The command lines of
inference-benchmarker work as they are.

welldone bench compare A.json B.json tells two reports apart."""
EXAMPLES = """
welldone bench http://127.0.0.1:8000/v1 --duration 30s
welldone bench http://127.0.0.1:8000/v1 -b rate --rates 2 --rates 4 --arrivals poisson --assert 'ttft.p90<800ms'
welldone bench http://127.0.0.1:8000/v1 -b concurrency --concurrency 1,4,16 --report bench.html
welldone bench http://127.0.0.1:8080/v1 --against http://127.0.0.1:8000/v1 -b throughput
welldone bench compare before.json after.json
"""
KEY_VARIABLE = "WELLDONE_API_KEY"
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|secs|m|min|mins|h)?")
_UNITS = {"ms": 0.001, "m": 60.0, "min": 60.0, "mins": 60.0, "h": 3600.0}
_LONGEST_S = 24 * 3600.0
_MOST_USERS = 10_000
_SEEDS = 10**6
_UNSAFE = re.compile(r"[^\w-]+")

Value = TypeVar("Value")


def run(arguments: list[str]) -> Exit:
    """Measure a server, or compare two reports."""
    if arguments[:1] == ["compare"]:
        return comparing.run(arguments[1:])
    options = _parser().read(arguments)
    for path in options.report:
        if path.suffix.lower() not in forms.FORMS:
            raise UsageError(f"{show.name(str(path))}: the name of a report ends in one of {', '.join(forms.FORMS)}")
    settings = _settings(options)
    try:
        report = asyncio.run(_bench(settings, is_quiet=options.no_console or options.json))
    except UnreachableError as error:
        show.note(f"welldone bench: {error}")
        return Exit.UNREACHABLE
    except ValueError as error:
        raise UsageError(str(error)) from None
    _write(report, options)
    if not report.is_whole:
        raise KeyboardInterrupt  # all is said; the exit code is that of a command that was interrupted
    if settings.assertions and not report.checked:
        show.note("nothing was judged: no step but the warm-up ran")
        return Exit.NOTHING
    return Exit.RIGHT if all(checked.is_kept for checked in report.checked) else Exit.FOUND


def _parser() -> Parser:
    parser = Parser("bench", DESCRIPTION, EXAMPLES)
    _add_server(parser)
    _add_load(parser)
    _add_requests(parser)
    _add_results(parser)
    return parser


def _add_server(parser: Parser) -> None:
    add = parser.add_argument_group("the server").add_argument
    add("address", nargs="?", metavar="URL", help="its address, up to and with /v1 (http://127.0.0.1:8000/v1)")
    add("--url", "-u", metavar="URL", help="the same")
    add("--against", metavar="URL", help="another server, asked in turn with the first: prints ratios")
    add("--model-name", "--model", metavar="NAME", help="the model to ask (the tokenizer's, else the first listed)")
    add("--api-key", "-a", metavar="KEY", help=f"the server's key, or env:NAME (default: {KEY_VARIABLE})")
    add("--header", metavar="LINE", type=_header, action="append", default=[], help="a header for every request")
    add("--ca-file", metavar="FILE", help="certificates to trust (https)")
    add("--insecure", action="store_true", help="trust any certificate (https)")


def _add_load(parser: Parser) -> None:
    add = parser.add_argument_group("the load").add_argument
    add("--benchmark-kind", "-b", metavar="KIND", type=_kind, help=f"{', '.join(Kind)} (sweep)")
    add("--rates", "-r", metavar="N", type=_rate, action="append", default=[], help="requests per second (repeatable)")
    add("--num-rates", metavar="N", type=_whole(1, 100), default=10, help="steps of a sweep (10)")
    add("--max-vus", "-m", metavar="N", type=_whole(1, _MOST_USERS), help="users, or requests at once, at most (128)")
    add("--concurrency", metavar="N,N", type=_levels, default=(), help="numbers of users, for -b concurrency")
    add("--replay", metavar="FILE", type=Path, help="arrival times, for -b replay: a trace (JSONL), or a number a line")
    add("--arrivals", choices=[*Arrivals], default=Arrivals.CONSTANT, help="how requests follow each other (constant)")
    add("--burstiness", metavar="X", type=_positive, default=4.0, help="of bursty arrivals; 1 is poisson (4)")
    add("--duration", "-d", metavar="TIME", type=_time, help="of each step, such as 30s or 2m (120s)")
    add("--warmup", "-w", metavar="TIME", type=_time, help="of the warm-up (30s)")
    add("--timeout", metavar="TIME", type=_time, default=300.0, help="for one answer (300s)")
    add("--grace", metavar="TIME", type=_time, default=30.0, help="for answers under way when a step ends (30s)")
    add("--seed", metavar="N", type=_whole(0, _SEEDS - 1), help="of all that is drawn (another one each time)")


def _add_requests(parser: Parser) -> None:
    add = parser.add_argument_group("the requests").add_argument
    add("--profile", metavar="NAME", help=f"a known mix: {', '.join(PROFILES)}")
    add("--prompt-options", metavar="OPTIONS", help="num_tokens=200,max_tokens=220,min_tokens=180,variance=10")
    add("--decode-options", metavar="OPTIONS", help="the same, for the answers: becomes max_tokens")
    add("--tokenizer-name", "-t", metavar="NAME", help="tokenizer.json, its folder, a GGUF, or `server` (/tokenize)")
    add("--dataset-file", metavar="FILE", type=Path, help="conversations: ShareGPT JSON, or JSONL")
    add("--dataset", metavar="NAME", help="taken for the sake of old command lines: data are made here, or a file's")
    add("--extra", metavar="JSON", type=_object, default={}, help="members for the body of every request")


def _add_results(parser: Parser) -> None:
    add = parser.add_argument_group("the results").add_argument
    add("--report", metavar="FILE", type=Path, action="append", default=[], help=f"write it: {', '.join(forms.FORMS)}")
    add("--json", action="store_true", help="show the report as JSON")
    add("--results-dir", metavar="DIR", type=Path, default=Path("results"), help="for JSON as inference-benchmarker's")
    add("--goodput", metavar="LIMIT", nargs="+", default=[], help="what a good answer takes at most: ttft:500 itl:50")
    add(
        "--assert", dest="assertions", metavar="TEXT", action="append", default=[], help="'ttft.p99<800ms', else exit 1"
    )
    add("--extra-meta", metavar="K=V,K=V", type=_meta, default={}, help="kept with the results")
    add("--run-id", metavar="NAME", default="", help="kept with the results")
    add("--no-console", "-n", action="store_true", help="no live view")


def _settings(options: Namespace) -> BenchSettings:
    url = options.address or options.url or "http://127.0.0.1:8000/v1"
    if options.address and options.url:
        raise UsageError("there are two addresses: leave out --url")
    return BenchSettings(
        url=_address(url),
        against=None if options.against is None else _address(options.against),
        model=options.model_name,
        key=_key(options.api_key),
        ca_file=options.ca_file,
        is_verified=not options.insecure,
        headers=tuple(options.header),
        extra=options.extra,
        kind=_chosen_kind(options),
        max_vus=128 if options.max_vus is None else options.max_vus,
        duration_s=120.0 if options.duration is None else options.duration,
        warmup_s=30.0 if options.warmup is None else options.warmup,
        rates=tuple(options.rates),
        num_rates=options.num_rates,
        levels=options.concurrency,
        replay=options.replay,
        arrivals=Arrivals(options.arrivals),
        burstiness=options.burstiness,
        profile=None if options.profile is None else _must(_profile, options.profile),
        prompt=_read(read_length, options.prompt_options),
        decode=_read(read_length, options.decode_options),
        dataset=options.dataset_file,
        tokenizer=options.tokenizer_name,
        timeout_s=options.timeout,
        grace_s=options.grace,
        goodput=tuple(_must(read_bound, text) for text in options.goodput),
        assertions=tuple(_must(read_assertion, text) for text in options.assertions),
        meta=options.extra_meta,
        run_id=options.run_id or os.urandom(4).hex()[:7],
        # The same prompts again would come from the server's cache.
        seed=int.from_bytes(os.urandom(4)) % _SEEDS if options.seed is None else options.seed,
    )


def _chosen_kind(options: Namespace) -> Kind:
    """The kind that was named, or that the other options mean."""
    meant = Kind.SWEEP
    if options.rates:
        meant = Kind.RATE
    elif options.concurrency:
        meant = Kind.CONCURRENCY
    elif options.replay is not None:
        meant = Kind.REPLAY
    kind = meant if options.benchmark_kind is None else options.benchmark_kind
    wants = {Kind.RATE: "--rates", Kind.CONCURRENCY: "--concurrency", Kind.REPLAY: "--replay"}
    if kind in wants and kind is not meant:
        raise UsageError(f"-b {kind} wants {wants[kind]}")
    if kind not in wants and meant is not Kind.SWEEP:
        raise UsageError(f"{wants[meant]} is for -b {meant}, not for -b {kind}")
    return kind


def _must(read: Callable[[str], Value], text: str) -> Value:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _read(read: Callable[[str], Value], text: str | None) -> Value | None:
    return None if text is None else _must(read, text)


def _profile(name: str) -> str:
    profile_named(name)
    return name


def _address(text: str) -> str:
    url = base_url(text)
    if "@" in url:
        raise UsageError("a password in an address ends up in logs; use --api-key")
    return url


def _key(said: str | None) -> str | None:
    if not said:
        return os.environ.get(KEY_VARIABLE) or None
    name = said.removeprefix("env:")
    if name == said:
        return said
    if not os.environ.get(name):
        raise UsageError(f"--api-key names the environment variable {name}, which is not set")
    return os.environ[name]


# ---- what options hold


def _kind(text: str) -> Kind:
    try:
        return Kind(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(Kind)}") from None


def _time(text: str) -> float:
    found = _SECONDS.fullmatch(text.strip().lower())
    seconds = -1.0 if found is None else float(found[1]) * _UNITS.get(found[2] or "s", 1.0)
    if not 0 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to 24h, such as 500ms, 30s or 2m")
    return seconds


def _whole(least: int, most: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least:,} to {most:,}")
        return int(text)

    return whole


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


_rate = _positive


def _levels(text: str) -> tuple[int, ...]:
    read = _whole(1, _MOST_USERS)
    return tuple(read(part.strip()) for part in text.split(","))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('is no JSON object, such as {"reasoning_effort":"low"}')
    return value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("is no header, such as 'X-Team: search'")  # the value may be a secret
    return name.strip(), value.strip()


def _meta(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(equals and key.strip() for key, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as engine=vllm,tp=2")
    return {key.strip(): value.strip() for key, _, value in pairs}


# ---- running and writing


async def _bench(settings: BenchSettings, *, is_quiet: bool) -> BenchReport:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    watch = Watch()
    async with board.watching(watch, is_quiet=is_quiet):
        return await bench(settings, stop=stop, watch=watch)


def _write(report: BenchReport, options: Namespace) -> None:
    written = [*options.report, _results_path(report, options)]
    for path in options.report:
        _save(path, lambda path: forms.write(report, path))
    _save(written[-1], lambda path: path.write_text(peer.draw(report) + "\n", encoding="utf-8"))
    if options.json:
        show.line(data.draw(report))
        return
    for line in tables.lines(report):
        show.line(line)
    show.line(f"written: {', '.join(show.name(str(path)) for path in written)}")


def _results_path(report: BenchReport, options: Namespace) -> Path:
    """Where inference-benchmarker would write it."""
    name = _UNSAFE.sub("_", str(options.tokenizer_name or report.model))[:100]
    options.results_dir.mkdir(parents=True, exist_ok=True)
    return Path(options.results_dir) / f"{name}_{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.json"


def _save(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise UsageError(f"cannot write {show.name(str(path))}: {show.why(error)}") from None
