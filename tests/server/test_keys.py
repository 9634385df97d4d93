"""API keys: accepted in any header, and never shown."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from tests.table import table
from welldone.config.server import KeySettings
from welldone.gateway.errors import ApiError
from welldone.http.redaction import is_weak_key
from welldone.server.access.keys import ANONYMOUS, MAX_KEYS, ApiKeys, make_key, read_key_file

KEY = "wd-canary-0123456789"
OTHER = "wd-another-987654321"


@table(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"AUTHORIZATION": f"BEARER   {KEY} "},
        {"x-api-key": KEY},
        {"X-Api-Key": f" {KEY} "},
        {"api-key": KEY},
        {"Authorization": f"Bearer {KEY}", "x-api-key": KEY, "api-key": KEY},
        {"Authorization": "Basic dXNlcjpwYXNz", "x-api-key": KEY},
        {"Authorization": "Bearer ", "x-api-key": KEY},
    ],
)
def test_every_key_header_gives_the_same_principal(headers: dict[str, str]) -> None:
    keys = ApiKeys([OTHER, KEY])
    assert keys.principal(headers) == keys.principal({"authorization": f"Bearer {KEY}"})


@table(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": f"Bearer {OTHER}"},
        {"x-api-key": ""},
        {"x-api-key": f"Bearer {KEY}"},
        {"x-api-key": "\udcff\udc80"},
        {"x-api-key": "ключ"},
        {"cookie": KEY},
    ],
)
def test_a_missing_or_wrong_key_gets_401_without_showing_it(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        ApiKeys([KEY]).principal(headers)
    error = caught.value
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert error.headers == {"WWW-Authenticate": "Bearer"}
    shown = error.body().decode()
    assert "canary" not in shown
    assert "another" not in shown
    assert error.__cause__ is None


@table(
    "headers",
    [
        {"authorization": f"Bearer {KEY}", "x-api-key": OTHER},
        {"authorization": f"Bearer {OTHER}", "api-key": KEY},
        {"x-api-key": KEY, "api-key": "nonsense"},
        CIMultiDict([("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {OTHER}")]),
        CIMultiDict([("x-api-key", KEY), ("X-API-KEY", OTHER)]),
    ],
)
def test_two_different_keys_get_400_even_if_one_is_valid(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        ApiKeys([KEY, OTHER]).principal(headers)
    assert caught.value.status == 400
    assert "canary" not in caught.value.message


def test_without_keys_every_request_is_anonymous() -> None:
    keys = ApiKeys([])
    assert keys.allows_anonymous
    assert keys.principal({}) == ANONYMOUS
    assert keys.principal({"authorization": "Bearer none", "x-api-key": "other"}) == ANONYMOUS


def test_a_principal_is_short_stable_and_does_not_reveal_the_key() -> None:
    names = {ApiKeys([KEY]).principal({"api-key": KEY}), ApiKeys([OTHER, KEY]).principal({"api-key": KEY})}
    assert names == {"key-4bd282be"}
    assert ApiKeys([OTHER]).principal({"api-key": OTHER}) not in names


@given(st.dictionaries(st.sampled_from(["authorization", "x-api-key", "api-key", "host"]), st.text()))
def test_arbitrary_headers_are_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError):
        ApiKeys([KEY]).principal(headers)


@table("key", ["", "two words", "tab\tbed", "line\nbreak", "schlüssel", "\x7f" * 8])
def test_a_key_that_a_header_cannot_contain_is_rejected_at_startup(key: str) -> None:
    with pytest.raises(ValueError, match="API key 2") as caught:
        ApiKeys([KEY, key])
    assert not key or key not in str(caught.value)


NAMED = [
    KeySettings(name="ci", key="wd-canary-ci", models=("qwen-*", "tiny")),
    KeySettings(name="boss", key="wd-canary-boss"),
]


def test_a_named_key_gives_its_name_and_plain_keys_stay() -> None:
    keys = ApiKeys([KEY], NAMED)
    assert keys.principal({"api-key": "wd-canary-ci"}) == "ci"
    assert keys.principal({"authorization": "Bearer wd-canary-boss"}) == "boss"
    assert keys.principal({"api-key": KEY}) == "key-4bd282be"
    assert keys.principals == ["key-4bd282be", "ci", "boss"]
    assert ApiKeys([]).principals == [ANONYMOUS]
    assert not ApiKeys([], NAMED).allows_anonymous


@table(
    ("principal", "model", "may"),
    [
        ("ci", "qwen-7b", True),
        ("ci", "qwen-", True),
        ("ci", "my-qwen-7b", False),
        ("ci", "tiny", True),
        ("ci", "tiny2", False),
        ("ci", "", False),
        ("boss", "anything", True),
        ("key-4bd282be", "anything", True),
        (ANONYMOUS, "anything", True),
    ],
)
def test_a_key_may_be_restricted_to_some_models(principal: str, model: str, may: bool) -> None:
    assert ApiKeys([KEY], NAMED).may_use(principal, model) is may


@table(
    ("pattern", "name", "may"),
    [
        ("*", "", True),
        ("*", "a", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*b*", "abc", True),
        ("**", "abc", True),
        ("a?c", "abc", False),
        ("[ab]", "a", False),
        ("*.gguf", "x\n.gguf", True),
    ],
)
def test_a_wildcard_in_models_matches_any_characters(pattern: str, name: str, may: bool) -> None:
    keys = ApiKeys([], [KeySettings(name="k", key=KEY, models=(pattern,))])
    assert keys.may_use("k", name) is may


@pytest.mark.parametrize("plain", [[], [OTHER, KEY]])
def test_a_duplicate_key_is_rejected_without_showing_it(plain: list[str]) -> None:
    named = [KeySettings(name="ci", key=KEY), *([] if plain else [KeySettings(name="boss", key=KEY)])]
    expected = "key 'ci' and API key 2 are the same" if plain else "key 'boss' and key 'ci' are the same"
    with pytest.raises(ValueError, match=expected) as caught:
        ApiKeys(plain, named)
    assert "canary" not in str(caught.value)


def test_an_invalid_named_key_is_reported_by_its_name() -> None:
    with pytest.raises(ValueError, match="key 'ci' has a space") as caught:
        ApiKeys([KEY], [KeySettings(name="ci", key="two canary")])
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(KeySettings(name="ci", key="two canary"))


def test_too_many_keys_are_rejected_at_startup() -> None:
    ApiKeys(f"wd-key-{number}" for number in range(MAX_KEYS))
    with pytest.raises(ValueError, match="too many"):
        ApiKeys(f"wd-key-{number}" for number in range(MAX_KEYS + 1))


def test_a_generated_key_is_random_strong_and_valid() -> None:
    keys_made = {make_key() for _ in range(100)}
    assert len(keys_made) == 100
    assert all(key.startswith("wd-") and len(key) == 35 and not is_weak_key(key) for key in keys_made)
    ApiKeys(keys_made)


def _file(folder: Path, data: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "keys.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    path.chmod(mode)
    return path


def test_a_key_file_has_one_key_per_line_and_comments(tmp_path: Path) -> None:
    path = _file(tmp_path, f"\ufeff# people\n\n{KEY}\r\n  {OTHER}  \n#wd-old-key-here\n")
    assert read_key_file(path) == ([KEY, OTHER], None)


def test_a_world_readable_key_file_has_a_warning(tmp_path: Path) -> None:
    keys, note = read_key_file(_file(tmp_path, KEY, 0o644))
    assert keys == [KEY]
    assert note is not None
    assert "chmod 600" in note
    assert "canary" not in note


@table(
    ("data", "expected"),
    [
        ("", "no API key"),
        ("# nothing\n\n", "no API key"),
        (f"{KEY}\nshort\n", "line 2"),
        (f"{KEY} # mine\n", "line 1"),
        (b"\xff\xfe\x00", "not text"),
        ("x" * 300_000, "KiB"),
    ],
)
def test_an_invalid_key_file_is_reported_without_keys(tmp_path: Path, data: str | bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        read_key_file(_file(tmp_path, data))
    assert "canary" not in str(caught.value)
    assert "short\n" not in str(caught.value)


def test_an_unreadable_key_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the API keys in .*: No such file"):
        read_key_file(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"cannot read the API keys in .*: Is a directory"):
        read_key_file(tmp_path)


def test_keys_may_be_read_from_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, KEY.encode())
    os.close(writing)
    try:
        assert read_key_file(Path(f"/dev/fd/{reading}")) == ([KEY], None)
    finally:
        os.close(reading)


def test_plain_keys_are_admins_and_named_ones_with_admin_true() -> None:
    named = [KeySettings(name="ci", key=OTHER), KeySettings(name="ops", key=OTHER + "2", admin=True)]
    keys = ApiKeys([KEY], named)
    plain = keys.principal({"x-api-key": KEY})
    assert [keys.is_admin(name) for name in (plain, "ops", "ci", ANONYMOUS)] == [True, True, False, False]
    keys.check_admin("ops")
    with pytest.raises(ApiError) as caught:
        keys.check_admin("ci")
    assert (caught.value.status, caught.value.code) == (403, "not_allowed")


def test_without_keys_everyone_is_an_admin() -> None:
    assert ApiKeys([]).is_admin(ANONYMOUS)
