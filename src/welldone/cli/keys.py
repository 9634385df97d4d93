"""`welldone keys`: add, list and remove API keys in a file, or in a store that several servers share.

Add, list and remove API keys in a file (--keys-file), or for all servers that share a store (--limits-store).
A key is shown once, when it is created; only its digest is stored. Servers need no restart.

examples:
  welldone keys add ci --requests-per-minute 60 --keys-file keys.json
  welldone serve --keys-file keys.json
  welldone keys add ann --models "qwen-*,phi-4" --limits-store redis://HOST:6379/0
  welldone keys list
  welldone keys remove ci
"""

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.serve import read_server_config
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.config.settings import SettingsError
from welldone.reporting import format_table
from welldone.server.access.key_storage import (
    FileKeyStorage,
    KeyExistsError,
    KeyFileError,
    KeyStorage,
    SharedKeyStorage,
    add_new_key,
    connect_store,
    listed_keys,
    remove_key,
)
from welldone.server.access.keys import ANONYMOUS, CACHE_TTL_S, SharedKey
from welldone.server.access.store import StoreClient, StoreError
from welldone.server.config_file import check_model_name
from welldone.server.observe.log import Redactor

_MAX_ERROR_CHARS = 200
_STORE_TIMEOUT_S = 5.0  # longer than in a server: here only a user waits


def run(arguments: list[str]) -> ExitCode:
    """Add, list or remove keys."""
    options = _parser().parse(arguments)
    if (options.name is None) != (options.action == "list"):
        raise UsageError("write welldone keys add NAME, welldone keys remove NAME or welldone keys list")
    if options.limits_store is not None and options.keys_file is not None:
        raise UsageError("--limits-store conflicts with --keys-file: keep one")
    config = read_server_config(options.config, options.limits_store, options.keys_file)
    try:
        storage = _find_storage(config, prefers_store=options.limits_store is not None)
        if options.action == "add":
            if options.name in {key.name for key in config.keys}:
                raise UsageError(f"the settings already have a key {options.name}, which takes precedence")
            made = asyncio.run(add_new_key(storage, _shared_key(options)))
            ui.print_note(f"the key of {options.name}; it is stored nowhere in clear and is not shown again:")
            ui.print_line(made)
        elif options.action == "list":
            rows = [(key.name, _describe_key(key)) for key in asyncio.run(listed_keys(storage))]
            ui.print_lines(format_table(rows, ui.terminal_width()) if rows else ())
            if not rows:
                ui.print_note("there are no keys: welldone keys add NAME creates one")
        elif asyncio.run(remove_key(storage, options.name)):
            ui.print_note(f"the key of {options.name} is removed; servers reject it within {CACHE_TTL_S:g} s")
        else:
            raise UsageError(f"there is no key {ui.printable_name(options.name)}; welldone keys list shows the keys")
    except (KeyFileError, KeyExistsError) as error:
        raise UsageError(str(error)) from None
    except StoreError as error:
        # Redact the text: a Redis without authentication repeats the password in its error.
        message = Redactor(config.secrets).line_of(str(error), _MAX_ERROR_CHARS)
        ui.print_note(f"the store of the keys cannot be used: {message}")
        return ExitCode.UNREACHABLE
    return ExitCode.OK


def _shared_storage(url: str) -> SharedKeyStorage:
    """The keys of the shared store; each query has a connection of its own."""

    async def call(query: Callable[[StoreClient], Awaitable[Any]]) -> Any:  # noqa: ANN401 - the result of the query
        client = connect_store(url, timeout_s=_STORE_TIMEOUT_S)
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                return await query(client)
        except TimeoutError:
            raise StoreError(f"no answer within {_STORE_TIMEOUT_S:g} s") from None
        finally:
            await client.close()

    return SharedKeyStorage(call)


def _find_storage(config: Config, *, prefers_store: bool) -> KeyStorage:
    """Return the file or the store of the options or settings; the file if there are both."""
    file, url = config.server.keys_file, config.limits.store
    if file is not None and not prefers_store:
        return FileKeyStorage(file)
    if url is not None:
        return _shared_storage(url)
    raise UsageError(
        "say where the keys are: --keys-file FILE (keys_file in [server]) for one server, or --limits-store "
        "redis://HOST:6379/0 (store in [limits]) for several"
    )


def _shared_key(options: Namespace) -> SharedKey:
    models = tuple(word.strip() for word in (options.models or "").split(",") if word.strip())
    with ui.usage_errors(SettingsError):
        for model in models:
            check_model_name(model, "--models")
    if options.name == ANONYMOUS:
        raise UsageError(f"{ANONYMOUS} is the name of requests without a key: choose another name")
    try:
        return msgspec.convert({**vars(options), "models": models}, SharedKey)
    except msgspec.ValidationError:
        raise UsageError(
            "a key needs a name of 1 to 64 letters, digits, dots, - and _, and limits of 0 (none) or more"
        ) from None


def _describe_key(key: SharedKey) -> str:
    rates = ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens"))
    parts = [ui.printable_name(", ".join(key.models)) if key.models else "all models"]
    parts += [f"{rate or 'unlimited'} {unit} per minute" for rate, unit in rates if rate is not None]
    return "; ".join([*parts, *(["admin"] if key.admin else []), *(["metrics"] if key.metrics else [])])


def _parser() -> CommandParser:
    parser = CommandParser("keys", __doc__)
    parser.add_argument("action", metavar="add | list | remove", choices=("add", "list", "remove"), help="the action")
    add = parser.option
    add("NAME", "name of the key, as in logs and limits", dest="name", nargs="?")
    add("--models NAMES", "models that the key may use, such as qwen-*,phi-4 [all]")
    for unit in ("requests", "tokens"):
        add(f"--{unit}-per-minute N", f"limit of {unit}; 0: no limit [that of each server]", int)
    add("--admin", "may see the whole server, and load and unload models")
    add("--metrics", "may read /metrics even if limited to some models")
    add("--keys-file FILE", "file of the keys [WELLDONE_KEYS_FILE, or keys_file in [server] of the file]")
    add("--limits-store URL", "URL of the store [WELLDONE_LIMITS_STORE, or store in [limits] of the file]")
    add("--config FILE", "a TOML file with settings [./welldone.toml if it exists]")
    return parser
