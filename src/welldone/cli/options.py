"""Command-line parser: argparse with errors of one line that tell the user what to do."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import NoReturn

from welldone.cli.ui import UsageError
from welldone.config.settings import did_you_mean, flags_of


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. Errors raise `UsageError`. Abbreviated options are errors, so that scripts stay readable.

    The help is the docstring of the command: a summary, which is left out, a blank line, the description, the examples.
    """

    def __init__(self, command: str, docstring: str | None) -> None:
        _, _, text = inspect.cleandoc(docstring or "").partition("\n\n")
        description, heading, examples = text.partition("examples:\n")
        super().__init__(
            prog=f"welldone {command}",
            description=description.strip(),
            epilog=heading + examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._group: argparse._ActionsContainer = self

    def start_group(self, title: str) -> None:
        """Put the following options into a group of the help."""
        self._group = self.add_argument_group(title)

    def option(
        self,
        usage: str,
        text: str,
        parse: Callable[[str], object] = str,
        *,
        default: object = None,
        choices: Sequence[str] | None = None,
        nargs: str | None = None,
        dest: str | None = None,
    ) -> None:
        """Add an option or an argument with its help text.

        `usage` is written like that of a setting: the flags, then the placeholder of the value. `N...` is the
        placeholder of an option that may be repeated. An option without placeholder and choices is a switch, and an
        argument has no flags, but `dest`.
        """
        flags = flags_of(usage)
        placeholder = usage.split()[-1] if len(flags) < len(usage.split()) else None
        if placeholder is None and choices is None:
            self._group.add_argument(*flags, action="store_true", help=text)
            return
        is_repeated = placeholder is not None and placeholder.endswith("...")
        self._group.add_argument(
            *flags,
            dest=dest,
            action="append" if is_repeated else "store",
            metavar=placeholder.removesuffix("...") if placeholder else None,
            type=parse,
            default=[] if is_repeated else default,
            choices=choices,
            nargs=nargs,
            help=text,
        )

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments of the command."""
        options, unknown = self.parse_known_args(arguments)
        for word in unknown:
            raise self.unknown_option(word)
        return options

    def flags(self, *, is_shown: bool = False) -> list[str]:
        """Return all option strings, or only those that the help shows."""
        actions = [action for action in self._actions if not is_shown or action.help != argparse.SUPPRESS]
        return [flag for action in actions for flag in action.option_strings]

    def unknown_option(self, word: str) -> UsageError:
        """Return the error for an unknown option or argument, without the value after `=`: it may be a secret."""
        name = word.partition("=")[0]
        hint = did_you_mean(name, self.flags(is_shown=True))
        noun = "option" if name.startswith("-") else "argument"
        return UsageError(f"{self.prog}: unknown {noun} {name!r}{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse found."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")
