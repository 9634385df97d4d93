"""The modules of the package import each other in one direction, also in functions and for type checkers only."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.table import table

SOURCES = Path(__file__).parents[2] / "src"
LATE_IMPORTS = {
    "welldone": 2,  # its public names
    "welldone.check.plugin": 3,  # pytest loads it in every run
    "welldone.cli.completion": 1,  # a module for each command
    "welldone.cli.main": 1,
    "welldone.cli.serve": 1,
    "welldone.cluster": 1,  # the others need the package of an extra
    "welldone.engines.models.pull": 1,
    "welldone.server.access.key_storage": 1,
    "welldone.server.server": 1,
}
"""Calls of `import_module`: no other module may have one."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(SOURCES.rglob("*.py"))}


def imported(tree: ast.AST) -> Iterator[str]:
    """The names that a file imports anywhere: modules, and perhaps what is in them."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
                yield module
            case ast.Call(args=[ast.Constant(value=str(module))]) if is_late_import(node):
                yield module
            case _:
                pass


def is_late_import(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("import_module", "__import__")
        case _:
            return False


def find_circle(trees: Mapping[str, ast.AST]) -> list[str]:
    """Modules that import each other in a circle; empty if there are none."""
    graph = {name: {one for one in imported(tree) if one in trees and one != name} for name, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}


def test_no_modules_import_each_other_in_a_circle(trees: dict[str, ast.AST]) -> None:
    assert find_circle({name: tree for name, tree in trees.items() if FILES[name].name != "__init__.py"}) == []


def test_only_listed_modules_import_others_by_name(trees: dict[str, ast.AST]) -> None:
    counts = {name: sum(map(is_late_import, ast.walk(tree))) for name, tree in trees.items()}
    assert {name: count for name, count in counts.items() if count} == LATE_IMPORTS


@table(
    "text",
    [
        "import b",
        "from b import name",
        "def f():\n    import b",
        "if TYPE_CHECKING:\n    from b import Name",
        "importlib.import_module('b')",
        "__import__('b')",
    ],
)
def test_a_circle_is_found_wherever_it_is_closed(text: str) -> None:
    assert set(find_circle({"a": ast.parse(text), "b": ast.parse("import a")})) == {"a", "b"}
    assert find_circle({"a": ast.parse(text), "b": ast.parse("import c")}) == []
