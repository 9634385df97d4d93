"""The matrix as a page: servers down, clients across."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.clients.cases import Case
from tests.clients.client import ROOT
from tests.clients.readers import Reader
from tests.oracle import node_client

HEAD = """# Servers and clients

Every recorded or quoted reply of a server, played to real clients twice: through welldone, and by the server itself. A
cell is right if the client shows the text, the calls, the finish reason and (where it was asked for) the usage that the
server sent, or an error where the server failed. `tests/clients/test_matrix.py` measures it and holds every cell to
what is written here; `make matrix` writes it anew.

| | |
|---|---|
| ✓ | right through welldone, and right without it |
| ✓ (✗) | right through welldone, and wrong without it |
| ✓ (✗ 2) | all right through welldone; two of the replies are wrong without it |
| — | the client cannot ask for it |
"""
NOTES = """## What clients do not show

- The helpers `.stream()` add up streams of chat; whole replies are read as their clients read them.
- The AI SDK, LangChain, Pydantic AI and llm give their users one choice; LiteLLM joins the choices of a stream.
- LangChain tells no usage of streamed completions, llm of none; llm shows neither calls nor finish reasons.
- A client may object where a server did not do as it was told: no call though one was demanded, a call with arguments
  that are no object, or a limit that was reached while tools were offered. To object is as right as to show it.
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
    """What is wrong with what a client shows of one reply; None where nothing is."""

    through: str | None
    without: str | None


Cells = Mapping[tuple[str, str], Cell]
"""By the title of the client and the name of the case, where the client can ask for it."""


def draw(readers: Sequence[Reader], cases: Sequence[Case], cells: Cells) -> str:
    """The page."""
    rows: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        rows.setdefault(case.row, []).append(case)
    titles = [reader.title for reader in readers]
    lines = [HEAD, *textwrap.wrap(f"The clients: {', '.join(_versions())}.", LINE_CHARACTERS), ""]
    lines += [_sum(cells), "", "## The matrix", ""]
    lines += _line("server", "what it sends", "replies", *titles)
    lines += _line(*["---"] * (3 + len(titles)))
    before = ""
    for (server, what), members in rows.items():
        marks = [_mark([cells.get((title, case.name)) for case in members]) for title in titles]
        lines += _line("" if server == before else server, what + _rules(members), str(len(members)), *marks)
        before = server
    lines += _line(
        "right through welldone", "", str(len(cases)), *(_total(title, cells, "through") for title in titles)
    )
    lines += _line("right without it", "", "", *(_total(title, cells, "without") for title in titles))
    lines += ["", "## What goes wrong without welldone", ""]
    lines += _line("reply", "what users get") + _line("---", "---")
    for case in cases:
        lines += _complaints(case, titles, cells)
    return "\n".join([*lines, "", NOTES])


def _line(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |"]


def _rules(members: Sequence[Case]) -> str:
    """The rules that most of them break."""
    broken = Counter(rule for case in members for rule in case.rules)
    ids = sorted(broken, key=lambda rule: (-broken[rule], rule))
    shown = [f"[{rule}](rules/{rule}.md)" for rule in ids[:RULES_SHOWN]]
    more = [f"{len(ids) - RULES_SHOWN} more"] if len(ids) > RULES_SHOWN else []
    return f"; breaks {', '.join([*shown, *more])}" if ids else ""


def _mark(cells: Sequence[Cell | None]) -> str:
    asked = [cell for cell in cells if cell is not None]
    if not asked:
        return "—"
    through, without = sum(bool(cell.through) for cell in asked), sum(bool(cell.without) for cell in asked)
    mark = f"✗ {through}" if through else "✓"
    if not without:
        return mark
    return f"{mark} (✗)" if without == len(asked) == 1 else f"{mark} (✗ {without})"


def _total(title: str, cells: Cells, way: str) -> str:
    mine = [getattr(cell, way) for (client, _), cell in cells.items() if client == title]
    return f"{mine.count(None)} of {len(mine)}"


def _sum(cells: Cells) -> str:
    through, without = ([getattr(cell, way) for cell in cells.values()].count(None) for way in ("through", "without"))
    return f"**Of {len(cells):,} cells, {through:,} are right through welldone, and {without:,} without it.**"


def _complaints(case: Case, titles: Sequence[str], cells: Cells) -> list[str]:
    """A line for what the clients say of a reply; none where all is well."""
    said: dict[str, list[str]] = {}
    for title in titles:
        cell = cells.get((title, case.name))
        if cell is not None and cell.without is not None:
            said.setdefault(_brief(cell.without), []).append(title)
    words = "; ".join(f"{', '.join(clients)}: {complaint}" for complaint, clients in said.items())
    return _line(f"`{case.name}`", words) if said else []


def _brief(complaint: str) -> str:
    """The first line, without what differs from one run to the next."""
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
    wanted = {"openai": "openai-node", "ai": "ai", "@ai-sdk/openai-compatible": "@ai-sdk/openai-compatible"}
    return found + [f"{title} {package['dependencies'][name]}" for name, title in wanted.items()]
