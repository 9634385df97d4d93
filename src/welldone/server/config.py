"""Settings are read here: from flags, then the environment, then `welldone.toml`, and checked together."""

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

# The address of the store of shared limits and keys, out of flags and the file, and checked. No message shows it.


_DATABASE_PATH = re.compile(r"/?|/[0-9]{1,5}")


def read_limits(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> LimitsSettings:
    """Where limits are counted.

    Raises:
        SettingsError: the address is none, or the library for it is not there.
    """
    limits = LimitsSettings(**merge_sources(LIMITS_FIELDS, sources, environment))
    if limits.store is not None:
        where = next(source["store"].origin for source in sources if "store" in source)
        if why := invalid_store_url_reason(limits.store):
            raise SettingsError(f"{where} {why}")
        if importlib.util.find_spec("redis") is None:
            raise SettingsError(f"{where} needs the package redis: pip install 'welldone[redis]'")
    return limits


def invalid_store_url_reason(url: str) -> str | None:
    """Why this is no address of a Redis."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL: write redis://HOST:6379/0, and in a password %40 for @ and %2F for /"
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


_SPLIT_FILE_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")  # how llama.cpp names the files of a split model

ALL_FIELDS = (*MODEL_FIELDS, *DEFAULT_FIELDS, *SERVE_FIELDS, *LIMITS_FIELDS)
_FIELD_BY_NAME = {field.name: field for field in ALL_FIELDS}


def read_config(flags: SettingSource, environment: Mapping[str, str], *, folder: Path) -> Config:
    """All settings. `folder` is the one that the user is in.

    Raises:
        SettingsError: one line that says what to do.
    """
    said = {**read_environment(ALL_FIELDS, environment, folder), **flags}
    file = read_config_file(_config_path(said, folder))
    server = ServeSettings(**merge_sources(SERVE_FIELDS, [said, file.server], environment) | {"config": file.path})
    _check_server(server)
    upstreams, notes = read_upstreams(server, [said, file.server], file, environment)
    models, more = _build_models(said, file, environment, has_upstreams=bool(upstreams))
    keys = read_named_keys(server, file, environment)
    limits = read_limits([said, file.limits], environment)
    _check_model_names([model for _, model in models])
    _check_upstream_names(upstreams, file, {name for _, model in models for name in (model.name, *model.aliases)})
    for key in keys:
        for name in key.models:
            check_model_name(name, f"{file.name}: keys.{key.name}.models")
    if server.workers > 1 and models:
        raise SettingsError("--workers is for a server that has upstreams and no model of its own: leave it out")
    return Config(
        server=server,
        models=tuple(model for _, model in models),
        upstreams=tuple(upstream for _, upstream in upstreams),
        routes=file.routes,
        keys=keys,
        limits=limits,
        scale=read_scale(file.scale, {*file.models, *(model.name for _, model in models)}, f"{file.name}: scale"),
        warnings=(*notes, *more),
        model_locations={model.name: f"{file.name}: models.{table}" for table, model in models if table is not None},
        upstream_locations={upstream.name: place for place, upstream in upstreams},
    )


def _config_path(overrides: SettingSource, folder: Path) -> Path | None:
    beside = folder / CONFIG_FILE_NAME
    path: Path | None = merge_sources([_FIELD_BY_NAME["config"]], [overrides], {}).get(
        "config", beside if beside.is_file() else None
    )
    return path


_ModelEntry = tuple[str | None, ModelSettings]
"""The name of a model's table in the file, if it has one, and the model."""


def _build_models(
    overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str], *, has_upstreams: bool
) -> tuple[list[_ModelEntry], list[str]]:
    """The models to serve, and what to say about them. With `-m` it is that one alone."""
    if "file" not in overrides:
        if has_upstreams and not file.models:
            return [], _unused_warnings(overrides)
        _check_single_model(overrides, file)
        return [(name, _build_model(name, overrides, file, environment)) for name in file.models or [None]], []
    meant = overrides["file"]
    name: str | None = _find_model_table(file, str(meant.value))
    if name is not None:  # the file says what it is
        overrides = {key: given for key, given in overrides.items() if key != "file"}
    else:
        own = _model_names(merge_sources(MODEL_FIELDS, [overrides], environment))[0]
        name = own if own in file.models else None
    others = len(file.models) - (name is not None)
    notes = [f"{meant.origin}: it is served alone, without the {others} other models of {file.name}"] if others else []
    return [(name, _build_model(name, overrides, file, environment))], notes


def _find_model_table(file: ConfigFile, name_or_alias: str) -> str | None:
    """The model of the file with this name or alias."""
    for name, source in file.models.items():
        if name_or_alias in (name, *merge_sources([_FIELD_BY_NAME["aliases"]], [source], {}).get("aliases", ())):
            return name
    return None


def _unused_warnings(overrides: SettingSource) -> list[str]:
    """Settings of models, where there are only upstreams."""
    unused = [overrides[field.name].origin for field in (*MODEL_FIELDS, *DEFAULT_FIELDS) if field.name in overrides]
    return [f"{', '.join(unused)}: unused, for there are only upstreams; name a model with -m"] if unused else []


def _build_model(
    name: str | None, overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str]
) -> ModelSettings:
    """The model of this name in the file, or the one that flags and environment make."""
    sources = [overrides, file.models.get(name, {}) if name is not None else {}, file.defaults]
    values = merge_sources(MODEL_FIELDS, sources, environment)
    defaults = merge_sources(DEFAULT_FIELDS, sources, environment)
    own = _model_names(values) if name is None or "aliases" in overrides else (name, *values.get("aliases", ()))
    values["aliases"] = tuple(alias for alias in dict.fromkeys(own) if alias != own[0])
    values["defaults"] = {key: value for key, value in defaults.items() if value is not None}
    model = ModelSettings(name=own[0], **values)
    if name is not None and model.file is None and not model.command:
        raise SettingsError(f'{file.name}: models.{name} needs a file, such as file = "default", or a command')
    _check_model(model)
    return model


def _model_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A model's names, the first before its aliases: those it was given, else its file's."""
    if values.get("aliases"):
        return tuple(values["aliases"])
    file = values.get("file")
    if file is None or builtin_model.is_builtin_name(str(file)):
        return (builtin_model.DEFAULT_MODEL.name, *builtin_model.DEFAULT_MODEL.aliases)
    return (_SPLIT_FILE_SUFFIX.sub("", file.stem if file.suffix == ".gguf" else file.name),)


def _check_single_model(overrides: SettingSource, file: ConfigFile) -> None:
    for key, given in overrides.items():
        if _FIELD_BY_NAME[key].setting.is_of_one_model and len(file.models) > 1:
            raise SettingsError(
                f"{given.origin} is of one model, and {file.name} has {len(file.models)}: choose one with -m NAME"
            )


def _check_model(model: ModelSettings) -> None:
    where = f"model {model.name!r}"
    for name in (model.name, *model.aliases):
        check_model_name(name)
    if model.file is not None and model.command:
        raise SettingsError(f"{where} has both a file and a command: keep one")
    if model.command and not any(place in word for word in model.command for place in ("{port}", "{socket}")):
        raise SettingsError(f"{where}: its command should say where to listen, with {{port}} or {{socket}}")
    if not model.command and model.parallel > LLAMA_SLOTS:
        raise SettingsError(f"{where}: llama.cpp has {LLAMA_SLOTS} slots at most")
    if model.embeddings and model.reranking:
        raise SettingsError(f"{where} cannot offer both --embeddings and --reranking: keep one")
    if model.chat_template and model.chat_template_file:
        raise SettingsError(f"{where} has both --chat-template and --chat-template-file: keep one")


def _check_model_names(models: Sequence[ModelSettings]) -> None:
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if name in owners:
                raise SettingsError(f"models {owners[name]!r} and {model.name!r} are both called {name!r}")
            owners[name] = model.name


def _check_upstream_names(upstreams: Sequence[LocatedUpstream], file: ConfigFile, local_names: set[str]) -> None:
    """A name stands for one thing: a model of this machine, or one elsewhere."""
    written = [(f"{where}.models", name) for where, upstream in upstreams for name in upstream.models]
    for where, name in (*written, *((f"{file.name}: routes", name) for name in file.routes)):
        check_model_name(name, where)
        if name in local_names:
            raise SettingsError(f"{where}: {name!r} is the name of a model of this machine too: rename one of them")


def _check_server(server: ServeSettings) -> None:
    if (server.ssl_cert_file is None) != (server.ssl_key_file is None):
        raise SettingsError("TLS needs both --ssl-cert-file and --ssl-key-file")
    if "/" in server.host or "," in server.host:
        raise SettingsError("--host should be one name or address; welldone serve does not listen on sockets in files")
    if server.no_api_key and (server.api_keys or server.api_key_file):
        raise SettingsError("--no-api-key is set, and there are keys too: keep one")
    if server.verbose and server.quiet:
        raise SettingsError("--verbose and --quiet are set: keep one")
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
        raise SettingsError(f"--api-key: a key is shorter than {MIN_KEY_LENGTH} characters, which others can guess")
