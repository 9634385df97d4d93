"""`welldone check`: test a running server against the rules of the stream.

Send a server the requests of real clients, and report the rules of the stream that it breaks: what was observed and
expected, which clients are affected, and how to reproduce it. A run takes seconds, costs some thousand tokens, and
changes nothing on the server.

The exit code is 0 if no rule is broken but advice (with --strict: if no rule is broken at all), 1 if one is, or if an
answer ended in an error, 3 if the server cannot be reached or replies timed out (raise --timeout), 4 if there was
nothing to judge. Ctrl-C or SIGTERM ends the run with the report so far, marked as partial, and exit code 130.

examples:
  welldone check http://127.0.0.1:8000/v1
  welldone check https://api.example.com/v1 --model gpt-4o --api-key env:OPENAI_API_KEY
  welldone check http://127.0.0.1:8000/v1 --endpoint responses
  welldone check http://127.0.0.1:8000/v1 --profile ai-sdk --strict
  welldone check http://127.0.0.1:8000/v1 --only tools,stops --record traces
  welldone check http://127.0.0.1:8000/v1 --report check.json --report check.xml --report check.html
  welldone check http://127.0.0.1:8000/v1 --baseline check.json
  welldone check http://127.0.0.1:8000/v1 --prescribe
  WELLDONE_API_KEY=secret welldone check http://127.0.0.1:8000/v1
"""

import argparse
import asyncio
import logging
import os
import re
import secrets
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from welldone.check import reports
from welldone.check.api import PROFILES, parse_extra_members, parse_probe_names, parse_profile, parse_rule_ids
from welldone.check.discovery import CheckUnreachableError
from welldone.check.prescription import compare, prescribe, render_lines, useless_settings
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Prescription, Report
from welldone.check.reports import machine, text
from welldone.check.repro import AUTHORIZATION
from welldone.check.run import CheckProgress, NothingToCheckError, ProgressCallback, check
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.cli import captures, option_types, ui
from welldone.cli.option_types import ENV_PREFIX, check_report_path, write_reports
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError, cancel_on_sigterm
from welldone.config.server import CONFIG_FILE_NAME
from welldone.config.settings import RawSetting, SettingsError
from welldone.reporting import format_table, wrap_text

DOCS_VARIABLE = "WELLDONE_DOCS_URL"
_WEB_ADDRESS = re.compile(r"https?://[^\s\"'<>@]+")
CHECK_LOG_INTERVAL_S = 10.0
"""Between two progress lines in a log. Short runs print none."""


@asynccontextmanager
async def check_progress(every_s: float = CHECK_LOG_INTERVAL_S) -> AsyncIterator[ProgressCallback]:
    """Show the progress: on a terminal one line, which is cleared at the end, otherwise a line now and then."""
    latest: list[CheckProgress] = []
    is_shown = ui.is_interactive()

    def report(progress: CheckProgress) -> None:
        latest[:] = [progress]
        if is_shown:
            with suppress(OSError):  # a closed terminal does not stop the check
                ui.overwrite_line(_progress_line(progress))

    async def print_latest() -> None:
        with suppress(OSError):
            while not is_shown:
                await asyncio.sleep(every_s)
                for progress in latest:
                    ui.print_note(_progress_line(progress))

    task = asyncio.create_task(print_latest())
    try:
        yield report
    finally:
        task.cancel()
        if is_shown:
            with suppress(OSError):
                ui.overwrite_line("")


def _progress_line(progress: CheckProgress) -> str:
    return f"{progress.done} of {progress.total} probes  {', '.join(progress.running)}"


_MAX_JOBS = 64


def run(arguments: list[str]) -> ExitCode:
    """Check a server."""
    options = _parser().parse(arguments)
    if options.list:
        probes, width = PROBES_BY_DIALECT[options.endpoint], ui.terminal_width()
        ui.print_lines(format_table([(probe.name, probe.description) for probe in probes], width))
        legend = f"{len(probes)} probes; --only and --skip take names, or the group before the hyphen"
        ui.print_lines(wrap_text("", legend, width))
        return ExitCode.OK
    with ui.usage_errors(ValueError):
        settings = _settings(options)
    for path in options.report:
        check_report_path(path, reports.RENDERERS)
    try:
        report = asyncio.run(_run_check(settings))
    except CheckUnreachableError as error:
        ui.print_note(f"welldone check: {error}")
        return ExitCode.UNREACHABLE
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except NothingToCheckError as error:
        ui.print_note(f"nothing to judge: {error}")
        return ExitCode.NOTHING_TO_DO
    except OSError as error:
        folder = ui.printable_name(options.record)
        raise UsageError(f"cannot write traces into {folder}: {ui.error_text(error)}") from None
    if options.prescribe and not report.is_partial:
        report = asyncio.run(add_prescription(report, settings))
    _output_report(report, options)
    return _exit_code(report)


def _exit_code(report: Report) -> ExitCode:
    if report.passed:
        return ExitCode.OK
    if report.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if text.is_failed(report) else ExitCode.UNREACHABLE


def _parser() -> CommandParser:
    parser = CommandParser("check", __doc__)
    add = parser.option
    formats = ", ".join(reports.RENDERERS)
    endpoints = "API to check: chat (and completions), responses, messages, or gemini (chat)"
    add("URL", "base URL of the server, including /v1", dest="url", nargs="?")
    add("--model -m NAME", "model to use (default: the first that the server lists)")
    add("--endpoint NAME", endpoints, choices=tuple(DIALECTS), default="chat")
    option_types.add_tested_server_options(parser)
    add("--profile CLIENT", f"judge only the rules that affect this client: {', '.join(PROFILES)}")
    add("--strict", "fail on every broken rule, also on advice")
    add("--only PROBES...", "run only these probes or groups (see --list)")
    add("--skip PROBES...", "do not run these probes or groups")
    add("--rule ID...", "judge only this rule (may be repeated)")
    add("--baseline FILE", "an earlier report (.json): fail only where the broken rules differ from those in it")
    add("--report FILE...", f"write the report, in the format of the extension: {formats} (may be repeated)", Path)
    add("--prescribe", "print the settings of a gateway that make the server right, and check once more with them")
    add("--json", "print the report as JSON")
    add("--record DIR", "store every reply as a trace, for welldone lint and mock", Path)
    add("--verbose -v", "show every probe, and the rules that were not applicable")
    docs = f"address of the documentation site, for links to rules in .html and .sarif ({DOCS_VARIABLE})"
    add("--docs-url URL", docs, _parse_docs_url)
    add("--list", "list the probes")
    add("--jobs N", "concurrent requests (4)", option_types.integer_between(1, _MAX_JOBS), default=4)
    add("--timeout TIME", "limit for a complete reply (60s)", option_types.parse_duration, default=60.0)
    add("--extra JSON", "additional fields for every request body", _parse_extra_fields, default={})
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
    # Values from the environment, which the commands to reproduce a finding name instead.
    secrets = [*options.header, *([] if options.api_key is None else [(AUTHORIZATION, options.api_key)])]
    variables = {name: value.removeprefix(ENV_PREFIX) for name, value in secrets if value.startswith(ENV_PREFIX)}
    names = ("model", "extra", "endpoint", "jobs", "record")
    return CheckSettings(
        **{name: getattr(options, name) for name in names},
        url=option_types.server_url(options.url),
        **option_types.tested_server_settings(options),
        env_variables=variables,
        only=parse_probe_names(_split_list(options.only), options.endpoint),
        skip=parse_probe_names(_split_list(options.skip), options.endpoint),
        rules=parse_rule_ids(options.rule),
        profile=parse_profile(options.profile),
        is_strict=options.strict,
        known=None if options.baseline is None else _baseline_rules(options.baseline),
        timeouts=Timeouts(reply_s=options.timeout),
        docs_url=options.docs_url or _default_docs_url(),
    )


def _parse_docs_url(text: str) -> str:
    if not _WEB_ADDRESS.fullmatch(text):
        raise argparse.ArgumentTypeError("not an address, such as https://docs.example.com")
    return text


def _default_docs_url() -> str:
    text = os.environ.get(DOCS_VARIABLE, "")
    return text if _WEB_ADDRESS.fullmatch(text) else ""


def _split_list(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for piece in text.split(",") if (word := piece.strip())]


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
    stop, ended_by = asyncio.Event(), ""
    cancel_on_sigterm()
    try:
        async with check_progress() as report_progress:
            checking = asyncio.create_task(check(settings, on_progress=report_progress, stop=stop))
            try:
                return await asyncio.shield(checking)
            except asyncio.CancelledError as error:  # the first signal; a second one ends the run without a report
                ended_by = str(error)
                stop.set()
                return await checking
    except ValueError as error:
        raise UsageError(str(error)) from None
    finally:
        if ended_by:
            ui.print_note(f"welldone check: stopped by {ended_by}")


def _output_report(report: Report, options: Namespace) -> None:
    """Print the report and write its files; an error in one does not stop the other."""
    try:
        if options.json:
            ui.print_line(machine.render_json(report))
        else:
            width = ui.terminal_width()
            ui.print_lines(text.render_terminal(report, ui.colorize, is_verbose=options.verbose, width=width))
            ui.print_lines(render_lines(report))
    finally:
        write_reports(report, [(path, reports.RENDERERS) for path in options.report])


# ---- --prescribe: the settings of a gateway that make the server right, tried in this process


_FLAGS = {"port": "0", "cors_origins": "*"}  # the second: to judge what the gateway answers to browsers


async def add_prescription(report: Report, settings: CheckSettings) -> Report:
    """Return the report with a prescription, and the result of a check through a gateway with these settings."""
    cancel_on_sigterm()
    toml, variables, rules = prescribe(report, settings)
    try:
        after = await _check_through_gateway(toml, variables, report, settings)
        if useless := useless_settings(rules, report, after):
            toml, variables, _ = prescribe(report, settings, useless)
            after = await _check_through_gateway(toml, variables, report, settings)
        if settings.endpoint != "chat" and after.findings_by_rule:  # answers made from its chat may be right
            translated = [line for line in toml if not line.startswith("speaks = ")]
            with suppress(CheckUnreachableError, NothingToCheckError):  # the server may have no chat
                outcome = await _check_through_gateway(translated, variables, report, settings)
                if outcome.failed_answers == 0 and len(outcome.findings_by_rule) < len(after.findings_by_rule):
                    toml, after = translated, outcome
        prescription = compare(toml, report, after)
    except asyncio.CancelledError:
        prescription = Prescription(toml=tuple(toml), problem="interrupted")
    except (CheckUnreachableError, NothingToCheckError, SettingsError, OSError) as error:
        prescription = Prescription(toml=tuple(toml), problem=settings.secrets.redact(str(error)))
    return msgspec.structs.replace(report, prescription=prescription)


async def _check_through_gateway(
    toml: Sequence[str], variables: Mapping[str, str], report: Report, settings: CheckSettings
) -> Report:
    from welldone.server.config import read_config  # the server is an extra, and takes long to import
    from welldone.server.observe.log import LOGGER
    from welldone.server.server import Server

    LOGGER.addHandler(logging.NullHandler())  # else its warnings are printed
    key = None if settings.key is None else secrets.token_urlsafe()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / CONFIG_FILE_NAME).write_text("\n".join(toml), "utf-8")
        flags = {name: RawSetting(value, name, folder) for name, value in _FLAGS.items()}
        config = read_config(flags, variables, folder=folder)
        server = Server(config, keys=() if key is None else (key,), folder=folder, environment=variables)
        await server.start()
        try:
            await server.upstreams.wait_until_probed(settings.timeouts.reply_s)
            url = f"http://127.0.0.1:{server.port}/{'v1beta' if settings.endpoint == 'gemini' else 'v1'}"
            plain = msgspec.structs.replace(settings, headers=(), ca_file=None, is_verified=True, record=None)
            own = msgspec.structs.replace(plain, url=url, model=report.model, key=key)
            async with check_progress() as on_progress:
                return await check(own, on_progress=on_progress)
        finally:
            await server.stop()
