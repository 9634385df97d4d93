"""Text that fits a terminal: lines wrapped under a hanging indent, and tables whose last column is wrapped.

A width of None means that no terminal shows it: a file or a pipe gets each text in one line.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import TypeAlias

_MIN_COLUMN_WIDTH = 30
"""Characters of a wrapped column. On a narrower terminal lines run over rather than become a column of syllables."""

StyleCell: TypeAlias = Callable[[int, int, str], str]
"""A cell in colour, by the numbers of its row and column. It is padded already; the last column is never painted."""


def wrap_text(label: str, text: str, width: int | None) -> list[str]:
    """A text after its label; further lines stand below the text. Only words longer than a line are broken."""
    if width is None or len(label) + len(text) <= width:
        return [f"{label}{text}".rstrip()]
    room = max(width - len(label), _MIN_COLUMN_WIDTH)
    parts = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [(label if number == 0 else " " * len(label)) + part for number, part in enumerate(parts)]


def format_table(
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    right_aligned: frozenset[int] = frozenset(),
    paint: StyleCell = lambda row, column, cell: cell,
) -> list[str]:
    """Rows of cells in columns; the last one is wrapped. The columns numbered in `right` are set flush right.

    Where there is no room for the last column, the first one gets lines of its own.
    """
    *sizes, last = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_stacked = (
        width is not None and len(sizes) > 1 and sum(sizes) + 2 * len(sizes) + min(last, _MIN_COLUMN_WIDTH) > width
    )
    lines: list[str] = []
    for number, row in enumerate(rows):
        cells = [
            cell.rjust(size) if column in right_aligned else cell.ljust(size)
            for column, (cell, size) in enumerate(zip(row, sizes, strict=False))
        ]
        painted = [paint(number, column, cell) for column, cell in enumerate(cells)]
        if is_stacked:
            lines.append(painted[0].rstrip())
            cells, painted = ["", *cells[1:]], ["", *painted[1:]]
        label = "".join(f"{cell}  " for cell in cells)
        first, *more = wrap_text(label, row[-1], width)
        lines += [("".join(f"{cell}  " for cell in painted) + first[len(label) :]).rstrip(), *more]
    return lines
