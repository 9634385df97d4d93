"""Check real servers, one after the other, and write docs/servers.md.

Each server is installed from its lock file, started on a free loopback port with the built-in model, checked by
`welldone check` on each endpoint, and stopped: by itself, behind a gateway, and behind a gateway with the settings that
`welldone check --prescribe` prints. Servers that are ASGI applications are checked once more, with
`welldone.asgi.RepairMiddleware` in front. The results are stored as docs/servers/NAME.json.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from welldone.check.prescription import KNOWLEDGE
from welldone.check.report import Report
from welldone.cli.ui import ExitCode
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.store import models_folder

import server_page  # isort: skip  # the folder of a script is on its path
from server_page import DIALECTS, Checked, MiddlewareRun, NotRun, Prescribed, Result, ServerPage, Unsupported  # isort: skip
from server_process import (  # isort: skip
    KEY,
    ROOT,
    ServerError,
    convert_model,
    free_port,
    install,
    installed_version,
    log_excerpt,
    make_tiny_model,
    running_server,
    without_local_paths,
)
from server_table import GATEWAY, MODEL, SERVERS, Server, printable_command  # isort: skip

DOCS = ROOT / "docs"
TEMPLATE = ROOT / "src" / "welldone" / "engines" / "templates" / str(DEFAULT_MODEL.template)

_REPLY_S = 240.0  # four concurrent replies on a busy machine; a timeout would hide the real verdict
_CHECK_S = 3600.0  # a slow server takes two minutes for each of some hundred replies, four at once
_NOT_OFFERED = "not offered: "  # prefix of the check's message for a missing endpoint


def main() -> int:
    """Check the selected servers; the exit code is 1 if a server could not be checked."""
    options = _parse_options()
    try:
        gguf = ModelPuller(models_folder(os.environ)).pull("default")
    except PullError as error:
        print(f"the model cannot be downloaded: {error}", file=sys.stderr)
        return ExitCode.UNREACHABLE
    if options.ready:
        return _install_all(options.only, gguf)
    has_failed = False
    for position, server in enumerate(SERVERS):
        if server.name in options.only and (server.middleware_command or options.way != "middleware"):
            page = _make_page(position, server, gguf, options)
            results = [page.results, page.gateway or {}, page.middleware.results if page.middleware else {}]
            has_failed |= any(isinstance(result, NotRun) for each in results for result in each.values())
            server_page.store_page(page, DOCS / "servers" / f"{server.name}.json")
        elif (path := DOCS / "servers" / f"{server.name}.json").exists():  # a server may have been added before it
            server_page.store_page(msgspec.structs.replace(server_page.load_page(path), position=position), path)
    (DOCS / "servers.md").write_text(server_page.render(server_page.load_pages(DOCS / "servers")), "utf-8")
    return ExitCode.FAILED if has_failed else ExitCode.OK


def _make_page(position: int, server: Server, gguf: Path, options: argparse.Namespace) -> ServerPage:
    """Check a server: by itself, behind the gateway, and with the middleware."""
    path = DOCS / "servers" / f"{server.name}.json"
    stored = server_page.load_page(path) if path.exists() else None
    unchecked: dict[str, Result] = dict.fromkeys(DIALECTS, NotRun(date=_today(), reason="not checked yet"))
    checks = Checks(
        version=stored.version if stored else "",
        results={**unchecked, **(stored.results if stored else {})},
        gateway={**unchecked, **(stored.gateway or {} if stored else {})},
        prescribed=dict(stored.prescribed) if stored else {},
    )
    if options.way != "middleware":
        _check_server(server, checks, gguf, options.endpoint, options.json)
    middleware = stored.middleware if stored else None
    if server.middleware_command and options.way != "gateway":
        repaired = server.with_middleware()
        after = Checks(version="", results={**unchecked, **(middleware.results if middleware else {})})
        _check_server(repaired, after, gguf, options.endpoint, options.json and options.json / "middleware")
        middleware = MiddlewareRun(command=printable_command(repaired), results=after.results)
    return ServerPage(
        position=position,
        title=server.title,
        command=printable_command(server),
        note=server.note,
        version=checks.version,
        results=checks.results,
        middleware=middleware,
        gateway=checks.gateway if server.has_gateway else None,
        prescribed=checks.prescribed,
    )


@dataclass
class Checks:
    """The results of a server, by endpoint."""

    version: str
    results: dict[str, Result]
    gateway: dict[str, Result] = field(default_factory=dict)
    prescribed: dict[str, Prescribed] = field(default_factory=dict)


def _parse_options() -> argparse.Namespace:
    names = [server.name for server in SERVERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_parse_names, default=names, metavar="NAMES", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--endpoint", action="append", choices=DIALECTS, help="only check this endpoint, and keep the other results"
    )
    parser.add_argument("--ready", action="store_true", help="only install the servers and convert the model")
    ways = parser.add_mutually_exclusive_group()
    for way, text in (("middleware", "only check with the middleware"), ("gateway", "all checks but these")):
        ways.add_argument(f"--{way}", dest="way", action="store_const", const=way, help=text)
    parser.add_argument(
        "--json", type=Path, metavar="DIR", help="write the complete reports and replies to this folder"
    )
    options = parser.parse_args()
    options.endpoint = options.endpoint or list(DIALECTS)
    return options


def _parse_names(text: str) -> list[str]:
    known = [server.name for server in SERVERS]
    if unknown := set(text.split(",")).difference(known):
        raise argparse.ArgumentTypeError(
            f"there is no server {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    return text.split(",")


def _install_all(names: list[str], gguf: Path) -> int:
    for server in SERVERS:
        if server.name in names:
            try:
                programs = install(server)
                if "{folder}" in server.command or "{tiny}" in server.command:
                    convert_model(_converter(server, programs), gguf, TEMPLATE)
            except ServerError as error:
                print(f"{server.name}: {error}", file=sys.stderr)
                return ExitCode.UNREACHABLE
    return ExitCode.OK


def _check_server(server: Server, checks: Checks, gguf: Path, endpoints: Sequence[str], reports: Path | None) -> None:
    """Check the server, and behind the gateway if it is to be; the results replace those in `checks`."""
    try:
        with ExitStack() as stack:
            url, checks.version = _start(server, gguf, stack)
            for endpoint in endpoints:
                result, prescribed = _check_endpoint(server, url, endpoint, reports, is_prescribing=server.has_gateway)
                checks.results[endpoint] = result
                if prescribed:
                    checks.prescribed[endpoint] = prescribed
                print(f"{server.name} {checks.version}: {endpoint} {_result_line(result)}", flush=True)
    except ServerError as error:
        checks.results.update(dict.fromkeys(endpoints, NotRun(date=_today(), reason=str(error))))
        return
    for endpoint in endpoints if server.has_gateway else ():
        behind = _check_behind_gateway(server, None, endpoint, gguf, reports)
        checks.gateway[endpoint] = behind
        chat = checks.prescribed.get("chat")
        is_untried = endpoint == "chat" and bool(chat and chat.problem)
        if chat and (is_untried or isinstance(checks.results[endpoint], Unsupported)):  # only the gateway has this API
            if chat.has_settings:
                behind = _check_behind_gateway(server, chat, endpoint, gguf, reports)
            if isinstance(behind, Checked):
                broken = tuple(rule.rule for rule in behind.broken)
                left = tuple(dict.fromkeys(KNOWLEDGE.left.get(rule, rule) for rule in broken))
                checks.prescribed[endpoint] = Prescribed(
                    date=behind.date, settings=chat.settings, broken=broken, left=left
                )


def _check_behind_gateway(
    server: Server, prescribed: Prescribed | None, endpoint: str, gguf: Path, reports: Path | None
) -> Result:
    """Check an endpoint through a gateway. The server is started again: it may not survive another check."""
    way = "prescribed" if prescribed else "gateway"
    try:
        with ExitStack() as stack:
            url, _ = _start(server, gguf, stack)
            plain = [f"[upstreams.{server.name}]", f'url = "{url}"', f'key = "{KEY}"']
            gateway_url = _start_gateway(_table_for(prescribed, url) if prescribed else plain, stack)
            result, _ = _check_endpoint(server, gateway_url, endpoint, reports and reports / way)
    except ServerError as error:
        result = NotRun(date=_today(), reason=str(error))
    print(f"{server.name}, {way}: {endpoint} {_result_line(result)}", flush=True)
    return result


def _table_for(prescribed: Prescribed, url: str) -> list[str]:
    """The table that was printed, for the server that runs now."""
    lines = [line for line in prescribed.settings if not line.startswith(("url = ", "key = "))]
    return [lines[0], f'url = "{url}"', f'key = "{KEY}"', *lines[1:]]


def _start_gateway(table: Sequence[str], stack: ExitStack) -> str:
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", ignore_cleanup_errors=True)))
    values = {"bin": f"{Path(sys.executable).parent}/", "work": f"{work}/", "port": str(free_port()), "key": KEY}
    return stack.enter_context(running_server(GATEWAY, {**values, "table": "\n".join(table)}, work))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _converter(server: Server, programs: Path) -> Path:
    """Programs of the environment that can convert the model: the server's own, or another server's."""
    return next((install(each) for each in SERVERS if each.name == server.converter), programs)


def _start(server: Server, gguf: Path, stack: ExitStack) -> tuple[str, str]:
    """Start the server and its upstream; returns URL and version. Both stop when the stack closes."""
    upstream_url = ""
    for upstream in SERVERS:
        if upstream.name == server.upstream:
            upstream_url, _ = _start(upstream, gguf, stack)
    programs = install(server)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", ignore_cleanup_errors=True)))
    if "{folder}" in server.command:
        folder = convert_model(_converter(server, programs), gguf, TEMPLATE)
        (work / MODEL).symlink_to(folder)  # servers report the path as the model id
    if "{tiny}" in server.command:
        folder = make_tiny_model(programs, convert_model(_converter(server, programs), gguf, TEMPLATE))
        cache = work / "hub" / f"models--{MODEL}"
        (cache / "snapshots").mkdir(parents=True)
        (cache / "snapshots" / "tiny").symlink_to(folder)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("tiny")
    values = {
        "bin": f"{programs}/",
        "gguf": str(gguf),
        "folder": MODEL,
        "tiny": MODEL,
        "template": str(TEMPLATE),
        "root": f"{ROOT}/",
        "tools": f"{ROOT}/tools/",
        "work": f"{work}/",
        "port": str(free_port()),
        "upstream": upstream_url,
        "key": KEY,
    }
    return stack.enter_context(running_server(server, values, work)), installed_version(server, programs)


def _check_endpoint(
    server: Server, url: str, endpoint: str, reports: Path | None, *, is_prescribing: bool = False
) -> tuple[Result, Prescribed | None]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        try:
            options = ["--record", str(reports / f"{server.name}-{endpoint}")] if reports else []
            options += ["--prescribe"] if is_prescribing else []
            code, errors = _run_check(url, endpoint, file, options)
        except subprocess.TimeoutExpired:
            return NotRun(date=_today(), reason=f"the check timed out after {_CHECK_S:g} s"), None
        if code == ExitCode.UNREACHABLE and _NOT_OFFERED in errors:
            reason = errors.partition(_NOT_OFFERED)[2].strip().replace(url, "it")  # the port changes with each run
            return Unsupported(date=_today(), reason=without_local_paths(reason)), None
        if not file.exists():  # a run with timeouts has exit code 3, and a report
            return NotRun(date=_today(), reason=f"the check ended with code {code}:\n{log_excerpt(errors)}"), None
        text = without_local_paths(file.read_text("utf-8"))
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        (reports / f"{server.name}-{endpoint}.json").write_text(text, "utf-8")
    report = msgspec.json.decode(text, type=Report)
    found = report.prescription
    return (
        server_page.summarize(report),
        None if found is None else server_page.summarize_prescription(report.date, found, url),
    )


def _run_check(url: str, endpoint: str, report: Path, more: Sequence[str]) -> tuple[int, str]:
    """Exit code and stderr of `welldone check`."""
    options = ("--model", MODEL, "--endpoint", endpoint, "--timeout", f"{_REPLY_S:g}s", "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "welldone", "check", url, *options, *more],
        env=os.environ | {"WELLDONE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    return done.returncode, done.stderr


def _result_line(result: Result) -> str:
    match result:
        case NotRun(reason=reason):
            return f"not checked: {reason}"
        case Unsupported(reason=reason):
            return f"unsupported: {reason}"
        case Checked(verdict=verdict, rules=rules):
            return f"{verdict.label} ({', '.join(f'{count} {name}' for name, count in rules.items())})"


if __name__ == "__main__":
    sys.exit(main())
