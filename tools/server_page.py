"""What is kept of the check of a real server, as docs/servers/NAME.json, and the page that is made of all of it.

It imports no neighbour: tools/docs.py and the tests use it as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from welldone.check.report import Finding, Report, Verdict
from welldone.check.settings import DIALECTS

PROBES_SHOWN = 3  # a rule that is broken is often broken everywhere; its row stays a line
HEARD_LETTERS = 160  # enough to know it again; the check shows all


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that the server breaks."""

    rule: str
    severity: str
    heard: str
    """What was there, the first time."""
    probes: tuple[str, ...]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An endpoint that was checked."""

    date: str
    tool: str
    """The version of welldone."""
    verdict: Verdict
    rules: dict[str, int]
    """How many came to each verdict."""
    broken: tuple[Broken, ...]
    late: tuple[str, ...]
    """Probes whose replies were not waited for to their end."""


class NotOffered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An endpoint that the server does not have."""

    date: str
    why: str


class NotRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The server could not be run, or the endpoint not be checked."""

    date: str
    why: str


Result: TypeAlias = Checked | NotOffered | NotRun


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page says of a server."""

    place: int
    """Its order on the page."""
    title: str
    started: str
    """The command, without the paths of a machine, and what its files hold."""
    note: str
    """What one should know of that start; may be empty."""
    version: str
    """Empty where it did not run."""
    results: Mapping[str, Result]
    """By the names of the dialects, all of them."""


def trimmed(report: Report) -> Checked:
    """What the page needs of a report."""
    return Checked(
        date=report.date[:10],
        tool=report.tool,
        verdict=report.verdict,
        rules={one.value: report.count(one) for one in Verdict if one is not Verdict.TIMED_OUT},  # a probe does
        broken=tuple(_broken(findings) for findings in report.findings_by_rule.values()),
        late=tuple(probe.name for probe in report.probes if probe.is_incomplete),
    )


def _broken(findings: Sequence[Finding]) -> Broken:
    first = findings[0]
    probes = tuple(dict.fromkeys(finding.probe for finding in findings))
    return Broken(rule=first.rule, severity=first.severity, heard=_short(first.observed, HEARD_LETTERS), probes=probes)


def stored(folder: Path) -> list[Page]:
    """All servers, in the order of the page."""
    pages = [msgspec.json.decode(path.read_bytes(), type=Page) for path in folder.glob("*.json")]
    return sorted(pages, key=lambda page: page.place)


def store(page: Page, path: Path) -> None:
    """Keep it, so that a change can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")


HEAD = """
# Real servers, checked

What `welldone check` says of servers that people run, each as it comes, with one small model (SmolLM2-135M-Instruct) on
a CPU. `make servers` installs them (pinned, each in an environment of its own), starts them one after the other on this
machine, checks them and writes this page; `make servers ARGS="--only vllm"` does one.

Each is checked on `/v1/chat/completions` (and with it the older `/v1/completions`), `/v1/responses` and `/v1/messages`.
The number beside a verdict is that of the rules that are broken.

A rule is *right* where it was kept, *lax* where it was broken and no client is known to break by that, *wrong* where
one does. It is *not offered* where the server says that it does not do this, and *not heard* where there was no
occasion: a model as small as this one seldom calls a tool on its own, and never reasons. [The rules](rules/README.md)
say what each is about.
"""


def draw(pages: Sequence[Page]) -> str:
    """The page, in Markdown."""
    lines = [
        HEAD.strip(),
        "",
        f"| server | version | checked | {' | '.join(DIALECTS)} |",
        f"|---|---|---|{'---|' * len(DIALECTS)}",
        *map(_row, pages),
    ]
    for page in pages:
        lines += ["", f"## {page.title}", "", "```", page.started.strip(), "```"]
        lines += ["", page.note] if page.note else []
        for name, dialect in DIALECTS.items():
            lines += ["", *_said(f"`/v1{dialect.path}`", page.results[name])]
    return "\n".join(lines) + "\n"


def _row(page: Page) -> str:
    link = f"[{page.title}](#{_anchor(page.title)})"
    date = max(result.date for result in page.results.values())
    return f"| {' | '.join([link, page.version, date, *(_cell(page.results[name]) for name in DIALECTS)])} |"


def _cell(result: Result) -> str:
    match result:
        case NotRun():
            return "not run"
        case NotOffered():
            return Verdict.UNSUPPORTED.value
        case Checked(verdict=verdict, broken=broken):
            return f"{verdict.value} ({len(broken)})" if broken else verdict.value


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _said(endpoint: str, result: Result) -> list[str]:
    match result:
        case NotRun(why=why):
            return [f"{endpoint} could not be checked here:", "", "```", why, "```"]
        case NotOffered(why=why):
            return [f"{endpoint} is not offered: {_code(why)}"]
        case Checked(tool=tool, rules=rules, broken=broken, late=late):
            counts = ", ".join(f"{count} {name}" for name, count in rules.items())
            lines = [f"{endpoint}, checked by welldone {tool}: {_count(broken)} ({counts})."]
            lines += [f"No reply came in time to {', '.join(late)}."] if late else []
            return [*lines, *_table(broken)]


def _table(broken: Sequence[Broken]) -> list[str]:
    head = ["", "| rule | severity | heard | by the probes |", "|---|---|---|---|"]
    return [*head, *map(_rule, broken)] if broken else []


def _count(broken: Sequence[Broken]) -> str:
    if not broken:
        return "no rule is broken"
    breaking = sum(each.severity == "breaks" for each in broken)
    rules = "one rule is broken" if len(broken) == 1 else f"{len(broken)} rules are broken"
    return f"{rules}, {breaking or 'none'} of them so that a client breaks"


def _rule(broken: Broken) -> str:
    shown, more = broken.probes[:PROBES_SHOWN], len(broken.probes) - PROBES_SHOWN
    probes = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    return f"| [{broken.rule}](rules/{broken.rule}.md) | {broken.severity} | {_code(broken.heard)} | {probes} |"


def _code(text: str) -> str:
    """What a server said, as a cell: it may say anything, and must change nothing but this cell."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text).replace("`", "'").strip()
    return f"`{plain}`".replace("|", "\\|") if plain else ""


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
