"""`welldone check`: which rules of the stream a running server keeps, which it breaks, and whom that hurts."""

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

# How far a check is: one line that is written over on a terminal, and a line now and then anywhere else.


CHECK_LOG_INTERVAL_S = 10.0
"""Between two lines of a log. Who waits for a minute without one wonders; a short run has none."""


@asynccontextmanager
async def check_progress(every_s: float = CHECK_LOG_INTERVAL_S) -> AsyncIterator[ProgressCallback]:
    """What tells how far it is. In the end nothing of it is left on a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    async with _overwritten_line() if is_terminal else _periodic_lines(every_s) as tell:
        yield tell


@asynccontextmanager
async def _overwritten_line() -> AsyncIterator[ProgressCallback]:
    def tell(progress: CheckProgress) -> None:
        with suppress(OSError):  # nobody looks any more, which does not stop the check
            ui.overwrite_line(_progress_line(progress))

    try:
        yield tell
    finally:
        with suppress(OSError):
            ui.overwrite_line("")


@asynccontextmanager
async def _periodic_lines(every_s: float) -> AsyncIterator[ProgressCallback]:
    latest: list[CheckProgress] = []

    def tell(progress: CheckProgress) -> None:
        latest[:] = [progress]

    async def note() -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(every_s)
                for progress in latest:
                    ui.print_note(_progress_line(progress))

    task = asyncio.create_task(note())
    try:
        yield tell
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
Ask a server what clients ask, and say which rules of the stream it keeps and which it breaks: what was heard, what
was wanted, which real clients that hurts, and how to see it again. It takes seconds, costs some thousand tokens, and
writes nothing to the server.

The exit code is 0 where no broken rule is known to break a client (with --strict: where no rule is broken at all),
1 where one is, 3 where the server cannot be reached or replies timed out (raise --timeout), 4 where there was nothing
to judge. Ctrl-C ends the run with the report of what was done so far, and exit code 130."""

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
    # Without a finding that counts, what is left is replies that did not come.
    return ExitCode.FAILED if any(is_failing(report, finding) for finding in report.findings) else ExitCode.UNREACHABLE


def _parser() -> CommandParser:
    parser = CommandParser("check", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="the server's address, up to and with /v1")
    add("--model", "-m", metavar="NAME", help="the model to ask (default: the first that the server lists)")
    add(
        "--endpoint",
        metavar="NAME",
        choices=tuple(DIALECTS),
        default="chat",
        help="what to check: chat (and completions), responses, or messages (chat)",
    )
    add(
        "--api-key", metavar="KEY", help=f"the server's key, or env:NAME (default: {API_KEY_VARIABLE}, where it is set)"
    )
    add("--profile", metavar="CLIENT", help=f"judge only what hurts this client: {', '.join(PROFILES)}")
    add("--strict", action="store_true", help="fail on every broken rule, also where no client is known to break")
    add("--only", metavar="PROBES", action="append", default=[], help="run only these, or groups of them (see --list)")
    add("--skip", metavar="PROBES", action="append", default=[], help="do not run these")
    add("--rule", metavar="ID", action="append", default=[], help="judge only this rule (may be repeated)")
    add("--baseline", metavar="FILE", help="a report (.json) of before: fail only on rules that are broken since")
    add(
        "--report",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help=f"write the report; its form by its name: {', '.join(renderers.RENDERERS)} (may be repeated)",
    )
    add("--json", action="store_true", help="show the report as JSON")
    add("--record", metavar="DIR", type=Path, help="keep every reply as a trace, for welldone lint and mock")
    add("--verbose", "-v", action="store_true", help="show every probe, and the rules that were not heard")
    add("--list", action="store_true", help="show the probes")
    add("--jobs", metavar="N", type=option_types.integer_between(1, _MAX_JOBS), default=4, help="requests at once (4)")
    add(
        "--timeout",
        metavar="TIME",
        type=option_types.parse_duration,
        default=60.0,
        help="for a reply to be whole (60s)",
    )
    add("--extra", metavar="JSON", type=_parse_extra_fields, default={}, help="members for the body of every request")
    add(
        "--header",
        metavar="LINE",
        type=option_types.parse_header,
        action="append",
        default=[],
        help="a header for every request, as NAME: VALUE or NAME: env:VARIABLE",
    )
    add("--ca-file", metavar="FILE", help="certificates to trust (https)")
    add("--insecure", action="store_true", help="trust any certificate (https)")
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
        raise UsageError("welldone check wants the address of a server: welldone check http://127.0.0.1:8000/v1")
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
    """The headers, and the environment variables that hold some of them."""
    said = list(given)
    headers = tuple((name, option_types.resolve_env(value, f"the header {name}")) for name, value in said)
    return headers, {name: value.removeprefix(ENV_PREFIX) for name, value in said if value.startswith(ENV_PREFIX)}


def _split_list(given: Iterable[str]) -> list[str]:
    return [word for text in given for part in text.split(",") if (word := part.strip())]


def _baseline_rules(name: str) -> frozenset[str]:
    """The rules that are broken in an earlier report."""
    try:
        report = msgspec.json.decode(captures.read_bytes(name), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UsageError(
            f"{ui.printable_name(name)} is no report of welldone check; make one with --report {ui.printable_name(name)}"
        ) from None
    return frozenset(report.findings_by_rule)


async def _run_check(settings: CheckSettings) -> Report:
    stop = asyncio.Event()
    try:
        async with check_progress() as tell:
            checking = asyncio.create_task(check(settings, on_progress=tell, stop=stop))
            try:
                return await asyncio.shield(checking)
            except asyncio.CancelledError:  # Ctrl-C: asyncio cancels this task first, and raises at the second one
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
    legend = f"{len(probes)} probes; --only and --skip take their names, or what stands before a hyphen"
    for line in wrap_text("", legend, ui.terminal_width()):
        ui.print_line(line)
