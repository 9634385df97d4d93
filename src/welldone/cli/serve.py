"""`welldone serve`: an OpenAI-compatible server for local models and a gateway to other servers.

Serve local models through OpenAI's API. Without options it serves the small built-in model on
http://127.0.0.1:8000. The command-line options of llama-server are accepted.

A setting comes from its flag, else from the environment (--ctx-size: WELLDONE_CTX_SIZE), else from
welldone.toml, else it has its default, shown in [brackets]. Flags after a / turn a setting off.
With -m only that model is served, and the models of welldone.toml are ignored; without -m, flags
for models apply to all of them.

With --upstream, or upstreams in welldone.toml, it is a gateway to other servers with OpenAI's API
and repairs their streams. See docs/settings.md.

examples:
  welldone serve
  welldone serve -m phi-4-Q4_K_M.gguf -c 8192 -ngl all --alias phi-4
  welldone serve --host 0.0.0.0 --api-key env:MY_KEY
  welldone serve --upstream http://gpu:8000/v1 --port 9000
  welldone serve --config welldone.toml
  welldone serve --config welldone.toml --check-config
"""

import argparse
import dataclasses
import importlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import get_data
from typing import Any

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.config.settings import RawSetting, Setting, SettingField, SettingsError, SettingSource
from welldone.server.config import ALL_FIELDS, read_config


def _read_flags(group: str) -> tuple[Setting, ...]:
    """Return the flags of llama-server that are not settings here. Their help is the reason."""
    entries = tomllib.loads((get_data("welldone.cli", "llama_server_flags.toml") or b"").decode())[group]
    return tuple(Setting(group, entry["reason"], usage) for entry in entries for usage in entry["usages"])


IGNORED_FLAGS = _read_flags("ignored")
"""Accepted, with a warning: they are always on or have no effect."""
REFUSED_FLAGS = _read_flags("refused")
"""Refused: without an equivalent, ignoring them would change the behaviour silently."""


# The command line, built from the settings.


SETTING_GROUPS = ("Model", "Engine", "Answers", "Server", "Upstreams", "Security", "Limits", "Logs")
"""The order in the help and in the documentation."""

CHECK_FLAG = "--check-config"
_SECRET_FLAGS = {flag for field in ALL_FIELDS if field.setting.is_secret for flag in field.setting.flags}
_HELP_COLUMN = 34  # most flags with their value fit before it
_HELP_WIDTH = 100


def read_serve_config(
    arguments: list[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Config:
    """Read the settings from the command line, the environment and welldone.toml. Errors raise `UsageError`."""
    here = Path.cwd() if folder is None else folder
    parser = serve_parser()
    _check_short_flags(parser, arguments)
    occurrences: list[tuple[SettingField | Setting, str, str]] = parser.parse(arguments).occurrences
    notes = [f"{flag} {option.help}" for option, flag, _ in occurrences if isinstance(option, Setting)]
    config = _read_config(_given_settings(occurrences, here), environment, here)
    return dataclasses.replace(config, warnings=(*dict.fromkeys(notes), *config.warnings))


def read_server_config(file: str | None, store: str | None = None, keys_file: str | None = None) -> Config:
    """Read the settings of a server for another command, with its options --config, --limits-store, --keys-file."""
    here = Path.cwd()
    options = (
        ("config", "--config", file),
        ("store", "--limits-store", store),
        ("keys_file", "--keys-file", keys_file),
    )
    return _read_config(
        {name: RawSetting(value, flag, here) for name, flag, value in options if value is not None}, None, here
    )


def _read_config(flag_settings: SettingSource, environment: Mapping[str, str] | None, folder: Path) -> Config:
    with ui.usage_errors(SettingsError):
        return read_config(flag_settings, os.environ if environment is None else environment, folder=folder)


def _check_short_flags(parser: CommandParser, arguments: list[str]) -> None:
    # argparse would read -cx as -c with the value x, and -nk as an abbreviation of -nkvo.
    known = set(parser.flags())
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word[:1] == "-" and word[1:2].isalpha() and word.partition("=")[0] not in known:
            if before in _SECRET_FLAGS:  # the word may be a key, so the message does not repeat it
                raise UsageError(f"write a key that begins with - as {before}=KEY")
            raise parser.unknown_option(word)


def _given_settings(
    occurrences: Sequence[tuple[SettingField | Setting, str, str]], folder: Path
) -> dict[str, RawSetting]:
    """Return the settings from flags. The last occurrence of a flag counts, but lists are joined."""
    settings: dict[str, RawSetting] = {}
    for option, flag, value in occurrences:
        if isinstance(option, Setting):
            continue
        before = settings.get(option.name) if option.value_type is tuple else None
        settings[option.name] = RawSetting(value if before is None else f"{before.value},{value}", flag, folder)
    return settings


def serve_parser() -> CommandParser:
    """Return the parser with all flags, in groups."""
    parser = CommandParser("serve", __doc__)
    parser.usage = "welldone serve [OPTIONS]"
    parser.formatter_class = _HelpFormatter
    parser.set_defaults(occurrences=[])
    parser.add_argument(
        CHECK_FLAG, action="store_true", help="check the settings and their files, show what would be served, and exit"
    )
    for title in SETTING_GROUPS:
        group = parser.add_argument_group(title)
        for field in ALL_FIELDS:
            setting = field.setting
            if setting.group == title and setting.flags:
                group.add_argument(
                    *setting.flags,
                    *setting.off.split(),
                    action=_OccurrenceAction,
                    option=field,
                    dest="occurrences",
                    nargs=0 if field.value_type is bool else "?" if setting.alone else None,
                    const=setting.alone,
                    metavar=setting.metavar,
                    help=setting_help(field).replace("%", "%%"),
                )
    for foreign in (*IGNORED_FLAGS, *REFUSED_FLAGS):
        parser.add_argument(
            *foreign.flags,
            action=_OccurrenceAction,
            option=foreign,
            dest="occurrences",
            nargs="?" if foreign.metavar.startswith("[") else int(bool(foreign.metavar)),
            help=argparse.SUPPRESS,
        )
    return parser


def setting_help(field: SettingField) -> str:
    """Return the help text of a setting, with its choices and its default."""
    choices = field.setting.choices.split()
    listed = f" ({', '.join(choices)})" if choices and "|" not in field.setting.metavar else ""
    default = setting_default(field)
    return f"{field.setting.help}{listed}" + (f" [{default}]" if default else "")


def setting_default(field: SettingField) -> str:
    """Return the default as the help and the documentation show it; empty if there is none."""
    value = field.default
    if field.setting.unset:
        return field.setting.unset
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or value == () or value == {} else str(value)


class _OccurrenceAction(argparse.Action):
    """Records each option in the order of the command line: the setting, the flag that was used, the value."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        option: SettingField | Setting,
        **rest: Any,  # noqa: ANN401 - argparse's own
    ) -> None:
        super().__init__(option_strings, dest, **rest | {"default": argparse.SUPPRESS})
        self._option = option

    @property
    def values(self) -> list[str]:
        """The values that the setting accepts, if they are few."""
        return self._option.setting.choices.split() if isinstance(self._option, SettingField) else []

    @property
    def off_flags(self) -> list[str]:
        """The flags that turn the setting off."""
        return self._option.setting.off.split() if isinstance(self._option, SettingField) else []

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or ""
        if isinstance(self._option, Setting) and self._option in REFUSED_FLAGS:
            raise UsageError(f"{flag} {self._option.help}")
        value = "false" if flag in self.off_flags else values if isinstance(values, str) else "true"
        namespace.occurrences.append((self._option, flag, value))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that is formatted the same in every version of Python."""

    def __init__(self, prog: str, **rest: Any) -> None:  # noqa: ANN401 - argparse's own
        width = min(_HELP_WIDTH, rest.pop("width", None) or int(os.environ.get("COLUMNS", _HELP_WIDTH)))
        super().__init__(prog, **rest | {"max_help_position": _HELP_COLUMN, "width": width})

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = f" {action.metavar}" if action.metavar else ""
        off = action.off_flags if isinstance(action, _OccurrenceAction) else []
        names = ", ".join(flag for flag in action.option_strings if flag not in off)
        names += f" / {', '.join(off)}" if off else ""
        return names + (f" [{action.metavar}]" if action.nargs == "?" else value)


def run(arguments: list[str]) -> ExitCode:
    """Serve until a signal arrives, or check the configuration."""
    here = Path.cwd()
    config = read_serve_config(arguments, folder=here)
    # The server's packages are an extra; --help and usage errors work without them.
    module = importlib.import_module("welldone.cli.service")
    code: ExitCode
    if CHECK_FLAG in arguments:
        code = module.check(config)
    else:
        code = module.run(config, lambda: read_serve_config(arguments, folder=here))
    return code
