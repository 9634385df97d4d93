"""Checks real servers, one after the other, and writes docs/servers.md.

Each is installed from its lock file, started on a free port of loopback with the built-in model, checked by
`welldone check` on each endpoint, and ended. What is kept of each is docs/servers/NAME.json; the page is made of these.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from welldone.check.report import Report
from welldone.check.settings import DIALECTS
from welldone.cli.ui import ExitCode
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import pull
from welldone.engines.models.store import models_folder

import server_page  # isort: skip  # neighbours: a script's own folder is on the path
from server_page import Checked, NotOffered, NotRun, Page, Result  # isort: skip
from server_process import (  # isort: skip
    KEY,
    ROOT,
    ServerError,
    free_port,
    gist,
    installed,
    plain,
    running,
    unpacked,
    version_of,
)
from server_table import MODEL, SERVERS, Server, shown  # isort: skip

DOCS = ROOT / "docs"
TEMPLATE = ROOT / "src" / "welldone" / "engines" / "templates" / str(DEFAULT_MODEL.template)

_REPLY_S = 240.0  # four at once, on a machine that does other things too: what is late says nothing of the stream
_CHECK_S = 3600.0  # a slow server has two minutes for each of some hundred replies, four at once
_NOT_OFFERED = "not offered: "  # so begins what the check says of an endpoint that is not there


def main() -> int:
    """Check what was asked for; 1 if a server could not be checked."""
    options = _options()
    try:
        gguf = pull("default", folder=models_folder(os.environ))
    except PullError as error:
        print(f"there is no model to serve: {error}", file=sys.stderr)
        return ExitCode.UNREACHABLE
    if options.ready:
        return _make_ready(options.only, gguf)
    has_failed = False
    for place, server in enumerate(SERVERS):
        if server.name in options.only:
            version, results = _results(server, gguf, options.json)
            has_failed |= any(isinstance(result, NotRun) for result in results.values())
            page = Page(
                place=place,
                title=server.title,
                started=shown(server),
                note=server.note,
                version=version,
                results=results,
            )
            server_page.store(page, DOCS / "servers" / f"{server.name}.json")
    (DOCS / "servers.md").write_text(server_page.draw(server_page.stored(DOCS / "servers")), "utf-8")
    return ExitCode.FAILED if has_failed else ExitCode.OK


def _options() -> argparse.Namespace:
    names = [server.name for server in SERVERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_names, default=names, metavar="NAMES", help=f"of {', '.join(names)}")
    parser.add_argument("--ready", action="store_true", help="install them, unpack the model for them, and no more")
    parser.add_argument("--json", type=Path, metavar="DIR", help="keep the whole reports here")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    known = [server.name for server in SERVERS]
    if unknown := set(text.split(",")).difference(known):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return text.split(",")


def _make_ready(names: list[str], gguf: Path) -> int:
    for server in SERVERS:
        if server.name in names:
            try:
                programs = installed(server)
                if "{folder}" in server.command:
                    unpacked(programs, gguf, TEMPLATE)
            except ServerError as error:
                print(f"{server.name}: {error}", file=sys.stderr)
                return ExitCode.UNREACHABLE
    return ExitCode.OK


def _results(server: Server, gguf: Path, reports: Path | None) -> tuple[str, dict[str, Result]]:
    """Its version, and what came of each endpoint."""
    try:
        with ExitStack() as stack:
            url, version = _started(server, gguf, stack)
            results: dict[str, Result] = {}
            for endpoint in DIALECTS:
                print(f"{server.name} {version}: checking {endpoint}", flush=True)
                results[endpoint] = _result(server, url, endpoint, reports)
                print(f"{server.name} {version}: {endpoint} {_in_a_line(results[endpoint])}", flush=True)
            return version, results
    except ServerError as error:
        return "", dict.fromkeys(DIALECTS, NotRun(date=_today(), why=str(error)))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _started(server: Server, gguf: Path, stack: ExitStack) -> tuple[str, str]:
    """Its URL and its version. It ends with the stack, and so does the server behind it."""
    upstream = ""
    for behind in SERVERS:
        if behind.name == server.behind:
            upstream, _ = _started(behind, gguf, stack)
    programs = installed(server)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", ignore_cleanup_errors=True)))
    if "{folder}" in server.command:
        (work / MODEL).symlink_to(unpacked(programs, gguf, TEMPLATE))  # servers show the path that they are given
    names = {
        "bin": f"{programs}/",
        "gguf": str(gguf),
        "folder": MODEL,
        "template": str(TEMPLATE),
        "tools": f"{ROOT}/tools/",
        "work": f"{work}/",
        "port": str(free_port()),
        "upstream": upstream,
        "key": KEY,
    }
    return stack.enter_context(running(server, names, work)), version_of(server, programs)


def _result(server: Server, url: str, endpoint: str, reports: Path | None) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        try:
            code, said = _check(url, endpoint, file)
        except subprocess.TimeoutExpired:
            return NotRun(date=_today(), why=f"the check was not over after {_CHECK_S:g} s")
        if code == ExitCode.UNREACHABLE and _NOT_OFFERED in said:
            why = said.partition(_NOT_OFFERED)[2].strip().replace(url, "it")  # its port is another the next time
            return NotOffered(date=_today(), why=plain(why))
        if not file.exists():  # a run with replies that timed out has a report, too
            return NotRun(date=_today(), why=f"the check ended with code {code}:\n{gist(said)}")
        text = plain(file.read_text("utf-8"))
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        (reports / f"{server.name}-{endpoint}.json").write_text(text, "utf-8")
    return server_page.trimmed(msgspec.json.decode(text, type=Report))


def _check(url: str, endpoint: str, report: Path) -> tuple[int, str]:
    """Its exit code, and what it said on standard error."""
    options = ("--model", MODEL, "--endpoint", endpoint, "--timeout", f"{_REPLY_S:g}s", "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "welldone", "check", url, *options],
        env=os.environ | {"WELLDONE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    return done.returncode, done.stderr


def _in_a_line(result: Result) -> str:
    match result:
        case NotRun(why=why):
            return f"not checked: {why}"
        case NotOffered(why=why):
            return f"not offered: {why}"
        case Checked(verdict=verdict, rules=rules):
            return f"{verdict.value} ({', '.join(f'{count} {name}' for name, count in rules.items())})"


if __name__ == "__main__":
    sys.exit(main())
