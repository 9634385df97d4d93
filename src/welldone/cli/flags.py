"""The command line of `welldone serve`, made from the settings."""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from welldone.cli.exits import UsageError
from welldone.cli.foreign import ACCEPTED, REFUSED, Foreign
from welldone.cli.options import Parser
from welldone.net.settings import Field, Given, SettingsError
from welldone.serve.config import ALL_FIELDS, read_config
from welldone.serve.settings import Config

DESCRIPTION = """\
Serve models to clients of OpenAI's API. Without options it is the built-in small model, on
http://127.0.0.1:8000. The command lines of llama-server work here.

A setting is taken from its flag, else from the environment (--ctx-size: WELLDONE_CTX_SIZE), else
from welldone.toml, else it has its default, which is shown as [default]. Flags behind a / turn a
setting off. With -m one model is served, and the others of welldone.toml are left aside; without
it, the flags of models count for all of them.

With --upstream, or upstreams in welldone.toml, it stands in front of other servers of OpenAI's API
and mends their streams. docs/settings.md has more."""

EXAMPLES = """
welldone serve
welldone serve -m phi-4-Q4_K_M.gguf -c 8192 -ngl all --alias phi-4
welldone serve --host 0.0.0.0 --api-key env:MY_KEY
welldone serve --upstream http://gpu:8000/v1 --port 9000
welldone serve --config welldone.toml
"""

GROUPS = ("Model", "Engine", "Answers", "Server", "Upstreams", "Security", "Limits", "Logs")
"""The order of help and documents."""

_SECRETS = {flag for field in ALL_FIELDS if field.setting.is_secret for flag in field.setting.flags}
_HELP_COLUMN = 34  # most flags with their value fit before it
_HELP_WIDTH = 100


def read(arguments: list[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Config:
    """What the user wants, from the command line and all else that says it. Mistakes raise `UsageError`."""
    here = Path.cwd() if folder is None else folder
    options = parser()
    _check_short(options, arguments)
    said: list[tuple[Field | Foreign, str, str]] = options.read(arguments).said
    notes = [f"{flag} {what.reason}" for what, flag, _ in said if isinstance(what, Foreign)]
    try:
        config = read_config(_given(said, here), os.environ if environment is None else environment, folder=here)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    return dataclasses.replace(config, notes=(*dict.fromkeys(notes), *config.notes))


def _check_short(options: Parser, arguments: list[str]) -> None:
    """argparse would take -cx for -c with the value x, and -nk for the start of -nkvo."""
    known = set(options.flags())
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word[:1] == "-" and word[1:2].isalpha() and word.partition("=")[0] not in known:
            if before in _SECRETS:  # this may be the key: it is not repeated
                raise UsageError(f"a key that begins with - is written {before}=KEY")
            raise options.unknown(word)


def _given(said: Sequence[tuple[Field | Foreign, str, str]], folder: Path) -> dict[str, Given]:
    """What the flags say. Of a flag that is repeated the last counts, but lists grow."""
    given: dict[str, Given] = {}
    for what, flag, value in said:
        if isinstance(what, Foreign):
            continue
        before = given.get(what.name) if what.kind is tuple else None
        given[what.name] = Given(value if before is None else f"{before.value},{value}", flag, folder)
    return given


def parser() -> Parser:
    """All flags, in groups."""
    made = Parser("serve", DESCRIPTION, EXAMPLES)
    made.usage = "welldone serve [OPTIONS]"
    made.formatter_class = _Format
    made.set_defaults(said=[])
    for title in GROUPS:
        group = made.add_argument_group(title)
        for field in ALL_FIELDS:
            if field.setting.group == title and field.setting.flags:
                _add(group, field)
    for foreign in (*ACCEPTED, *REFUSED):
        made.add_argument(
            *foreign.flags, action=_Said, what=foreign, dest="said", nargs=foreign.values, help=argparse.SUPPRESS
        )
    return made


def _add(group: "argparse._ArgumentGroup", field: Field) -> None:
    setting = field.setting
    group.add_argument(
        *setting.flags,
        *setting.off.split(),
        action=_Said,
        what=field,
        dest="said",
        nargs=0 if field.kind is bool else "?" if setting.alone else None,
        const=setting.alone,
        metavar=setting.metavar,
        help=help_of(field).replace("%", "%%"),
    )


def help_of(field: Field) -> str:
    """What a setting is, with its choices and its default."""
    choices = field.setting.choices.split()
    among = f" ({', '.join(choices)})" if choices and "|" not in field.setting.metavar else ""
    default = default_of(field)
    return f"{field.setting.help}{among}" + (f" [{default}]" if default else "")


def default_of(field: Field) -> str:
    """The default as help and documents show it; nothing where there is none."""
    value = field.default
    if field.setting.unset:
        return field.setting.unset
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or value == () or value == {} else str(value)


class _Said(argparse.Action):
    """Keeps what was said in the order of the command line: the setting, the flag that was used, the value."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, what: Field | Foreign, **rest: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(option_strings, dest, **rest | {"default": argparse.SUPPRESS})
        self._what = what

    @property
    def off(self) -> list[str]:
        """The flags that turn it off."""
        return self._what.setting.off.split() if isinstance(self._what, Field) else []

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or ""
        if self._what in REFUSED:
            raise UsageError(f"{flag} {self._what.reason}")
        namespace.said.append(
            (self._what, flag, "false" if flag in self.off else values if isinstance(values, str) else "true")
        )


class _Format(argparse.RawDescriptionHelpFormatter):
    """Help that looks the same in every version of Python."""

    def __init__(self, prog: str, **rest: Any) -> None:  # noqa: ANN401 - argparse's own
        width = min(_HELP_WIDTH, rest.pop("width", None) or int(os.environ.get("COLUMNS", _HELP_WIDTH)))
        super().__init__(prog, **rest | {"max_help_position": _HELP_COLUMN, "width": width})

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = f" {action.metavar}" if action.metavar else ""
        off = action.off if isinstance(action, _Said) else []
        names = ", ".join(flag for flag in action.option_strings if flag not in off)
        names += f" / {', '.join(off)}" if off else ""
        return names + (f" [{action.metavar}]" if action.nargs == "?" else value)
