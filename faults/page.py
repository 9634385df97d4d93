"""docs/reliability.md: the plan and what came of it, as tables."""

from collections.abc import Mapping

from faults.case import Case, Figure, Group
from faults.results import Result

_HEAD = """# How welldone behaves when things go wrong

Every row is a fault that is done to a real server: `welldone serve` in a process of its own, with real sockets, as a
gateway or with a local model. *How often* says how many times; behind each figure stands its bar, which must hold.
`make faults` runs the whole plan and writes this page from what it has seen, and `make faults ARGS="--only NAME"` a row
of it. `reliability.json` has the same for programs, and the seed by which each row can be drawn again. A short form of
every row runs with the tests, where numbers that depend on the machine are not judged.
"""
_COLUMNS = "| fault | how often | what happened | figures | bars |\n|---|---:|---|---|---|"


def draw(plan: tuple[Group, ...], results: Mapping[str, Result]) -> str:
    """The page."""
    return "\n".join([_HEAD, *_runs(plan, results), *(_table(group, results) for group in plan)])


def _runs(plan: tuple[Group, ...], results: Mapping[str, Result]) -> list[str]:
    """When and where it was seen: one line for each machine and day."""
    known = [results[case.name] for group in plan for case in group.cases if case.name in results]
    lines = sorted({f"Seen on {one.day}: {one.machine}." for one in known})
    kept = sum(not one.outcome.broken(is_short=False) and not one.outcome.not_run for one in known)
    total = sum(len(group.cases) for group in plan)
    return ["  \n".join(lines), "", f"{kept} of {total} rows keep all their bars.", ""] if lines else []


def _table(group: Group, results: Mapping[str, Result]) -> str:
    rows = [_row(case, results.get(case.name)) for case in group.cases]
    return "\n".join([f"## {group.title}", "", _COLUMNS, *rows, ""])


def _row(case: Case, result: Result | None) -> str:
    name = f"{_cell(case.fault)} (`{case.name}`)"
    if result is None:
        return f"| {name} | | not run yet | | |"
    outcome = result.outcome
    if outcome.not_run:
        return f"| {name} | | not run: {_cell(outcome.not_run)} | | |"
    figures = "<br>".join(_cell(figure(one)) for one in outcome.figures)
    mark = "missed" if outcome.broken(is_short=False) else "kept"
    return f"| {name} | {outcome.count:,} | {_cell(outcome.happened)} | {figures} | {mark} |"


def figure(one: Figure) -> str:
    """A figure, and its bar if it has one."""
    words = f"{one.name}: {number(one.value)} {one.unit}".rstrip()
    limit = _bar(one)
    return f"{words} (bar: {limit})" if limit else words


def _bar(one: Figure) -> str:
    if one.most is not None and one.most in (0, one.least):  # what is counted is never less than 0
        return f"{number(one.most)} {one.unit}".rstrip()
    limits = [
        f"{sign} {number(limit)} {one.unit}".rstrip()
        for sign, limit in (("≥", one.least), ("≤", one.most))
        if limit is not None
    ]
    return ", ".join(limits)


def number(value: float) -> str:
    """A number as people read it: three digits that count, or all of a whole number."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
