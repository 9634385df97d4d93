"""The public names of the package: they exist, are typed, are listed in the documents, and load on their first use."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import welldone

ROOT = Path(__file__).parents[2]
SOURCE = Path(welldone.__file__).read_text("utf-8")


def run(code: str) -> str:
    """Run a program in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_every_public_name_exists_and_type_checkers_see_it() -> None:
    tree = ast.parse(SOURCE)
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(welldone.__all__) == sorted([*imports, "__version__"])
    for name, module in imports.items():
        assert getattr(welldone, name) is getattr(sys.modules[str(module)], name)
    assert dir(welldone) == sorted(welldone.__all__)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'welldone' has no attribute 'fix'"):
        _ = welldone.fix  # type: ignore[attr-defined]  # that is the test


def test_importing_the_package_takes_less_than_60_ms_of_cpu() -> None:
    code = "import time; start = time.process_time(); import welldone; print(time.process_time() - start)"
    assert min(float(run(code)) for _ in range(3)) < 0.06


@pytest.mark.parametrize("name", ["asgi", "wsgi"])
def test_a_middleware_is_found_without_an_import_of_its_module(name: str) -> None:
    assert run(f"import welldone; print(welldone.{name}.RepairMiddleware.__module__)").startswith(f"welldone.{name}")


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = run(
        "import sys, welldone; print([name for name in sys.modules if name.startswith(('welldone', 'msgspec'))])"
    )
    assert loaded == "['welldone']"


def test_the_library_needs_msgspec_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import msgspec; from welldone import *; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    assert set(run(code).split()) <= {"welldone", "msgspec", "typing_extensions"}  # msgspec uses the last if installed


def test_loading_the_writers_does_not_load_the_judge() -> None:
    code = "import sys, welldone; welldone.ChatStream; welldone.repair; print('welldone.rules' in sys.modules)"
    assert run(code) == "False"


def test_the_list_of_stable_names_is_complete() -> None:
    section = (
        (ROOT / "docs" / "stability.md").read_text("utf-8").partition("## The Python API")[2].partition("\n## ")[0]
    )
    listed = set(re.findall(r"`([A-Za-z_]+)`", section))
    assert set(welldone.__all__) - listed == set()


def test_every_public_name_is_described() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    missing = [name for name in welldone.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == []
