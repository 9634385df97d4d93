"""Command-line parser: argparse with errors of one line that tell the user what to do."""

import argparse
from typing import NoReturn

from welldone.cli.ui import UsageError
from welldone.config.settings import did_you_mean

__all__ = ["CommandParser", "did_you_mean"]


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. Errors raise `UsageError`. Abbreviated options are errors, so that scripts stay readable."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"welldone {command}",
            description=description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
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
        kind = "option" if name.startswith("-") else "argument"
        return UsageError(f"{self.prog}: unknown {kind} {name!r}{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse found."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")
