"""The audit of the dependencies finds each kind of problem."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.table import table
from tools import audit

HASH = "--hash=sha256:" + "0" * 64
FILE = f"""# generated
msgspec==1.0 \\
    {HASH} \\
    {HASH}
    # via
    #   -r requirements/serve.in
    #   yarl
"""


def test_a_pin_is_read_with_its_hashes_and_dependents() -> None:
    assert audit.read_pins(FILE) == [audit.Pin("msgspec", "1.0", "", 2, ("welldone", "yarl"))]
    assert list(audit.pin_problems("x.txt", FILE)) == []


def test_each_dependency_of_the_package_has_a_reason() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    names = {re.split(r"[\[><=;]", line)[0].replace("_", "-") for line in [*project["dependencies"], *extras]}
    assert names - {"welldone"} == audit.DIRECT.keys()


@table(
    "line",
    [
        "msgspec==1.0",
        f"msgspec>=1.0 {HASH}",
        "msgspec @ git+https://example.com/msgspec",
        "-e .",
        "--extra-index-url https://example.com/simple",
        f"msgspec==1.0 --hash=md5:{'0' * 32}",
    ],
)
def test_a_requirement_without_version_and_hash_is_found(line: str) -> None:
    assert len(list(audit.pin_problems("x.txt", FILE + line + "\n"))) == 1


@pytest.mark.parametrize(("version", "count"), [("1.0", 0), ("1.1", 1)])
def test_an_installed_version_that_is_not_pinned_is_found(version: str, count: int) -> None:
    assert len(list(audit.version_problems(audit.read_pins(FILE), {"msgspec": version}))) == count


@pytest.mark.parametrize(
    ("package", "count"),
    [({"integrity": "sha512-x"}, 0), ({}, 1), ({"integrity": "sha512-x", "resolved": "https://example.com/x.tgz"}, 1)],
)
def test_npm_packages_have_a_hash_and_no_url(package: dict[str, str], count: int) -> None:
    lock = json.dumps({"packages": {"": {}, "node_modules/x": package}})
    assert len(list(audit.npm_problems("lock", lock))) == count


def _vendored(folder: Path, **changes: str) -> list[str]:
    """Return the problems of a folder with one file and its licence."""
    entry = {"file": "x.js", "package": "uplot", "version": "1.6.32", "licence_file": "LICENSE"}
    entry["sha256"] = hashlib.sha256(b"x").hexdigest()
    (folder / "x.js").write_bytes(b"x")
    (folder / "LICENSE").touch()
    (folder / "manifest.json").write_text(json.dumps([entry | changes]))
    return list(audit.vendored_problems(folder / "manifest.json"))


@pytest.mark.parametrize(
    ("changes", "count"), [({}, 0), ({"sha256": "0"}, 1), ({"version": "1.6.31"}, 1), ({"licence_file": "COPYING"}, 2)]
)
def test_a_file_of_others_has_the_hash_the_version_and_the_licence_of_its_manifest(
    changes: dict[str, str], count: int, tmp_path: Path
) -> None:
    assert len(_vendored(tmp_path, **changes)) == count


def test_the_files_of_others_are_those_of_their_manifests_and_of_the_npm_package() -> None:
    assert audit.MANIFESTS
    for manifest in audit.MANIFESTS:
        assert list(audit.vendored_problems(manifest)) == []
        for entry in json.loads(manifest.read_text("utf-8")):
            installed = audit.ROOT / "tests/web/node_modules" / entry["package"] / "dist" / entry["file"]
            assert not installed.exists() or installed.read_bytes() == (manifest.parent / entry["file"]).read_bytes()
    assert audit.PAGE.read_text("utf-8").endswith(audit.render_vendored(audit.MANIFESTS))


def test_every_requirement_file_is_pinned_and_every_lock_has_hashes() -> None:
    for file in (audit.ROOT / "requirements").glob("*.txt"):
        assert list(audit.pin_problems(file.name, file.read_text("utf-8"))) == []
    for name in audit.LOCKS:
        assert list(audit.npm_problems(name, (audit.ROOT / name).read_text("utf-8"))) == []
