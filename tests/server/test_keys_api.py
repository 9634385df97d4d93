"""`/keys`: admins list, add and remove stored API keys."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.test_shared_keys import InMemoryStore
from welldone.config.server import KeySettings
from welldone.server.access.key_storage import (
    KeyExistsError,
    SharedKeyStorage,
    add_new_key,
    changed_entries,
    listed_keys,
    remove_key,
)
from welldone.server.access.keys import SharedKey, key_digest
from welldone.server.access.store import SharedStore

Json = dict[str, Any]
ADMIN = "admin-key-0123456789"
GUEST = "guest-key-0123456789"


def bearer(key: str = ADMIN) -> str:
    """The header with a key."""
    return f"Authorization: Bearer {key}\r\n"


def with_file(folder: Path) -> Json:
    """Settings of a server with an admin, a guest and a key file."""
    path = folder / "keys.json"
    with changed_entries(path) as entries:
        entries[key_digest("first-0123456789").hex()] = SharedKey(name="first", slot=0)
    return {"keys_file": path, "keys": [ADMIN], "config": {"keys": (KeySettings(name="guest", key=GUEST),)}}


async def names(running: Gateway) -> list[str]:
    """The listed keys."""
    reply = await running.get("/v1/keys", bearer())
    assert reply.status == 200
    return [key["name"] for key in reply.json["data"]]


def test_a_key_is_added_used_listed_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def check() -> None:
        async with gateway(tmp_path, **with_file(tmp_path)) as running:
            body = {"name": "ci", "models": ["qwen-*"], "requests_per_minute": 60, "metrics": True}
            added = await running.post(body, "/v1/keys", bearer())
            assert added.status == 200
            assert "cache-control: no-store" in added.head.lower()
            key = added.json["key"]
            expected = {"object": "key", "tokens_per_minute": None, "admin": False, **body}
            assert {name: value for name, value in added.json.items() if name != "key"} == expected
            assert (await running.get("/v1/models", bearer(key))).status == 200
            listing = await running.get("/keys", bearer())
            assert listing.json["data"] == [
                expected,
                {**expected, "name": "first", "models": [], "requests_per_minute": None, "metrics": False},
            ]
            assert key not in listing.body.decode() + (tmp_path / "keys.json").read_text("utf-8") + caplog.text
            removed = await running.get("/keys/ci", bearer(), "DELETE")
            assert removed.json == {"name": "ci", "object": "key", "deleted": True}
            assert await names(running) == ["first"]
            assert (await running.get("/keys/ci", bearer(), "DELETE")).status == 404

    run(check())


BAD: list[tuple[Json, int, str | None, str | None]] = [
    ({}, 400, "missing_required_parameter", "name"),
    ({"name": "a b"}, 400, "invalid_value", "name"),
    ({"name": "x" * 65}, 400, "invalid_value", "name"),
    ({"name": 5}, 400, "invalid_type", "name"),
    ({"name": "a", "requests_per_minute": -1}, 400, "integer_below_min_value", "requests_per_minute"),
    ({"name": "a", "tokens_per_minute": "many"}, 400, "invalid_type", "tokens_per_minute"),
    ({"name": "a", "admin": "yes"}, 400, "invalid_type", "admin"),
    ({"name": "a", "models": "qwen"}, 400, "invalid_type", "models"),
    ({"name": "a", "models": [" qwen"]}, 400, None, "models[0]"),
    ({"name": "guest"}, 400, "name_taken", "name"),
    ({"name": "anonymous"}, 400, "name_taken", "name"),
    ({"name": "first"}, 409, "name_taken", None),
]
"""Bodies with the status, the code (None: any) and the parameter of the error."""


def test_a_bad_request_changes_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, **with_file(tmp_path)) as running:
            for body, status, code, param in BAD:
                reply = await running.post(body, "/keys", bearer())
                assert (reply.status, reply.error["param"]) == (status, param), body
                assert reply.error["code"] == (code or reply.error["code"]), body
            assert await names(running) == ["first"]

    run(check())


def test_only_admins_may_see_and_change_keys(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, **with_file(tmp_path)) as running:
            for header, status in ((bearer(GUEST), 403), ("", 401)):
                assert (await running.get("/keys", header)).status == status
                assert (await running.post({"name": "evil"}, "/keys", header)).status == status
                assert (await running.get("/keys/first", header, "DELETE")).status == status
            assert (await running.get("/keys/first", bearer(), "POST")).status == 405
            assert await names(running) == ["first"]

    run(check())


def test_another_site_cannot_change_keys(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, **with_file(tmp_path)) as running:
            origin = bearer() + "Origin: http://evil.example\r\n"
            assert (await running.post({"name": "evil"}, "/keys", origin)).status == 403
            assert (await running.get("/keys/first", origin, "DELETE")).status == 403
            assert await names(running) == ["first"]

    run(check())


def test_a_server_without_a_store_says_how_to_get_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, keys=[ADMIN]) as running:
            for reply in (
                await running.get("/keys", bearer()),
                await running.post({"name": "ci"}, "/keys", bearer()),
                await running.get("/keys/ci", bearer(), "DELETE"),
            ):
                assert (reply.status, reply.error["code"]) == (409, "no_key_store")
                assert "--keys-file" in reply.error["message"]
            assert (await running.get("/page/api/state", bearer())).json["has_key_store"] is False

    run(check())


def test_a_damaged_file_is_reported_and_kept(tmp_path: Path) -> None:
    async def check() -> None:
        async with gateway(tmp_path, **with_file(tmp_path)) as running:
            (tmp_path / "keys.json").write_text("{}x", "utf-8")
            reply = await running.post({"name": "ci"}, "/keys", bearer())
            assert (reply.status, reply.error["code"]) == (500, "key_file_unusable")
            assert "is not a file of welldone keys" in reply.error["message"]
            assert (tmp_path / "keys.json").read_text("utf-8") == "{}x"

    run(check())


class WritableStore(InMemoryStore):
    """An in-memory store whose keys can be changed."""

    async def put_key(self, digest: str, value: bytes) -> None:
        self.values[digest] = value

    async def drop_keys(self, digests: Any) -> None:  # noqa: ANN401 - any iterable
        for digest in digests:
            del self.values[digest]


def test_the_shared_store_has_the_same_operations() -> None:
    async def check() -> None:
        store = WritableStore()
        storage = SharedKeyStorage(SharedStore(store).call)
        key = await add_new_key(storage, SharedKey(name="ci", admin=True))
        assert json.loads(store.values[key_digest(key).hex()]) == {"name": "ci", "admin": True}
        with pytest.raises(KeyExistsError, match="already is a key ci"):
            await add_new_key(storage, SharedKey(name="ci"))
        store.values["00"] = b"an entry of another version"
        assert await listed_keys(storage) == [msgspec.convert({"name": "ci", "admin": True}, SharedKey)]
        assert await remove_key(storage, "ci")
        assert not await remove_key(storage, "ci")

    run(check())
