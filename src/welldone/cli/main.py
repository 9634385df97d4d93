"""Runs a command. Only the module of the command that runs is imported."""

import importlib
import sys
import textwrap

from welldone import __version__
from welldone.cli import ui
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import did_you_mean, install_advice

_SIGNAL_EXIT_BASE = 128  # shells report 128 + the number of the signal that ended a process
_SIGPIPE = 13

COMMANDS = {
    "serve": "serve local models and other servers through OpenAI's API",
    "reload": "let a running server read its configuration again",
    "status": "show models, upstreams and recent errors of a running server",
    "scale": "run the server on a Ray cluster, with replicas that follow the load",
    "check": "test a running server against the rules of the stream",
    "bench": "load-test a server: latency, throughput, errors",
    "lint": "report the rules that a captured stream breaks",
    "fix": "repair a stream as it passes through",
    "rules": "list the rules of the stream, or show one with examples",
    "mock": "run a mock server for client tests, with faults on request",
    "keys": "add, list and remove API keys that several servers share",
    "models": "list the models that can be served, and their state on a running server",
    "pull": "download a model and verify its hash",
    "engine": "list the engines that run local models, and build a faster one for this machine",
    "completion": "print a script that completes commands in bash, zsh or fish",
}

USAGE = """\
welldone: OpenAI-compatible streaming, well [DONE]

usage: welldone COMMAND [OPTIONS]

{commands}

Run welldone COMMAND --help for the options and examples of a command, welldone --version for the version."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    ui.open_missing_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        ui.flush_output()
    except UsageError as error:
        ui.print_note(str(error))
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `| head`: exit like a process that SIGPIPE ended.
        ui.close_output()
        return _SIGNAL_EXIT_BASE + _SIGPIPE
    except OSError as error:
        ui.close_output()
        ui.print_note(f"cannot write the output: {ui.error_text(error)}")
        return ExitCode.UNREACHABLE
    return code


def _run(arguments: list[str]) -> int:
    word, *rest = arguments or [""]
    if word in ("-V", "--version", "version"):
        ui.print_line(f"welldone {__version__}")
        return ExitCode.OK
    if word in ("-h", "--help", "help"):
        ui.print_line(_usage())
        return ExitCode.OK
    if not word:
        ui.print_note(_usage())
        return ExitCode.USAGE
    if word not in COMMANDS:
        raise UsageError(f"welldone has no command {word!r}{did_you_mean(word, COMMANDS)}; see welldone --help")
    try:
        return int(importlib.import_module(f"welldone.cli.{word}").run(rest))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("welldone"):
            raise
        raise UsageError(missing_dependency(word, error.name)) from None


def missing_dependency(command: str, module: str, platform: str = sys.platform) -> str:
    """Return the message for a command whose dependency is not installed."""
    if platform == "win32":
        return f"welldone {command} needs Linux or macOS; on Windows it runs in WSL"
    extra = {"bench": "bench", "scale": "ray", "keys": "redis"}.get(command, "serve")
    return f"welldone {command} needs {module}: {install_advice(extra)}"


def _usage() -> str:
    # welldone.reporting could wrap these lines too, but it imports msgspec, which --help does without.
    width, indent = ui.terminal_width(), " " * 13
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    if width is not None:
        lines = [textwrap.fill(line, max(width, 40), subsequent_indent=indent) for line in lines]
    return USAGE.format(commands="\n".join(lines))
