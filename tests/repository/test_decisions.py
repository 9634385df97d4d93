"""The decision records name what is there: files, modules, classes, functions, settings, flags and make targets."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.table import table
from welldone.cli.completion import command_options, command_parser
from welldone.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
PATH_FOLDERS = (ROOT, ROOT / "src" / "welldone", ROOT / "src" / "welldone" / "dialects")
SOURCE_FOLDERS = ("src", "tests", "tools", "benchmarks", "faults", "deploy")
SUFFIXES = {".py", ".js", ".json", ".toml", ".txt", ".yaml"}
FOREIGN = {"-k", "role_sent", "SO_REUSEPORT", "GGML_CPU_ALL_VARIANTS", "responseValidation", "stream_idle_timeout_ms"}
"""Names of other projects, and of what was not chosen."""

CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?<![\w/.-])(?:[\w.-]+/)+[\w.-]*|(?<![\w/.-])[\w.-]+\.(?:py|md|json|toml|txt)(?![\w.])")
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
TARGET = re.compile(r"^make ([a-z-]+)")
WORD = re.compile(r"[A-Za-z_]\w{2,}")


@functools.cache
def words_of_the_sources() -> frozenset[str]:
    paths = [path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    paths = [path for path in paths if path != Path(__file__) and "node_modules" not in path.parts]
    texts = [path.read_text("utf-8", "replace") for path in paths]
    texts += [(ROOT / name).read_text("utf-8") for name in ("Makefile", "pyproject.toml")]
    return frozenset(word for text in texts for word in WORD.findall(text))


@functools.cache
def flags() -> frozenset[str]:
    return frozenset(
        flag for name in COMMANDS for option in command_options(command_parser(name)) for flag in option.flags
    )


def unknown_names(record: str) -> Iterator[str]:
    """The names in code that do not exist."""
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"))
    for code in CODE.findall(record):
        if code.startswith("/"):  # a path of the API, or of Linux
            continue
        yield from (path for path in PATH.findall(code) if not any((folder / path).exists() for folder in PATH_FOLDERS))
        yield from (flag for flag in FLAG.findall(code) if flag not in flags() | FOREIGN)
        yield from (target for target in TARGET.findall(code) if target not in targets)
        rest = FLAG.sub("", PATH.sub("", TARGET.sub("", code)))
        yield from (word for word in WORD.findall(rest) if word not in words_of_the_sources() | FOREIGN)


@table("path", RECORDS, ids=lambda path: path.name)
def test_every_name_in_a_record_exists(path: Path) -> None:
    assert list(unknown_names(path.read_text("utf-8"))) == []


@table(
    "name",
    ["StreamMergerOfOld", "protocol/merger.py", "merger.py", "merger/", "--no-such-flag", "make no-such-target"],
)
def test_a_name_that_is_gone_is_found(name: str) -> None:
    assert list(unknown_names(f"The streams are joined by `{name}`."))
