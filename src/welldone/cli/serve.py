"""`welldone serve`: an OpenAI-compatible server, on local models and in front of other servers."""

import importlib

from welldone.cli import flags
from welldone.cli.exits import ExitCode


def run(arguments: list[str]) -> ExitCode:
    """Serve until told to stop."""
    config = flags.read_serve_config(arguments)
    # The server's packages are an extra: help, and what is wrong with a command line, can be had without them.
    code: ExitCode = importlib.import_module("welldone.cli.service").run(config)
    return code
