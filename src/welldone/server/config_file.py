"""Reads the tables of `welldone.toml`: unknown keys and invalid values are errors; `config` merges and checks them."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from welldone.config.model import ModelSettings, RequestDefaults
from welldone.config.server import EngineScale, FrontScale, KeySettings, LimitsSettings, ScaleSettings, ServeSettings
from welldone.config.settings import (
    RawSetting,
    SettingField,
    SettingsError,
    SettingSource,
    did_you_mean,
    merge_sources,
    read_table,
    require_table,
    setting_fields,
)
from welldone.config.upstream import UpstreamSettings

SCALE_FIELDS, FRONT_FIELDS, ENGINE_FIELDS = map(setting_fields, (ScaleSettings, FrontScale, EngineScale))
SERVE_FIELDS, MODEL_FIELDS, DEFAULT_FIELDS = map(setting_fields, (ServeSettings, ModelSettings, RequestDefaults))
UPSTREAM_FIELDS, KEY_FIELDS, LIMITS_FIELDS = map(setting_fields, (UpstreamSettings, KeySettings, LimitsSettings))

_FILE_LIMIT_BYTES = 2**20  # a thousand models with ten lines each take a quarter
_MODEL_NAME_LIMIT = 128  # characters; names appear in URLs, logs and metric labels
_LABEL_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")  # safe in routes (no @ or *) and metric labels
_TABLE_NAMES = ("server", "defaults", "models", "upstreams", "routes", "keys", "limits", "scale")


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The unmerged contents of a config file."""

    path: Path | None = None
    server: SettingSource = field(default_factory=dict)
    defaults: SettingSource = field(default_factory=dict)
    models: Mapping[str, SettingSource] = field(default_factory=dict)
    upstreams: Mapping[str, SettingSource] = field(default_factory=dict)
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, SettingSource] = field(default_factory=dict)
    limits: SettingSource = field(default_factory=dict)
    scale: ScaleSettings = field(default_factory=ScaleSettings)

    @property
    def name(self) -> str:
        """Name of the file in messages; empty without a file."""
        return "" if self.path is None else self.path.name


def read_config_file(path: Path | None) -> ConfigFile:
    """Read a config file; empty without a path. Raises `SettingsError`."""
    if path is None:
        return ConfigFile()
    tables = _read_toml(path)
    for key in tables:
        if key not in _TABLE_NAMES:
            raise SettingsError(
                f"{path.name} has no table {key!r}{did_you_mean(key, _TABLE_NAMES)}: write [server], [defaults], "
                "[models.NAME], [upstreams.NAME], [routes], [keys.NAME], [limits] or [scale]"
            )
    folder, origins = path.parent, {name: f"{path.name}: {name}" for name in _TABLE_NAMES}
    models, upstreams = (require_table(tables.get(name, {}), origins[name]) for name in ("models", "upstreams"))
    for name in models:
        check_model_name(name, origins["models"])
    for name in upstreams:
        _check_label(name, origins["upstreams"], f" {name[:_MODEL_NAME_LIMIT]!a}")
    server_fields = [field for field in SERVE_FIELDS if field.name != "config"]
    default_fields = [field for field in MODEL_FIELDS if not field.setting.is_of_one_model]
    return ConfigFile(
        path=path,
        server=read_table(server_fields, tables.get("server", {}), origins["server"], folder),
        defaults=_read_model_table(default_fields, tables.get("defaults", {}), origins["defaults"], folder),
        models={
            name: _read_model_table(MODEL_FIELDS, table, f"{origins['models']}.{name}", folder)
            for name, table in models.items()
        },
        upstreams={
            name: read_table(UPSTREAM_FIELDS, table, f"{origins['upstreams']}.{name}", folder)
            for name, table in upstreams.items()
        },
        routes=_read_route_table(tables.get("routes", {}), origins["routes"]),
        keys=_read_key_tables(tables.get("keys", {}), origins["keys"], folder),
        limits=read_table(LIMITS_FIELDS, tables.get("limits", {}), origins["limits"], folder),
        scale=_read_scale(tables.get("scale", {}), origins["scale"], folder),
    )


def _read_scale(table: object, origin: str, folder: Path) -> ScaleSettings:
    """The tables `[scale]`, `[scale.front]`, `[scale.engine]` and `[scale.engines.NAME]`."""
    rest = dict(require_table(table, origin))
    front = read_table(FRONT_FIELDS, rest.pop("front", {}), f"{origin}.front", folder)
    engine = read_table(ENGINE_FIELDS, rest.pop("engine", {}), f"{origin}.engine", folder)
    engines = {
        name: read_table(ENGINE_FIELDS, own, f"{origin}.engines.{name}", folder)
        for name, own in require_table(rest.pop("engines", {}), f"{origin}.engines").items()
    }
    settings = ScaleSettings(
        **merge_sources(SCALE_FIELDS, [read_table(SCALE_FIELDS, rest, origin, folder)], {}),
        front=FrontScale(**merge_sources(FRONT_FIELDS, [front], {})),
        engine=EngineScale(**merge_sources(ENGINE_FIELDS, [engine], {})),
        engines={name: EngineScale(**merge_sources(ENGINE_FIELDS, [own, engine], {})) for name, own in engines.items()},
    )
    bounded: dict[str, FrontScale | EngineScale] = {"front": settings.front, "engine": settings.engine}
    bounded |= {f"engines.{name}": scale for name, scale in settings.engines.items()}
    for name, scale in bounded.items():
        if scale.min_replicas > scale.max_replicas:
            raise SettingsError(f"{origin}.{name}: min_replicas is more than max_replicas")
    return settings


def check_model_name(name: str, origin: str = "") -> None:
    """Check the name of a model, or a pattern of names; raises `SettingsError`."""
    if not name.isprintable() or name != name.strip() or not 0 < len(name) <= _MODEL_NAME_LIMIT:
        problem = f"invalid model name {name[:_MODEL_NAME_LIMIT]!a}"
        expected = f"expected 1 to {_MODEL_NAME_LIMIT} printable characters without surrounding spaces"
        raise SettingsError(f"{origin}{': ' if origin else ''}{problem}: {expected}")


def _check_label(name: str, origin: str, shown: str = "") -> None:
    if not _LABEL_PATTERN.fullmatch(name):
        raise SettingsError(f"{origin}: invalid name{shown}: expected 1 to 64 letters, digits, dots, - and _")


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_LIMIT_BYTES + 1)
        if len(data) > _FILE_LIMIT_BYTES:
            raise SettingsError(f"{path.name} is longer than {_FILE_LIMIT_BYTES:,} bytes: is it the right file?")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path.name} is not TOML: {error}") from error


def _read_model_table(
    fields: Iterable[SettingField], table: object, origin: str, folder: Path
) -> dict[str, RawSetting]:
    """A model's table and its subtable `defaults`, whose keys are distinct."""
    rest = dict(require_table(table, origin))
    defaults = read_table(DEFAULT_FIELDS, rest.pop("defaults", {}), f"{origin}.defaults", folder)
    return {**read_table(fields, rest, origin, folder), **defaults}


def _read_route_table(table: object, origin: str) -> dict[str, tuple[str, ...]]:
    routes = {}
    for name, value in require_table(table, origin).items():
        check_model_name(name, origin)
        if isinstance(value, dict):
            raise SettingsError(f"{origin}: a name with a dot needs quotes: {_dotted_name(name, value)!a} = 'MODEL'")
        targets = [value] if isinstance(value, str) else value
        if not isinstance(targets, list) or not targets or not all(isinstance(word, str) and word for word in targets):
            raise SettingsError(f'{origin}.{name} should be a string such as "qwen-7b@lab", or a list of strings')
        routes[name] = tuple(targets)
    return routes


def _dotted_name(name: str, value: object) -> str:
    """The unquoted name that TOML parsed as nested tables."""
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    return name[:_MODEL_NAME_LIMIT]


def _read_key_tables(table: object, origin: str, folder: Path) -> dict[str, SettingSource]:
    tables = require_table(table, origin)
    if not all(isinstance(value, dict) for value in tables.values()):
        raise SettingsError(f'{origin}: each key is a table of its own, such as [keys.ci] with key = "env:CI_KEY"')
    for name in tables:
        _check_label(name, origin)  # the name may be a key by mistake: messages do not repeat it
    return {name: read_table(KEY_FIELDS, value, f"{origin}.{name}", folder) for name, value in tables.items()}
