"""Reads the configuration from flags, the environment and `welldone.toml`, and validates it as a whole."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from welldone.config import builtin_model
from welldone.config.model import LLAMA_SLOTS, ModelSettings
from welldone.config.server import CONFIG_FILE_NAME, Config, LimitsSettings, ServeSettings
from welldone.config.settings import SettingsError, SettingSource, merge_sources, read_environment
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.keys import ApiKeys
from welldone.server.access.origins import OriginPolicy, is_loopback
from welldone.server.config_file import (
    DEFAULT_FIELDS,
    LIMITS_FIELDS,
    MODEL_FIELDS,
    SERVE_FIELDS,
    ConfigFile,
    check_model_name,
    read_config_file,
    read_scale,
)
from welldone.server.upstream_config import LocatedUpstream, read_named_keys, read_upstreams

_DATABASE_PATH = re.compile(r"/?|/[0-9]{1,5}")


def read_limits(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> LimitsSettings:
    """The settings of the shared store. Error messages do not contain its URL, which may hold a password.

    Raises:
        SettingsError: the URL is invalid, or the package for it is not installed.
    """
    limits = LimitsSettings(**merge_sources(LIMITS_FIELDS, sources, environment))
    if limits.store is not None:
        origin = next(source["store"].origin for source in sources if "store" in source)
        if reason := invalid_store_url_reason(limits.store):
            raise SettingsError(f"{origin} {reason}")
        if importlib.util.find_spec("redis") is None:
            raise SettingsError(f"{origin} needs the package redis: pip install 'welldone[redis]'")
    return limits


def invalid_store_url_reason(url: str) -> str | None:
    """Why this is not the URL of a Redis; None if it is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL: write redis://HOST:6379/0, and in a password %40 for @ and %2F for /"
    if parts.scheme not in ("redis", "rediss", "unix"):
        return "should be a URL such as redis://HOST:6379/0, rediss://HOST:6379/0 (with TLS) or unix:///PATH"
    if parts.query or parts.fragment:
        return "should end with the database: write %3F for ? and %23 for # in a password"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "should name a socket: unix:///PATH"
    if not host:
        return "should name a host: redis://HOST:6379/0"
    if not _DATABASE_PATH.fullmatch(parts.path):
        return "should end with the number of a database: redis://HOST:6379/0"
    return None


_SPLIT_FILE_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")  # files of a split model, as named by llama.cpp

ALL_FIELDS = (*MODEL_FIELDS, *DEFAULT_FIELDS, *SERVE_FIELDS, *LIMITS_FIELDS)
_FIELD_BY_NAME = {field.name: field for field in ALL_FIELDS}


def read_config(flags: SettingSource, environment: Mapping[str, str], *, folder: Path) -> Config:
    """Read all settings. `folder` is the working directory.

    Raises:
        SettingsError: one line that names the fix.
    """
    overrides = {**read_environment(ALL_FIELDS, environment, folder), **flags}
    file = read_config_file(_config_path(overrides, folder))
    server = ServeSettings(**merge_sources(SERVE_FIELDS, [overrides, file.server], environment) | {"config": file.path})
    _check_server(server)
    upstreams, upstream_warnings = read_upstreams(server, [overrides, file.server], file, environment)
    models, model_warnings = _build_models(overrides, file, environment, has_upstreams=bool(upstreams))
    keys = read_named_keys(server, file, environment)
    limits = read_limits([overrides, file.limits], environment)
    _check_model_names([model for _, model in models])
    _check_upstream_names(upstreams, file, {name for _, model in models for name in (model.name, *model.aliases)})
    for key in keys:
        for name in key.models:
            check_model_name(name, f"{file.name}: keys.{key.name}.models")
    if server.workers > 1 and models:
        raise SettingsError("--workers is not supported with local models: remove it")
    return Config(
        server=server,
        models=tuple(model for _, model in models),
        upstreams=tuple(upstream for _, upstream in upstreams),
        routes=file.routes,
        keys=keys,
        limits=limits,
        scale=read_scale(file.scale, {*file.models, *(model.name for _, model in models)}, f"{file.name}: scale"),
        warnings=(*upstream_warnings, *model_warnings),
        model_locations={model.name: f"{file.name}: models.{table}" for table, model in models if table is not None},
        upstream_locations={upstream.name: origin for origin, upstream in upstreams},
    )


def _config_path(overrides: SettingSource, folder: Path) -> Path | None:
    default = folder / CONFIG_FILE_NAME
    path: Path | None = merge_sources([_FIELD_BY_NAME["config"]], [overrides], {}).get(
        "config", default if default.is_file() else None
    )
    return path


_ModelEntry = tuple[str | None, ModelSettings]
"""Name of the model's TOML table, if it has one, and its settings."""


def _build_models(
    overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str], *, has_upstreams: bool
) -> tuple[list[_ModelEntry], list[str]]:
    """The models to serve, and warnings. With `-m` only that model is served."""
    if "file" not in overrides:
        if has_upstreams and not file.models:
            return [], _unused_warnings(overrides)
        _check_single_model(overrides, file)
        return [(name, _build_model(name, overrides, file, environment)) for name in file.models or [None]], []
    selected = overrides["file"]
    name: str | None = _find_model_table(file, str(selected.value))
    if name is not None:  # `-m` names a table, which has the file
        overrides = {key: raw for key, raw in overrides.items() if key != "file"}
    else:
        own = _model_names(merge_sources(MODEL_FIELDS, [overrides], environment))[0]
        name = own if own in file.models else None
    others = len(file.models) - (name is not None)
    warning = f"{selected.origin}: only this model is served; the other models of {file.name} are not ({others})"
    return [(name, _build_model(name, overrides, file, environment))], [warning] if others else []


def _find_model_table(file: ConfigFile, name_or_alias: str) -> str | None:
    """The TOML table of the model with this name or alias."""
    for name, source in file.models.items():
        if name_or_alias in (name, *merge_sources([_FIELD_BY_NAME["aliases"]], [source], {}).get("aliases", ())):
            return name
    return None


def _unused_warnings(overrides: SettingSource) -> list[str]:
    unused = [overrides[field.name].origin for field in (*MODEL_FIELDS, *DEFAULT_FIELDS) if field.name in overrides]
    return [f"{', '.join(unused)}: unused, since only upstreams are configured; name a model with -m"] if unused else []


def _build_model(
    name: str | None, overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str]
) -> ModelSettings:
    """The model of a TOML table, or of flags and environment alone."""
    sources = [overrides, file.models.get(name, {}) if name is not None else {}, file.defaults]
    values = merge_sources(MODEL_FIELDS, sources, environment)
    defaults = merge_sources(DEFAULT_FIELDS, sources, environment)
    names = _model_names(values) if name is None or "aliases" in overrides else (name, *values.get("aliases", ()))
    values["aliases"] = tuple(alias for alias in dict.fromkeys(names) if alias != names[0])
    values["defaults"] = {key: value for key, value in defaults.items() if value is not None}
    model = ModelSettings(name=names[0], **values)
    if name is not None and model.file is None and not model.command:
        raise SettingsError(f'{file.name}: models.{name} needs a file, such as file = "default", or a command')
    _check_model(model)
    return model


def _model_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The configured names of a model, else the name of its file; the first one is the id."""
    if values.get("aliases"):
        return tuple(values["aliases"])
    file = values.get("file")
    if file is None or builtin_model.is_builtin_name(str(file)):
        return (builtin_model.DEFAULT_MODEL.name, *builtin_model.DEFAULT_MODEL.aliases)
    return (_SPLIT_FILE_SUFFIX.sub("", file.stem if file.suffix == ".gguf" else file.name),)


def _check_single_model(overrides: SettingSource, file: ConfigFile) -> None:
    for key, raw in overrides.items():
        if _FIELD_BY_NAME[key].setting.is_of_one_model and len(file.models) > 1:
            raise SettingsError(
                f"{raw.origin} applies to one model, but {file.name} has {len(file.models)}: choose one with -m NAME"
            )


def _check_model(model: ModelSettings) -> None:
    origin = f"model {model.name!r}"
    for name in (model.name, *model.aliases):
        check_model_name(name)
    if model.file is not None and model.command:
        raise SettingsError(f"{origin} has both a file and a command: keep one")
    if model.command and not any(name in word for word in model.command for name in ("{port}", "{socket}")):
        raise SettingsError(f"{origin}: its command must contain {{port}} or {{socket}}")
    if not model.command and model.parallel > LLAMA_SLOTS:
        raise SettingsError(f"{origin}: llama.cpp has {LLAMA_SLOTS} slots at most")
    if model.embeddings and model.reranking:
        raise SettingsError(f"{origin} cannot have both --embeddings and --reranking: keep one")
    if model.chat_template and model.chat_template_file:
        raise SettingsError(f"{origin} has both --chat-template and --chat-template-file: keep one")


def _check_model_names(models: Sequence[ModelSettings]) -> None:
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if name in owners:
                raise SettingsError(f"models {owners[name]!r} and {model.name!r} are both named {name!r}")
            owners[name] = model.name


def _check_upstream_names(upstreams: Sequence[LocatedUpstream], file: ConfigFile, local_names: set[str]) -> None:
    """Check that no upstream model or route has the name of a local model."""
    configured = [(f"{origin}.models", name) for origin, upstream in upstreams for name in upstream.models]
    for origin, name in (*configured, *((f"{file.name}: routes", name) for name in file.routes)):
        check_model_name(name, origin)
        if name in local_names:
            raise SettingsError(f"{origin}: {name!r} is also the name of a local model: rename one of them")


def _check_server(server: ServeSettings) -> None:
    if (server.ssl_cert_file is None) != (server.ssl_key_file is None):
        raise SettingsError("TLS needs both --ssl-cert-file and --ssl-key-file")
    if "/" in server.host or "," in server.host:
        raise SettingsError("--host should be one name or address; Unix sockets are not supported")
    if server.no_api_key and (server.api_keys or server.api_key_file):
        raise SettingsError("--no-api-key conflicts with the configured keys: keep one")
    if server.verbose and server.quiet:
        raise SettingsError("--verbose conflicts with --quiet: keep one")
    for flag, hosts, origins in (
        ("--allowed-hosts", server.allowed_hosts, ()),
        ("--cors-origins", (), server.cors_origins),
    ):
        try:
            OriginPolicy(host=server.host, port=server.port, allowed_hosts=hosts, cors_origins=origins, is_tls=False)
        except ValueError as error:
            raise SettingsError(f"{flag}: {error}") from error
    try:
        ApiKeys(server.api_keys)
    except ValueError as error:
        raise SettingsError(f"--api-key: {error}") from error
    if any(is_weak_key(key) for key in server.api_keys) and not is_loopback(server.host):
        raise SettingsError(f"--api-key: a key is shorter than {MIN_KEY_LENGTH} characters and can be guessed")
