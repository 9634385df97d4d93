"""What depends on a dialect stands in its record or its folder: few other lines name a member of `Endpoint`."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "welldone"
RECORDS = ("dialects/", "server/requests/upstream_dialects.py")
"""The dialects with their registry, and the server's records of their requests."""
LIMIT = 20
MEMBER = re.compile(r"\bEndpoint\.[A-Z]")


def test_few_lines_outside_the_dialects_name_one_of_them() -> None:
    lines = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(RECORDS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if MEMBER.search(line)
    ]
    assert len(lines) <= LIMIT, "add a field to the record of the dialect instead:\n" + "\n".join(lines)
