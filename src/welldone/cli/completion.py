"""`welldone completion`: print a script that completes commands, options and values in a shell.

Print a completion script for bash, zsh or fish. It completes commands, options, their values, the ids of rules
and the names of downloaded models.

examples:
  welldone completion bash > ~/.local/share/bash-completion/completions/welldone
  welldone completion zsh > ~/.zfunc/_welldone
  welldone completion fish > ~/.config/fish/completions/welldone.fish
"""

import argparse
import importlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pkgutil import get_data
from typing import NamedTuple

from welldone.cli import ui
from welldone.cli.main import COMMANDS
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode
from welldone.protocol.catalog import RULES

_FILE_PLACEHOLDERS = re.compile(r"FILE|PATH|FOLDER|DIR")
_PARSERS = {"serve": "serve_parser"}
"""Functions that return the parser of a command, where it is not `_parser`."""
_MODEL_FLAGS = ("--model", "--model-draft")
MODELS_COMMAND = "welldone completion --models 2>/dev/null"
"""Prints the names of downloaded models, for the scripts."""


class Option(NamedTuple):
    """An option of a command, or its argument if it has no flags."""

    flags: list[str]
    placeholder: str
    text: str
    has_value: bool
    values: list[str]
    takes_file: bool
    takes_model: bool


def run(arguments: list[str]) -> ExitCode:
    """Print the script, or the names of models."""
    options = _parser().parse(arguments)
    if options.models:
        from welldone.engines.models import store

        ui.print_lines(sorted(store.files_by_model(store.models_folder(os.environ))))
    elif options.shell is None:
        ui.print_note(_parser().format_help().rstrip())
        return ExitCode.USAGE
    else:
        ui.print_line(SCRIPTS[options.shell]())
    return ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser("completion", __doc__)
    parser.option("SHELL", "bash, zsh or fish", dest="shell", nargs="?", choices=("bash", "zsh", "fish"))
    parser.option("--models", "print the names of the downloaded models, which the scripts complete")
    return parser


def command_parser(command: str) -> CommandParser:
    """Return the parser of a command."""
    module = importlib.import_module(f"welldone.cli.{command}")
    parser: CommandParser = getattr(module, _PARSERS.get(command, "_parser"))()
    return parser


def command_options(parser: CommandParser) -> Iterator[Option]:
    """Yield the options of a command that its help shows, and its arguments."""
    for action in parser._actions:  # argparse has no public list
        if action.help == argparse.SUPPRESS:
            continue
        placeholder = action.metavar if isinstance(action.metavar, str) else ""
        flags = list(action.option_strings)
        values = list(getattr(action, "values", None) or action.choices or ())
        if not flags and placeholder == "ID":
            values = list(RULES)
        yield Option(
            flags=flags,
            placeholder=placeholder,
            text=(action.help or "").replace("%%", "%"),
            has_value=action.nargs != 0,
            values=values,
            takes_file=bool(_FILE_PLACEHOLDERS.search(placeholder)),
            takes_model=any(flag in _MODEL_FLAGS for flag in flags),
        )


def _all_options() -> dict[str, list[Option]]:
    return {command: list(command_options(command_parser(command))) for command in COMMANDS}


def _template(shell: str) -> str:
    return (get_data("welldone.cli", f"completion.{shell}") or b"").decode().rstrip("\n")


def _bash() -> str:
    values, options = [], []
    no_files = "compopt +o default +o bashdefault; "
    for command, found in _all_options().items():
        positional = " ".join(value for option in found if not option.flags for value in option.values)
        flags = " ".join(flag for option in found for flag in option.flags)
        options.append(f'        {command}) words="{flags}" values="{positional}" ;;')
        for option in found:
            if not option.flags or not option.has_value:
                continue
            pattern = "|".join(f'"{command} {flag}"' for flag in option.flags)
            if option.takes_model:
                words = f'COMPREPLY=($(compgen -W "$({MODELS_COMMAND})" -- "$cur") $(compgen -f -- "$cur"))'
            elif option.values:
                words = f'{no_files}COMPREPLY=($(compgen -W "{" ".join(option.values)}" -- "$cur"))'
            else:
                words = "" if option.takes_file else no_files.removesuffix("; ")
            values.append(f"        {pattern}) {f'{words}; ' if words else ''}return ;;")
    text = _template("bash").replace("@commands@", " ".join(COMMANDS))
    return text.replace("@values@", "\n".join(values)).replace("@options@", "\n".join(options))


def _zsh() -> str:
    commands = [f"        {shlex.quote(f'{name}:{text}')}" for name, text in COMMANDS.items()]
    cases = []
    for command, found in _all_options().items():
        specs = []
        for option in found:
            value = _zsh_value(option)
            text = re.sub(r"([\[\]:\\])", r"\\\1", option.text)
            if not option.flags:
                specs.append(f"*{value}")
            specs += [f"*{flag}[{text}]{value if option.has_value else ''}" for flag in option.flags]
        lines = " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs)
        cases.append(f"        {command})\n            _arguments \\\n{lines}\n            ;;")
    text = _template("zsh").replace("@models@", MODELS_COMMAND).replace("@commands@", "\n".join(commands))
    return text.replace("@options@", "\n".join(cases))


def _zsh_value(option: Option) -> str:
    if option.takes_model:
        return ":model:_welldone_models"
    if option.values:
        return f":value:({' '.join(option.values)})"
    return ":file:_files" if option.takes_file else ":value: "


def _fish() -> str:
    lines = ["# fish completion of welldone, printed by: welldone completion fish", "complete -c welldone -f"]
    condition = "-n __fish_use_subcommand"
    lines += [f"complete -c welldone {condition} -a {name} -d {_fish_quote(text)}" for name, text in COMMANDS.items()]
    for command, found in _all_options().items():
        condition = f"-n '__fish_seen_subcommand_from {command}'"
        for option in found:
            words = [f"complete -c welldone {condition}", *map(_fish_flag, option.flags)]
            if option.takes_model:
                words.append(f"-r -F -a {_fish_quote(f'({MODELS_COMMAND})')}")
            elif option.values:
                words.append(f"{'-x ' if option.flags else ''}-a {_fish_quote(' '.join(option.values))}")
            elif option.has_value:
                words.append("-r -F" if option.takes_file else "-x" if option.flags else "")
            if option.flags or option.values or option.takes_file:
                lines.append(" ".join([*filter(None, words), f"-d {_fish_quote(option.text)}"]))
    return "\n".join(lines)


def _fish_flag(flag: str) -> str:
    """Return fish's form of a flag: it has three kinds."""
    name = flag.lstrip("-")
    if flag.startswith("--"):
        return f"-l {name}"
    return f"-s {name}" if len(name) == 1 else f"-o {name}"


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
