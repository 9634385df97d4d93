"""`welldone check`: which rules of the stream a running server keeps, which it breaks, and whom that hurts."""

import argparse
import asyncio
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from welldone.check.again import AUTHORIZATION, KEY_VARIABLE
from welldone.check.dialect import DIALECTS
from welldone.check.naming import PROFILES, members_given, probes_named, profile_named, rules_named
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_OF
from welldone.check.report import Report
from welldone.check.reports import data, forms, terminal
from welldone.check.reports.words import fails
from welldone.check.run import InterruptedCheckError, NothingError, UnreachableError, check
from welldone.check.settings import CheckSettings, Patience
from welldone.cli import amounts, asking, captures, show
from welldone.cli.asking import ENV
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.cli.reporting import check_report
from welldone.cli.watch import watching
from welldone.drawing import files
from welldone.drawing.columns import table, wrapped

EXAMPLES = f"""
welldone check http://127.0.0.1:8000/v1
welldone check https://api.example.com/v1 --model gpt-4o --api-key env:OPENAI_API_KEY
welldone check http://127.0.0.1:8000/v1 --endpoint responses
welldone check http://127.0.0.1:8000/v1 --profile ai-sdk --strict
welldone check http://127.0.0.1:8000/v1 --only tools,stops --record traces
welldone check http://127.0.0.1:8000/v1 --report check.json --report check.xml --report check.html
welldone check http://127.0.0.1:8000/v1 --baseline check.json
{KEY_VARIABLE}=secret welldone check http://127.0.0.1:8000/v1
"""
DESCRIPTION = """\
Ask a server what clients ask, and say which rules of the stream it keeps and which it breaks: what was heard, what
was wanted, which real clients that hurts, and how to see it again. It takes seconds, costs some thousand tokens, and
writes nothing to the server.

The exit code is 0 where no broken rule is known to break a client (with --strict: where no rule is broken at all),
1 where one is, 3 where the server cannot be reached or replies timed out (raise --timeout), 4 where there was nothing
to judge. Ctrl-C ends the run with the report of what was done so far, and exit code 130."""

_SIDE_BY_SIDE_LIMIT = 64


def run(arguments: list[str]) -> Exit:
    """Check a server."""
    options = _parser().read(arguments)
    if options.list:
        _list(PROBES_OF[options.endpoint])
        return Exit.RIGHT
    try:
        settings = _settings(options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    for path in options.report:
        check_report(path, forms.FORMS)
    try:
        report = asyncio.run(_check(settings))
    except UnreachableError as error:
        show.note(f"welldone check: {error}")
        return Exit.UNREACHABLE
    except InterruptedCheckError as error:
        show.note(f"welldone check: {error}")
        return Exit.INTERRUPTED
    except NothingError as error:
        show.note(f"nothing to judge: {error}")
        return Exit.NOTHING
    except OSError as error:
        folder = show.name(str(options.record))
        raise UsageError(f"cannot write traces into {folder}: {show.why(error)}") from None
    _write(report, options)
    return _exit(report)


def _exit(report: Report) -> Exit:
    if report.passed:
        return Exit.RIGHT
    if report.is_interrupted:
        return Exit.INTERRUPTED
    # Without a finding that counts, what is left is replies that did not come.
    return Exit.FOUND if any(fails(report, finding) for finding in report.findings) else Exit.UNREACHABLE


def _parser() -> Parser:
    parser = Parser("check", DESCRIPTION, EXAMPLES)
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
    add("--api-key", metavar="KEY", help=f"the server's key, or env:NAME (default: {KEY_VARIABLE}, where it is set)")
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
        help=f"write the report; its form by its name: {', '.join(forms.FORMS)} (may be repeated)",
    )
    add("--json", action="store_true", help="show the report as JSON")
    add("--record", metavar="DIR", type=Path, help="keep every reply as a trace, for welldone lint and mock")
    add("--verbose", "-v", action="store_true", help="show every probe, and the rules that were not heard")
    add("--list", action="store_true", help="show the probes")
    add("--jobs", metavar="N", type=amounts.whole(1, _SIDE_BY_SIDE_LIMIT), default=4, help="requests at once (4)")
    add("--timeout", metavar="TIME", type=amounts.time, default=60.0, help="for a reply to be whole (60s)")
    add("--extra", metavar="JSON", type=_members, default={}, help="members for the body of every request")
    add(
        "--header",
        metavar="LINE",
        type=asking.header,
        action="append",
        default=[],
        help="a header for every request, as NAME: VALUE or NAME: env:VARIABLE",
    )
    add("--ca-file", metavar="FILE", help="certificates to trust (https)")
    add("--insecure", action="store_true", help="trust any certificate (https)")
    return parser


def _members(text: str) -> dict[str, Any]:
    value = amounts.json_object(text)
    try:
        members_given(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _settings(options: Namespace) -> CheckSettings:
    if options.url is None:
        raise UsageError("welldone check wants the address of a server: welldone check http://127.0.0.1:8000/v1")
    headers, variables = _headers(options.header)
    return CheckSettings(
        url=asking.address(options.url),
        model=options.model,
        key=asking.key(options.api_key),
        variables=variables | _key_variable(options.api_key),
        ca_file=options.ca_file,
        is_verified=not options.insecure,
        headers=headers,
        extra=options.extra,
        endpoint=options.endpoint,
        only=probes_named(_words(options.only), options.endpoint),
        skip=probes_named(_words(options.skip), options.endpoint),
        rules=rules_named(options.rule),
        profile=profile_named(options.profile),
        is_strict=options.strict,
        known=None if options.baseline is None else _known(options.baseline),
        side_by_side=options.jobs,
        record=options.record,
        patience=Patience(reply_s=options.timeout),
    )


def _key_variable(said: str | None) -> dict[str, str]:
    return {AUTHORIZATION: said.removeprefix(ENV)} if said is not None and said.startswith(ENV) else {}


def _headers(given: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """The headers, and the environment variables that hold some of them."""
    said = list(given)
    headers = tuple((name, asking.from_environment(value, f"the header {name}")) for name, value in said)
    return headers, {name: value.removeprefix(ENV) for name, value in said if value.startswith(ENV)}


def _words(given: Iterable[str]) -> list[str]:
    return [word for text in given for part in text.split(",") if (word := part.strip())]


def _known(name: str) -> frozenset[str]:
    """The rules that are broken in an earlier report."""
    try:
        report = msgspec.json.decode(captures.read_bytes(name), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UsageError(
            f"{show.name(name)} is no report of welldone check; make one with --report {show.name(name)}"
        ) from None
    return frozenset(report.broken)


async def _check(settings: CheckSettings) -> Report:
    stop = asyncio.Event()
    try:
        async with watching() as tell:
            checking = asyncio.create_task(check(settings, tell=tell, stop=stop))
            try:
                return await asyncio.shield(checking)
            except asyncio.CancelledError:  # Ctrl-C: asyncio cancels this task first, and raises at the second one
                stop.set()
                return await checking
    except ValueError as error:
        raise UsageError(str(error)) from None


def _write(report: Report, options: Namespace) -> None:
    for path in options.report:
        try:
            files.write(report, path, forms.FORMS)
        except OSError as error:
            raise UsageError(f"cannot write {show.name(str(path))}: {show.why(error)}") from None
    if options.json:
        show.line(data.draw(report))
        return
    for line in terminal.lines(report, show.paint, is_verbose=options.verbose, width=show.width()):
        show.line(line)


def _list(probes: Sequence[Probe]) -> None:
    for line in table([(probe.name, probe.says) for probe in probes], show.width()):
        show.line(line)
    legend = f"{len(probes)} probes; --only and --skip take their names, or what stands before a hyphen"
    for line in wrapped("", legend, show.width()):
        show.line(line)
