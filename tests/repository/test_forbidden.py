"""Forbidden constructs: eval, unpickling, shells, and `assert` on untrusted input."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.table import table

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "faults", "tools", "benchmarks")
MODULES = frozenset(
    ("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle")
)
"""Modules whose readers can execute code from the input."""
NAMES = frozenset(("eval", "exec", "compile", "__import__"))
CALLS = frozenset(
    (
        *("os.system", "os.popen", "os.spawnl", "os.spawnv", "os.execl", "subprocess.getoutput"),
        *("subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "tempfile.mktemp", "yaml.load"),
        *("torch.load", "jinja2.Environment", "jinja2.Template", "ssl._create_unverified_context"),
    )
)
DEVELOPER_FOLDERS = {"benchmarks", "tools", "faults"}  # programs for developers may assert


def forbidden(source: str, *, may_assert: bool = False) -> Iterator[str]:
    """The forbidden constructs of a file, each with its line."""
    for node in ast.walk(ast.parse(source)):
        found = _forbidden_construct(node)
        if isinstance(node, ast.Assert) and not may_assert and not _narrows_a_type(node.test):
            found = "assert"  # removed by `python -O`
        if found is not None:
            yield f"{getattr(node, 'lineno', 0)}: {found}"


def _narrows_a_type(test: ast.expr) -> bool:
    """Whether the assertion only narrows a type for mypy."""
    code = ast.unparse(test)
    return code.endswith(" is not None") or code.removeprefix("not ").startswith("isinstance(")


def _forbidden_construct(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import):
        return next((one.name for one in node.names if one.name.partition(".")[0] in MODULES), None)
    if isinstance(node, ast.ImportFrom):
        return node.module if (node.module or "").partition(".")[0] in MODULES else None
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    if name in NAMES or name in CALLS:
        return name
    shells = (one for one in node.keywords if one.arg == "shell" and ast.unparse(one.value) != "False")
    return "shell=" if any(shells) else None


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.tier2
@table("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_has_a_forbidden_construct(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    assert list(forbidden(path.read_text("utf-8"), may_assert=folder in DEVELOPER_FOLDERS)) == []


@table(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("import os, shelve", "shelve"),
        ("from marshal import loads", "marshal"),
        ("eval(text)", "eval"),
        ("def f():\n    exec('x = 1')", "exec"),
        ("compile(text, 'x', 'exec')", "compile"),
        ("__import__(name)", "__import__"),
        ("os.system('ls')", "os.system"),
        ("os.popen('ls')", "os.popen"),
        ("subprocess.run('ls', shell=True)", "shell="),
        ("subprocess.run('ls', shell=is_wanted)", "shell="),
        ("await asyncio.create_subprocess_shell('ls')", "asyncio.create_subprocess_shell"),
        ("tempfile.mktemp()", "tempfile.mktemp"),
        ("yaml.load(text)", "yaml.load"),
        ("jinja2.Template(text)", "jinja2.Template"),
        ("assert text", "assert"),
    ],
)
def test_each_forbidden_construct_is_found(source: str, found: str) -> None:
    (line,) = forbidden(source)
    assert line.endswith(found)


@table("source", ["re.compile('x')", "assert x is not None", "subprocess.run(['ls'], shell=False)", "model.eval()"])
def test_similar_allowed_code_is_not_reported(source: str) -> None:
    assert list(forbidden(source)) == []
