"""Rendering of the client matrix: servers as rows, clients as columns."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.clients.cases import Case
from tests.clients.client import ROOT
from tests.clients.matrix_clients import MatrixClient
from tests.oracle import node_client

HEAD = """# Servers and clients

Recorded and quoted replies of real servers, replayed to real clients twice: through welldone and directly. A cell is
correct if the client returns the text, the tool calls, the finish reason and (if requested) the usage that the server
sent, or raises an error if the server failed. `tests/clients/test_matrix.py` measures every cell and compares it with
this page; `make matrix` regenerates the page.

| | |
|---|---|
| ✓ | correct through welldone and without it |
| ✓ (✗) | correct through welldone, wrong without it |
| ✓ (✗ 2) | all replies correct through welldone, two of them wrong without it |
| — | the client cannot send such a request |
"""
NOTES = """## Limits of the clients

- The `.stream()` helpers accumulate chat streams only; replies that are not streamed take the path of the plain client.
- The AI SDK, LangChain, Pydantic AI and llm return one choice; LiteLLM joins the choices of a stream.
- LangChain reports no usage for streamed completions, llm for no completions; llm returns neither tool calls nor finish
  reasons.
- A client may raise an error if the server did not follow the request: no tool call although one was required,
  arguments that are not a JSON object, or a token limit reached while tools were offered. The error counts as
  correct.
"""
RULES_SHOWN = 4
COMPLAINT_CHARACTERS = 100
LINE_CHARACTERS = 120
PYTHONS = {
    "clients": ("openai", "langchain-openai", "pydantic-ai-slim", "llm"),
    "peers": ("litellm",),
}


@dataclass(frozen=True)
class Cell:
    """The error of a client for one reply, through welldone and without it; None: correct."""

    through: str | None
    without: str | None


Cells = Mapping[tuple[str, str], Cell]
"""Keyed by client title and case name; missing where the client cannot send the request."""


def draw(clients: Sequence[MatrixClient], cases: Sequence[Case], cells: Cells) -> str:
    """Render the page."""
    rows: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        rows.setdefault(case.row, []).append(case)
    titles = [client.title for client in clients]
    lines = [HEAD, *textwrap.wrap(f"Clients: {', '.join(_versions())}.", LINE_CHARACTERS), ""]
    lines += [_sum(cells), "", "## Matrix", ""]
    lines += _line("server", "reply", "replies", *titles)
    lines += _line(*["---"] * (3 + len(titles)))
    before = ""
    for (server, kind), members in rows.items():
        marks = [_mark([cells.get((title, case.name)) for case in members]) for title in titles]
        lines += _line("" if server == before else server, kind + _rules(members), str(len(members)), *marks)
        before = server
    lines += _line(
        "correct through welldone", "", str(len(cases)), *(_total(title, cells, "through") for title in titles)
    )
    lines += _line("correct without it", "", "", *(_total(title, cells, "without") for title in titles))
    lines += ["", "## Errors without welldone", ""]
    lines += _line("reply", "result in the client") + _line("---", "---")
    for case in cases:
        lines += _complaints(case, titles, cells)
    return "\n".join([*lines, "", NOTES])


def _line(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |"]


def _rules(members: Sequence[Case]) -> str:
    """List the rules that these replies break, most frequent first."""
    broken = Counter(rule for case in members for rule in case.rules)
    ids = sorted(broken, key=lambda rule: (-broken[rule], rule))
    shown = [f"[{rule}](rules/{rule}.md)" for rule in ids[:RULES_SHOWN]]
    more = [f"{len(ids) - RULES_SHOWN} more"] if len(ids) > RULES_SHOWN else []
    return f"; breaks {', '.join([*shown, *more])}" if ids else ""


def _mark(cells: Sequence[Cell | None]) -> str:
    known = [cell for cell in cells if cell is not None]
    if not known:
        return "—"
    through, without = sum(bool(cell.through) for cell in known), sum(bool(cell.without) for cell in known)
    mark = f"✗ {through}" if through else "✓"
    if not without:
        return mark
    return f"{mark} (✗)" if without == len(known) == 1 else f"{mark} (✗ {without})"


def _total(title: str, cells: Cells, field: str) -> str:
    mine = [getattr(cell, field) for (client, _), cell in cells.items() if client == title]
    return f"{mine.count(None)} of {len(mine)}"


def _sum(cells: Cells) -> str:
    through, without = (
        [getattr(cell, field) for cell in cells.values()].count(None) for field in ("through", "without")
    )
    return f"**Of {len(cells):,} cells, {through:,} are correct through welldone and {without:,} without it.**"


def _complaints(case: Case, titles: Sequence[str], cells: Cells) -> list[str]:
    """Render the row of a reply that some client reads wrongly without welldone."""
    errors: dict[str, list[str]] = {}
    for title in titles:
        cell = cells.get((title, case.name))
        if cell is not None and cell.without is not None:
            errors.setdefault(_brief(cell.without), []).append(title)
    words = "; ".join(f"{', '.join(clients)}: {complaint}" for complaint, clients in errors.items())
    return _line(f"`{case.name}`", words) if errors else []


def _brief(complaint: str) -> str:
    """Shorten to the first line, without ports, which differ between runs."""
    line = re.sub(r"127\.0\.0\.1:\d+", "…", complaint.strip().partition("\n")[0]).replace("|", "/").replace("`", "'")
    return line if len(line) <= COMPLAINT_CHARACTERS else f"{line[:COMPLAINT_CHARACTERS]}…"


def _versions() -> list[str]:
    found = []
    for file, names in PYTHONS.items():
        lock = (ROOT / "requirements" / f"{file}.txt").read_text("utf-8")
        pairs = dict(re.findall(r"^([\w-]+)==(\S+)", lock, re.MULTILINE))
        found += [f"{name} {pairs[name]}" for name in names]
    package = json.loads((node_client.HOME / "package.json").read_text("utf-8"))
    # The Node client has the same name as the one for Python.
    titles = {"openai": "openai-node", "ai": "ai", "@ai-sdk/openai-compatible": "@ai-sdk/openai-compatible"}
    return found + [f"{title} {package['dependencies'][name]}" for name, title in titles.items()]
