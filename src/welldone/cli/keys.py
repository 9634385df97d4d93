"""`welldone keys`: give out keys that all servers with one store take, list them, and take them away."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.drawing.columns import table
from welldone.net.settings import Given, SettingsError
from welldone.serve.config import read_config
from welldone.serve.doors import link_to
from welldone.serve.keys import ANONYMOUS, digest, make_key
from welldone.serve.log import Redactor
from welldone.serve.settings import Config
from welldone.serve.shared_keys import KNOWN_S, SharedKey, read_key
from welldone.serve.store import Link, StoreError
from welldone.serve.tables import check_name

EXAMPLES = """
welldone keys add ci --requests-per-minute 60 --limits-store redis://HOST:6379/0
welldone keys add ann --models "qwen-*,phi-4" --tokens-per-minute 100000
welldone keys list
welldone keys remove ci
"""

_SHOWN = 200  # characters of what is wrong with the store
_PATIENCE_S = 5.0  # for the store's answer: a person waits, and not a stream

Value = TypeVar("Value")


def run(arguments: list[str]) -> Exit:
    """Do what was asked for."""
    options = _parser().read(arguments)
    if (options.name is None) != (options.what == "list"):
        raise UsageError("write welldone keys add NAME, welldone keys remove NAME or welldone keys list")
    config = _config(options.limits_store, options.config)
    url = config.limits.store
    if url is None:
        raise UsageError("say where the keys are, with --limits-store redis://HOST:6379/0 or store in [limits]")
    try:
        if options.what == "add":
            if options.name in {key.name for key in config.keys}:
                raise UsageError(f"the settings have a key {options.name}, beside which this one would open nothing")
            return _add(url, _key(options.name, options))
        return _list(url) if options.what == "list" else _remove(url, options.name)
    except StoreError as error:
        # Its own words: a Redis that knows no passwords repeats the one that it was told.
        why = Redactor(config.secrets).line_of(str(error), _SHOWN)
        show.note(f"the store of the keys cannot be used: {why}")
        return Exit.UNREACHABLE


def _config(url: str | None, file: str | None) -> Config:
    """The settings, which say where the keys are: as for `welldone serve`."""
    here = Path.cwd()
    flags = {} if url is None else {"store": Given(url, "--limits-store", here)}
    flags |= {} if file is None else {"config": Given(file, "--config", here)}
    try:
        return read_config(flags, os.environ, folder=here)
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _key(name: str, options: object) -> SharedKey:
    said = vars(options)
    models = tuple(word.strip() for word in (said["models"] or "").split(",") if word.strip())
    try:
        for model in models:
            check_name(model, "--models")
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


def _add(url: str, key: SharedKey) -> Exit:
    if _digests(_kept(url), key.name):
        raise UsageError(f"there is a key {key.name} already: choose another name, or remove it first")
    made = make_key()
    _ask(url, lambda link: link.put_key(digest(made).hex(), msgspec.json.encode(key)))
    show.note(f"the key of {key.name}; it is nowhere else, and is not shown again:")
    show.line(made)
    return Exit.RIGHT


def _list(url: str) -> Exit:
    keys = sorted((key for key in _kept(url).values() if key is not None), key=lambda key: key.name)
    if not keys:
        show.note("there are no keys: welldone keys add NAME makes one")
    for line in table([(key.name, _described(key)) for key in keys], show.width()) if keys else ():
        show.line(line)
    return Exit.RIGHT


def _described(key: SharedKey) -> str:
    rates = ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens"))
    said = [show.name(", ".join(key.models)) if key.models else "all models"]
    said += [f"{rate or 'unlimited'} {unit} a minute" for rate, unit in rates if rate is not None]
    return "; ".join([*said, *(["admin"] if key.admin else []), *(["metrics"] if key.metrics else [])])


def _remove(url: str, name: str) -> Exit:
    digests = _digests(_kept(url), name)
    if not digests:
        raise UsageError(f"there is no key {show.name(name)}; welldone keys list shows those that are there")
    _ask(url, lambda link: link.drop_keys(digests))
    show.note(f"the key of {name} opens nothing any more, in {KNOWN_S:g} s at the latest")
    return Exit.RIGHT


def _kept(url: str) -> dict[str, SharedKey | None]:
    """All keys by their digests; None for what is written in another way."""
    return {one: read_key(value) for one, value in _ask(url, lambda link: link.keys()).items()}


def _digests(kept: dict[str, SharedKey | None], name: str) -> list[str]:
    return [one for one, key in kept.items() if key is not None and key.name == name]


def _ask(url: str, question: Callable[[Link], Awaitable[Value]]) -> Value:
    """The store's answer, from a connection of its own."""

    async def ask() -> Value:
        link = link_to(url, patience_s=_PATIENCE_S)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await question(link)
        except TimeoutError:
            raise StoreError(f"no answer within {_PATIENCE_S:g} s") from None
        finally:
            await link.close()

    return asyncio.run(ask())


def _parser() -> Parser:
    parser = Parser(
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
