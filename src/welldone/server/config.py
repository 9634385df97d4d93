"""Reads the configuration from flags, the environment and `welldone.toml`, and validates it as a whole.

Does no network I/O.
"""

import dataclasses
import importlib.util
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from welldone.config import builtin_model
from welldone.config.model import LLAMA_SLOTS, ModelSettings
from welldone.config.server import CONFIG_FILE_NAME, Config, KeySettings, LimitsSettings, ServeSettings
from welldone.config.settings import (
    SettingsError,
    SettingSource,
    did_you_mean,
    install_advice,
    merge_sources,
    read_environment,
    unknown_rule,
)
from welldone.config.upstream import ALL_RULES, UpstreamSettings, parse_mirror
from welldone.core.catalog import RULES
from welldone.engines.models.install import PullError, parse_hub_source
from welldone.http.address import Address, parse_url
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server import config_file
from welldone.server.access.keys import ANONYMOUS, ApiKeys, invalid_key_reason
from welldone.server.access.origins import OriginPolicy, is_loopback
from welldone.server.config_file import ConfigFile, check_model_name
from welldone.server.tracing_config import read_tracing

LocatedUpstream = tuple[str, UpstreamSettings]
"""Origin of an upstream (a flag or a TOML table), and its settings."""

_DEFAULT_PATH = "/v1"  # the API of most servers
_ENDPOINTS = ("/completions", "/models", "/embeddings", "/responses", "/messages")
_LABEL_LIMIT = 60  # characters of a derived name, with room for a number
_BARE_URL = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+|[\w-]+(?=:))(:[0-9]+)?(/[\w./-]*)?", re.ASCII)
"""A URL without http://: localhost, a name with a dot, or any name with a port."""
_HEALTH_PATH = re.compile(r"/[\x21-\x7e]*")
_UPSTREAM_FIELD = next(field for field in config_file.SERVE_FIELDS if field.name == "upstreams")
_WILDCARD_HOSTS = ("0.0.0.0", "::", "[::]")
_DATABASE_PATH = re.compile(r"/?|/[0-9]{1,5}")


def read_limits(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> LimitsSettings:
    """The settings of the shared store. Error messages do not contain its URL, which may hold a password.

    Raises:
        SettingsError: the URL is invalid, or the package for it is not installed.
    """
    limits = LimitsSettings(**merge_sources(config_file.LIMITS_FIELDS, sources, environment))
    if limits.store is not None:
        origin = next(source["store"].origin for source in sources if "store" in source)
        if reason := invalid_store_url_reason(limits.store):
            raise SettingsError(f"{origin} {reason}")
        if importlib.util.find_spec("redis") is None:
            raise SettingsError(f"{origin} needs the package redis: {install_advice('redis')}")
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

ALL_FIELDS = (
    *config_file.MODEL_FIELDS,
    *config_file.DEFAULT_FIELDS,
    *config_file.SERVE_FIELDS,
    *config_file.LIMITS_FIELDS,
)
_FIELD_BY_NAME = {field.name: field for field in ALL_FIELDS}


def read_config(flags: SettingSource, environment: Mapping[str, str], *, folder: Path) -> Config:
    """Read all settings. `folder` is the working directory.

    Raises:
        SettingsError: one line that names the fix.
    """
    overrides = {**read_environment(ALL_FIELDS, environment, folder), **flags}
    default = folder / CONFIG_FILE_NAME
    path: Path | None = merge_sources([_FIELD_BY_NAME["config"]], [overrides], {}).get(
        "config", default if default.is_file() else None
    )
    file = config_file.read_config_file(path)
    server = ServeSettings(
        **merge_sources(config_file.SERVE_FIELDS, [overrides, file.server], environment) | {"config": file.path}
    )
    _check_server(server)
    is_traced, tracing_warnings = read_tracing(server.tracing, environment)
    upstreams, upstream_warnings = read_upstreams(server, [overrides, file.server], file, environment)
    models, model_warnings = _build_models(overrides, file, environment, has_upstreams=bool(upstreams))
    keys = read_named_keys(server, file, environment)
    limits = read_limits([overrides, file.limits], environment)
    _check_model_names([model for _, model in models])
    _check_upstream_names(upstreams, file, {name for _, model in models for name in (model.name, *model.aliases)})
    for key in keys:
        for name in key.models:
            check_model_name(name, f"{file.name}: keys.{key.name}.models")
    model_names = {*file.models, *(model.name for _, model in models)}
    for name in file.scale.engines:
        if name not in model_names:
            hint = did_you_mean(name, model_names)
            raise SettingsError(f"{file.name}: scale.engines.{name}: there is no model of this name{hint}")
    if server.workers > 1 and models:
        raise SettingsError("--workers is not supported with local models: remove it")
    return Config(
        server=server,
        models=tuple(model for _, model in models),
        upstreams=tuple(upstream for _, upstream in upstreams),
        routes=file.routes,
        keys=keys,
        limits=limits,
        scale=file.scale,
        is_traced=is_traced,
        warnings=(*upstream_warnings, *model_warnings, *tracing_warnings),
        model_locations={model.name: f"{file.name}: models.{table}" for table, model in models if table is not None},
    )


_ModelEntry = tuple[str | None, ModelSettings]
"""Name of the model's TOML table, if it has one, and its settings."""


def _build_models(
    overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str], *, has_upstreams: bool
) -> tuple[list[_ModelEntry], list[str]]:
    """The models to serve, and warnings. With `-m` or `-hf` only that model is served."""
    selected = overrides.get("file") or overrides.get("hf_repo")
    if selected is None:
        if has_upstreams and not file.models:
            return [], _unused_warnings(overrides)
        for key, raw in overrides.items():
            if _FIELD_BY_NAME[key].setting.is_of_one_model and len(file.models) > 1:
                reason = f"applies to one model, but {file.name} has {len(file.models)}: choose one with -m NAME"
                raise SettingsError(f"{raw.origin} {reason}")
        return [(name, _build_model(name, overrides, file, environment)) for name in file.models or [None]], []
    name = _find_model_table(file, str(selected.value)) if "file" in overrides else None
    if name is not None:  # `-m` names a table, which has the file
        overrides = {key: raw for key, raw in overrides.items() if key != "file"}
    else:
        own = _model_names(merge_sources(config_file.MODEL_FIELDS, [overrides], environment))[0]
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
    unused = [
        overrides[field.name].origin
        for field in (*config_file.MODEL_FIELDS, *config_file.DEFAULT_FIELDS)
        if field.name in overrides
    ]
    return [f"{', '.join(unused)}: unused, since only upstreams are configured; name a model with -m"] if unused else []


def _build_model(
    name: str | None, overrides: SettingSource, file: ConfigFile, environment: Mapping[str, str]
) -> ModelSettings:
    """The model of a TOML table, or of flags and environment alone."""
    sources = [overrides, file.models.get(name, {}) if name is not None else {}, file.defaults]
    values = merge_sources(config_file.MODEL_FIELDS, sources, environment)
    defaults = merge_sources(config_file.DEFAULT_FIELDS, sources, environment)
    names = _model_names(values) if name is None or "aliases" in overrides else (name, *values.get("aliases", ()))
    values["aliases"] = tuple(alias for alias in dict.fromkeys(names) if alias != names[0])
    values["defaults"] = {key: value for key, value in defaults.items() if value is not None}
    model = ModelSettings(name=names[0], **values)
    if name is not None and model.file is None and model.hf_repo is None and not model.command:
        raise SettingsError(f'{file.name}: models.{name} needs a file, such as file = "default", hf_repo or a command')
    _check_model(model)
    return model


def _model_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The configured names of a model, else the name of its file; the first one is the id."""
    if values.get("aliases"):
        return tuple(values["aliases"])
    if values.get("hf_repo"):
        return (values["hf_repo"],)  # as llama-server
    file = values.get("file")
    if file is None or builtin_model.is_builtin_name(str(file)):
        return (builtin_model.DEFAULT_MODEL.name, *builtin_model.DEFAULT_MODEL.aliases)
    return (_SPLIT_FILE_SUFFIX.sub("", file.stem if file.suffix == ".gguf" else file.name),)


def _check_model(model: ModelSettings) -> None:
    origin = f"model {model.name!r}"
    for name in (model.name, *model.aliases):
        check_model_name(name)
    named = (("a file", model.file), ("hf_repo", model.hf_repo), ("a command", model.command))
    if len(kinds := [noun for noun, value in named if value]) > 1:
        raise SettingsError(f"{origin} has both {' and '.join(kinds)}: keep one")
    if model.hf_repo is not None:
        try:
            parse_hub_source(model.hf_repo)
        except PullError as error:
            raise SettingsError(f"--hf-repo: {error}") from None
    if model.command and not any(name in word for word in model.command for name in ("{port}", "{socket}")):
        raise SettingsError(f"{origin}: its command must contain {{port}} or {{socket}}")
    if not model.command and model.parallel > LLAMA_SLOTS:
        raise SettingsError(f"{origin}: llama.cpp has {LLAMA_SLOTS} slots at most")
    if model.embeddings and model.reranking:
        raise SettingsError(f"{origin} cannot have both --embeddings and --reranking: keep one")
    if model.chat_template and model.chat_template_file:
        raise SettingsError(f"{origin} has both --chat-template and --chat-template-file: keep one")
    try:
        list(map(float, model.tensor_split))
    except ValueError:
        raise SettingsError(f"{origin}: --tensor-split must be numbers, such as 3,1") from None


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
    if server.no_api_key and (server.api_keys or server.api_key_file or server.keys_file):
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


def read_upstreams(
    server: ServeSettings, sources: Sequence[SettingSource], file: ConfigFile, environment: Mapping[str, str]
) -> tuple[list[LocatedUpstream], list[str]]:
    """The upstreams, those of `--upstream` first, and warnings."""
    _check_not_empty(sources, environment)
    origin = next((source["upstreams"].origin for source in sources if "upstreams" in source), "--upstream")
    located = _upstreams_from_urls(server, origin, file.upstreams)
    for name, source in file.upstreams.items():
        table = f"{file.name}: upstreams.{name}"
        values = merge_sources(config_file.UPSTREAM_FIELDS, [source], environment)
        if "url" not in values:
            raise SettingsError(f'{table} needs a url, such as url = "http://HOST:8000/v1"')
        values["headers"] = {header: str(value) for header, value in values.get("headers", {}).items()}
        located.append((table, UpstreamSettings(name=name, **values)))
    upstreams, warnings = [], []
    for origin, upstream in located:
        _check_upstream(upstream, origin, server)
        url = upstream.url.rstrip("/")
        if not urlsplit(upstream.url).path.rstrip("/"):
            warnings.append(f"{origin}: {upstream.url} has no path; using {_DEFAULT_PATH}")
            url += _DEFAULT_PATH
        upstreams.append((origin, dataclasses.replace(upstream, url=url)))
    _check_mirrors(upstreams)
    return upstreams, warnings


def _check_mirrors(upstreams: Sequence[LocatedUpstream]) -> None:
    by_name = {upstream.name: upstream for _, upstream in upstreams}
    for origin, upstream in upstreams:
        if not upstream.mirror:
            continue
        try:
            name = parse_mirror(upstream.mirror).upstream
        except ValueError as error:
            raise SettingsError(f"{origin}.mirror: {error}") from None
        if name not in by_name:
            raise SettingsError(f"{origin}.mirror: there is no upstream {name!r}{did_you_mean(name, by_name)}")
        target = by_name[name]
        if target is upstream:
            raise SettingsError(f"{origin}.mirror: choose another upstream than itself")
        if not (upstream.chat and target.chat) or upstream.stream != target.stream:
            raise SettingsError(f"{origin}.mirror: both must support chat, and have the same setting of stream")


def _check_not_empty(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> None:
    """Reject empty URLs: most likely a shell variable is not set."""
    raw = next((source["upstreams"] for source in sources if "upstreams" in source), None)
    problem = "should be a URL, but is empty: check the variable that it comes from"
    if raw is not None and isinstance(raw.value, str) and not all(map(str.strip, raw.value.split(","))):
        raise SettingsError(f"{raw.origin} {problem}")
    for variable in _UPSTREAM_FIELD.variables:
        if raw is None and environment.get(variable) == "":
            raise SettingsError(f"{variable} {problem}")


def _upstreams_from_urls(server: ServeSettings, origin: str, taken: Collection[str]) -> list[LocatedUpstream]:
    """An upstream for each `--upstream`, named after its host."""
    if server.upstream_key is not None and not server.upstreams:
        raise SettingsError("--upstream-key needs an --upstream")
    upstreams: dict[str, UpstreamSettings] = {}
    for url in dict.fromkeys(server.upstreams):
        address = _read_url(UpstreamSettings(name="", url=url, key=server.upstream_key), origin)
        authority = address.authority.replace("[::1]", "localhost")
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", authority).strip("-")[:_LABEL_LIMIT]
        name, number = label, 1
        while name in upstreams or name in taken:
            number += 1
            name = f"{label}-{number}"
        upstreams[name] = UpstreamSettings(name=name, url=url, key=server.upstream_key)
    return [(origin, upstream) for upstream in upstreams.values()]


def _read_url(upstream: UpstreamSettings, origin: str) -> Address:
    """Parse the URL. Error messages do not contain parts that may be secret."""
    if _BARE_URL.fullmatch(upstream.url):
        path = "" if "/" in upstream.url.rstrip("/") else _DEFAULT_PATH
        raise SettingsError(
            f"{origin}: {upstream.url!r} is not a URL; did you mean http://{upstream.url.rstrip('/')}{path}?"
        )
    try:
        return parse_url(
            upstream.url,
            key=upstream.key,
            ca_file=None if upstream.ca_file is None else str(upstream.ca_file),
            is_verified=not upstream.insecure,
            headers=upstream.headers.items(),
        )
    except ValueError as error:
        message = str(error)
        raise SettingsError(f"{origin}: {message[:1].lower()}{message[1:].removesuffix('.')}") from None


def _check_upstream(upstream: UpstreamSettings, origin: str, server: ServeSettings) -> None:
    address = _read_url(upstream, origin)
    if address.prefix.endswith(_ENDPOINTS):
        raise SettingsError(f"{origin}: give the base URL of the API, such as http://HOST:8000/v1")
    if address.port == server.port and _is_this_machine(address.host) and _is_this_machine(server.host):
        raise SettingsError(f"{origin} is the address of this server: choose another port with --port")
    if upstream.health and not _HEALTH_PATH.fullmatch(upstream.health):
        raise SettingsError(f"{origin}.health: expected an ASCII path that begins with /, such as /health")
    if upstream.key is not None and (reason := invalid_key_reason(upstream.key)):
        raise SettingsError(f"{origin}: its key {reason}")
    if not upstream.chat and not upstream.speaks:
        raise SettingsError(f'{origin}: chat = false needs an API that it supports, such as speaks = ["messages"]')
    if upstream.ca_file is not None and upstream.insecure:
        raise SettingsError(f"{origin} has both ca_file and insecure: keep one")
    for rule in upstream.strict:
        if rule != ALL_RULES and rule not in RULES:
            raise SettingsError(f"{origin}.strict: {unknown_rule(rule, [*RULES, ALL_RULES])}")


def _is_this_machine(host: str) -> bool:
    return is_loopback(host) or host in _WILDCARD_HOSTS


def read_named_keys(server: ServeSettings, file: ConfigFile, environment: Mapping[str, str]) -> tuple[KeySettings, ...]:
    """The named keys. Error messages do not contain keys."""
    named = []
    for name, source in file.keys.items():
        origin = f"{file.name}: keys.{name}"
        values = merge_sources(config_file.KEY_FIELDS, [source], environment)
        if "key" not in values:
            raise SettingsError(f'{origin} needs a key, such as key = "env:MY_KEY"')
        if name == ANONYMOUS:
            raise SettingsError(f"{origin}: this name is reserved for requests without a key; choose another name")
        if is_weak_key(values["key"]) and not is_loopback(server.host):
            raise SettingsError(f"{origin}: its key is shorter than {MIN_KEY_LENGTH} characters and can be guessed")
        named.append(KeySettings(name=name, **values))
    try:
        ApiKeys(server.api_keys, named)
    except ValueError as error:
        raise SettingsError(f"{file.name}: {error}") from error
    if named and server.no_api_key:
        raise SettingsError("--no-api-key conflicts with the configured keys: keep one")
    return tuple(named)
