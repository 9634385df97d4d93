"""The documents as the tests read them: code spans and code blocks, each with its position."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"cli.md", "protocol.md", "requests.md", "servers.md", "matrix.md", "reliability.md"}
"""Pages that programs write from the code or from results."""
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
    if path.name not in GENERATED | {"CHANGELOG.md"}
}
"""Text by path."""
DEPLOYED = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted((ROOT / "deploy").rglob("*"))
    if path.is_file() and path.suffix != ".1"
}
"""Text of the files that deploy welldone, by path."""

_BLOCK = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^\1```")
_SPAN = re.compile(r"(?s)(?<!`)(`+)(?!`)((?:(?!\n\n).)+?)(?<!`)\1(?!`)")
_CELL_BORDER = re.compile(r"(?<!\\)\|")


class Code(NamedTuple):
    """A code span or a code block."""

    document: str
    line: int
    text: str
    language: str = ""
    """Of a code block."""
    column: str = ""
    """Heading of the column, in a table."""
    row: Mapping[str, str] = MappingProxyType({})
    """Cells of the row by the headings of their columns."""

    def problem(self, text: str) -> str:
        """A line of a failure message."""
        return f"{self.document}:{self.line}: {text}"


@cache
def spans() -> tuple[Code, ...]:
    """The code spans of all documents."""
    return tuple(span for document, text in DOCUMENTS.items() for span in read_spans(document, text))


def read_spans(document: str, text: str) -> Iterator[Code]:
    """The code spans of a text; those in a table have their column and row."""
    prose = _BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    rows = prose.split("\n")
    for span in _SPAN.finditer(prose):
        before = prose[: span.start()].split("\n")
        code = Code(document, len(before), " ".join(span[2].split()))
        yield code._replace(**_position(rows, len(before) - 1, before[-1])) if before[-1].startswith("|") else code


def _position(rows: list[str], number: int, before: str) -> dict[str, Any]:
    """Column and row of a cell of a table, after the text `before` in a line."""
    first = number
    while first and rows[first - 1].startswith("|"):
        first -= 1
    headings, cells = ([cell.strip() for cell in _CELL_BORDER.split(rows[row])] for row in (first, number))
    return {"column": headings[len(_CELL_BORDER.findall(before))], "row": dict(zip(headings, cells, strict=False))}


def blocks(*languages: str) -> Iterator[Code]:
    """The code blocks of all documents in these languages; the line is that of the first line of code."""
    for document, text in DOCUMENTS.items():
        for block in _BLOCK.finditer(text):
            if block[2] in languages:
                yield Code(document, text.count("\n", 0, block.start(3)) + 1, block[3], block[2])


def lines(texts: Mapping[str, str] = DOCUMENTS) -> Iterator[Code]:
    """The lines of the texts."""
    for document, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            yield Code(document, number, line)


def expect_none(problems: Iterable[str]) -> None:
    """Fail with all problems, one per line."""
    if text := "\n".join(problems):
        pytest.fail(text, pytrace=False)
