"""Mutation testing of the core: change one expression of a module and check that a test fails.

    python tools/mutants.py --sample 200 --seed 1

Each mutant runs in a copy of the tree, first with the tests of its module, then with all tests of the core. A surviving
mutant shows a missing test or an equivalent mutant.
"""

import argparse
import ast
import concurrent.futures
import copy
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MODULES = (
    *("core/sse", "core/frame_reader", "core/repair", "core/template", "core/tool_calls"),
    *("dialects/chat/reader", "dialects/chat/chunks", "dialects/chat/deltas"),
    *("stream/pipeline", "stream/part", "stream/fan_out", "stream/fast_path"),
)
FOLDER = Path("src/welldone")
CORE = ("tests/protocol", "tests/rules", "tests/recorded", "tests/matrix", "tests/laws")
LIMIT_S = 900.0
"""A mutant with an endless loop counts as killed."""
TIMES = itertools.count(1_000_000_000)
_COMPARED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutant(NamedTuple):
    """Module with one change."""

    module: str
    line: int
    change: str
    source: str


def main() -> int:
    """Run a sample of mutants and print the survivors."""
    parser = argparse.ArgumentParser(description="Mutation testing of the core.")
    parser.add_argument("--sample", type=int, default=200, help="number of mutants (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants to run at once (default: cores)")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="MODULE:LINE", help="run only the mutants of these lines"
    )
    parser.add_argument("pytest", nargs="*", default=[], help="options for pytest, after --")
    options = parser.parse_args()
    all_mutants = [mutant for module in MODULES for mutant in mutants(module)]
    if options.only:
        chosen = [mutant for mutant in all_mutants if f"{mutant.module}:{mutant.line}" in options.only]
    else:
        chosen = random.Random(options.seed).sample(all_mutants, min(options.sample, len(all_mutants)))
    print(f"{len(chosen)} of {len(all_mutants)} mutants of {', '.join(MODULES)}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        copies = _Copies(Path(folder))
        kills = list(pool.map(lambda mutant: _report(mutant, copies, options.pytest), chosen))
    print(f"{sum(kills)} of {len(kills)} killed: {sum(kills) / max(1, len(kills)):.1%}")
    return 0


class _Copies:
    """One copy of the tree per thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = threading.local()

    def of_thread(self) -> Path:
        """Return the copy of the current thread."""
        if not hasattr(self._local, "path"):
            path = self._folder / str(threading.get_ident())
            for name in ("src", "tests", "docs", "faults", "tools", "benchmarks"):
                shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", path)
            self._local.path = path
        path = self._local.path
        assert isinstance(path, Path)
        return path


def mutants(module: str) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    tree = ast.parse((ROOT / FOLDER / f"{module}.py").read_text("utf-8"))
    for number, node in enumerate(ast.walk(tree)):
        if change := _describe_change(node):
            changed = copy.deepcopy(tree)
            _change(next(itertools.islice(ast.walk(changed), number, None)))
            yield Mutant(module, getattr(node, "lineno", 0), change, ast.unparse(ast.fix_missing_locations(changed)))


def _describe_change(node: ast.AST) -> str:
    """Describe the mutation of a node; empty if there is none."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return f"{type(node.ops[0]).__name__} becomes {_COMPARED[type(node.ops[0])].__name__}"
    if isinstance(node, ast.BoolOp):
        return "and becomes or" if isinstance(node.op, ast.And) else "or becomes and"
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare):
        return "condition negated"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        return f"{node.value} becomes {_other(node.value)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return "plus and minus swapped"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return "returns None"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "call removed"
    if isinstance(node, ast.Break | ast.Continue):
        return "statement removed"
    return ""


def _change(node: ast.AST) -> None:
    match node:
        case ast.Compare():
            node.ops = [_COMPARED[type(node.ops[0])]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant():
            node.value = _other(node.value)
        case ast.BinOp():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        case ast.Return() | ast.Expr():
            node.value = ast.Constant(None)
        case _:
            node.__class__ = ast.Pass


def _other(value: object) -> bool | int:
    assert isinstance(value, bool | int)
    return not value if isinstance(value, bool) else value + 1


def _report(mutant: Mutant, copies: _Copies, options: list[str]) -> bool:
    is_killed = _is_killed(mutant, copies.of_thread(), options)
    if not is_killed:
        print(f"survived: {mutant.module}:{mutant.line}: {mutant.change}", flush=True)
    return is_killed


def _is_killed(mutant: Mutant, folder: Path, options: list[str]) -> bool:
    path = folder / FOLDER / f"{mutant.module}.py"
    original = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    # Python detects stale bytecode by the mtime of the source, in seconds: two mutants could share it.
    os.utime(path, (next(TIMES),) * 2)
    try:
        module_tests = f"tests/protocol/test_{Path(mutant.module).name}.py"
        if (folder / module_tests).exists() and _fails(folder, [module_tests, *options]):
            return True
        return _fails(folder, [*CORE, *options])
    finally:
        path.write_text(original, "utf-8")
        os.utime(path, (next(TIMES),) * 2)


def _fails(folder: Path, arguments: list[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "CI": "true"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:])
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
