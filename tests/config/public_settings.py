"""Settings as JSON values without secrets: what a test may print of them."""

from pathlib import Path

from welldone.config.server import Config
from welldone.config.settings import setting_fields


def public_settings(settings: object) -> dict[str, object]:
    """Return the settings by name; secrets appear as `set` or `not set`."""
    values: dict[str, object] = {}
    for field in setting_fields(type(settings)):
        value = getattr(settings, field.name)
        if field.setting.is_secret:
            values[field.name] = "set" if value else "not set"
        else:
            values[field.name] = str(value) if isinstance(value, Path) else value
    return values


def public_config(config: Config) -> dict[str, object]:
    """Return all settings."""
    scale = config.scale
    return {
        "server": public_settings(config.server),
        "models": [{"name": one.name, **public_settings(one), "defaults": one.defaults} for one in config.models],
        "upstreams": [{"name": one.name, **public_settings(one)} for one in config.upstreams],
        "routes": {name: list(targets) for name, targets in config.routes.items()},
        "keys": [{"name": one.name, **public_settings(one)} for one in config.keys],
        "limits": public_settings(config.limits),
        "scale": {
            **public_settings(scale),
            "front": public_settings(scale.front),
            "engine": public_settings(scale.engine),
            "engines": {name: public_settings(engine) for name, engine in scale.engines.items()},
        },
    }
