"""Reload of the configuration: which settings change, which need a restart, and the report."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.server import RELOADED_SETTINGS, Config, KeySettings
from welldone.config.upstream import UpstreamSettings

ReloadOutcome = Literal["applied", "unchanged", "failed"]


class ReloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reload, and the reply to `POST /admin/reload`."""

    outcome: ReloadOutcome
    file: str | None = None
    """The configuration file, if there is one."""
    error: str | None = None
    """Why it failed: the file, the setting and what to do."""
    changes: tuple[str, ...] = ()
    """One line for each kind of change, such as `upstreams: added gpu2`."""
    warnings: tuple[str, ...] = ()


class NewConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A checked configuration that can be applied."""

    config: Config
    keys: tuple[str, ...]
    """The API keys without a name."""
    places: tuple[str, ...] | None = None
    """Order of the principals in the rate limits that worker processes share."""


def keep_fixed_settings(before: Config, new: Config) -> tuple[Config, list[str]]:
    """Return the new configuration with the old values of settings that need a restart, and warnings about them."""
    fixed = {
        field.name: getattr(before.server, field.name)
        for field in dataclasses.fields(before.server)
        if field.name not in RELOADED_SETTINGS
    }
    changed = [f"server.{name}" for name, value in fixed.items() if getattr(new.server, name) != value]
    changed += ["limits.store"] if new.limits != before.limits else []
    changed += ["scale"] if new.scale != before.scale else []
    kept = dataclasses.replace(
        new, server=dataclasses.replace(new.server, **fixed), limits=before.limits, scale=before.scale
    )
    return kept, [f"a change of {name} needs a restart: the present value stays" for name in changed]


def describe_changes(before: Config, new: Config, old_keys: Collection[str], keys: Collection[str]) -> tuple[str, ...]:
    """Return a line for each kind of change, without secrets."""
    tables: list[tuple[str, Mapping[str, object], Mapping[str, object]]] = [
        ("upstreams", _by_name(before.upstreams), _by_name(new.upstreams)),
        ("routes", before.routes, new.routes),
        ("models", _by_name(before.models), _by_name(new.models)),
        ("keys", _by_name(before.keys), _by_name(new.keys)),
    ]
    lines = [line for name, old, now in tables if (line := _describe_table(name, old, now))]
    unnamed = {"added": len({*keys} - {*old_keys}), "removed": len({*old_keys} - {*keys})}
    counts = [f"{verb} {count}" for verb, count in unnamed.items() if count]
    lines += [f"keys without a name: {', '.join(counts)}"] if counts else []
    names = [
        field.name
        for field in dataclasses.fields(before.server)
        if field.name not in ("config", "api_keys", "upstreams")
        and getattr(before.server, field.name) != getattr(new.server, field.name)
    ]
    return (*lines, *([f"server: changed {', '.join(names)}"] if names else []))


def _by_name(tables: Iterable[UpstreamSettings | ModelSettings | KeySettings]) -> dict[str, object]:
    return {table.name: table for table in tables}


def _describe_table(table: str, old: Mapping[str, object], new: Mapping[str, object]) -> str:
    names = {
        "added": [name for name in new if name not in old],
        "changed": [name for name in new if name in old and new[name] != old[name]],
        "removed": [name for name in old if name not in new],
    }
    changes = "; ".join(f"{verb} {', '.join(some)}" for verb, some in names.items() if some)
    return f"{table}: {changes}" if changes else ""
