"""Check that no package of `src` has grown: `make lint` runs this, `make code-lines` records the figures of today.

pyproject.toml has the code lines and files of each package. Code lines are lines that are not blank, a comment or a
docstring. A package may pass its figure by 2 %; beyond that, a change records a new one and its commit has the reason.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLERANCE = 1.02
_TABLE = re.compile(r"(?<=^\[tool\.welldone\.code-lines\]\n)(?:.+\n)*", re.MULTILINE)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Compare the code with the figures, or record it with `--update`."""
    project = root / "pyproject.toml"
    text = project.read_text()
    found = measure(root / "src" / "welldone")
    if arguments == ["--update"]:
        figures = "".join(f"{name} = {figure}\n" for name, figure in found.items())
        project.write_text(_TABLE.sub(lambda _: figures, text))
        return 0
    recorded = tomllib.loads(text)["tool"]["welldone"]["code-lines"]
    grown = {name: figure for name, figure in found.items() if figure > recorded.get(name, 0) * TOLERANCE}
    for name, figure in grown.items():
        print(f"{name}: {figure:,}, recorded {recorded.get(name, 0):,}")
    if grown:
        print("`make code-lines` records these figures; give the reason in the commit", file=sys.stderr)
    return 1 if grown else 0


def measure(package: Path) -> dict[str, int]:
    """Return the code lines of each package below this one, of the modules beside them, of all, and all files."""
    lines: Counter[str] = Counter()
    files = sorted([*package.rglob("*.py"), *package.rglob("*.pyx")])
    for file in files:
        name = file.relative_to(package).parts[0] if file.parent != package else "modules"
        lines[name] += count_lines(file.read_text(), is_python=file.suffix == ".py")
    return {**dict(sorted(lines.items())), "all": lines.total(), "files": len(files)}


def count_lines(text: str, *, is_python: bool = True) -> int:
    """Return the number of code lines of a module."""
    if not is_python:  # Cython, which has its own grammar
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
