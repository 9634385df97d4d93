"""The release script, on a temporary clone: what it refuses, and a whole release."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "9.8.7"
NAMED_VERSION = r"\b(welldone(?:-ray:|:|-))\d+\.\d+\.\d+\b"
LIMIT_S = 600.0
"""A release builds four packages and an environment."""
GIT = ["git", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
IDENTITY = {f"GIT_{role}_{name}": "a@example.org" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the clone."""
    environment = {**os.environ, **IDENTITY, "PYTHONPATH": str(cwd / "src")}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def commit(clone: Path) -> None:
    """Commit everything in the clone."""
    for words in (["add", "--all"], ["commit", "--quiet", "--allow-empty", "--message", "change"]):
        done = run(*GIT, *words, cwd=clone)
        assert done.returncode == 0, done.stderr


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replace a pattern in a file, in which it must occur."""
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"))
    assert count
    path.write_text(text, "utf-8")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this tree, ready for a release."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a clone of the repository")
    clone = tmp_path_factory.mktemp("release") / "clone"
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    for name in listed:
        source, target = ROOT / name, clone / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    run("git", "init", "--quiet", cwd=clone)
    for path in (*(clone / "deploy").rglob("*"), *(clone / "docs").glob("*.md"), clone / "README.md"):
        if path.is_file() and re.search(NAMED_VERSION, path.read_text("utf-8")):
            edit(path, NAMED_VERSION, rf"\g<1>{VERSION}")
    edit(clone / "src" / "welldone" / "__init__.py", r'__version__ = "[^"]+"', f'__version__ = "{VERSION}"')
    section = f"## {VERSION} - {datetime.now(UTC).date().isoformat()}\n\n### Added\n\n- All of it.\n\n"
    changelog = clone / "CHANGELOG.md"
    before, _, after = re.sub(r"(?ms)^## Unreleased\n.*?(?=^## )", "", changelog.read_text("utf-8")).partition("## ")
    changelog.write_text(f"{before}{section}## {after}", "utf-8")
    done = run(sys.executable, "tools/docs.py", cwd=clone)
    assert done.returncode == 0, done.stderr
    commit(clone)
    return clone


def copy_of(prepared: Path, folder: Path) -> Path:
    """A copy that a test may change."""
    clone = folder / "clone"
    done = run("git", "clone", "--quiet", prepared, clone, cwd=folder)
    assert done.returncode == 0, done.stderr
    return clone


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "tools/release.py", *words, cwd=clone)


def _leave_dirty(clone: Path) -> None:
    (clone / "new.txt").write_text("x")


def _tag(clone: Path) -> None:
    run(*GIT, "tag", f"v{VERSION}", cwd=clone)


def _forget_the_version(clone: Path) -> None:
    edit(clone / "src" / "welldone" / "__init__.py", re.escape(VERSION), "9.8.6")
    commit(clone)


def _forget_an_image(clone: Path) -> None:
    edit(clone / "deploy" / "compose.yaml", f"welldone:{VERSION}", "welldone:9.8.6")
    commit(clone)


def _forget_a_wheel(clone: Path) -> None:
    edit(clone / "docs" / "systemd.md", f"welldone-{VERSION}-py3", "welldone-9.8.6-py3")
    commit(clone)


def _forget_the_changelog(clone: Path) -> None:
    edit(clone / "CHANGELOG.md", f"## {VERSION} - .*", "## 9.8.6 - 2026-01-01")
    commit(clone)


def _leave_entries(clone: Path) -> None:
    edit(clone / "CHANGELOG.md", f"## {VERSION}", f"## Unreleased\n\n- More.\n\n## {VERSION}")
    commit(clone)


def _date_in_the_future(clone: Path) -> None:
    edit(clone / "CHANGELOG.md", f"## {VERSION} - .*", f"## {VERSION} - 2999-01-01")
    commit(clone)


def _forget_the_documents(clone: Path) -> None:
    edit(clone / "deploy" / "welldone.1", VERSION, "9.8.6")
    commit(clone)


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("version", "change", "message"),
    [
        ("1.0", None, "'1.0' is not a version such as 0.3.0"),
        (VERSION, _leave_dirty, "changes that are not committed:\n?? new.txt"),
        (VERSION, _tag, f"the newest tag is v{VERSION}: {VERSION} does not follow it"),
        (VERSION, _forget_the_version, "src/welldone/__init__.py has the version 9.8.6: set it"),
        (VERSION, _forget_an_image, f"deploy/compose.yaml names a file of version 9.8.6: set it to {VERSION}"),
        (VERSION, _forget_a_wheel, f"docs/systemd.md names a file of version 9.8.6: set it to {VERSION}"),
        (VERSION, _forget_the_changelog, "the newest section of the changelog is '9.8.6 - 2026-01-01': expected 9.8.7"),
        (VERSION, _leave_entries, "the changelog has unreleased entries"),
        (VERSION, _date_in_the_future, "dates 9.8.7 in the future"),
        (VERSION, _forget_the_documents, "run make docs\ndeploy/welldone.1 is stale"),
    ],
)
def test_a_tree_that_is_not_ready_is_refused(
    version: str, change: Callable[[Path], None] | None, message: str, prepared: Path, tmp_path: Path
) -> None:
    clone = copy_of(prepared, tmp_path)
    if change is not None:
        change(clone)
    done = release(clone, version, "--dry-run")
    assert done.returncode == 1
    assert done.stderr.startswith("no release: ")
    assert message in done.stderr


@pytest.mark.tier2
def test_a_release_is_built_twice_tried_and_tagged(prepared: Path, tmp_path: Path) -> None:
    clone = copy_of(prepared, tmp_path)
    dry = release(clone, VERSION, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not (clone / "dist").exists()
    assert run("git", "tag", cwd=clone).stdout == ""
    done = release(clone, VERSION)
    assert done.returncode == 0, done.stderr
    tag = run("git", "tag", "--list", "--format=%(refname:short) %(contents)", cwd=clone).stdout
    assert tag.startswith(f"v{VERSION} welldone {VERSION}\n\n### Added\n\n- All of it.")
    lines = (clone / "dist" / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert sums.keys() == {f"welldone-{VERSION}-py3-none-any.whl", f"welldone-{VERSION}.tar.gz"}
    for name, digest in sums.items():
        assert hashlib.sha256((clone / "dist" / name).read_bytes()).hexdigest() == digest
        assert f"{digest}  {name}" in dry.stdout  # a third and fourth build have the same bytes
    assert release(clone, VERSION).returncode == 1  # it has the tag
