"""Stored check results of real servers (docs/servers/NAME.json), and the page that is generated from them.

tools/docs.py and the tests import this module, so it imports no other script of this folder.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from welldone.check.report import Finding, Prescription, Report, Verdict
from welldone.check.settings import CHAT, MESSAGES, RESPONSES
from welldone.core.catalog import RULES, Kind
from welldone.reporting import pluralize

DIALECTS = {dialect.name: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
"""APIs that are checked. None of the servers has Gemini's."""
MAX_PROBES = 3  # names in a row; many rules are broken in every probe
MAX_OBSERVED_CHARS = 160  # enough to recognise the violation


class BrokenRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that the server breaks."""

    rule: str
    severity: str
    kind: str = ""
    """What the violation rests on; empty in results from before the kinds."""
    observed: str
    """Of the first violation."""

    @property
    def is_advice(self) -> bool:
        """Whether it does not fail a check."""
        return (self.kind or RULES[self.rule].kind) == Kind.ADVICE

    probes: tuple[str, ...]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Result of an endpoint that was checked."""

    date: str
    tool: str
    """The version of welldone."""
    verdict: Verdict
    rules: dict[str, int]
    """Number of rules by verdict."""
    broken: tuple[BrokenRule, ...]
    incomplete: tuple[str, ...]
    """Probes with missing or incomplete replies."""


class Unsupported(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The server does not have the endpoint."""

    date: str
    reason: str


class NotRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The server did not run, or the endpoint could not be checked."""

    date: str
    reason: str


Result: TypeAlias = Checked | Unsupported | NotRun


class MiddlewareRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same server with `RepairMiddleware` in front."""

    command: str
    results: Mapping[str, Result]


class Prescribed(msgspec.Struct, frozen=True, kw_only=True):
    """What `check --prescribe` printed for an endpoint."""

    date: str
    settings: tuple[str, ...]
    """The lines of the table `[upstreams.NAME]`."""
    broken: tuple[str, ...]
    """Rules that are broken through a gateway with these settings."""
    left: tuple[str, ...] = ()
    """In plain words what only the server can change."""
    unjudged: tuple[str, ...] = ()
    """Rules that were judged without the gateway, and not through it."""
    problem: str = ""
    """Why the settings could not be tried."""

    @property
    def has_settings(self) -> bool:
        """Whether the table has more than the address of the server."""
        return any("  # " in line for line in self.settings)


class ServerPage(msgspec.Struct, frozen=True, kw_only=True):
    """The stored results of one server."""

    position: int
    """Position on the page."""
    title: str
    command: str
    """The command that starts it, without local paths, and its configuration files."""
    note: str
    """Remarks on the command; may be empty."""
    version: str
    """Empty where the server did not run."""
    results: Mapping[str, Result]
    """Results by dialect; every dialect has one."""
    middleware: MiddlewareRun | None = None
    """None if the server is not an ASGI application."""
    gateway: Mapping[str, Result] | None = None
    """Results behind a gateway that knows only the server's URL and key, by dialect; None for welldone itself."""
    prescribed: Mapping[str, Prescribed] = {}
    """By dialect. For an API that only the gateway offers, the settings are those of chat."""


def summarize(report: Report) -> Checked:
    """The part of a report that is stored."""
    return Checked(
        date=report.date[:10],
        tool=report.tool,
        verdict=report.verdict,
        # Only probes time out, rules do not.
        rules={
            verdict.value: report.count(verdict)
            for verdict in Verdict
            if verdict not in (Verdict.ERROR, Verdict.TIMED_OUT)
        },
        broken=tuple(_broken_rule(findings) for findings in report.findings_by_rule.values()),
        incomplete=tuple(probe.name for probe in report.probes if probe.is_incomplete),
    )


def summarize_prescription(date: str, prescription: Prescription, url: str) -> Prescribed:
    """The part of a prescription that is stored. The page has a port that does not change with each run."""
    host, _, _ = url.partition("/v1")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", urlsplit(url).netloc)
    return Prescribed(
        date=date[:10],
        settings=tuple(
            line.replace(host, "http://127.0.0.1:8000").replace(f"[upstreams.{name}]", "[upstreams.server]")
            for line in prescription.toml
        ),
        broken=prescription.after,
        left=prescription.left,
        unjudged=prescription.unjudged,
        problem=prescription.problem,
    )


def _broken_rule(findings: Sequence[Finding]) -> BrokenRule:
    first, observed = findings[0], findings[0].observed
    if len(observed) > MAX_OBSERVED_CHARS:
        observed = f"{observed[: MAX_OBSERVED_CHARS - 1]}…"
    probes = tuple(dict.fromkeys(finding.probe for finding in findings))
    return BrokenRule(rule=first.rule, severity=first.severity, kind=first.kind, observed=observed, probes=probes)


def load_pages(folder: Path) -> list[ServerPage]:
    """The stored results of all servers, in the order of the page."""
    return sorted(map(load_page, folder.glob("*.json")), key=lambda page: page.position)


def load_page(path: Path) -> ServerPage:
    """The stored results of one server."""
    return msgspec.json.decode(path.read_bytes(), type=ServerPage)


def store_page(page: ServerPage, path: Path) -> None:
    """Store the results of a server, indented so that changes are readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")


HEAD = """
# Check results of real servers

Results of `welldone check` on popular servers with their default settings and one small model (SmolLM2-135M-Instruct)
on a CPU. `make servers` installs them (pinned, each in its own environment), starts one after the other on this
machine, checks them and writes this page. `make servers ARGS="--only vllm"` checks one server.

The check covers `/v1/chat/completions` (with the legacy `/v1/completions`), `/v1/responses` and `/v1/messages`, each in
three ways ([the prescriptions](check.md#the-settings-that-cure-a-server) are in the sections of the servers):

| column | what was checked |
|---|---|
| bare | the server itself |
| behind the gateway | `welldone serve --config welldone.toml`, which knows only the server's URL and key |
| with the prescription | the gateway with the settings that `check --prescribe` printed for this server |

The number after a verdict is the number of broken rules. An API that a server does not have is *unsupported*; the
gateway offers it all the same, by its chat. There the prescription is the one of chat. The machine had two busy cores:
`live-keepalive-in-silence` is broken where a long prompt took more than 15 s, which a faster machine would not show.

A rule has the verdict *pass* if it was judged and is not broken, *warn* if it is broken and is our advice, and *fail*
if it is specified, observed at OpenAI, or breaks a client ([kinds](check.md#kinds-and-forms)). It is *unsupported* if
the server refuses the feature, and *not applicable* if no reply allowed a judgement: so small a model seldom calls a
tool unless it must, and does not reason. A server has the verdict *error* if answers ended in an error, and nothing
else fails. [The rules](rules/README.md) describe each of them.
"""
_JUDGED = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
COLUMNS = ("bare", "behind the gateway", "with the prescription")


MIDDLEWARE_HEAD = """
## With the middleware

Servers that are ASGI applications were checked a second time with [`RepairMiddleware`](asgi.md) in front: vLLM by its
own `--middleware` flag, llama-cpp-python and transformers by `tools/repaired_server.py`, which wraps the application
and changes nothing else. The numbers are the broken rules before and after; the table above has the dates of the first
checks. `make servers ARGS="--middleware"` repeats the second ones.
"""

UNREPAIRED: Mapping[str, str] = {
    "cmpl-echo": "The server ignores `echo`.",
    "cmpl-usage-chunk": "The server sends no usage, and none is invented.",
    "err-body-shape": "An unknown path: the middleware changes only the paths of the API.",
    "err-refused-4xx": "An error inside the server (status 500, vLLM: `internal_error`); no other status is guessed.",
    "err-status-before-stream": (
        "The server ended the stream without any event, seconds after the status had to be sent."
    ),
    "http-cors-preflight": "A preflight is a request of its own, which the server does not answer.",
    "live-keepalive-in-silence": (
        "The machine was busy, so that the server was silent for more than 15 s. The middleware sends no keep-alives."
    ),
    "live-stop-not-leaked": "The server sends the stop string as text. The middleware cuts no text.",
    "n-refuse-if-unsupported": "The server ignores `n`. Only a gateway can ask again for the other choices.",
    "ns-models-list": "Another path: `/v1/models`.",
    "req-content-parts": "The server refuses the role `developer` with status 500.",
    "req-max-tokens-both": "The server ignores `max_completion_tokens`. The request is not changed.",
    "req-unknown-ignored": "The server refuses unknown members of a request. The request is not changed.",
    "tool-no-markup-leak": "The call was cut off at `max_tokens`; half a call cannot be repaired.",
    "use-final-chunk": "The server sends no usage, and none is invented.",
}
"""Rules that the middleware leaves broken, and the reason, from the bytes of the checked servers."""


def render(pages: Sequence[ServerPage]) -> str:
    """The page in Markdown."""
    lines = [
        HEAD.strip(),
        "",
        f"| server | version | checked | endpoint | {' | '.join(COLUMNS)} |",
        f"|---|---|---|---|{'---|' * len(COLUMNS)}",
        *(row for page in pages for row in _summary_rows(page)),
        *_middleware_lines(pages),
    ]
    for page in pages:
        lines += ["", f"## {page.title}", "", "```", page.command.strip(), "```"]
        lines += ["", page.note] if page.note else []
        for name, dialect in DIALECTS.items():
            lines += ["", *_result_lines(f"`/v1{dialect.path}`", page.results[name])]
            lines += _gateway_lines(page, name)
    return "\n".join(lines) + "\n"


def overview(pages: Sequence[ServerPage]) -> str:
    """The table of the README: chat in three ways, for the servers that were checked behind the gateway."""
    rows = ["| chat rules broken | " + " | ".join(COLUMNS) + " |", "|---|---|---|---|"]
    for page in pages:
        if page.gateway and isinstance(page.gateway["chat"], Checked) and "chat" in page.prescribed:
            counts = [_count_cell(page.results["chat"]), _count_cell(page.gateway["chat"])]
            rows.append(f"| {page.title} | {' | '.join([*counts, str(len(page.prescribed['chat'].broken))])} |")
    return "\n".join(rows)


def _gateway_lines(page: ServerPage, name: str) -> list[str]:
    """What is broken behind the gateway and with the prescription, and the settings."""
    lines = []
    result, prescribed = page.gateway and page.gateway.get(name), page.prescribed.get(name)
    match result:
        case Checked(broken=broken):
            lines += ["", f"Behind the gateway: {_rule_links([rule.rule for rule in broken])}."]
        case NotRun():
            lines += ["", *_result_lines("Behind the gateway it", result)]
        case _:
            pass
    if prescribed is None:
        return lines
    if prescribed.problem:
        return [*lines, "", f"The prescription could not be tried: {_code(prescribed.problem)}"]
    left = f" Left: {', '.join(prescribed.left)}." if prescribed.left else ""
    lines += ["", f"With the prescription: {_rule_links(prescribed.broken)}.{left}"]
    if prescribed.unjudged:
        lines[-1] += f" Not judged through the gateway: {', '.join(map(_rule_link, prescribed.unjudged))}."
    if isinstance(page.results[name], Checked):  # else it is the one of chat
        lines += ["", "```toml", *prescribed.settings, "```"]
    return lines


def _rule_links(rules: Sequence[str]) -> str:
    return (
        f"{pluralize(len(rules), 'rule')} broken: {', '.join(map(_rule_link, rules))}" if rules else _broken_count(())
    )


def _rule_link(rule: str) -> str:
    return f"[{rule}](rules/{rule}.md)"


def _middleware_lines(pages: Sequence[ServerPage]) -> list[str]:
    runs = [(page, page.middleware) for page in pages if page.middleware is not None]
    if not runs:
        return []
    lines = ["", MIDDLEWARE_HEAD.strip(), "", f"| server | version | checked | {' | '.join(DIALECTS)} |"]
    lines.append(f"|---|---|---|{'---|' * len(DIALECTS)}")
    left = []
    for page, run in runs:
        cells = (_change_cell(page.results[name], run.results[name]) for name in DIALECTS)
        lines.append(f"| {' | '.join([*_row_head(page, run.results), *cells])} |")
        for name in DIALECTS:
            result = run.results[name]
            if isinstance(result, Checked):
                left += [_unrepaired_row(page, name, broken) for broken in result.broken]
    if left:
        lines += ["", "Rules that are still broken:", ""]
        lines += ["| server | endpoint | rule | severity | observed | why |", "|---|---|---|---|---|---|", *left]
    for page, run in runs:
        lines += ["", f"{page.title}, with the middleware:", "", "```", run.command.strip(), "```"]
        for name, dialect in DIALECTS.items():
            result = run.results[name]
            if isinstance(result, NotRun):
                lines += ["", *_result_lines(f"`/v1{dialect.path}`", result)]
    return lines


def _change_cell(before: Result, after: Result) -> str:
    if isinstance(before, Unsupported) and isinstance(after, Unsupported):
        return _verdict_cell(after)
    return f"{_count_cell(before)} → {_count_cell(after)}"


def _count_cell(result: Result) -> str:
    return str(len(result.broken)) if isinstance(result, Checked) else _verdict_cell(result)


def _unrepaired_row(page: ServerPage, endpoint: str, broken: BrokenRule) -> str:
    rule = f"[{broken.rule}](rules/{broken.rule}.md)"
    cells = [page.title, endpoint, rule, broken.severity, _code(broken.observed), UNREPAIRED.get(broken.rule, "")]
    return f"| {' | '.join(cells)} |"


def _summary_rows(page: ServerPage) -> list[str]:
    """One row for each endpoint. Server, version and date are only in the first."""
    rows: list[str] = []
    for name, bare in page.results.items():
        head = ["", "", ""] if rows else _row_head(page, page.results)
        behind = _verdict_cell(page.gateway[name]) if page.gateway else "-"
        cells = [*head, name, _verdict_cell(bare), behind, _prescribed_cell(page.prescribed.get(name))]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _prescribed_cell(prescribed: Prescribed | None) -> str:
    if prescribed is None:
        return "-"
    if prescribed.problem:
        return "not run"
    return _verdict_of([RULES[rule].kind is Kind.ADVICE for rule in prescribed.broken])


def _verdict_of(broken: Sequence[bool]) -> str:
    """The verdict, and the number of broken rules, of which each is advice or not."""
    verdict = Verdict.WARN if all(broken) else Verdict.FAIL
    return f"{verdict.label} ({len(broken)})" if broken else Verdict.PASS.label


def _row_head(page: ServerPage, results: Mapping[str, Result]) -> list[str]:
    """Title, version and date."""
    anchor = "".join(char for char in page.title.lower() if char.isalnum() or char in " -_").replace(" ", "-")
    return [f"[{page.title}](#{anchor})", page.version, max(result.date for result in results.values())]


def _verdict_cell(result: Result) -> str:
    match result:
        case NotRun():
            return "not run"
        case Unsupported():
            return Verdict.UNSUPPORTED.label
        case Checked(verdict=verdict, broken=broken):
            judged = _verdict_of([one.is_advice for one in broken])
            return judged if verdict in _JUDGED else f"{verdict.label} ({len(broken)})"


def _result_lines(endpoint: str, result: Result) -> list[str]:
    match result:
        case NotRun(reason=reason):
            return [f"{endpoint} could not be checked:", "", "```", reason, "```"]
        case Unsupported(reason=reason):
            return [f"{endpoint} is unsupported: {_code(reason)}"]
        case Checked(tool=tool, rules=rules, broken=broken, incomplete=incomplete):
            advice = sum(one.is_advice for one in broken)
            rules = {**rules, "warn": advice, "fail": len(broken) - advice}
            counts = ", ".join(f"{count} {Verdict(name).label}" for name, count in rules.items())
            lines = [f"{endpoint}, checked by welldone {tool}: {_broken_count(broken)} ({counts})."]
            lines += [f"Incomplete replies: {', '.join(incomplete)}."] if incomplete else []
            head = ["", "| rule | severity | observed | probes |", "|---|---|---|---|"]
            return [*lines, *head, *map(_rule_row, broken)] if broken else lines


def _broken_count(broken: Sequence[BrokenRule]) -> str:
    if not broken:
        return "no rule is broken"
    breaking = sum(each.severity == "breaks" for each in broken)
    rules = "one rule is broken" if len(broken) == 1 else f"{len(broken)} rules are broken"
    return f"{rules}, {breaking or 'none'} of them with severity breaks"


def _rule_row(broken: BrokenRule) -> str:
    more = len(broken.probes) - MAX_PROBES
    probes = ", ".join(broken.probes[:MAX_PROBES]) + (f" and {more} more" if more > 0 else "")
    return f"| [{broken.rule}](rules/{broken.rule}.md) | {broken.severity} | {_code(broken.observed)} | {probes} |"


def _code(text: str) -> str:
    """Text from a server as inline code that cannot leave its table cell."""
    plain = "".join(char if char.isprintable() else " " for char in text).replace("`", "'").strip()
    return f"`{plain}`".replace("|", "\\|") if plain else ""
