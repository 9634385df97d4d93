"""Command lines: argparse, with errors that are one line and say what to do next."""

import argparse
from typing import NoReturn

from welldone.cli.ui import UsageError
from welldone.config.settings import did_you_mean

__all__ = ["CommandParser", "did_you_mean"]


class CommandParser(argparse.ArgumentParser):
    """A command's options. Mistakes raise `UsageError`; abbreviations are mistakes, so that scripts stay readable."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"welldone {command}",
            description=description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """The options that `arguments` set."""
        options, unknown = self.parse_known_args(arguments)
        for word in unknown:
            raise self.unknown_option(word)
        return options

    def flags(self, *, is_shown: bool = False) -> list[str]:
        """All that it knows, or those that its help shows."""
        actions = [action for action in self._actions if not is_shown or action.help != argparse.SUPPRESS]
        return [flag for action in actions for flag in action.option_strings]

    def unknown_option(self, word: str) -> UsageError:
        """What to say of a word that means nothing here. What follows `=` may be a secret."""
        name = word.partition("=")[0]
        hint = did_you_mean(name, self.flags(is_shown=True))
        return UsageError(f"{self.prog} does not know {name!r}{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")
