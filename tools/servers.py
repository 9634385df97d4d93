"""Check real servers, one after the other, and write docs/servers.md.

Each server is installed from its lock file, started on a free loopback port with the built-in model, checked by
`welldone check` on each endpoint, and stopped. Servers that are ASGI applications are checked a second time, with
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
from pathlib import Path

import msgspec

from welldone.check.report import Report
from welldone.cli.ui import ExitCode
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.store import models_folder

import server_page  # isort: skip  # the folder of a script is on its path
from server_page import DIALECTS, Checked, MiddlewareRun, NotRun, Result, ServerPage, Unsupported  # isort: skip
from server_process import (  # isort: skip
    KEY,
    ROOT,
    ServerError,
    convert_model,
    free_port,
    install,
    installed_version,
    log_excerpt,
    running_server,
    without_local_paths,
)
from server_table import MODEL, SERVERS, Server, printable_command  # isort: skip

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
        if server.name in options.only and (server.middleware_command or not options.middleware):
            page = _make_page(position, server, gguf, options)
            checks = [page, page.middleware] if page.middleware else [page]
            has_failed |= any(isinstance(result, NotRun) for check in checks for result in check.results.values())
            server_page.store_page(page, DOCS / "servers" / f"{server.name}.json")
    (DOCS / "servers.md").write_text(server_page.render(server_page.load_pages(DOCS / "servers")), "utf-8")
    return ExitCode.FAILED if has_failed else ExitCode.OK


def _make_page(position: int, server: Server, gguf: Path, options: argparse.Namespace) -> ServerPage:
    """Check a server, without and with the middleware."""
    path = DOCS / "servers" / f"{server.name}.json"
    stored = server_page.load_page(path) if path.exists() else None
    unchecked: dict[str, Result] = dict.fromkeys(DIALECTS, NotRun(date=_today(), reason="not checked yet"))
    version, results = (stored.version, dict(stored.results)) if stored else ("", unchecked)
    if not options.middleware:
        version, new = _check_server(server, gguf, options.endpoint, options.json)
        results = {**results, **new}
    middleware = None
    if server.middleware_command:
        repaired = server.with_middleware()
        old = stored.middleware.results if stored and stored.middleware else unchecked
        _, new = _check_server(repaired, gguf, options.endpoint, options.json and options.json / "middleware")
        middleware = MiddlewareRun(command=printable_command(repaired), results={**old, **new})
    return ServerPage(
        position=position,
        title=server.title,
        command=printable_command(server),
        note=server.note,
        version=version,
        results=results,
        middleware=middleware,
        is_imitation=server.is_imitation,
    )


def _parse_options() -> argparse.Namespace:
    names = [server.name for server in SERVERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_parse_names, default=names, metavar="NAMES", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--endpoint", action="append", choices=DIALECTS, help="only check this endpoint, and keep the other results"
    )
    parser.add_argument("--ready", action="store_true", help="only install the servers and convert the model")
    parser.add_argument("--middleware", action="store_true", help="only repeat the checks with the middleware")
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
                if "{folder}" in server.command:
                    convert_model(programs, gguf, TEMPLATE)
            except ServerError as error:
                print(f"{server.name}: {error}", file=sys.stderr)
                return ExitCode.UNREACHABLE
    return ExitCode.OK


def _check_server(
    server: Server, gguf: Path, endpoints: Sequence[str], reports: Path | None
) -> tuple[str, dict[str, Result]]:
    """The server's version, and the result of each endpoint."""
    try:
        with ExitStack() as stack:
            url, version = _start(server, gguf, stack)
            results: dict[str, Result] = {}
            for endpoint in endpoints:
                print(f"{server.name} {version}: checking {endpoint}", flush=True)
                results[endpoint] = _check_endpoint(server, url, endpoint, reports)
                print(f"{server.name} {version}: {endpoint} {_result_line(results[endpoint])}", flush=True)
            return version, results
    except ServerError as error:
        return "", dict.fromkeys(endpoints, NotRun(date=_today(), reason=str(error)))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _start(server: Server, gguf: Path, stack: ExitStack) -> tuple[str, str]:
    """Start the server and its upstream; returns URL and version. Both stop when the stack closes."""
    upstream_url = ""
    for upstream in SERVERS:
        if upstream.name == server.upstream:
            upstream_url, _ = _start(upstream, gguf, stack)
    programs = install(server)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", ignore_cleanup_errors=True)))
    if "{folder}" in server.command:
        (work / MODEL).symlink_to(convert_model(programs, gguf, TEMPLATE))  # servers report the path as the model id
    values = {
        "bin": f"{programs}/",
        "gguf": str(gguf),
        "folder": MODEL,
        "template": str(TEMPLATE),
        "root": f"{ROOT}/",
        "tools": f"{ROOT}/tools/",
        "work": f"{work}/",
        "port": str(free_port()),
        "upstream": upstream_url,
        "key": KEY,
    }
    return stack.enter_context(running_server(server, values, work)), installed_version(server, programs)


def _check_endpoint(server: Server, url: str, endpoint: str, reports: Path | None) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        try:
            recording = ["--record", str(reports / f"{server.name}-{endpoint}")] if reports else []
            code, errors = _run_check(url, endpoint, file, recording)
        except subprocess.TimeoutExpired:
            return NotRun(date=_today(), reason=f"the check timed out after {_CHECK_S:g} s")
        if code == ExitCode.UNREACHABLE and _NOT_OFFERED in errors:
            reason = errors.partition(_NOT_OFFERED)[2].strip().replace(url, "it")  # the port changes with each run
            return Unsupported(date=_today(), reason=without_local_paths(reason))
        if not file.exists():  # a run with timeouts has exit code 3, and a report
            return NotRun(date=_today(), reason=f"the check ended with code {code}:\n{log_excerpt(errors)}")
        text = without_local_paths(file.read_text("utf-8"))
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        (reports / f"{server.name}-{endpoint}.json").write_text(text, "utf-8")
    return server_page.summarize(msgspec.json.decode(text, type=Report))


def _run_check(url: str, endpoint: str, report: Path, recording: Sequence[str]) -> tuple[int, str]:
    """Exit code and stderr of `welldone check`."""
    options = ("--model", MODEL, "--endpoint", endpoint, "--timeout", f"{_REPLY_S:g}s", "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "welldone", "check", url, *options, *recording],
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
