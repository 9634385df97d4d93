"""Command lines: argparse, with errors that are one line and say what to do next."""

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn

from welldone.cli.exits import UsageError


class Parser(argparse.ArgumentParser):
    """A command's options. Mistakes raise `UsageError`; abbreviations are mistakes, so that scripts stay readable."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"welldone {command}",
            description=description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The options that `arguments` set."""
        options, unknown = self.parse_known_args(arguments)
        flags = [flag for action in self._actions for flag in action.option_strings]
        for word in unknown:
            name = word.partition("=")[0]
            raise UsageError(f"{self.prog} does not know {name!r}{nearest(name, flags)}; see {self.prog} --help")
        return options

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at what was meant, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
