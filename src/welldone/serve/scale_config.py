"""The tables `[scale]`, `[scale.front]`, `[scale.engine]` and `[scale.engines.NAME]` of welldone.toml."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from welldone.net.hints import nearest
from welldone.net.settings import SettingsError, Source, build, fields_of, from_table, table_of
from welldone.serve.scale_settings import EngineScale, FrontScale, ScaleSettings

SCALE_FIELDS, FRONT_FIELDS, ENGINE_FIELDS = fields_of(ScaleSettings), fields_of(FrontScale), fields_of(EngineScale)


@dataclass(frozen=True, kw_only=True)
class ScaleTables:
    """What the tables say."""

    scale: Source = field(default_factory=dict)
    front: Source = field(default_factory=dict)
    engine: Source = field(default_factory=dict)
    engines: Mapping[str, Source] = field(default_factory=dict)


def read_tables(table: object, where: str, folder: Path) -> ScaleTables:
    """What stands there; a mistake raises `SettingsError`."""
    rest = dict(table_of(table, where))
    front, engine, engines = (rest.pop(name, {}) for name in ("front", "engine", "engines"))
    return ScaleTables(
        scale=from_table(SCALE_FIELDS, rest, where, folder),
        front=from_table(FRONT_FIELDS, front, f"{where}.front", folder),
        engine=from_table(ENGINE_FIELDS, engine, f"{where}.engine", folder),
        engines={
            name: from_table(ENGINE_FIELDS, one, f"{where}.engines.{name}", folder)
            for name, one in table_of(engines, f"{where}.engines").items()
        },
    )


def read_scale(tables: ScaleTables, models: Collection[str], where: str) -> ScaleSettings:
    """What it means; `models` are the names that there are.

    Raises:
        SettingsError: one line that says what to do.
    """
    for name in tables.engines:
        if name not in models:
            raise SettingsError(f"{where}.engines.{name}: there is no model of this name{nearest(name, models)}")
    front = FrontScale(**build(FRONT_FIELDS, [tables.front], {}))
    engine = EngineScale(**build(ENGINE_FIELDS, [tables.engine], {}))
    engines = {
        name: EngineScale(**build(ENGINE_FIELDS, [own, tables.engine], {})) for name, own in tables.engines.items()
    }
    bounded: list[tuple[str, FrontScale | EngineScale]] = [("front", front), ("engine", engine)]
    bounded += [(f"engines.{name}", one) for name, one in engines.items()]
    for place, one in bounded:
        if one.min_replicas > one.max_replicas:
            raise SettingsError(f"{where}.{place}: min_replicas is more than max_replicas")
    return ScaleSettings(**build(SCALE_FIELDS, [tables.scale], {}), front=front, engine=engine, engines=engines)
