"""A setting is written once, as a field of a dataclass. Its flag, its environment variable, its TOML key, its line of
help and its row in the documents all come from there.

    ctx_size: Annotated[int, Setting("-c --ctx-size N", "tokens of context", "Engine", limits=(0, None))] = 0

Values come from flags, the environment, a TOML file and the default, in this order. A wrong value is a `SettingsError`
that names the place it came from: `--port`, `WELLDONE_PORT`, `welldone.toml: server.port`.
"""

import dataclasses
import difflib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

# What was meant by a word that nobody knows.


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A hint at what was meant, or nothing."""
    close = difflib.get_close_matches(word, list(candidates), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# Names with `*` in them, as users write them for many names at once.


WILDCARD = "*"


def matches_wildcard(pattern: str, name: str) -> bool:
    """Whether the name fits; `*` stands for any letters or none, all else for itself. In linear time."""
    first, *rest = pattern.split(WILDCARD)
    if not rest:
        return pattern == name
    *middle, last = rest
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


_TRUE_WORDS = {"1", "true", "on", "yes", "enabled"}
_FALSE_WORDS = {"0", "false", "off", "no", "disabled"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?", re.IGNORECASE)
_ENV_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_SHOWN_CHARS = 60  # characters of a wrong value that a message shows: half a line


class SettingsError(Exception):
    """The user can mend this: the message is one line that says how. It holds no secret."""


@dataclass(frozen=True)
class Setting:
    """What a field is to the user."""

    usage: str
    """Its flags and what follows them: `-c --ctx-size N`. The first long flag gives the setting its name outside; with
    none at all it is written in TOML only."""
    help: str
    group: str
    _: KW_ONLY
    off: str = ""
    """Flags that turn it off."""
    alone: str | None = None
    """What a flag without a value means."""
    limits: tuple[float | None, float | None] = (None, None)
    choices: str = ""
    words: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Values that are written as something else."""
    llama: str = ""
    """llama-server's environment variable, where it is not `LLAMA_ARG_` and the setting's name."""
    unset: str = ""
    """The default in words, where its value says little."""
    is_secret: bool = False
    is_file: bool = False
    """The words of a list are paths."""
    is_name_or_file: bool = False
    """A word that is no file's path stays as it is."""
    is_of_one_model: bool = False
    """It makes sense for one model only, such as its name."""

    @property
    def flags(self) -> list[str]:
        """The flags that set it, or turn it on."""
        return [word for word in self.usage.split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """What the value is called in help."""
        return " ".join(word for word in self.usage.split() if not word.startswith("-"))


@dataclass(frozen=True)
class SettingField:
    """One setting as the code has it."""

    name: str
    value_type: type
    """`int` also of `int | None`, and `tuple` of `tuple[str, ...]`."""
    default: object
    setting: Setting

    @property
    def public_name(self) -> str:
        """`ctx_size` of `--ctx-size`."""
        long = [flag[2:] for flag in self.setting.flags if flag.startswith("--")]
        return (long or [self.name])[0].replace("-", "_")

    @property
    def keys(self) -> list[str]:
        """Its names in TOML, with `_` for `-`; the first is the one to write."""
        return list(dict.fromkeys((self.name, self.public_name)))

    @property
    def variables(self) -> list[str]:
        """Its names in the environment: ours, then llama-server's. None for what is written in TOML only."""
        name = self.public_name.upper()
        return [f"WELLDONE_{name}", self.setting.llama or f"LLAMA_ARG_{name}"] if self.setting.flags else []


@dataclass(frozen=True)
class RawSetting:
    """A value as the user wrote it."""

    value: object
    origin: str
    folder: Path
    """What a relative path is relative to."""
    is_text: bool = True
    """From a flag or the environment, where all values are text."""


SettingSource = Mapping[str, RawSetting]
"""What one place says, by the names of fields."""


def setting_fields(settings_type: type) -> tuple[SettingField, ...]:
    """The settings of a dataclass; fields that are not annotated as settings are left out."""
    hints = get_type_hints(settings_type, include_extras=True)
    return tuple(
        SettingField(field.name, _base_type(get_args(hint)[0]), _default(field), get_args(hint)[1])
        for field in dataclasses.fields(settings_type)
        if get_origin(hint := hints[field.name]) is Annotated
    )


def _base_type(hint: object) -> type:
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    plain = get_origin(hint) or hint
    assert isinstance(plain, type), hint
    return plain


def _default(field: "dataclasses.Field[object]") -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def read_environment(
    fields: Iterable[SettingField], environment: Mapping[str, str], folder: Path
) -> dict[str, RawSetting]:
    """What the environment says. An empty variable says nothing."""
    found = {}
    for field in fields:
        name = next((name for name in field.variables if environment.get(name)), None)
        if name is not None:
            found[field.name] = RawSetting(environment[name], name, folder)
    return found


def read_table(fields: Iterable[SettingField], table: object, origin: str, folder: Path) -> dict[str, RawSetting]:
    """The settings of a table of a TOML file; `where` is what messages call the table.

    Every value is checked, also one that a flag or an environment variable overrides: a mistake in a file would
    otherwise appear on the day when the flag is left out.
    """
    by_key = {key: field for field in fields for key in field.keys}
    found: dict[str, RawSetting] = {}
    for key, value in require_table(table, origin).items():
        field = by_key.get(key.replace("-", "_"))
        if field is None:
            raise SettingsError(f"{origin} has no setting {key!r}{did_you_mean(key, by_key)}")
        if field.name in found:
            raise SettingsError(f"{origin}.{key} and {found[field.name].origin} are the same setting: keep one")
        found[field.name] = RawSetting(value, f"{origin}.{key}", folder, is_text=False)
        _typed(field, found[field.name])
    return found


def require_table(value: object, origin: str) -> dict[str, object]:
    """The value, if it is a table."""
    if not isinstance(value, dict):
        raise SettingsError(f"{origin} should be a table")
    return value


def merge_sources(
    fields: Iterable[SettingField], sources: Sequence[SettingSource], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The values that the sources set; the first that speaks of a setting wins. What is unsaid is left out."""
    values = {}
    for field in fields:
        given = next((source[field.name] for source in sources if field.name in source), None)
        if given is not None:
            values[field.name] = convert_setting(field, given, environment)
    return values


def convert_setting(field: SettingField, given: RawSetting, environment: Mapping[str, str]) -> object:
    """The value as the code wants it."""
    if field.setting.is_secret:
        given = dataclasses.replace(given, value=_resolve_env_secret(given.value, given.origin, environment))
    return _typed(field, given)


def _typed(field: SettingField, given: RawSetting) -> object:
    """The value as the code wants it; secrets stay as they are written."""
    setting = field.setting
    word = f"{given.value:g}" if isinstance(given.value, float) else str(given.value).lower()
    if word in setting.words:
        return setting.words[word]
    choices = setting.choices.split()
    items = given.value if isinstance(given.value, list) else [given.value]
    if choices and not all(item in choices for item in items):
        raise _invalid_value(setting, given, f"one of {', '.join(choices)}")
    return _CONVERTERS[field.value_type](setting, given)


def _resolve_env_secret(value: object, origin: str, environment: Mapping[str, str]) -> object:
    """Secrets may be written as `env:NAME`, so that they stand in no file and in no list of processes."""
    if isinstance(value, list):
        return [_resolve_env_secret(item, origin, environment) for item in value]
    if isinstance(value, dict):
        return {key: _resolve_env_secret(item, origin, environment) for key, item in value.items()}
    match = _ENV_REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if not environment.get(match[1]):
        raise SettingsError(f"{origin} names the environment variable {match[1]}, which is not set")
    return environment[match[1]]


def _bool(setting: Setting, given: RawSetting) -> bool:
    word = str(given.value).lower()
    if isinstance(given.value, bool) or (given.is_text and word in _TRUE_WORDS | _FALSE_WORDS):
        return word in _TRUE_WORDS
    raise _invalid_value(setting, given, "true or false")


def _int(setting: Setting, given: RawSetting) -> int:
    value = given.value
    if given.is_text and isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid_value(setting, given, f"a whole number{_or_words(setting)}")
    _check_limits(setting, given, value)
    return value


def _or_words(setting: Setting) -> str:
    """The words that may stand for a number."""
    return "".join(f" or {word}" for word in setting.words if word.isalpha())


def _float(setting: Setting, given: RawSetting) -> float:
    value = given.value
    if given.is_text and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _invalid_value(setting, given, "a number")
    _check_limits(setting, given, value)
    return float(value)


def _check_limits(setting: Setting, given: RawSetting, value: float) -> None:
    low, high = setting.limits
    if not math.isfinite(value):
        raise _invalid_value(setting, given, "a number")
    if low is not None and value < low:
        numbers = "".join(f"{word}, or " for word in setting.words if word.isdigit())
        raise _invalid_value(setting, given, f"{numbers}at least {low:.15g}")
    if high is not None and value > high:
        raise _invalid_value(setting, given, f"at most {high:.15g}")


def _text(setting: Setting, given: RawSetting) -> str:
    if not isinstance(given.value, str) or not given.value:
        raise _invalid_value(setting, given, "text that is not empty")
    return given.value


def _path(setting: Setting, given: RawSetting) -> Path:
    said = Path(_text(setting, given))
    try:
        path = given.folder / said.expanduser()
    except RuntimeError:
        raise _invalid_value(setting, given, "a path (there is no such user)") from None
    is_name = setting.is_name_or_file and said.name == given.value and not path.is_file()
    return said if is_name else path


def _list(setting: Setting, given: RawSetting) -> tuple[str, ...]:
    values = given.value
    if isinstance(values, str):
        values = [part for word in values.split(",") if (part := word.strip())]
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise _invalid_value(setting, given, "a list of texts")
    if setting.is_file:
        return tuple(str(_path(setting, dataclasses.replace(given, value=value))) for value in values)
    return tuple(values)


def _dict(setting: Setting, given: RawSetting) -> dict[str, object]:
    value = given.value
    if given.is_text and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _invalid_value(setting, given, "a JSON object") from None
    table = require_table(value, given.origin)
    if not all(isinstance(item, str | bool | int | float) for item in table.values()):
        raise _invalid_value(setting, given, "a table of plain values")
    return table


_CONVERTERS: Mapping[type, Callable[[Setting, RawSetting], object]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _text,
    Path: _path,
    tuple: _list,
    dict: _dict,
}


def _invalid_value(setting: Setting, given: RawSetting, expected: str) -> SettingsError:
    text = str(given.value) if given.is_text else json.dumps(given.value, default=str, ensure_ascii=False)
    came = "" if setting.is_secret else f", not {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '…'!r}"
    return SettingsError(f"{given.origin} should be {expected}{came}")


def public_settings(settings: object) -> dict[str, object]:
    """The settings by name, as JSON has them, with secrets only said to be set or not."""
    values: dict[str, object] = {}
    for field in setting_fields(type(settings)):
        value = getattr(settings, field.name)
        if field.setting.is_secret:
            values[field.name] = "set" if value else "not set"
        else:
            values[field.name] = str(value) if isinstance(value, Path) else value
    return values
