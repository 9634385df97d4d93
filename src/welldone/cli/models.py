"""`welldone models`: what can be served, and its state where a server runs."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.cli.running import RefusedError, Running, SilentError, ask
from welldone.cli.upstreams import url_of
from welldone.drawing.columns import table, wrapped
from welldone.engines import default, store
from welldone.engines.arrival import megabytes
from welldone.engines.default import DEFAULT
from welldone.engines.gguf import Facts, GgufError, read_facts
from welldone.engines.settings import ModelSettings
from welldone.engines.store import Entry
from welldone.net.settings import Given, SettingsError
from welldone.serve.config import read_config
from welldone.serve.settings import Config, ServeSettings

EXAMPLES = """
welldone models
welldone models --json
welldone models --url http://127.0.0.1:8000 --api-key KEY
"""
HERE, NOT_FETCHED, MISSING, BROKEN, COMMAND = "here", "not fetched", "missing", "broken", "command"
UPSTREAM = "upstream"

Configure = Callable[[str | None], Config]
"""The settings, with the config file that was named."""


class Row(msgspec.Struct, kw_only=True):
    """A model, as it is shown."""

    name: str
    aliases: tuple[str, ...] = ()
    state: str
    source: str
    size_bytes: int | None = None
    quantisation: str | None = None
    parameters: int | None = None
    context_length: int | None = None
    path: str | None = None
    problem: str | None = None


def configure(file: str | None) -> Config:
    """What the config file and the environment say."""
    here = Path.cwd()
    flags = {} if file is None else {"config": Given(file, "--config", here)}
    try:
        return read_config(flags, os.environ, folder=here)
    except SettingsError as error:
        raise UsageError(str(error)) from None


def run(arguments: list[str], configure: Configure = configure) -> Exit:
    """List the models."""
    options = _parser().read(arguments)
    config = configure(options.config)
    folder = store.models_folder(os.environ)
    rows = list(_rows(config, folder))
    url = options.url or _own_url(config.server)
    running, why = _ask(url, options.api_key or _own_key(config))
    if running is None:  # only a server that runs knows their models
        rows += [Row(name=settings.name, state=UPSTREAM, source=url_of(settings)) for settings in config.upstreams]
    _join(rows, running or [], url)
    if options.json:
        shown = {"version": 1, "folder": str(folder), "server": None if running is None else url, "models": rows}
        show.line(msgspec.json.encode(shown).decode())
    else:
        _show(rows, folder)
    if why is not None and (options.url or isinstance(why, RefusedError)):
        show.note(str(why))
    return Exit.UNREACHABLE if options.url and running is None else Exit.RIGHT


def _parser() -> Parser:
    parser = Parser(
        "models",
        "List the models that can be served: those of the config file, those that were fetched, and the built-in one.\n"
        "Where a server runs, its models are shown with their state, also those of its upstreams; without one the\n"
        "upstreams themselves are.",
        EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="the models as JSON")
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings and models")
    parser.add_argument("--url", metavar="URL", help="where the server runs (default: where the settings put it)")
    parser.add_argument("--api-key", metavar="KEY", help="a key of the server (default: that of the settings)")
    return parser


def _rows(config: Config, folder: Path) -> Iterator[Row]:
    """The models of the settings, then those in the folder that are none of them, then the built-in one."""
    entries = {entry.path: entry for entry in store.entries(folder)}
    is_builtin_shown = False
    for settings in config.models:
        path = _file(settings, folder)
        row = _configured(settings, path, entries.pop(path, None) if path else None, config.server.config)
        is_builtin_shown |= _is_builtin(settings, path)
        yield row
    for entry in entries.values():
        is_builtin_shown |= entry.path.name == DEFAULT.file_name
        yield _of_entry(entry)
    if not is_builtin_shown:
        yield _builtin(DEFAULT.name, DEFAULT.aliases)


def _file(settings: ModelSettings, folder: Path) -> Path | None:
    """The file that the engine will be given: a path, or a name."""
    if settings.command:
        return None
    if settings.file is not None and settings.file.is_file():
        return settings.file
    return store.find(folder, DEFAULT.name if settings.file is None else str(settings.file))


def _is_builtin(settings: ModelSettings, path: Path | None) -> bool:
    if path is not None:
        return path.name == DEFAULT.file_name
    return not settings.command and (settings.file is None or default.is_meant(str(settings.file)))


def _configured(settings: ModelSettings, path: Path | None, entry: Entry | None, config: Path | None) -> Row:
    source = config.name if config is not None else "settings"
    if settings.command:
        return Row(name=settings.name, aliases=settings.aliases, state=COMMAND, source=source)
    if _is_builtin(settings, path) and config is None:
        source = "built-in"
    if path is None and _is_builtin(settings, path):
        row = _builtin(settings.name, settings.aliases)
        row.source = source
        return row
    if path is None:
        problem = f"names a file that is not there: {settings.file}"
        return Row(name=settings.name, aliases=settings.aliases, state=MISSING, source=source, problem=problem)
    row = _of_entry(entry) if entry is not None else _of_file(path)
    row.name, row.aliases, row.source = settings.name, settings.aliases, source
    return row


def _of_entry(entry: Entry) -> Row:
    is_builtin = entry.path.name == DEFAULT.file_name
    origin = entry.origin.source if entry.origin is not None else "file"
    row = _row(entry.name, entry.path, entry.facts, entry.problem)
    row.size_bytes = entry.size_bytes
    row.source = "built-in" if is_builtin else origin
    row.aliases = DEFAULT.aliases if is_builtin else ()
    return row


def _of_file(path: Path) -> Row:
    try:
        return _row(path.stem, path, read_facts(path), None)
    except GgufError as error:
        return _row(path.stem, path, None, str(error))


def _row(name: str, path: Path, facts: Facts | None, problem: str | None) -> Row:
    row = Row(name=name, state=BROKEN if problem else HERE, source="file", path=str(path), problem=problem)
    if facts is not None:
        row.size_bytes, row.quantisation = facts.size_bytes, facts.file_type
        row.parameters, row.context_length = facts.parameters, facts.context_length
    return row


def _builtin(name: str, aliases: tuple[str, ...]) -> Row:
    """The built-in model, which is known before it is here."""
    return Row(
        name=name,
        aliases=aliases,
        state=NOT_FETCHED,
        source="built-in",
        size_bytes=DEFAULT.size_bytes,
        quantisation=DEFAULT.quantisation,
        parameters=DEFAULT.parameters,
        context_length=DEFAULT.context_length,
    )


def _own_url(server: ServeSettings) -> str:
    """Where the server that these settings make can be asked from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    scheme = "https" if server.ssl_cert_file else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}"


def _own_key(config: Config) -> str | None:
    return next(iter((*config.server.api_keys, *(named.key for named in config.keys))), None)


def _ask(url: str, key: str | None) -> tuple[list[Running] | None, Exception | None]:
    try:
        return ask(url, key), None
    except SilentError:
        return None, SilentError(f"no server answers at {url}; start one with welldone serve")
    except RefusedError as error:
        return None, error


def _join(rows: list[Row], running: Iterable[Running], url: str) -> None:
    """Give each model the state that the server says; models that only the server knows come last."""
    by_name = {row.name: row for row in rows}
    for model in running:
        if row := by_name.get(model.name):
            row.state = model.state
        else:
            rows.append(
                Row(
                    name=model.name,
                    aliases=model.aliases,
                    state=model.state,
                    source=url,
                    size_bytes=model.size_bytes,
                    parameters=model.parameters,
                    context_length=model.context_length,
                )
            )


def _show(rows: list[Row], folder: Path) -> None:
    heads = ("name", "size", "type", "parameters", "context", "state", "from")
    width = show.width()
    lines = table([heads, *(_cells(row) for row in rows)], width, right=frozenset((1, 3, 4)))
    for row in rows:
        if row.problem:
            lines += wrapped("", f"{show.name(row.name)} cannot be served: it {show.name(row.problem)}", width)
    for line in [*lines, *wrapped("", f"kept in {show.name(str(folder))}; welldone pull SOURCE fetches more", width)]:
        show.line(line)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        show.name(row.name),
        megabytes(row.size_bytes) if row.size_bytes else "-",
        row.quantisation or "-",
        show.short(row.parameters) if row.parameters else "-",
        f"{row.context_length:,}" if row.context_length else "-",
        show.name(row.state),
        show.name(row.source),
    )
