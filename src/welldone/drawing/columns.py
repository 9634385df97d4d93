"""Text that fits a terminal: lines wrapped under a hanging indent, and tables whose last column is wrapped.

A width of None means that no terminal shows it: a file or a pipe gets each text in one line.
"""

import textwrap
from collections.abc import Sequence

_NARROWEST = 20
"""Characters of a wrapped column. On a narrower terminal lines run over rather than become a column of syllables."""


def wrapped(label: str, text: str, width: int | None) -> list[str]:
    """A text after its label; further lines stand below the text. Only words longer than a line are broken."""
    if width is None or len(label) + len(text) <= width:
        return [f"{label}{text}".rstrip()]
    room = max(width - len(label), _NARROWEST)
    parts = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [(label if number == 0 else " " * len(label)) + part for number, part in enumerate(parts)]


def table(rows: Sequence[Sequence[str]], width: int | None, *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of cells in columns; the last one is wrapped. The columns numbered in `right` are set flush right."""
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(size) if number in right else cell.ljust(size)
            for number, (cell, size) in enumerate(zip(row, widths, strict=False))
        ]
        lines += wrapped("".join(f"{cell}  " for cell in cells), row[-1], width)
    return lines
