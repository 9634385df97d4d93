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
from collections.abc import Callable, Iterable, Iterator
from pkgutil import get_data
from typing import NamedTuple

from welldone.cli import ui
from welldone.cli.main import COMMANDS
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode
from welldone.core.catalog import RULES

_FILE_PLACEHOLDERS = re.compile(r"FILE|PATH|FOLDER|DIR")
_PARSERS = {"serve": "serve_parser"}
"""Functions that return the parser of a command, where it is not `_parser`."""
_MODEL_FLAGS = frozenset({"--model", "--model-draft"})
MODELS_COMMAND = "welldone completion --models 2>/dev/null"
"""Prints the names of downloaded models, for the scripts."""

# By kind of the value: what each shell completes. {} are the words of a choice.
_BASH_VALUES = {
    "file": "",
    "any": "compopt +o default +o bashdefault; ",
    "choice": 'compopt +o default +o bashdefault; COMPREPLY=($(compgen -W "{}" -- "$cur")); ',
    "model": f'COMPREPLY=($(compgen -W "$({MODELS_COMMAND})" -- "$cur") $(compgen -f -- "$cur")); ',
}
_ZSH_VALUES = {"file": ":file:_files", "any": ":value: ", "choice": ":value:({})", "model": ":model:_welldone_models"}
_FISH_VALUES = {"file": "-r -F", "any": "-x", "choice": "-x -a '{}'", "model": f"-r -F -a '({MODELS_COMMAND})'"}


class Option(NamedTuple):
    """An option of a command, or its argument if it has no flags."""

    flags: list[str]
    placeholder: str
    text: str
    kind: str
    """Of its value: choice, model, file or any; empty if it has none."""
    values: str
    """Of a choice, separated by spaces."""


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
        value_kind = "choice" if values else "file" if _FILE_PLACEHOLDERS.search(placeholder) else "any"
        value_kind = "model" if not _MODEL_FLAGS.isdisjoint(flags) else value_kind if action.nargs != 0 else ""
        yield Option(flags, placeholder, (action.help or "").replace("%%", "%"), value_kind, " ".join(values))


def _all_options() -> dict[str, list[Option]]:
    return {command: list(command_options(command_parser(command))) for command in COMMANDS}


def _template(shell: str, **parts: Iterable[str]) -> str:
    text = (get_data("welldone.cli", f"completion.{shell}") or b"").decode().rstrip("\n")
    for name, lines in parts.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


def _bash() -> str:
    values, options = [], []
    for command, own_options in _all_options().items():
        positional = " ".join(option.values for option in own_options if not option.flags and option.values)
        flags = " ".join(flag for option in own_options for flag in option.flags)
        options.append(f'        {command}) words="{flags}" values="{positional}" ;;')
        for option in own_options:
            if option.flags and option.kind:
                pattern = "|".join(f'"{command} {flag}"' for flag in option.flags)
                values.append(f"        {pattern}) {_BASH_VALUES[option.kind].replace('{}', option.values)}return ;;")
    return _template("bash", commands=[" ".join(COMMANDS)], values=values, options=options)


def _zsh() -> str:
    commands = [f"        {shlex.quote(f'{name}:{text}')}" for name, text in COMMANDS.items()]
    cases = []
    for command, own_options in _all_options().items():
        specs = []
        for option in own_options:
            value = _ZSH_VALUES[option.kind].replace("{}", option.values) if option.kind else ""
            text = re.sub(r"([\[\]:\\])", r"\\\1", option.text)
            specs += [f"*{flag}[{text}]{value}" for flag in option.flags] or [f"*{value}"]
        lines = " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs)
        cases.append(f"        {command})\n            _arguments \\\n{lines}\n            ;;")
    return _template("zsh", models=[MODELS_COMMAND], commands=commands, options=cases)


def _fish() -> str:
    lines = ["# fish completion of welldone, printed by: welldone completion fish", "complete -c welldone -f"]
    condition = "-n __fish_use_subcommand"
    lines += [f"complete -c welldone {condition} -a {name} -d {_fish_quote(text)}" for name, text in COMMANDS.items()]
    for command, own_options in _all_options().items():
        for option in own_options:
            # fish has three kinds of flags: --long, -s and -old.
            kinds = ("-l" if flag.startswith("--") else "-s" if len(flag) == 2 else "-o" for flag in option.flags)
            words = [f"{flag_kind} {flag.lstrip('-')}" for flag_kind, flag in zip(kinds, option.flags, strict=True)]
            if option.kind and (option.flags or option.kind != "any"):
                value = _FISH_VALUES[option.kind].replace("{}", option.values)
                words.append(value if option.flags else value.removeprefix("-x "))
            if words:
                start = f"complete -c welldone -n '__fish_seen_subcommand_from {command}'"
                lines.append(" ".join([start, *words, f"-d {_fish_quote(option.text)}"]))
    return "\n".join(lines)


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
