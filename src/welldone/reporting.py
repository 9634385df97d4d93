"""Text that fits a terminal: lines wrapped under a hanging indent, and tables whose last column is wrapped.

A width of None means that no terminal shows it: a file or a pipe gets each text in one line.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from xml.etree.ElementTree import Element, tostring

import msgspec

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


# XML, HTML and SVG as trees: what stands in a tree as text stays text, whatever it is.


def element(kind: str, /, *inside: str | Element, **attributes: str) -> Element:
    """An element with texts and elements inside. Of an attribute that Python has a word for, the name ends in `_`.

    Texts may come from anywhere, made inert; attributes are always ours.
    """
    made = Element(kind, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    for part in inside:
        if isinstance(part, Element):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + part
        else:
            made.text = (made.text or "") + part
    return made


def code(text: str) -> Element:
    """What somebody else wrote."""
    return element("code", text)


def as_html(tree: Element) -> str:
    """The tree as HTML."""
    return tostring(tree, encoding="unicode", method="html")


def as_xml(tree: Element) -> str:
    """The tree as XML."""
    return tostring(tree, encoding="unicode")


# Which form of report a file gets: its ending says it.


ReportT = TypeVar("ReportT")


def write_report(report: ReportT, path: Path, renderers: Mapping[str, Callable[[ReportT], str]]) -> None:
    """Write the report in the form that the name of the file asks for.

    Raises:
        ValueError: there is no such form.
        OSError: the file cannot be written.
    """
    draw = renderers.get(path.suffix.lower())
    if draw is None:
        raise ValueError(f"a report ends in one of {', '.join(renderers)}")
    path.write_bytes(f"{draw(report)}\n".encode())


# Texts of others, so that they can stand anywhere: nothing in them moves, hides or ends what is around them.


MAX_TEXT_CHARS = 1_000
"""Characters of one text, where nothing else is said: what a server says is quoted to be recognised, not to be read
whole."""

ValueT = TypeVar("ValueT")


def sanitize_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """The text in one line, not too long, and without characters that could move or hide what is around it."""
    cut = text if len(text) <= max_chars else text[:max_chars] + "…"
    return cut if cut.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def single_line(text: str, max_chars: int) -> str:
    """The beginning of a text as part of a line: what cannot be printed is a question mark."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:max_chars])


def sanitize(value: ValueT, max_chars: int = MAX_TEXT_CHARS) -> ValueT:
    """The same report, or part of one, with every text in it printable."""
    cleaned: ValueT = _sanitize_value(value, max_chars)
    return cleaned


def _sanitize_value(value: Any, max_chars: int) -> Any:  # noqa: ANN401 - any member of a report
    match value:
        case str():
            return sanitize_text(value, max_chars)
        case msgspec.Struct():
            members = {name: _sanitize_value(getattr(value, name), max_chars) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **members)
        case Mapping():
            return {
                _sanitize_value(name, max_chars): _sanitize_value(member, max_chars) for name, member in value.items()
            }
        case list() | tuple():
            return type(value)(_sanitize_value(member, max_chars) for member in value)
        case _:
            return value


def pluralize(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
