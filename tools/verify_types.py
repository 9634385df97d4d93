"""Check with pyright that the types of all public symbols of the package are complete, and list those that are not.

pyright takes every name without a leading underscore for public, also in modules that docs/stability.md does not list.
It looks for the package in the environment of the `python` on PATH. This program makes an empty environment that points
to this tree and to the dependencies of the Python that runs it, so that no other installation is examined.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PYRIGHT = ROOT / "tests" / "web" / "node_modules" / ".bin" / "pyright"
EXEMPT = re.compile(
    # Ray is not installed; what it gives counts as anything (see mypy's settings in pyproject.toml).
    r"welldone\.cluster\..*"
    # xllamacpp has no types.
    r"|welldone\.engines\.llama_child\.(build_params|load_model)"
    # Functions of setting_group, generic in the default and with the parameters of Setting: no annotation can say that,
    # and pyright wants one on each variable that is not a literal.
    r"|welldone\.config\.\w+\.(\w+_)?setting"
)


def main() -> int:
    """Run pyright; the exit code is 1 if a type is incomplete."""
    report = verify()
    problems = incomplete(report)
    for line in problems:
        print(line)
    counts = report["typeCompleteness"]["exportedSymbolCounts"]
    print(f"{sum(counts.values())} public symbols, {counts['withKnownType']} with complete types")
    return 1 if problems else 0


def verify() -> dict[str, Any]:
    """The report of `pyright --verifytypes` about this tree."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder)
        site = sysconfig.get_path("purelib", "venv", {"base": folder, "platbase": folder})
        (Path(site) / "tree.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n", "utf-8")
        path = f"{folder}/bin{os.pathsep}{os.environ['PATH']}"
        words = [str(PYRIGHT), "--verifytypes", "welldone", "--ignoreexternal", "--outputjson"]
        done = subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    found = report["typeCompleteness"]["packageRootDirectory"]
    if found != str(ROOT / "src" / "welldone"):
        sys.exit(f"pyright examined {found or 'nothing'}: {report['generalDiagnostics']}")
    return report


def incomplete(report: dict[str, Any]) -> list[str]:
    """One line for each public symbol whose type is unknown or ambiguous, with the reasons."""
    lines = []
    for symbol in report["typeCompleteness"]["symbols"]:
        if symbol["isExported"] and not symbol["isTypeKnown"] and not EXEMPT.fullmatch(symbol["name"]):
            reasons = [one["message"] for one in symbol["diagnostics"] if one["severity"] == "error"]
            lines.append(": ".join([symbol["name"], *(" ".join(reason.split()) for reason in reasons)]))
    return lines


if __name__ == "__main__":
    sys.exit(main())
