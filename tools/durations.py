"""Run `make test` and write tests/durations.md: the seconds of each folder and its slowest files and tests.

The report is committed, so that a folder that becomes slower shows up in a diff. Tests run beside each other: compare
their figures with each other, not with the clock.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "durations.md"
SLOW_FILES = 30
HEAD = """# Durations of `make test`

Written by `make durations`: {tests} tests in {wall:.0f} s on {cores} cores. Tests run beside each other; the sum is
larger.

| folder | tests | seconds | slowest test | seconds |
|---|--:|--:|---|--:|
"""


def main() -> int:
    """Return the exit code of `make test`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        started = time.monotonic()
        code = subprocess.run(
            ["make", "test", f"ARGS=--junitxml={report} -o junit_duration_report=total"], cwd=ROOT, check=False
        ).returncode
        wall = time.monotonic() - started
        if code == 0:
            PAGE.write_text(render(report, wall), "utf-8")
    return code


def render(report: Path, wall: float) -> str:
    """The page for a JUnit report."""
    folders: dict[str, list[tuple[float, str]]] = defaultdict(list)
    files: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        module, name, seconds = case.attrib["classname"].split("."), case.attrib["name"], float(case.attrib["time"])
        folders[module[1]].append((seconds, re.sub(r"\[.*", "", f"{module[-1]}::{name}", flags=re.DOTALL)))
        files["/".join(module) + ".py"] += seconds
    ordered = sorted(folders.items(), key=lambda item: -sum(seconds for seconds, _ in item[1]))
    rows = []
    for folder, tests in ordered:
        longest, name = max(tests)
        rows.append(
            f"| {folder} | {len(tests)} | {sum(seconds for seconds, _ in tests):.1f} | `{name}` | {longest:.1f} |"
        )
    slowest = sorted(files.items(), key=lambda item: -item[1])[:SLOW_FILES]
    rows += ["", "| file | seconds |", "|---|--:|", *(f"| {file} | {seconds:.1f} |" for file, seconds in slowest)]
    head = HEAD.format(tests=sum(map(len, folders.values())), wall=wall, cores=os.cpu_count())
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
