"""The messages that docs/troubleshooting.md quotes are those of the program.

`…` in a quotation stands for anything. So do a number, a name in upper case, an option and a text in quotes, where the
program has a variable. The program may join a message from parts at a colon, a semicolon or a parenthesis.
"""

import ast
import functools
import re
from pathlib import Path

from welldone.config.settings import install_advice

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "welldone"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
CODE = re.compile(r"`` (.+?) ``|`([^`]+)`")
VARIABLE = re.compile(r"[:;] | \(|\S*\d\S*|'[^']*'|`[^`]*`|(?<!\S)-[\w-]+|\b[A-Z][A-Z_:]*\b")


def quotations() -> list[str]:
    """Code of more than two words in the first column of a table, or in a line that begins and ends with it."""
    cells = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]
    lines = [line for line in PAGE.splitlines() if line.startswith("`") and line.endswith("`")]
    codes = [double or single for text in cells + lines for double, single in CODE.findall(text)]
    return [code for code in codes if len(code.split()) > 2]


@functools.cache
def texts_of_the_program() -> str:
    """All string literals; those with variables in parts."""
    texts = [path.read_text("utf-8") for path in PACKAGE.rglob("*.toml")]
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\0".join(texts)


def unknown_parts(quotation: str, texts: str) -> list[str]:
    """The parts of a quotation that no message of the program has."""
    unknown = []
    for part in map(_trim, quotation.split("…")):
        if part not in texts:
            unknown += [words for words in map(_trim, VARIABLE.split(part)) if words not in texts]
    return unknown


def _trim(text: str) -> str:
    return text.strip(" :;,.()[]'`")


def test_the_quoted_messages_are_those_of_the_program() -> None:
    texts, quoted = texts_of_the_program(), quotations()
    assert len(quoted) > 30
    assert install_advice("serve") in PAGE
    assert [f"{part!r} in {code!r}" for code in quoted for part in unknown_parts(code, texts)] == []


def test_a_message_with_other_words_is_found() -> None:
    texts = texts_of_the_program()
    assert unknown_parts("port 8000 is already in use by another program", texts) == []
    assert unknown_parts("port 8000 is already used by another program", texts) != []
