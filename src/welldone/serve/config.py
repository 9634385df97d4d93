"""Settings are read here: from flags, then the environment, then `welldone.toml`, and checked together."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from welldone.engines import default
from welldone.engines.settings import Defaults, ModelSettings
from welldone.net.hints import nearest
from welldone.net.settings import (
    Field,
    Given,
    SettingsError,
    Source,
    build,
    fields_of,
    from_environment,
    from_table,
    table_of,
)
from welldone.serve.keys import SHORTEST, Keys, is_weak
from welldone.serve.origins import Origins, is_loopback
from welldone.serve.settings import FILE_NAME, Config, ServeSettings

_FILE_LIMIT_BYTES = 2**20  # a thousand models with ten lines each have a quarter of this
_NAME_LIMIT = 128  # characters; names stand in addresses, logs and labels of metrics
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # how llama.cpp names the files of a split model

SERVE_FIELDS, MODEL_FIELDS, DEFAULT_FIELDS = fields_of(ServeSettings), fields_of(ModelSettings), fields_of(Defaults)
ALL_FIELDS = (*MODEL_FIELDS, *DEFAULT_FIELDS, *SERVE_FIELDS)
_BY_NAME = {field.name: field for field in ALL_FIELDS}


@dataclass(frozen=True, kw_only=True)
class _File:
    """What a TOML file says."""

    path: Path | None = None
    server: Source = field(default_factory=dict)
    defaults: Source = field(default_factory=dict)
    models: Mapping[str, Source] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "" if self.path is None else self.path.name

    def named(self, word: str) -> str | None:
        """The model with this name or alias."""
        for name, source in self.models.items():
            if word in (name, *build([_BY_NAME["aliases"]], [source], {}).get("aliases", ())):
                return name
        return None


def read_config(flags: Source, environment: Mapping[str, str], *, folder: Path) -> Config:
    """All settings. `folder` is the one that the user is in.

    Raises:
        SettingsError: one line that says what to do.
    """
    said = {**from_environment(ALL_FIELDS, environment, folder), **flags}
    file = _read_file(_config_path(said, folder))
    server = ServeSettings(**build(SERVE_FIELDS, [said, file.server], environment) | {"config": file.path})
    _check_server(server)
    models, notes = _models(said, file, environment)
    _check_names([model for _, model in models])
    places = {model.name: f"{file.name}: models.{table}" for table, model in models if table is not None}
    return Config(server=server, models=tuple(model for _, model in models), notes=tuple(notes), places=places)


def _config_path(said: Source, folder: Path) -> Path | None:
    beside = folder / FILE_NAME
    path: Path | None = build([_BY_NAME["config"]], [said], {}).get("config", beside if beside.is_file() else None)
    return path


def _read_file(path: Path | None) -> _File:
    if path is None:
        return _File()
    tables = _read_toml(path)
    for key in tables:
        if key not in ("server", "defaults", "models"):
            hint = nearest(key, ("server", "defaults", "models"))
            raise SettingsError(f"{path.name} has no table {key!r}{hint}: write [server], [defaults] or [models.NAME]")
    server = [field for field in SERVE_FIELDS if field.name != "config"]
    models = table_of(tables.get("models", {}), f"{path.name}: models")
    for name in models:
        _check_name(name)
    return _File(
        path=path,
        server=from_table(server, tables.get("server", {}), f"{path.name}: server", path.parent),
        defaults=_read_model(
            [field for field in MODEL_FIELDS if not field.setting.is_of_one_model],
            tables.get("defaults", {}),
            f"{path.name}: defaults",
            path.parent,
        ),
        models={
            name: _read_model(MODEL_FIELDS, table, f"{path.name}: models.{name}", path.parent)
            for name, table in models.items()
        },
    )


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


def _read_model(fields: Iterable[Field], table: object, where: str, folder: Path) -> dict[str, Given]:
    """A model's table, and its table of defaults, whose names are others."""
    rest = dict(table_of(table, where))
    defaults = from_table(DEFAULT_FIELDS, rest.pop("defaults", {}), f"{where}.defaults", folder)
    return {**from_table(fields, rest, where, folder), **defaults}


_Named = tuple[str | None, ModelSettings]
"""The name of a model's table in the file, if it has one, and the model."""


def _models(said: Source, file: _File, environment: Mapping[str, str]) -> tuple[list[_Named], list[str]]:
    """The models to serve, and what to say about them. With `-m` it is that one alone."""
    if "file" not in said:
        _check_alone(said, file)
        return [(name, _model(name, said, file, environment)) for name in file.models or [None]], []
    meant = said["file"]
    name = file.named(str(meant.value))
    if name is not None:  # the file says what it is
        said = {key: given for key, given in said.items() if key != "file"}
    else:
        own = _own_names(build(MODEL_FIELDS, [said], environment))[0]
        name = own if own in file.models else None
    others = len(file.models) - (name is not None)
    notes = [f"{meant.where}: it is served alone, without the {others} other models of {file.name}"] if others else []
    return [(name, _model(name, said, file, environment))], notes


def _model(name: str | None, said: Source, file: _File, environment: Mapping[str, str]) -> ModelSettings:
    """The model of this name in the file, or the one that flags and environment make."""
    sources = [said, file.models.get(name, {}) if name is not None else {}, file.defaults]
    values = build(MODEL_FIELDS, sources, environment)
    defaults = build(DEFAULT_FIELDS, sources, environment)
    own = _own_names(values) if name is None or "aliases" in said else (name, *values.get("aliases", ()))
    values["aliases"] = tuple(alias for alias in dict.fromkeys(own) if alias != own[0])
    values["defaults"] = {key: value for key, value in defaults.items() if value is not None}
    model = ModelSettings(name=own[0], **values)
    if name is not None and model.file is None and not model.command:
        raise SettingsError(f'{file.name}: models.{name} needs a file, such as file = "default", or a command')
    _check_model(model)
    return model


def _own_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A model's names, the first before its aliases: those it was given, else its file's."""
    if values.get("aliases"):
        return tuple(values["aliases"])
    file = values.get("file")
    if file is None or default.is_meant(str(file)):
        return (default.DEFAULT.name, *default.DEFAULT.aliases)
    return (_PART.sub("", file.stem if file.suffix == ".gguf" else file.name),)


def _check_alone(said: Source, file: _File) -> None:
    for key, given in said.items():
        if _BY_NAME[key].setting.is_of_one_model and len(file.models) > 1:
            raise SettingsError(
                f"{given.where} is of one model, and {file.name} has {len(file.models)}: choose one with -m NAME"
            )


def _check_model(model: ModelSettings) -> None:
    where = f"model {model.name!r}"
    for name in (model.name, *model.aliases):
        _check_name(name)
    if model.file is not None and model.command:
        raise SettingsError(f"{where} has both a file and a command: keep one")
    if model.command and not any(place in word for word in model.command for place in ("{port}", "{socket}")):
        raise SettingsError(f"{where}: its command should say where to listen, with {{port}} or {{socket}}")
    if model.embeddings and model.reranking:
        raise SettingsError(f"{where} cannot offer both --embeddings and --reranking: keep one")
    if model.chat_template and model.chat_template_file:
        raise SettingsError(f"{where} has both --chat-template and --chat-template-file: keep one")


def _check_name(name: str) -> None:
    if not name.isprintable() or name != name.strip() or not 0 < len(name) <= _NAME_LIMIT:
        shown = ascii(name[:_NAME_LIMIT])
        raise SettingsError(f"the name of a model has 1 to {_NAME_LIMIT} visible characters: {shown} cannot be one")


def _check_names(models: Sequence[ModelSettings]) -> None:
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if name in owners:
                raise SettingsError(f"models {owners[name]!r} and {model.name!r} are both called {name!r}")
            owners[name] = model.name


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
            Origins(host=server.host, port=server.port, allowed_hosts=hosts, cors_origins=origins, is_tls=False)
        except ValueError as error:
            raise SettingsError(f"{flag}: {error}") from error
    try:
        Keys(server.api_keys)
    except ValueError as error:
        raise SettingsError(f"--api-key: {error}") from error
    if any(is_weak(key) for key in server.api_keys) and not is_loopback(server.host):
        raise SettingsError(f"--api-key: a key is shorter than {SHORTEST} characters, which others can guess")
