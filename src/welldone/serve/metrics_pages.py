"""One page of metrics out of those of several processes, which are all written by `metrics`."""

from collections.abc import Iterable

import msgspec

_SUMMED_GAUGES = frozenset(
    {
        "llamacpp:requests_deferred",
        "llamacpp:requests_processing",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "welldone_active_streams",
        "welldone_queue_depth",
        "welldone_tasks",
        "welldone_upstream_running",
        "welldone_upstream_waiting",
    }
)
"""Gauges that count what is there now. Of all others (what is up, since when, how fast) the largest holds."""


class _PageFamily(msgspec.Struct):
    header_lines: list[str]
    is_summed: bool
    values: dict[str, float] = {}


def merge_metrics_pages(pages: Iterable[str], missing: int) -> str:
    """The sum of the pages; `missing` is how many processes gave none."""
    families: dict[str, _PageFamily] = {}
    for page in pages:
        _add_page(page, families)
    lines = [
        "# HELP welldone_workers_missing Processes of this server whose numbers are not in this page.",
        "# TYPE welldone_workers_missing gauge",
        f"welldone_workers_missing {missing}",
    ]
    for family in families.values():
        lines += family.header_lines
        lines += [f"{series} {number!r}" for series, number in family.values.items()]
    return "\n".join(lines) + "\n"


def _add_page(page: str, families: dict[str, _PageFamily]) -> None:
    """Add a page to the families. A line of help begins one, its type follows, and then its numbers."""
    family, says = None, ""
    for line in page.removesuffix("\n").split("\n"):  # a label may hold what Python takes for the end of a line
        if line.startswith("# HELP "):
            says = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = families.setdefault(name, _PageFamily([says, line], kind != "gauge" or name in _SUMMED_GAUGES))
        elif family is not None:
            series, _, text = line.rpartition(" ")
            number, old = float(text), family.values.get(series, 0.0)
            family.values[series] = old + number if family.is_summed else max(old, number)
