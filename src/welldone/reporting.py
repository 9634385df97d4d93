"""Rendering of reports: wrapped text and tables for terminals, HTML and XML trees, and sanitized text.

Where `width` is None there is no terminal: lines for a file or a pipe are not wrapped.
"""

import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from xml.etree.ElementTree import Element, tostring

import msgspec

_MIN_COLUMN_WIDTH = 30
"""Minimum width of a wrapped column. On a narrower terminal its lines are longer than the terminal is wide."""

StyleCell: TypeAlias = Callable[[int, int, str], str]
"""Colours a padded cell, given its row and column. The last column is not coloured."""


def wrap_text(label: str, text: str, width: int | None) -> list[str]:
    """Wrap a labelled text with a hanging indent. Only words longer than a line are broken."""
    if width is None or len(label) + len(text) <= width:
        return [f"{label}{text}".rstrip()]
    room = max(width - len(label), _MIN_COLUMN_WIDTH)
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [(label if number == 0 else " " * len(label)) + line for number, line in enumerate(lines)]


def format_table(
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    right_aligned: frozenset[int] = frozenset(),
    paint: StyleCell = lambda row, column, cell: cell,
) -> list[str]:
    """Format rows as a table whose last column is wrapped. `right_aligned` are column numbers.

    If the last column does not fit, the first one gets lines of its own.
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


# ---- HTML, XML and SVG. Text is escaped when a tree is serialised.


def element(tag: str, /, *inside: str | Element, **attributes: str) -> Element:
    """Create an element with text and child elements. `class_` and `http_equiv` become `class` and `http-equiv`.

    Text from a server must be sanitized first. Attributes never contain text from a server.
    """
    created = Element(tag, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    for child in inside:
        if isinstance(child, Element):
            created.append(child)
        elif len(created):
            created[-1].tail = (created[-1].tail or "") + child
        else:
            created.text = (created.text or "") + child
    return created


def code(text: str) -> Element:
    """A `code` element, for text from a server."""
    return element("code", text)


def html_section(title: str, *inside: Element) -> Element:
    """A section with a heading."""
    return element("section", element("h2", title), *inside)


def table_row(cells: Iterable[str | Element], tag: str = "td") -> Element:
    """A row of a table; its headings have the tag `th`."""
    return element("tr", *(element(tag, cell) for cell in cells))


def html_table(names: Iterable[str | Element], rows: Iterable[Element]) -> Element:
    """A table that scrolls if it is too wide."""
    return element("div", element("table", table_row(names, "th"), *rows), class_="scroll")


def as_html(tree: Element) -> str:
    """Serialise a tree as HTML."""
    return tostring(tree, encoding="unicode", method="html")


def html_document(title: str, style: str, body: Element) -> str:
    """A page that loads nothing from elsewhere and runs no scripts, whatever text is in it."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    )
    return f"<!doctype html>\n{as_html(element('html', head, body, lang='en'))}"


def as_xml(tree: Element) -> str:
    """Serialise a tree as XML."""
    return tostring(tree, encoding="unicode")


# ---- report files


ReportT = TypeVar("ReportT")


def write_report(report: ReportT, path: Path, renderers: Mapping[str, Callable[[ReportT], str]]) -> None:
    """Write the report in the format of the file's suffix. A file is replaced by the whole report, or left as it was.

    Raises:
        ValueError: the suffix is unknown.
        OSError: the file cannot be written.
    """
    render = renderers.get(path.suffix.lower())
    if render is None:
        raise ValueError(f"unknown report format {path.suffix!r}; use one of {', '.join(renderers)}")
    data = f"{render(report)}\n".encode()
    target = path.resolve()
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        target.write_bytes(data)  # a pipe, a device, or a file in a folder of others
        return
    aside = target.with_name(f".{target.name}.part")
    try:
        aside.write_bytes(data)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


# ---- untrusted text


MAX_TEXT_CHARS = 1_000
"""Default limit of one text: quotes of a server's text need not be complete."""

ValueT = TypeVar("ValueT")


def follow_summary(consequences: int, causes: int) -> str:
    """Text about broken rules that follow from others; empty if there are none."""
    verb, origin = "follows" if consequences == 1 else "follow", "it" if causes == 1 else "them"
    return f", and {consequences} that {verb} from {origin}" if consequences else ""


def sanitize_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Truncate a text and escape characters that are not printable, such as line breaks and bidi controls."""
    cut = text if len(text) <= max_chars else text[:max_chars] + "…"
    return cut if cut.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def single_line(text: str, max_chars: int) -> str:
    """The beginning of a text as a single line, with `?` for characters that are not printable."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:max_chars])


def sanitize(value: ValueT, max_chars: int = MAX_TEXT_CHARS) -> ValueT:
    """Copy of a report, or of a part of one, with every text in it sanitized."""
    cleaned: ValueT = _sanitize_value(value, max_chars)
    return cleaned


def _sanitize_value(value: Any, max_chars: int) -> Any:  # noqa: ANN401 - any value in a report
    match value:
        case str():
            return sanitize_text(value, max_chars)
        case msgspec.Struct():
            fields = {name: _sanitize_value(getattr(value, name), max_chars) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        case Mapping():
            return {
                _sanitize_value(name, max_chars): _sanitize_value(member, max_chars) for name, member in value.items()
            }
        case list() | tuple():
            return type(value)(_sanitize_value(member, max_chars) for member in value)
        case _:
            return value


def pluralize(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
