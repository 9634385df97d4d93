"""Settings: each is defined once, as a field of a dataclass, from which flag, environment variable, TOML key, help text
and documentation are derived.

    engine_setting = setting_group(Setting, "Engine")
    ctx_size: int = engine_setting(0, "tokens of context", "-c --ctx-size N", limits=(0, None))

Flags take precedence over the environment, the TOML file and the default. An invalid value raises a `SettingsError`
that names its origin: `--port`, `WELLDONE_PORT`, `welldone.toml: server.port`.
"""

import dataclasses
import difflib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin, get_type_hints


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A suggestion for a mistyped word, such as ` (did you mean 'port'?)`, or an empty string."""
    close = difflib.get_close_matches(word, list(candidates), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_name(noun: str, name: str, known: Iterable[str], hint: str) -> str:
    """The error message for a name that does not exist. `hint` tells where the names are listed."""
    return f"there is no {noun} {name!r}{did_you_mean(name, known)}; {hint}"


def unknown_rule(rule: str, known: Iterable[str]) -> str:
    """The error message for a rule that does not exist."""
    return unknown_name("rule", rule, known, "welldone rules lists them")


WILDCARD = "*"


def matches_wildcard(pattern: str, name: str) -> bool:
    """Whether the name matches the pattern, in linear time; `*` matches any characters or none."""
    first, *rest = pattern.split(WILDCARD)
    if not rest:
        return pattern == name
    *middle, last = rest
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle:
        start = name.find(piece, at, end)
        if start < 0:
            return False
        at = start + len(piece)
    return True


HOUR_S, DAY_S = 3_600.0, 86_400.0  # longer timeouts are mistakes
QUEUE_MAX = 100_000  # each queued request holds its body and a connection
_TRUE_WORDS = {"1", "true", "on", "yes", "enabled"}
_FALSE_WORDS = {"0", "false", "off", "no", "disabled"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?", re.IGNORECASE)
_ENV_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_SHOWN_CHARS = 60  # characters of an invalid value in a message: half a line


class SettingsError(Exception):
    """An invalid setting. The message is one line that names the fix, without secrets."""


def flags_of(usage: str) -> list[str]:
    """The flags in a usage such as `-c --ctx-size N`."""
    return [word for word in usage.split() if word.startswith("-")]


@dataclass(frozen=True)
class Setting:
    """Metadata of a setting."""

    group: str
    help: str
    usage: str = ""
    """Flags and metavar: `-c --ctx-size N`. The first long flag is the public name; without flags the setting exists in
    TOML only."""
    _: KW_ONLY
    off: str = ""
    """Flags that turn it off."""
    alone: str | None = None
    """Value of a flag without a value."""
    limits: tuple[float | None, float | None] = (None, None)
    choices: str = ""
    words: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Values of special words."""
    llama: str = ""
    """llama-server's environment variable, where it is not `LLAMA_ARG_` and the setting's name."""
    unset: str = ""
    """The default in words, where its value is not meaningful."""
    is_secret: bool = False
    is_file: bool = False
    """The items of a list are paths."""
    is_name_or_file: bool = False
    """A word that is not the path of a file is kept as a name."""
    is_of_one_model: bool = False
    """It applies to one model only, such as its name."""

    @property
    def flags(self) -> list[str]:
        """The flags that set it, or turn it on."""
        return flags_of(self.usage)

    @property
    def metavar(self) -> str:
        """Placeholder of the value in help."""
        return " ".join(word for word in self.usage.split() if not word.startswith("-"))


SETTING = "setting"
"""Key of a field's metadata that holds its `Setting`."""

DefaultT = TypeVar("DefaultT")
Parameters = ParamSpec("Parameters")


def setting_group(
    make: Callable[Concatenate[str, Parameters], Setting], group: str
) -> Callable[Concatenate[DefaultT, Parameters], DefaultT]:
    """Return a function that declares a setting of the group: its default, then the other arguments of `Setting`."""

    def declare(default: DefaultT, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> DefaultT:
        setting = make(group, *args, **kwargs)
        value: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
        field: DefaultT = dataclasses.field(**value, repr=not setting.is_secret, metadata={SETTING: setting})
        return field

    return declare


@dataclass(frozen=True)
class SettingField:
    """A field of a dataclass with its setting."""

    name: str
    value_type: type
    """The plain type: `int` for `int | None`, `tuple` for `tuple[str, ...]`."""
    default: object
    setting: Setting

    @property
    def public_name(self) -> str:
        """`ctx_size` of `--ctx-size`."""
        long = [flag[2:] for flag in self.setting.flags if flag.startswith("--")]
        return (long or [self.name])[0].replace("-", "_")

    @property
    def keys(self) -> list[str]:
        """Its names in TOML, with `_` for `-`; the first is the documented one."""
        return list(dict.fromkeys((self.name, self.public_name)))

    @property
    def variables(self) -> list[str]:
        """Its environment variables: welldone's, then llama-server's; none for TOML-only settings."""
        name = self.public_name.upper()
        return [f"WELLDONE_{name}", self.setting.llama or f"LLAMA_ARG_{name}"] if self.setting.flags else []


@dataclass(frozen=True)
class RawSetting:
    """An unconverted value with its origin."""

    value: object
    origin: str
    folder: Path
    """Base of relative paths."""
    is_text: bool = True
    """Whether it comes from a flag or the environment, where all values are text."""


SettingSource = Mapping[str, RawSetting]
"""The values of one source, by name of the field."""


def setting_fields(settings_type: type) -> tuple[SettingField, ...]:
    """The settings of a dataclass, without fields that are not declared as settings."""
    hints = get_type_hints(settings_type)
    fields = []
    for field in dataclasses.fields(settings_type):
        if SETTING in field.metadata:
            hint = hints[field.name]
            plain = get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
            default = field.default if field.default_factory is MISSING else field.default_factory()
            fields.append(SettingField(field.name, get_origin(plain) or plain, default, field.metadata[SETTING]))
    return tuple(fields)


def read_environment(
    fields: Iterable[SettingField], environment: Mapping[str, str], folder: Path
) -> dict[str, RawSetting]:
    """The settings in the environment. Empty variables are ignored."""
    raw = {}
    for field in fields:
        name = next((name for name in field.variables if environment.get(name)), None)
        if name is not None:
            raw[field.name] = RawSetting(environment[name], name, folder)
    return raw


def read_table(fields: Iterable[SettingField], table: object, origin: str, folder: Path) -> dict[str, RawSetting]:
    """The settings in a TOML table; `origin` names the table in messages.

    Validates every value, also those that a flag or an environment variable overrides: otherwise a mistake in the file
    would only appear when the flag is removed.
    """
    by_key = {key: field for field in fields for key in field.keys}
    raw: dict[str, RawSetting] = {}
    for key, value in require_table(table, origin).items():
        field = by_key.get(key.replace("-", "_"))
        if field is None:
            raise SettingsError(f"{origin} has no setting {key!r}{did_you_mean(key, by_key)}")
        if field.name in raw:
            raise SettingsError(f"{origin}.{key} and {raw[field.name].origin} are the same setting: keep one")
        raw[field.name] = RawSetting(value, f"{origin}.{key}", folder, is_text=False)
        _typed(field, raw[field.name])
    return raw


def require_table(value: object, origin: str) -> dict[str, object]:
    """The value, which must be a table."""
    if not isinstance(value, dict):
        raise SettingsError(f"{origin} should be a table")
    return value


def merge_sources(
    fields: Iterable[SettingField], sources: Sequence[SettingSource], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The converted values of all settings that a source sets; earlier sources take precedence."""
    values = {}
    for field in fields:
        raw = next((source[field.name] for source in sources if field.name in source), None)
        if raw is not None:
            values[field.name] = convert_setting(field, raw, environment)
    return values


def convert_setting(field: SettingField, raw: RawSetting, environment: Mapping[str, str]) -> object:
    """Convert a value to the type of its field, with secrets read from the environment."""
    if field.setting.is_secret:
        raw = dataclasses.replace(raw, value=_resolve_env_secret(raw.value, raw.origin, environment))
    return _typed(field, raw)


def _typed(field: SettingField, raw: RawSetting) -> object:
    setting = field.setting
    word = f"{raw.value:g}" if isinstance(raw.value, float) else str(raw.value).lower()
    if word in setting.words:
        return setting.words[word]
    choices = setting.choices.split()
    items = list(raw.value.values()) if isinstance(raw.value, dict) else raw.value
    if isinstance(items, str) and field.value_type is tuple:
        items = _list(setting, raw)
    if choices and not all(item in choices for item in (items if isinstance(items, (list, tuple)) else [items])):
        raise _invalid_value(setting, raw, f"one of {', '.join(choices)}")
    return _CONVERTERS[field.value_type](setting, raw)


def _resolve_env_secret(value: object, origin: str, environment: Mapping[str, str]) -> object:
    """Replace `env:NAME`, which keeps secrets out of files and process lists."""
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


def _bool(setting: Setting, raw: RawSetting) -> bool:
    word = str(raw.value).lower()
    if isinstance(raw.value, bool) or (raw.is_text and word in _TRUE_WORDS | _FALSE_WORDS):
        return word in _TRUE_WORDS
    raise _invalid_value(setting, raw, "true or false")


def _number(setting: Setting, raw: RawSetting, *, number_type: type[int] | type[float]) -> float:
    value = raw.value
    if raw.is_text and isinstance(value, str) and (_INTEGER if number_type is int else _NUMBER).fullmatch(value):
        value = number_type(value)
    if not isinstance(value, (int, number_type)) or isinstance(value, bool) or not math.isfinite(value):
        words = "".join(f" or {word}" for word in setting.words if word.isalpha())
        raise _invalid_value(setting, raw, f"a whole number{words}" if number_type is int else "a number")
    low, high = setting.limits
    if low is not None and value < low:
        numbers = "".join(f"{word}, or " for word in setting.words if word.isdigit())
        raise _invalid_value(setting, raw, f"{numbers}at least {low:.15g}")
    if high is not None and value > high:
        raise _invalid_value(setting, raw, f"at most {high:.15g}")
    return number_type(value)


def _text(setting: Setting, raw: RawSetting) -> str:
    if not isinstance(raw.value, str) or not raw.value:
        raise _invalid_value(setting, raw, "a non-empty string")
    return raw.value


def _path(setting: Setting, raw: RawSetting) -> Path:
    relative = Path(_text(setting, raw))
    try:
        path = raw.folder / relative.expanduser()
    except RuntimeError:
        raise _invalid_value(setting, raw, "a path (there is no such user)") from None
    is_name = setting.is_name_or_file and relative.name == raw.value and not path.is_file()
    return relative if is_name else path


def _list(setting: Setting, raw: RawSetting) -> tuple[str, ...]:
    values = raw.value
    if isinstance(values, str):
        values = [piece for word in values.split(",") if (piece := word.strip())]
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise _invalid_value(setting, raw, "a list of strings")
    if setting.is_file:
        return tuple(str(_path(setting, dataclasses.replace(raw, value=value))) for value in values)
    return tuple(values)


def _dict(setting: Setting, raw: RawSetting) -> dict[str, object]:
    value = raw.value
    if raw.is_text and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _invalid_value(setting, raw, "a JSON object") from None
    table = require_table(value, raw.origin)
    if not all(isinstance(item, str | bool | int | float) for item in table.values()):
        raise _invalid_value(setting, raw, "a table of plain values")
    return table


_CONVERTERS: Mapping[type, Callable[[Setting, RawSetting], object]] = {
    bool: _bool,
    int: partial(_number, number_type=int),
    float: partial(_number, number_type=float),
    str: _text,
    Path: _path,
    tuple: _list,
    dict: _dict,
}


def _invalid_value(setting: Setting, raw: RawSetting, expected: str) -> SettingsError:
    text = str(raw.value) if raw.is_text else json.dumps(raw.value, default=str, ensure_ascii=False)
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return SettingsError(f"{raw.origin} should be {expected}" + ("" if setting.is_secret else f", not {shown!r}"))


def install_advice(extra: str) -> str:
    """The command that installs an extra. The package is on no index: it comes from a clone or from a built wheel."""
    return f"pip install '.[{extra}]' in a clone of welldone, or 'FILE.whl[{extra}]' with a built wheel"
