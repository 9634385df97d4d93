"""Settings: names, conversion, precedence, and error messages that name the origin."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.public_settings import public_settings
from tests.table import table
from welldone.config.settings import (
    RawSetting,
    Setting,
    SettingsError,
    convert_setting,
    merge_sources,
    read_environment,
    read_table,
    setting_fields,
    setting_group,
)

HERE = Path("/here")
setting = setting_group(Setting, "A")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One field of each kind."""

    plain: str = "not a setting"
    size: int = setting(3, "size", "-c --ctx-size N", limits=(0, 10), words={"auto": None})
    share: float | None = setting(None, "share", "--share X", limits=(None, 1), words={"-1": 0.5})
    mode: str = setting("on", "mode", "--mode MODE", choices="on off", llama="LLAMA_MODE")
    is_quick: bool = setting(False, "quick", "--quick", off="--no-quick")
    file: Path | None = setting(None, "file", "--file FILE")
    named: Path | None = setting(None, "name or file", "--named FILE", is_name_or_file=True)
    modes: tuple[str, ...] = setting((), "modes", "--modes MODES", choices="on off")
    parts: tuple[str, ...] = setting((), "files", "--part FILES", is_file=True)
    keys: tuple[str, ...] = setting((), "keys", "--key KEYS", is_secret=True)
    inside: dict[str, str] = setting({}, "TOML only", is_secret=True)
    mapping: dict[str, object] | None = setting(None, "mapping", "--mapping JSON")


FIELDS = setting_fields(Sample)
BY_NAME = {field.name: field for field in FIELDS}


def _text(name: str, value: str, environment: dict[str, str] | None = None, folder: Path = HERE) -> object:
    return convert_setting(BY_NAME[name], RawSetting(value, "--flag", folder), environment or {})


def _toml(name: str, value: object, environment: dict[str, str] | None = None) -> object:
    return convert_setting(BY_NAME[name], RawSetting(value, "x.toml: a.b", HERE, is_text=False), environment or {})


def test_a_field_without_an_annotation_is_not_a_setting() -> None:
    assert "plain" not in BY_NAME


def test_names_come_from_the_first_long_flag() -> None:
    size = BY_NAME["size"]
    assert (size.keys, size.variables) == (["size", "ctx_size"], ["WELLDONE_CTX_SIZE", "LLAMA_ARG_CTX_SIZE"])
    assert BY_NAME["mode"].variables == ["WELLDONE_MODE", "LLAMA_MODE"]


def test_a_setting_without_a_flag_exists_in_toml_only() -> None:
    assert (BY_NAME["inside"].variables, BY_NAME["inside"].keys) == ([], ["inside"])


@table(
    ("name", "value", "expected"),
    [
        ("size", "0", 0),
        ("size", "+10", 10),
        ("size", "auto", None),
        ("size", "AUTO", None),
        ("share", "0.25", 0.25),
        ("share", "-.5e0", -0.5),
        ("share", "-1", 0.5),
        ("mode", "off", "off"),
        ("is_quick", "yes", True),
        ("is_quick", "OFF", False),
        ("file", "a/b", HERE / "a/b"),
        ("file", "/a", Path("/a")),
        ("file", "~/a", Path.home() / "a"),
        ("named", "default", Path("default")),
        ("named", "a/b", HERE / "a/b"),
        ("named", "./b", HERE / "b"),
        ("modes", "on, off", ("on", "off")),
        ("parts", "a, b,,/c", (str(HERE / "a"), str(HERE / "b"), "/c")),
        ("mapping", '{"a": false}', {"a": False}),
    ],
)
def test_text_is_converted_to_the_type_of_the_field(name: str, value: str, expected: object) -> None:
    assert _text(name, value) == expected


@table(
    ("name", "value", "expected"),
    [
        ("size", 7, 7),
        ("size", "auto", None),
        ("share", 1, 1.0),
        ("share", -1.0, 0.5),
        ("is_quick", True, True),
        ("parts", ["a,b"], (str(HERE / "a,b"),)),
        ("parts", "a", (str(HERE / "a"),)),
        ("inside", {"A": "b"}, {"A": "b"}),
        ("mapping", {"a": 1, "b": "c"}, {"a": 1, "b": "c"}),
    ],
)
def test_toml_values_keep_their_types(name: str, value: object, expected: object) -> None:
    assert _toml(name, value) == expected


@table(
    ("name", "value", "expected"),
    [
        ("size", "x", "--flag should be a whole number or auto, not 'x'"),
        ("size", "1.5", "--flag should be a whole number or auto, not '1.5'"),
        ("size", "", "--flag should be a whole number or auto, not ''"),
        ("size", "9" * 5000, f"--flag should be a whole number or auto, not '{'9' * 60}…'"),
        ("size", "-1", "--flag should be at least 0, not '-1'"),
        ("size", "11", "--flag should be at most 10, not '11'"),
        ("share", "nan", "--flag should be a number, not 'nan'"),
        ("share", "inf", "--flag should be a number, not 'inf'"),
        ("share", "1e99", "--flag should be at most 1, not '1e99'"),
        ("mode", "no", "--flag should be one of on, off, not 'no'"),
        ("mode", "", "--flag should be one of on, off, not ''"),
        ("modes", "on,no", "--flag should be one of on, off, not 'on,no'"),
        ("is_quick", "maybe", "--flag should be true or false, not 'maybe'"),
        (
            "file",
            "~nobody-of-this-name/a",
            "--flag should be a path (there is no such user), not '~nobody-of-this-name/a'",
        ),
        ("mapping", "{", "--flag should be a JSON object, not '{'"),
        ("mapping", "[" * 100_000, f"--flag should be a JSON object, not '{'[' * 60}…'"),
        ("mapping", "[]", "--flag should be a table"),
    ],
)
def test_an_invalid_text_is_reported_with_its_origin(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        _text(name, value)
    assert str(caught.value) == expected


@table(
    ("name", "value", "expected"),
    [
        ("size", "7", "x.toml: a.b should be a whole number or auto, not '\"7\"'"),
        ("size", True, "x.toml: a.b should be a whole number or auto, not 'true'"),
        ("size", 1.0, "x.toml: a.b should be a whole number or auto, not '1.0'"),
        ("share", float("inf"), "x.toml: a.b should be a number, not 'Infinity'"),
        ("share", False, "x.toml: a.b should be a number, not 'false'"),
        ("is_quick", "yes", "x.toml: a.b should be true or false, not '\"yes\"'"),
        ("is_quick", 1, "x.toml: a.b should be true or false, not '1'"),
        ("mode", 5, "x.toml: a.b should be one of on, off, not '5'"),
        ("parts", [1], "x.toml: a.b should be a list of strings, not '[1]'"),
        ("parts", [""], "x.toml: a.b should be a list of strings, not '[\"\"]'"),
        ("mapping", {"a": {}}, "x.toml: a.b should be a table of plain values, not '{\"a\": {}}'"),
        ("mapping", 3, "x.toml: a.b should be a table"),
    ],
)
def test_an_invalid_toml_value_is_reported_with_its_origin(name: str, value: object, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        _toml(name, value)
    assert str(caught.value) == expected


def test_a_word_that_names_a_file_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "phi.gguf").touch()
    assert _text("named", "phi.gguf", folder=tmp_path) == tmp_path / "phi.gguf"
    assert _text("named", "other.gguf", folder=tmp_path) == Path("other.gguf")


def test_a_secret_may_refer_to_the_environment() -> None:
    environment = {"MINE": "secret-1"}
    assert _toml("keys", ["env:MINE", "secret-2"], environment) == ("secret-1", "secret-2")
    assert _text("keys", "env:MINE", environment) == ("secret-1",)
    assert _toml("inside", {"TOKEN": "env:MINE"}, environment) == {"TOKEN": "secret-1"}


def test_env_references_work_for_secrets_only() -> None:
    assert _toml("parts", ["env:MINE"], {"MINE": "x"}) == (str(HERE / "env:MINE"),)


def test_a_missing_environment_variable_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"x\.toml: a\.b names the environment variable MINE, which is not set"):
        _toml("keys", "env:MINE")


@pytest.mark.parametrize("value", [["canary", 1], {"canary": 1}, "canary\0"])
def test_messages_do_not_contain_secrets(value: object) -> None:
    try:
        _toml("keys", value)
        _toml("inside", value)
    except SettingsError as error:
        assert "canary" not in str(error)  # noqa: PT017 - some of them are right


def test_the_first_source_with_a_value_wins() -> None:
    flags = {"size": RawSetting("1", "--size", HERE)}
    environment = read_environment(FIELDS, {"WELLDONE_CTX_SIZE": "2", "WELLDONE_MODE": "off"}, HERE)
    table = read_table(FIELDS, {"size": 3, "mode": "on", "quick": True}, "x.toml: a", HERE)
    assert merge_sources(FIELDS, [flags, environment, table], {}) == {"size": 1, "mode": "off", "is_quick": True}
    assert Sample(**merge_sources(FIELDS, [], {})) == Sample()


def test_welldones_variable_wins_over_llama_servers_and_empty_ones_are_ignored() -> None:
    both = {"WELLDONE_CTX_SIZE": "2", "LLAMA_ARG_CTX_SIZE": "4"}
    assert read_environment(FIELDS, both, HERE)["size"].value == "2"
    assert read_environment(FIELDS, both | {"WELLDONE_CTX_SIZE": ""}, HERE)["size"].origin == "LLAMA_ARG_CTX_SIZE"
    assert read_environment(FIELDS, {"WELLDONE_CTX_SIZE": ""}, HERE) == {}


@pytest.mark.parametrize("key", ["size", "ctx_size", "ctx-size"])
def test_a_toml_key_is_the_name_of_the_field_or_of_the_flag(key: str) -> None:
    assert read_table(FIELDS, {key: 1}, "x.toml: a", HERE)["size"].origin == f"x.toml: a.{key}"


@table(
    ("table", "expected"),
    [
        ({"ctx_sise": 1}, "x.toml: a has no setting 'ctx_sise' (did you mean 'ctx_size'?)"),
        ({"xyzzy": 1}, "x.toml: a has no setting 'xyzzy'"),
        ({"size": 1, "ctx-size": 2}, "x.toml: a.ctx-size and x.toml: a.size are the same setting: keep one"),
        (3, "x.toml: a should be a table"),
    ],
)
def test_an_invalid_table_is_an_error(table: object, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_table(FIELDS, table, "x.toml: a", HERE)
    assert str(caught.value) == expected


def test_public_settings_are_json_without_secrets() -> None:
    sample = Sample(keys=("canary-1",), inside={"a": "canary-2"}, file=Path("/f"), parts=("p",))
    public = public_settings(sample)
    assert (public["keys"], public["inside"], public["file"]) == ("set", "set", "/f")
    assert public_settings(Sample())["keys"] == "not set"
    assert "canary" not in json.dumps(public)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.sampled_from(FIELDS), VALUES, st.booleans())
def test_any_value_is_accepted_or_an_error_of_one_line(field: object, value: object, is_text: bool) -> None:
    assert isinstance(field, type(FIELDS[0]))
    try:
        convert_setting(field, RawSetting(str(value) if is_text else value, "--flag", HERE, is_text=is_text), {})
    except SettingsError as error:
        assert str(error).isprintable()  # noqa: PT017 - most are mistakes, some are not
