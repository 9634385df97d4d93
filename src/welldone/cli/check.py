"""`welldone check`: test a running server against the rules of the stream."""

import argparse
import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from welldone import reporting
from welldone.check.discovery import CheckUnreachableError
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report
from welldone.check.reports import machine, renderers, text
from welldone.check.reports.text import is_failing
from welldone.check.repro import AUTHORIZATION
from welldone.check.run import CheckProgress, InterruptedCheckError, NothingToCheckError, ProgressCallback, check
from welldone.check.selection import PROFILES, parse_extra_members, parse_probe_names, parse_profile, parse_rule_ids
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.cli import captures, option_types, ui
from welldone.cli.option_types import ENV_PREFIX, check_report_path
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.http.redaction import API_KEY_VARIABLE
from welldone.reporting import format_table, wrap_text

CHECK_LOG_INTERVAL_S = 10.0
"""Between two progress lines in a log. Short runs print none."""


@asynccontextmanager
async def check_progress(every_s: float = CHECK_LOG_INTERVAL_S) -> AsyncIterator[ProgressCallback]:
    """Show the progress: on a terminal one line, which is cleared at the end, otherwise a line now and then."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    async with _overwritten_line() if is_terminal else _periodic_lines(every_s) as report:
        yield report


@asynccontextmanager
async def _overwritten_line() -> AsyncIterator[ProgressCallback]:
    def report(progress: CheckProgress) -> None:
        with suppress(OSError):  # a closed terminal does not stop the check
            ui.overwrite_line(_progress_line(progress))

    try:
        yield report
    finally:
        with suppress(OSError):
            ui.overwrite_line("")


@asynccontextmanager
async def _periodic_lines(every_s: float) -> AsyncIterator[ProgressCallback]:
    latest: list[CheckProgress] = []

    def report(progress: CheckProgress) -> None:
        latest[:] = [progress]

    async def print_latest() -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(every_s)
                for progress in latest:
                    ui.print_note(_progress_line(progress))

    task = asyncio.create_task(print_latest())
    try:
        yield report
    finally:
        task.cancel()


def _progress_line(progress: CheckProgress) -> str:
    return f"{progress.done} of {progress.total} probes  {', '.join(progress.running)}"


EXAMPLES = f"""
welldone check http://127.0.0.1:8000/v1
welldone check https://api.example.com/v1 --model gpt-4o --api-key env:OPENAI_API_KEY
welldone check http://127.0.0.1:8000/v1 --endpoint responses
welldone check http://127.0.0.1:8000/v1 --profile ai-sdk --strict
welldone check http://127.0.0.1:8000/v1 --only tools,stops --record traces
welldone check http://127.0.0.1:8000/v1 --report check.json --report check.xml --report check.html
welldone check http://127.0.0.1:8000/v1 --baseline check.json
{API_KEY_VARIABLE}=secret welldone check http://127.0.0.1:8000/v1
"""
DESCRIPTION = """\
Send a server the requests of real clients, and report the rules of the stream that it breaks: what was observed and
expected, which clients are affected, and how to reproduce it. A run takes seconds, costs some thousand tokens, and
changes nothing on the server.

The exit code is 0 if no broken rule is known to break a client (with --strict: if no rule is broken at all), 1 if one
is, 3 if the server cannot be reached or replies timed out (raise --timeout), 4 if there was nothing to judge. Ctrl-C
ends the run with the report so far, and exit code 130."""

_MAX_JOBS = 64


def run(arguments: list[str]) -> ExitCode:
    """Check a server."""
    options = _parser().parse(arguments)
    if options.list:
        _list_probes(PROBES_BY_DIALECT[options.endpoint])
        return ExitCode.OK
    try:
        settings = _settings(options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    for path in options.report:
        check_report_path(path, renderers.RENDERERS)
    try:
        report = asyncio.run(_run_check(settings))
    except CheckUnreachableError as error:
        ui.print_note(f"welldone check: {error}")
        return ExitCode.UNREACHABLE
    except InterruptedCheckError as error:
        ui.print_note(f"welldone check: {error}")
        return ExitCode.INTERRUPTED
    except NothingToCheckError as error:
        ui.print_note(f"nothing to judge: {error}")
        return ExitCode.NOTHING_TO_DO
    except OSError as error:
        folder = ui.printable_name(str(options.record))
        raise UsageError(f"cannot write traces into {folder}: {ui.error_text(error)}") from None
    _output_report(report, options)
    return _exit_code(report)


def _exit_code(report: Report) -> ExitCode:
    if report.passed:
        return ExitCode.OK
    if report.is_interrupted:
        return ExitCode.INTERRUPTED
    # Without such a finding, the run did not pass because of missing replies.
    return ExitCode.FAILED if any(is_failing(report, finding) for finding in report.findings) else ExitCode.UNREACHABLE


def _parser() -> CommandParser:
    parser = CommandParser("check", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="base URL of the server, including /v1")
    add("--model", "-m", metavar="NAME", help="model to use (default: the first that the server lists)")
    add(
        "--endpoint",
        metavar="NAME",
        choices=tuple(DIALECTS),
        default="chat",
        help="API to check: chat (and completions), responses, or messages (chat)",
    )
    add("--api-key", metavar="KEY", help=f"API key, or env:NAME (default: {API_KEY_VARIABLE}, if it is set)")
    add("--profile", metavar="CLIENT", help=f"judge only the rules that affect this client: {', '.join(PROFILES)}")
    add("--strict", action="store_true", help="fail on every broken rule, even if no client is known to break")
    add("--only", metavar="PROBES", action="append", default=[], help="run only these probes or groups (see --list)")
    add("--skip", metavar="PROBES", action="append", default=[], help="do not run these probes or groups")
    add("--rule", metavar="ID", action="append", default=[], help="judge only this rule (may be repeated)")
    add(
        "--baseline",
        metavar="FILE",
        help="an earlier report (.json): fail only on rules that it does not list as broken",
    )
    add(
        "--report",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help=f"write the report, in the format of the extension: {', '.join(renderers.RENDERERS)} (may be repeated)",
    )
    add("--json", action="store_true", help="print the report as JSON")
    add("--record", metavar="DIR", type=Path, help="store every reply as a trace, for welldone lint and mock")
    add("--verbose", "-v", action="store_true", help="show every probe, and the rules that were not applicable")
    add("--list", action="store_true", help="list the probes")
    add(
        "--jobs",
        metavar="N",
        type=option_types.integer_between(1, _MAX_JOBS),
        default=4,
        help="concurrent requests (4)",
    )
    add(
        "--timeout",
        metavar="TIME",
        type=option_types.parse_duration,
        default=60.0,
        help="limit for a complete reply (60s)",
    )
    add(
        "--extra", metavar="JSON", type=_parse_extra_fields, default={}, help="additional fields for every request body"
    )
    add(
        "--header",
        metavar="LINE",
        type=option_types.parse_header,
        action="append",
        default=[],
        help="a header for every request, as NAME: VALUE or NAME: env:VARIABLE",
    )
    add("--ca-file", metavar="FILE", help="CA certificates to trust (https)")
    add("--insecure", action="store_true", help="do not verify the certificate (https)")
    return parser


def _parse_extra_fields(text: str) -> dict[str, Any]:
    value = option_types.parse_json_object(text)
    try:
        parse_extra_members(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _settings(options: Namespace) -> CheckSettings:
    if options.url is None:
        raise UsageError("welldone check needs the URL of a server: welldone check http://127.0.0.1:8000/v1")
    headers, variables = _headers(options.header)
    return CheckSettings(
        url=option_types.server_url(options.url),
        model=options.model,
        key=option_types.server_key(options.api_key),
        env_variables=variables | _key_variable(options.api_key),
        ca_file=options.ca_file,
        is_verified=not options.insecure,
        headers=headers,
        extra=options.extra,
        endpoint=options.endpoint,
        only=parse_probe_names(_split_list(options.only), options.endpoint),
        skip=parse_probe_names(_split_list(options.skip), options.endpoint),
        rules=parse_rule_ids(options.rule),
        profile=parse_profile(options.profile),
        is_strict=options.strict,
        known=None if options.baseline is None else _baseline_rules(options.baseline),
        jobs=options.jobs,
        record=options.record,
        timeouts=Timeouts(reply_s=options.timeout),
    )


def _key_variable(value: str | None) -> dict[str, str]:
    return {AUTHORIZATION: value.removeprefix(ENV_PREFIX)} if value is not None and value.startswith(ENV_PREFIX) else {}


def _headers(given: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """Return the headers, and the environment variables that hold some of them."""
    pairs = list(given)
    headers = tuple((name, option_types.resolve_env(value, f"the header {name}")) for name, value in pairs)
    return headers, {name: value.removeprefix(ENV_PREFIX) for name, value in pairs if value.startswith(ENV_PREFIX)}


def _split_list(given: Iterable[str]) -> list[str]:
    return [word for text in given for part in text.split(",") if (word := part.strip())]


def _baseline_rules(name: str) -> frozenset[str]:
    """Return the rules that an earlier report lists as broken."""
    try:
        report = msgspec.json.decode(captures.read_bytes(name), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shown = ui.printable_name(name)
        raise UsageError(
            f"{shown} is not a report of this version of welldone check; write one with --report {shown}"
        ) from None
    return frozenset(report.findings_by_rule)


async def _run_check(settings: CheckSettings) -> Report:
    stop = asyncio.Event()
    try:
        async with check_progress() as report_progress:
            checking = asyncio.create_task(check(settings, on_progress=report_progress, stop=stop))
            try:
                return await asyncio.shield(checking)
            except asyncio.CancelledError:  # the first Ctrl-C cancels this task, the second raises KeyboardInterrupt
                stop.set()
                return await checking
    except ValueError as error:
        raise UsageError(str(error)) from None


def _output_report(report: Report, options: Namespace) -> None:
    for path in options.report:
        try:
            reporting.write_report(report, path, renderers.RENDERERS)
        except OSError as error:
            raise UsageError(f"cannot write {ui.printable_name(str(path))}: {ui.error_text(error)}") from None
    if options.json:
        ui.print_line(machine.render_json(report))
        return
    for line in text.render_terminal(report, ui.colorize, is_verbose=options.verbose, width=ui.terminal_width()):
        ui.print_line(line)


def _list_probes(probes: Sequence[Probe]) -> None:
    for line in format_table([(probe.name, probe.description) for probe in probes], ui.terminal_width()):
        ui.print_line(line)
    legend = f"{len(probes)} probes; --only and --skip take names, or the group before the hyphen"
    for line in wrap_text("", legend, ui.terminal_width()):
        ui.print_line(line)
