"""Make a release: check the tree, build the wheel and the source distribution twice, try them, and tag the commit.

    python tools/release.py 0.3.0 --dry-run    # everything but the files in dist/ and the tag
    python tools/release.py 0.3.0

Before it: set the version in src/welldone/__init__.py and in the names of images and wheels, give the changelog's
section `Unreleased` the version and the date, run `make docs`, and commit. Nothing is uploaded or pushed.
"""

import argparse
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import package  # the folder of a script is on its path

ROOT = Path(__file__).parent.parent
VERSION_FILE = ROOT / "src" / "welldone" / "__init__.py"
CHANGELOG = ROOT / "CHANGELOG.md"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_FILE_NAME = re.compile(r"\bwelldone(?:-ray:|:|-)(\d+\.\d+\.\d+)\b")
"""The name of an image or a wheel."""
_FILES_WITH_NAMES = ("README.md", "deploy/**/*", "docs/*.md")
REQUIRED_FILES = (
    "welldone/py.typed",
    "welldone/rules/pages/fin-always-sent.md",
    "welldone/web/static/index.html",
    ".data/data/share/man/man1/welldone.1",
    ".dist-info/licenses/LICENSE",
)
"""Files without which a wheel is broken, by the end of their names."""


class ReleaseError(Exception):
    """The release cannot be made. The message says what to do."""


def main() -> int:
    """Make a release, or report why it cannot be made."""
    parser = argparse.ArgumentParser(description="Check, build and tag a release.")
    parser.add_argument("version", help="the version, such as 0.3.0")
    parser.add_argument("--dry-run", action="store_true", help="check and build, but write no files and set no tag")
    options = parser.parse_args()
    try:
        release(options.version, is_dry_run=options.dry_run)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str, *, is_dry_run: bool) -> None:
    """Make a release. Raises `ReleaseError`."""
    notes = check_tree(version)
    print(f"{version}: the tree, the version and the changelog are right", flush=True)
    with tempfile.TemporaryDirectory() as name:
        wheel, sdist = build_twice(Path(name))
        check_wheel(wheel, version)
        package.test(wheel, sys.executable, Path(name) / "environment")
        check_command(Path(name) / "environment", version)
        print("the wheel works in a new environment", flush=True)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, sdist)}
        for file, digest in files.items():
            print(f"{digest}  {file}")
        if is_dry_run:
            print("a dry run: no file was written, and no tag was set")
            return
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for path in (wheel, sdist):
            shutil.copy(path, dist / path.name)
        (dist / "SHA256SUMS").write_text("".join(f"{digest}  {file}\n" for file, digest in files.items()))
    git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", f"welldone {version}\n\n{notes}\n")
    print(f"dist/ has the files, and the commit has the tag v{version}. Publish it: git push origin v{version}")


def check_tree(version: str) -> str:
    """Check versions, changelog and documents of a clean tree; return the section of the changelog."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version such as 0.3.0")
    if changes := git("status", "--porcelain"):
        raise ReleaseError(f"the tree has changes that are not committed:\n{changes}")
    tags = [tag.removeprefix("v") for tag in git("tag", "--list", "v*").split()]
    newest = max((numbers(tag) for tag in tags if _VERSION.fullmatch(tag)), default=(0, 0, 0))
    if numbers(version) <= newest:
        raise ReleaseError(f"the newest tag is v{'.'.join(map(str, newest))}: {version} does not follow it")
    own = re.search(r'__version__ = "([^"]+)"', VERSION_FILE.read_text("utf-8"))
    if own is None or own[1] != version:
        raise ReleaseError(f"{VERSION_FILE.relative_to(ROOT)} has the version {own[1] if own else 'unknown'}: set it")
    for path in sorted({path for pattern in _FILES_WITH_NAMES for path in ROOT.glob(pattern) if path.is_file()}):
        for found in _FILE_NAME.findall(path.read_text("utf-8", "replace")):
            if found != version:
                raise ReleaseError(f"{path.relative_to(ROOT)} names a file of version {found}: set it to {version}")
    notes = changelog_section(CHANGELOG.read_text("utf-8"), version, today=datetime.now(UTC).date().isoformat())
    # The documents of this tree, not of an installed package.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "tools" / "docs.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"generated documents are stale: run make docs\n{done.stdout}{done.stderr}")
    return notes


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons."""
    return tuple(map(int, version.split(".")))


def changelog_section(text: str, version: str, *, today: str) -> str:
    """Return the section of a version, which must be the newest, with a date and entries."""
    sections = re.split(r"(?m)^## ", text)[1:]
    head, _, body = sections[0].partition("\n") if sections else ("", "", "")
    if head.strip() == "Unreleased":
        if body.strip():
            raise ReleaseError(f"the changelog has unreleased entries: rename the section to {version} - {today}")
        head, _, body = sections[1].partition("\n") if len(sections) > 1 else ("", "", "")
    match = re.fullmatch(r"([\d.]+) - (\d{4}-\d{2}-\d{2})", head.strip())
    if match is None or match[1] != version:
        raise ReleaseError(f"the newest section of the changelog is {head.strip()!r}: expected {version} - {today}")
    if match[2] > today:
        raise ReleaseError(f"the changelog dates {version} in the future: {match[2]}")
    if not body.strip():
        raise ReleaseError(f"the section {version} of the changelog is empty")
    return body.strip()


def build_twice(folder: Path) -> tuple[Path, Path]:
    """Build the committed files in two folders, and compare them; return the wheel and the source distribution."""
    # Not the working tree: ignored files do not belong to a release. The time of the commit: the same bytes anywhere.
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct")
    built = []
    for name in ("first", "second"):
        source = folder / name / "source"
        source.mkdir(parents=True)
        archive = folder / name / "source.tar"
        git("archive", "--output", str(archive), "HEAD")
        with tarfile.open(archive) as tar:
            tar.extractall(source, filter="data")
        wheel, _ = package.build(folder / name, source)
        (sdist,) = wheel.parent.glob("*.tar.gz")
        built.append((wheel, sdist))
    for first, second in zip(*built, strict=True):
        if first.read_bytes() != second.read_bytes():
            raise ReleaseError(f"two builds of {first.name} differ")
    return built[0]


def check_wheel(wheel: Path, version: str) -> None:
    """Check the metadata and the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
    expected = {"Name": "welldone", "Version": version, "Description-Content-Type": "text/markdown"}
    for field, value in expected.items():
        if metadata[field] != value:
            raise ReleaseError(f"the field {field} of the package is {metadata[field]!r}, not {value!r}")
    for field in ("Summary", "Requires-Python", "License-Expression", "Requires-Dist"):
        if not metadata[field]:
            raise ReleaseError(f"the package has no {field}")
    if not str(metadata.get_payload()).strip():
        raise ReleaseError("the package has no description")
    if missing := [name for name in REQUIRED_FILES if not any(found.endswith(name) for found in names)]:
        raise ReleaseError(f"the wheel lacks {', '.join(missing)}")


def check_command(environment: Path, version: str) -> None:
    """Check that the installed command has the version."""
    done = subprocess.run(
        [environment / "bin" / "welldone", "--version"],
        cwd=environment,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.strip() != f"welldone {version}":
        raise ReleaseError(f"the installed command reports {done.stdout.strip() or done.stderr.strip()!r}")


def git(*words: str) -> str:
    """Run git and return its output."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
