"""API keys in a file: reading, changing, and the lookup of a running server."""

import logging
from pathlib import Path

import msgspec
import pytest

from tests.http.aio import run
from tests.table import table
from welldone.server.access.key_storage import (
    FILE_LIMIT_BYTES,
    KeyFileError,
    WatchedKeyFile,
    changed_entries,
    free_slot,
    permission_warning,
    read_entries,
)
from welldone.server.access.keys import MAX_KEYS, SharedKey, key_digest
from welldone.server.access.limits import FIRST_FILE_INDEX, InMemoryBucketStorage, RateLimiter

KEY, OTHER = "wd-file-0123456789", "wd-file-9876543210"


def _add(path: Path, key: str, name: str) -> None:
    with changed_entries(path) as entries:
        entries[key_digest(key).hex()] = SharedKey(name=name, slot=free_slot(entries))


def test_a_changed_file_is_complete_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "keys.json"
    _add(path, KEY, "ci")
    _add(path, OTHER, "ann")
    assert {key.name: key.slot for key in read_entries(path).values()} == {"ci": 0, "ann": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in path.read_text("utf-8")
    with changed_entries(path) as entries:
        del entries[key_digest(KEY).hex()]
        assert free_slot(entries) == 0
    assert [key.name for key in read_entries(path).values()] == ["ann"]


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _add(path, KEY, "ci")
    before = path.read_bytes()
    with pytest.raises(KeyError), changed_entries(path) as entries:
        del entries[key_digest(KEY).hex()], entries[key_digest(OTHER).hex()]
    assert path.read_bytes() == before
    with pytest.raises(KeyFileError, match=r"cannot write .*keys.json: "), changed_entries(path / "keys.json"):
        pass


@table(
    ("content", "message"),
    [
        (b"", "is not a file of welldone keys"),
        (b"wd-plain-key\n", "is not a file of welldone keys"),
        (b'{"ci": {"name": "ci"}}', "is not a file of welldone keys"),
        (b'{"%s": {"name": "a b"}}' % (b"0" * 64), "is not a file of welldone keys"),
        (b'{"%s": {"name": "a", "admin": "yes"}}' % (b"0" * 64), "is not a file of welldone keys"),
        (b'{"%s": {"name": "a"}, "%s": {"name": "a"}}' % (b"0" * 64, b"1" * 64), "has two keys of the same name"),
        (b" " * (FILE_LIMIT_BYTES + 1), "has more than 4 MiB"),
        (b"[" * 100_000, "is not a file of welldone keys"),
        (b"\xff\xfe", "is not a file of welldone keys"),
    ],
)
def test_a_bad_file_is_reported_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=message) as caught:
        read_entries(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported_with_the_command_that_creates_it(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="welldone keys add NAME --keys-file"):
        read_entries(tmp_path / "keys.json")
    with pytest.raises(KeyFileError, match="cannot read"):
        read_entries(tmp_path)


def test_a_file_that_others_can_change_gets_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _add(path, KEY, "ci")
    assert permission_warning(path) is None
    path.chmod(0o660)
    warning = permission_warning(path)
    assert warning is not None
    assert "chmod 600" in warning


def test_a_running_server_sees_new_and_removed_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _add(path, KEY, "ci")

    async def main() -> None:
        watched = WatchedKeyFile(path)
        found = await watched.find(key_digest(KEY))
        assert found is not None
        assert msgspec.json.decode(found, type=SharedKey).name == "ci"
        assert await watched.find(key_digest(OTHER)) is None
        _add(path, OTHER, "ann")
        assert await watched.find(key_digest(OTHER)) is not None
        with changed_entries(path) as entries:
            del entries[key_digest(KEY).hex()]
        assert await watched.find(key_digest(KEY)) is None

    run(main())


@table("content", [b"{", None])
def test_a_bad_change_keeps_the_keys_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = tmp_path / "keys.json"
    _add(path, KEY, "ci")

    async def main() -> None:
        watched = WatchedKeyFile(path)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert await watched.find(key_digest(KEY)) is not None
        assert len([line for line in caplog.messages if "stay valid" in line]) == 1

    run(main())


def test_workers_share_the_counters_of_a_key_in_a_file() -> None:
    storage = InMemoryBucketStorage()
    first, second = (RateLimiter(0, 0, principals=["own"], storage=storage, clock=lambda: 1.0) for _ in range(2))
    ann, ci = (SharedKey(name=name, requests_per_minute=9, slot=slot) for slot, name in enumerate(("ann", "ci")))
    for key in (ann, ci):
        first.set_rates(key)
    for key in (ci, ann):  # the workers meet the keys in another order
        second.set_rates(key)
    for _ in range(4):
        first.take_request("ci")
    assert second.take_request("ci")["x-ratelimit-remaining-requests"] == "4"
    assert second.take_request("ann")["x-ratelimit-remaining-requests"] == "8"
    assert FIRST_FILE_INDEX > MAX_KEYS
