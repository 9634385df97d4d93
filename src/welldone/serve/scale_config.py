"""The tables `[scale]`, `[scale.front]`, `[scale.engine]` and `[scale.engines.NAME]` of welldone.toml."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from welldone.net.hints import did_you_mean
from welldone.net.settings import SettingsError, SettingSource, merge_sources, setting_fields, read_table, require_table
from welldone.serve.scale_settings import EngineScale, FrontScale, ScaleSettings

SCALE_FIELDS, FRONT_FIELDS, ENGINE_FIELDS = (
    setting_fields(ScaleSettings),
    setting_fields(FrontScale),
    setting_fields(EngineScale),
)


@dataclass(frozen=True, kw_only=True)
class ScaleTables:
    """What the tables say."""

    scale: SettingSource = field(default_factory=dict)
    front: SettingSource = field(default_factory=dict)
    engine: SettingSource = field(default_factory=dict)
    engines: Mapping[str, SettingSource] = field(default_factory=dict)


def read_scale_tables(table: object, where: str, folder: Path) -> ScaleTables:
    """What stands there; a mistake raises `SettingsError`."""
    rest = dict(require_table(table, where))
    front, engine, engines = (rest.pop(name, {}) for name in ("front", "engine", "engines"))
    return ScaleTables(
        scale=read_table(SCALE_FIELDS, rest, where, folder),
        front=read_table(FRONT_FIELDS, front, f"{where}.front", folder),
        engine=read_table(ENGINE_FIELDS, engine, f"{where}.engine", folder),
        engines={
            name: read_table(ENGINE_FIELDS, one, f"{where}.engines.{name}", folder)
            for name, one in require_table(engines, f"{where}.engines").items()
        },
    )


def read_scale(tables: ScaleTables, models: Collection[str], where: str) -> ScaleSettings:
    """What it means; `models` are the names that there are.

    Raises:
        SettingsError: one line that says what to do.
    """
    for name in tables.engines:
        if name not in models:
            raise SettingsError(f"{where}.engines.{name}: there is no model of this name{did_you_mean(name, models)}")
    front = FrontScale(**merge_sources(FRONT_FIELDS, [tables.front], {}))
    engine = EngineScale(**merge_sources(ENGINE_FIELDS, [tables.engine], {}))
    engines = {
        name: EngineScale(**merge_sources(ENGINE_FIELDS, [own, tables.engine], {}))
        for name, own in tables.engines.items()
    }
    bounded: list[tuple[str, FrontScale | EngineScale]] = [("front", front), ("engine", engine)]
    bounded += [(f"engines.{name}", one) for name, one in engines.items()]
    for place, one in bounded:
        if one.min_replicas > one.max_replicas:
            raise SettingsError(f"{where}.{place}: min_replicas is more than max_replicas")
    return ScaleSettings(**merge_sources(SCALE_FIELDS, [tables.scale], {}), front=front, engine=engine, engines=engines)
