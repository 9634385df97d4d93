"""`welldone models`: list the models that can be served, and their state on a running server.

List the models that can be served: those of the config file, the downloaded ones, and the built-in model.
If a server is running, its models are listed with their state, including those of its upstreams; otherwise
the upstreams themselves are listed.

examples:
  welldone models
  welldone models --json
  welldone models --url http://127.0.0.1:8000 --api-key KEY
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from welldone.cli import ui
from welldone.cli.banner import redacted_url
from welldone.cli.option_types import add_running_server_options, server_key
from welldone.cli.options import CommandParser
from welldone.cli.running_server import NoServerError, RunningServerError, ask_server, root_address
from welldone.cli.serve import read_server_config
from welldone.cli.ui import ExitCode
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.config.server import Config
from welldone.core.lenient_json import as_object, as_positive_int
from welldone.engines.models import store
from welldone.engines.models.install import format_size
from welldone.engines.models.repository import find_configured_model
from welldone.engines.models.store import ModelEntry
from welldone.gateway.model_list import ListedModel, parse_model_list
from welldone.reporting import format_table, wrap_text

_QUERY_TIMEOUT_S = 1.0  # a local server answers in milliseconds, and often none is running


HERE, NOT_FETCHED, MISSING, BROKEN, COMMAND = "here", "not fetched", "missing", "broken", "command"
UPSTREAM = "upstream"


class ModelRow(msgspec.Struct, kw_only=True):
    """A row of the table, and an entry of the JSON output."""

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


def query_models(url: str, key: str | None, ca_file: str | None) -> list[ModelRow]:
    """Return the models of the server at `url`. Raises `RunningServerError`."""
    address = root_address(url, key, ca_file)
    try:
        reply = asyncio.run(ask_server(url, address, "GET", "/v1/models", timeout_s=_QUERY_TIMEOUT_S, needs_all=False))
    except NoServerError:
        raise NoServerError(f"no server answers at {url}; start one with welldone serve") from None
    if reply.status in (401, 403):
        raise RunningServerError(f"the server at {url} requires a key: --api-key KEY, or WELLDONE_API_KEY")
    models = parse_model_list(reply.body) if reply.status == 200 else None
    if models is None:
        raise RunningServerError(f"the server at {url} does not list models (status {reply.status})")
    return [_parse_model(model, url) for model in models]


def _parse_model(model: ListedModel, url: str) -> ModelRow:
    fields = model.extra_fields
    meta, aliases = as_object(fields.get("meta")), fields.get("aliases")
    state = as_object(fields.get("status")).get("value")
    return ModelRow(
        name=model.id,
        aliases=tuple(word for word in aliases if isinstance(word, str)) if isinstance(aliases, list) else (),
        state=state if isinstance(state, str) else "served",
        source=url,
        size_bytes=as_positive_int(meta.get("size")) or None,
        parameters=as_positive_int(meta.get("n_params")) or None,
        context_length=as_positive_int(meta.get("n_ctx_train")) or as_positive_int(fields.get("max_model_len")) or None,
    )


def run(arguments: list[str]) -> ExitCode:
    """List the models."""
    options = _parser().parse(arguments)
    config = read_server_config(options.config)
    folder = store.models_folder(os.environ)
    rows = list(_rows(config, folder))
    server = config.server
    url = options.url or ui.server_url(server.host, server.port, is_tls=server.ssl_cert_file is not None)
    keys = (server_key(options.api_key), *server.api_keys, *(named.key for named in config.keys))
    error = None
    try:
        running = query_models(url, next(filter(None, keys), None), options.ca_file)
        by_name = {row.name: row for row in rows}
        for model in running:
            if row := by_name.get(model.name):
                row.state = model.state
            else:
                rows.append(model)  # only the server has it
    except RunningServerError as failure:
        error = failure
        # Without a running server the models of upstreams are unknown.
        rows += [ModelRow(name=remote.name, state=UPSTREAM, source=redacted_url(remote)) for remote in config.upstreams]
    if options.json:
        output = {"version": 1, "folder": str(folder), "server": url if error is None else None, "models": rows}
        ui.print_line(msgspec.json.encode(output).decode())
    else:
        _print_table(rows, folder)
    if error is not None and (options.url or not isinstance(error, NoServerError)):
        ui.print_note(str(error))
    return ExitCode.UNREACHABLE if options.url and error is not None else ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser("models", __doc__)
    parser.option("--json", "print the models as JSON")
    parser.option("--url URL", "URL of the server (default: from the settings)")
    add_running_server_options(parser)
    return parser


def _rows(config: Config, folder: Path) -> Iterator[ModelRow]:
    """Yield the models of the settings, then the other downloaded ones, then the built-in model."""
    entries = {entry.path: entry for entry in store.list_models(folder)}
    is_builtin_shown = False
    for settings in config.models:
        path = None if settings.command else find_configured_model(folder, settings)
        is_builtin = settings.is_builtin if path is None else path.name == DEFAULT_MODEL.file_name
        is_builtin_shown |= is_builtin
        if settings.command:
            row = ModelRow(name="", state=COMMAND, source="")
        elif path is not None:
            row = _entry_row(entries.pop(path) if path in entries else store.read_entry(path.stem, [path]))
        elif is_builtin:
            row = _builtin_row()
        elif settings.hf_repo is not None:
            row = ModelRow(name="", state=NOT_FETCHED, source="")
        else:
            problem = f"refers to a file that does not exist: {settings.file}"
            row = ModelRow(name="", state=MISSING, source="", problem=problem)
        row.name, row.aliases = settings.name, settings.aliases
        file = config.server.config
        row.source = file.name if file is not None else "built-in" if is_builtin else "settings"
        yield row
    for entry in entries.values():
        is_builtin_shown |= entry.path.name == DEFAULT_MODEL.file_name
        yield _entry_row(entry)
    if not is_builtin_shown:
        yield _builtin_row()


def _entry_row(entry: ModelEntry) -> ModelRow:
    is_builtin = entry.path.name == DEFAULT_MODEL.file_name
    origin = entry.origin.source if entry.origin is not None else "file"
    row = ModelRow(
        name=entry.name,
        aliases=DEFAULT_MODEL.aliases if is_builtin else (),
        state=BROKEN if entry.problem else HERE,
        source="built-in" if is_builtin else origin,
        size_bytes=entry.size_bytes,
        path=str(entry.path),
        problem=entry.problem,
    )
    if entry.metadata is not None:
        row.quantisation, row.parameters = entry.metadata.file_type, entry.metadata.parameters
        row.context_length = entry.metadata.context_length
    return row


def _builtin_row() -> ModelRow:
    """Return the row of the built-in model before it is downloaded."""
    return ModelRow(
        name=DEFAULT_MODEL.name,
        aliases=DEFAULT_MODEL.aliases,
        state=NOT_FETCHED,
        source="built-in",
        size_bytes=DEFAULT_MODEL.size_bytes,
        quantisation=DEFAULT_MODEL.quantisation,
        parameters=DEFAULT_MODEL.parameters,
        context_length=DEFAULT_MODEL.context_length,
    )


def _print_table(rows: list[ModelRow], folder: Path) -> None:
    heads = ("name", "size", "type", "parameters", "context", "state", "from")
    width = ui.terminal_width()
    lines = format_table([heads, *(_table_cells(row) for row in rows)], width, right_aligned=frozenset((1, 3, 4)))
    for row in rows:
        if row.problem:
            lines += wrap_text(
                "", f"{ui.printable_name(row.name)} cannot be served: it {ui.printable_name(row.problem)}", width
            )
    folder_line = f"stored in {ui.printable_name(folder)}; welldone pull SOURCE downloads more"
    ui.print_lines([*lines, *wrap_text("", folder_line, width)])


def _table_cells(row: ModelRow) -> tuple[str, ...]:
    return (
        ui.printable_name(row.name),
        format_size(row.size_bytes) if row.size_bytes else "-",
        row.quantisation or "-",
        ui.short_count(row.parameters) if row.parameters else "-",
        f"{row.context_length:,}" if row.context_length else "-",
        ui.printable_name(row.state),
        ui.printable_name(row.source),
    )
