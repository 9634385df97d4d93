"""A command imports only the modules it uses, so that it starts fast."""

import json
from pathlib import Path

import pytest

from tests.cli.run import run_python

PROGRAM = """
import json, sys
before = set(sys.modules)
from welldone.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write("\\n" + json.dumps([code, sorted(set(sys.modules) - before)]))
"""
JUDGE = ["welldone.rules.judge", "welldone.rules.checks"]
REPAIR = [
    "welldone.dialects.chat.reader",
    "welldone.core.repair",
    "welldone.stream.pipeline",
    "welldone.dialects",
]
HEAVY = ["asyncio", "socket", "ssl", "http"]


@pytest.mark.parametrize(
    ("words", "uses", "spares"),
    [
        ("--version", ["welldone.cli.main"], ["msgspec", "welldone.core", "welldone.rules"]),
        ("--help", ["welldone.cli.main"], ["msgspec", "welldone.core", "welldone.rules"]),
        ("rules tool", ["welldone.cli.rules"], [*JUDGE, *REPAIR, "welldone.cli.lint", "welldone.cli.fix"]),
        ("rules delta-role-once", ["welldone.cli.rules"], [*JUDGE, *REPAIR]),
        ("lint right.txt", ["welldone.cli.lint", *JUDGE], [*REPAIR, "welldone.cli.fix", "welldone.cli.rules"]),
        ("fix right.txt", ["welldone.cli.fix", *REPAIR], [*JUDGE, "welldone.cli.lint", "welldone.cli.rules"]),
        ("fix whole.json", ["welldone.cli.fix", "welldone.stream.pipeline"], JUDGE),
    ],
)
def test_a_command_imports_only_what_it_uses(words: str, uses: list[str], spares: list[str], folder: Path) -> None:
    ran = run_python(PROGRAM, *words.split(), cwd=folder)
    code, loaded = json.loads(ran.notes.splitlines()[-1])
    assert code == 0
    assert [name for name in uses if name not in loaded] == []
    assert [name for name in loaded if _is_within(name, [*spares, *HEAVY])] == []


def _is_within(name: str, packages: list[str]) -> bool:
    """Whether the module is one of these packages, or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
