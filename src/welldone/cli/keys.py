"""`welldone keys`: give out keys that all servers with one store take, list them, and take them away."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.config.settings import RawSetting, SettingsError
from welldone.reporting import format_table
from welldone.server.access.control import connect_store
from welldone.server.access.keys import ANONYMOUS, CACHE_TTL_S, SharedKey, key_digest, make_key, parse_key
from welldone.server.access.store import StoreClient, StoreError
from welldone.server.config import read_config
from welldone.server.config_file import check_model_name
from welldone.server.observe.log import Redactor

EXAMPLES = """
welldone keys add ci --requests-per-minute 60 --limits-store redis://HOST:6379/0
welldone keys add ann --models "qwen-*,phi-4" --tokens-per-minute 100000
welldone keys list
welldone keys remove ci
"""

_MAX_ERROR_CHARS = 200  # characters of what is wrong with the store
_STORE_TIMEOUT_S = 5.0  # for the store's answer: a person waits, and not a stream

Value = TypeVar("Value")


def run(arguments: list[str]) -> ExitCode:
    """Do what was asked for."""
    options = _parser().parse(arguments)
    if (options.name is None) != (options.what == "list"):
        raise UsageError("write welldone keys add NAME, welldone keys remove NAME or welldone keys list")
    config = _read_config(options.limits_store, options.config)
    url = config.limits.store
    if url is None:
        raise UsageError("say where the keys are, with --limits-store redis://HOST:6379/0 or store in [limits]")
    try:
        if options.what == "add":
            if options.name in {key.name for key in config.keys}:
                raise UsageError(f"the settings have a key {options.name}, beside which this one would open nothing")
            return _add_key(url, _shared_key(options.name, options))
        return _list_keys(url) if options.what == "list" else _remove_key(url, options.name)
    except StoreError as error:
        # Its own words: a Redis that knows no passwords repeats the one that it was told.
        why = Redactor(config.secrets).line_of(str(error), _MAX_ERROR_CHARS)
        ui.print_note(f"the store of the keys cannot be used: {why}")
        return ExitCode.UNREACHABLE


def _read_config(url: str | None, file: str | None) -> Config:
    """The settings, which say where the keys are: as for `welldone serve`."""
    here = Path.cwd()
    flags = {} if url is None else {"store": RawSetting(url, "--limits-store", here)}
    flags |= {} if file is None else {"config": RawSetting(file, "--config", here)}
    try:
        return read_config(flags, os.environ, folder=here)
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _shared_key(name: str, options: object) -> SharedKey:
    said = vars(options)
    models = tuple(word.strip() for word in (said["models"] or "").split(",") if word.strip())
    try:
        for model in models:
            check_model_name(model, "--models")
        if name == ANONYMOUS:
            raise UsageError(f"{name} is what those without a key are called: choose another name")
        return msgspec.convert(
            {
                "name": name,
                "models": models,
                "requests_per_minute": said["requests_per_minute"],
                "tokens_per_minute": said["tokens_per_minute"],
                "admin": said["admin"],
                "metrics": said["metrics"],
            },
            SharedKey,
        )
    except SettingsError as error:
        raise UsageError(str(error)) from None
    except msgspec.ValidationError:
        raise UsageError(
            "a key has a name of 1 to 64 letters, digits, dots, - and _, and its limits are 0 (none) or more"
        ) from None


def _add_key(url: str, key: SharedKey) -> ExitCode:
    if _digests(_stored_keys(url), key.name):
        raise UsageError(f"there is a key {key.name} already: choose another name, or remove it first")
    made = make_key()
    _query_store(url, lambda link: link.put_key(key_digest(made).hex(), msgspec.json.encode(key)))
    ui.print_note(f"the key of {key.name}; it is nowhere else, and is not shown again:")
    ui.print_line(made)
    return ExitCode.OK


def _list_keys(url: str) -> ExitCode:
    keys = sorted((key for key in _stored_keys(url).values() if key is not None), key=lambda key: key.name)
    if not keys:
        ui.print_note("there are no keys: welldone keys add NAME makes one")
    for line in format_table([(key.name, _describe_key(key)) for key in keys], ui.terminal_width()) if keys else ():
        ui.print_line(line)
    return ExitCode.OK


def _describe_key(key: SharedKey) -> str:
    rates = ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens"))
    said = [ui.printable_name(", ".join(key.models)) if key.models else "all models"]
    said += [f"{rate or 'unlimited'} {unit} a minute" for rate, unit in rates if rate is not None]
    return "; ".join([*said, *(["admin"] if key.admin else []), *(["metrics"] if key.metrics else [])])


def _remove_key(url: str, name: str) -> ExitCode:
    digests = _digests(_stored_keys(url), name)
    if not digests:
        raise UsageError(f"there is no key {ui.printable_name(name)}; welldone keys list shows those that are there")
    _query_store(url, lambda link: link.drop_keys(digests))
    ui.print_note(f"the key of {name} opens nothing any more, in {CACHE_TTL_S:g} s at the latest")
    return ExitCode.OK


def _stored_keys(url: str) -> dict[str, SharedKey | None]:
    """All keys by their digests; None for what is written in another way."""
    return {one: parse_key(value) for one, value in _query_store(url, lambda link: link.keys()).items()}


def _digests(stored: dict[str, SharedKey | None], name: str) -> list[str]:
    return [one for one, key in stored.items() if key is not None and key.name == name]


def _query_store(url: str, query: Callable[[StoreClient], Awaitable[Value]]) -> Value:
    """The store's answer, from a connection of its own."""

    async def ask() -> Value:
        link = connect_store(url, timeout_s=_STORE_TIMEOUT_S)
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                return await query(link)
        except TimeoutError:
            raise StoreError(f"no answer within {_STORE_TIMEOUT_S:g} s") from None
        finally:
            await link.close()

    return asyncio.run(ask())


def _parser() -> CommandParser:
    parser = CommandParser(
        "keys",
        "Give out keys for all servers that count in one store (--limits-store), list them, or take one away.\n"
        "A key is shown once, when it is made. Servers need not be told: they look into the store.",
        EXAMPLES,
    )
    parser.add_argument("what", metavar="add | list | remove", choices=("add", "list", "remove"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="whose key it is: logs and limits call it so")
    parser.add_argument("--models", metavar="NAMES", help="the models that it may use, such as qwen-*,phi-4 [all]")
    for unit in ("requests", "tokens"):
        parser.add_argument(
            f"--{unit}-per-minute", metavar="N", type=int, help=f"its {unit}; 0: no limit [that of each server]"
        )
    parser.add_argument("--admin", action="store_true", help="it may see the whole server, and load and unload models")
    parser.add_argument(
        "--metrics", action="store_true", help="it may read /metrics although it is for some models only"
    )
    parser.add_argument(
        "--limits-store", metavar="URL", help="the store, else WELLDONE_LIMITS_STORE or store in [limits] of the file"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings [./welldone.toml if it is there]")
    return parser
