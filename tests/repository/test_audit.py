"""The audit of the dependencies finds each kind of problem."""

import json

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


def test_every_requirement_file_is_pinned_and_every_lock_has_hashes() -> None:
    for file in (audit.ROOT / "requirements").glob("*.txt"):
        assert list(audit.pin_problems(file.name, file.read_text("utf-8"))) == []
    for name in audit.LOCKS:
        assert list(audit.npm_problems(name, (audit.ROOT / name).read_text("utf-8"))) == []
