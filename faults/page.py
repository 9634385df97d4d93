"""docs/reliability.md: the plan and its results as tables."""

from collections.abc import Mapping

from faults.case import Case, Figure, Group
from faults.results import Result

_HEAD = """# Reliability: behaviour under faults

Each row is a fault injected into a real server: `welldone serve` in its own process, with real sockets, as a gateway or
with a local model. The limit after each figure must hold. `make faults` runs the whole plan and writes this page;
`make faults ARGS="--only NAME"` runs one row. `reliability.json` has the same data for programs, with the seed that
repeats each row. A short form of every row runs with the tests, without limits on numbers that depend on the machine.
Pauses of a concurrent stream are measured with priority for the server, the stream's source and its reader, so that
they are not those of the load on the same cores.
"""
_COLUMNS = "| fault | repetitions | behaviour | figures | limits |\n|---|---:|---|---|---|"


def draw(plan: tuple[Group, ...], results: Mapping[str, Result]) -> str:
    """Render the page."""
    return "\n".join([_HEAD, *_runs(plan, results), *(_table(group, results) for group in plan)])


def _runs(plan: tuple[Group, ...], results: Mapping[str, Result]) -> list[str]:
    """One line per machine and day, and the total."""
    known = [results[case.name] for group in plan for case in group.cases if case.name in results]
    lines = sorted({f"Measured on {one.day}: {one.machine}." for one in known})
    kept = sum(not one.outcome.broken(is_short=False) and not one.outcome.not_run for one in known)
    total = sum(len(group.cases) for group in plan)
    return ["  \n".join(lines), "", f"{kept} of {total} rows are within all limits.", ""] if lines else []


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
    """Render a figure with its limits."""
    words = f"{one.name}: {number(one.value)} {one.unit}".rstrip()
    limit = _bar(one)
    return f"{words} (limit: {limit})" if limit else words


def _bar(one: Figure) -> str:
    if one.most is not None and one.most in (0, one.least):  # counts are never negative
        return f"{number(one.most)} {one.unit}".rstrip()
    limits = [
        f"{sign} {number(limit)} {one.unit}".rstrip()
        for sign, limit in (("≥", one.least), ("≤", one.most))
        if limit is not None
    ]
    return ", ".join(limits)


def number(value: float) -> str:
    """Render a number: three significant digits, or a whole number."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
