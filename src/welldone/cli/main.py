"""The `welldone` command. It loads only the command that was asked for."""

import importlib
import signal
import sys

from welldone import __version__
from welldone.cli import ui
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import did_you_mean
from welldone.reporting import wrap_text

_SIGNAL_EXIT_BASE = 128  # what shells add to the number of the signal that ended a process
_SIGPIPE = 13

COMMANDS = {
    "serve": "serve models to clients of OpenAI's API",
    "scale": "serve on a Ray cluster: more machines, and more of them when there is more to do",
    "check": "ask a running server what clients ask, and say which rules it breaks",
    "bench": "ask a server as many clients would, and say how fast it answers",
    "lint": "judge a captured stream: which rules it breaks, where, and whom that hurts",
    "fix": "repair a stream as it passes through",
    "rules": "list the rules of the stream, or show the page of one",
    "mock": "answer without a model, rightly or with a fault, for those who write clients",
    "keys": "give out keys that several servers take, and take them away",
    "models": "list the models that can be served, and their state where a server runs",
    "pull": "fetch a model, with a checked hash",
}

USAGE = """\
welldone: OpenAI-compatible streaming, well [DONE]

usage: welldone COMMAND [OPTIONS]

{commands}

welldone COMMAND --help shows a command's options and examples; welldone --version the version."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name; its exit code."""
    ui.open_missing_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        ui.flush_output()
    except UsageError as error:
        ui.print_note(str(error))
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return _SIGNAL_EXIT_BASE + signal.SIGINT
    except BrokenPipeError:
        # Who read our output has left. That is no error, but no verdict either: end as a shell shows it.
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
    """What to say of a command without a module that it needs."""
    if platform == "win32":
        return f"welldone {command} needs Linux or macOS; on Windows it runs in WSL"
    extra = {"bench": "bench", "scale": "ray", "keys": "redis"}.get(command, "serve")
    return (
        f"welldone {command} needs {module}: pip install 'welldone[{extra}]', or in a clone of the project "
        f"pip install '.[{extra}]'"
    )


def _usage() -> str:
    width = ui.terminal_width()
    lines = [line for name, text in COMMANDS.items() for line in wrap_text(f"  {name:<7} ", text, width)]
    return USAGE.format(commands="\n".join(lines))
