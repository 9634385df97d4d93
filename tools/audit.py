"""What this project depends on: pinned, with hashes, and installed as pinned. `--write` makes its page anew.

Known weaknesses are looked up by pip-audit where its service can be reached and knows the packages. Where not, that is
said and is no failure: what was pinned a week after it came out and is bound by its hash does not change meanwhile.
Nothing old is kept to look things up in: an answer of last month would look like one of today.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "dependencies.md"
RUNTIME = ROOT / "requirements" / "serve.txt"
INSTALLED = tuple(ROOT / "requirements" / f"{name}.txt" for name in ("serve", "test", "dev"))
LOCKS = ("tests/web/package-lock.json", "tests/oracle/node/package-lock.json")
LOOKUP_S = 30.0
"""For pip-audit: its service answers in some seconds, or cannot be reached."""
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[a-z,]+\])?==(\S+?)(?: ; (.+))?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_HEAD = """# What welldone depends on

The core needs msgspec and nothing else; all of this is what a server with local models needs, and what that needs in
turn. Each is pinned, with the hashes of its files, in `requirements/serve.txt`. `make audit` checks that.

| package | version | licence, or for which platform | needed by |
|---|---|---|---|
"""


class Pin(NamedTuple):
    """One line of a requirement file."""

    name: str
    version: str
    marker: str
    hashes: int
    needed_by: tuple[str, ...]


def main() -> int:
    """Check all; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description="Checks what the project depends on.")
    parser.add_argument("--write", action="store_true", help="make docs/dependencies.md anew")
    options = parser.parse_args()
    files = sorted((ROOT / "requirements").glob("*.txt"))
    wrong = [line for file in files for line in unpinned(file.name, file.read_text("utf-8"))]
    wrong += [line for file in INSTALLED for line in strays(pins(file.read_text("utf-8")), installed())]
    wrong += [line for name in LOCKS for line in unlocked(name, (ROOT / name).read_text("utf-8"))]
    page = draw(pins(RUNTIME.read_text("utf-8")))
    if options.write:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page:
        wrong.append("docs/dependencies.md is not what it would be: make audit ARGS=--write")
    known, note = weaknesses()
    for line in dict.fromkeys([*wrong, *known]):
        print(line)
    print(f"{len(files)} requirement files and {len(LOCKS)} npm locks looked at; {note}")
    return 1 if wrong or known else 0


def entries(text: str) -> Iterator[str]:
    """The requirements of a file, each with its hashes and its comments in one line."""
    entry = ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t") and entry:
            entry += " " + line.strip().removesuffix("\\").strip()
        elif line and not line.startswith("#"):
            if entry:
                yield entry
            entry = line.removesuffix("\\").strip()
    if entry:
        yield entry


def pins(text: str) -> list[Pin]:
    """What a file pins."""
    found = []
    for entry in entries(text):
        bare, _, comment = entry.partition(" # ")
        if match := _PIN.fullmatch(bare.partition(" --hash=")[0]):
            words = comment.replace("-r requirements/", "").replace("#", " ").replace(",", " ").split()
            needed_by = tuple("welldone" if word.endswith(".in") else word for word in words if word != "via")
            found.append(Pin(_plain(match[1]), match[2], match[3] or "", len(_HASH.findall(bare)), needed_by))
    return found


def unpinned(name: str, text: str) -> Iterator[str]:
    """Lines that are no exact version with its hashes: an address, a folder, a range, an option."""
    for entry in entries(text):
        bare = entry.partition(" # ")[0]
        if not _PIN.fullmatch(bare.partition(" --hash=")[0]) or not _HASH.search(bare):
            yield f"{name}: {entry[:80]}: is not pinned by a version and its hashes"
        elif "://" in entry:
            yield f"{name}: {entry[:80]}: names an address"


def strays(wanted: list[Pin], there: Mapping[str, str]) -> Iterator[str]:
    """Packages that are installed in another version than the pinned one."""
    versions: dict[str, list[str]] = {}
    for pin in wanted:  # one package may have several: each for some versions of Python
        versions.setdefault(pin.name, []).append(pin.version)
    for name, pinned in versions.items():
        if name in there and there[name] not in pinned:
            yield f"{name} is installed as {there[name]}, and pinned as {' or '.join(pinned)}"


def unlocked(name: str, text: str) -> Iterator[str]:
    """Packages of an npm lock that have no hash, or say where they come from."""
    for path, package in json.loads(text)["packages"].items():
        if path and not package.get("link") and "integrity" not in package:
            yield f"{name}: {path} has no hash"
        if "resolved" in package:
            yield f"{name}: {path} names an address"


def installed() -> dict[str, str]:
    """What is installed beside this Python, with its versions."""
    return {_plain(one.metadata["Name"]): one.version for one in metadata.distributions()}


def draw(wanted: list[Pin]) -> str:
    """The page."""
    rows = [
        f"| {pin.name} | {pin.version} | {licence(pin.name) or pin.marker} | {', '.join(pin.needed_by)} |\n"
        for pin in wanted
    ]
    return _HEAD + "".join(rows)


def licence(name: str) -> str:
    """What a package says of its licence; nothing where it is not for this platform."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    named = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    plain = [*(about.get_all("License-Expression") or []), ", ".join(named), *(about.get_all("License") or [])]
    said = next((one for one in plain if one), "not said")
    return said.splitlines()[0][:60]


def weaknesses() -> tuple[list[str], str]:
    """What pip-audit knows of the pinned versions, and a word on whether it could be asked."""
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(RUNTIME), "--disable-pip", "--require-hashes"]
    words += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LOOKUP_S, check=False)
        told = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return [], "no advisory data here: the service of pip-audit cannot be reached"
    if unknown := [one["name"] for one in told if "skip_reason" in one]:
        return [], f"no advisory data here: {len(unknown)} of {len(told)} packages are not known to pip-audit's service"
    found = [f"{one['name']} {one['version']}: {bug['id']}" for one in told for bug in one.get("vulns", ())]
    return found, f"{len(found)} known weaknesses"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
