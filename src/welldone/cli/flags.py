"""The command line of `welldone serve`, made from the settings."""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from welldone.cli.exits import UsageError
from welldone.cli.foreign import IGNORED_FLAGS, REFUSED_FLAGS, LlamaServerFlag
from welldone.cli.options import CommandParser
from welldone.net.settings import SettingField, RawSetting, SettingsError
from welldone.serve.config import ALL_FIELDS, read_config
from welldone.serve.settings import Config

SERVE_DESCRIPTION = """\
Serve models to clients of OpenAI's API. Without options it is the built-in small model, on
http://127.0.0.1:8000. The command lines of llama-server work here.

A setting is taken from its flag, else from the environment (--ctx-size: WELLDONE_CTX_SIZE), else
from welldone.toml, else it has its default, which is shown as [default]. Flags behind a / turn a
setting off. With -m one model is served, and the others of welldone.toml are left aside; without
it, the flags of models count for all of them.

With --upstream, or upstreams in welldone.toml, it stands in front of other servers of OpenAI's API
and mends their streams. docs/settings.md has more."""

SERVE_EXAMPLES = """
welldone serve
welldone serve -m phi-4-Q4_K_M.gguf -c 8192 -ngl all --alias phi-4
welldone serve --host 0.0.0.0 --api-key env:MY_KEY
welldone serve --upstream http://gpu:8000/v1 --port 9000
welldone serve --config welldone.toml
"""

SETTING_GROUPS = ("Model", "Engine", "Answers", "Server", "Upstreams", "Security", "Limits", "Logs")
"""The order of help and documents."""

_SECRET_FLAGS = {flag for field in ALL_FIELDS if field.setting.is_secret for flag in field.setting.flags}
_HELP_COLUMN = 34  # most flags with their value fit before it
_HELP_WIDTH = 100


def read_serve_config(
    arguments: list[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Config:
    """What the user wants, from the command line and all else that says it. Mistakes raise `UsageError`."""
    here = Path.cwd() if folder is None else folder
    options = serve_parser()
    _check_short_flags(options, arguments)
    said: list[tuple[SettingField | LlamaServerFlag, str, str]] = options.parse(arguments).said
    notes = [f"{flag} {what.reason}" for what, flag, _ in said if isinstance(what, LlamaServerFlag)]
    try:
        config = read_config(
            _given_settings(said, here), os.environ if environment is None else environment, folder=here
        )
    except SettingsError as error:
        raise UsageError(str(error)) from error
    return dataclasses.replace(config, warnings=(*dict.fromkeys(notes), *config.warnings))


def _check_short_flags(options: CommandParser, arguments: list[str]) -> None:
    """argparse would take -cx for -c with the value x, and -nk for the start of -nkvo."""
    known = set(options.flags())
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word[:1] == "-" and word[1:2].isalpha() and word.partition("=")[0] not in known:
            if before in _SECRET_FLAGS:  # this may be the key: it is not repeated
                raise UsageError(f"a key that begins with - is written {before}=KEY")
            raise options.unknown_option(word)


def _given_settings(
    occurrences: Sequence[tuple[SettingField | LlamaServerFlag, str, str]], folder: Path
) -> dict[str, RawSetting]:
    """What the flags say. Of a flag that is repeated the last counts, but lists grow."""
    given: dict[str, RawSetting] = {}
    for what, flag, value in occurrences:
        if isinstance(what, LlamaServerFlag):
            continue
        before = given.get(what.name) if what.value_type is tuple else None
        given[what.name] = RawSetting(value if before is None else f"{before.value},{value}", flag, folder)
    return given


def serve_parser() -> CommandParser:
    """All flags, in groups."""
    made = CommandParser("serve", SERVE_DESCRIPTION, SERVE_EXAMPLES)
    made.usage = "welldone serve [OPTIONS]"
    made.formatter_class = _HelpFormatter
    made.set_defaults(said=[])
    for title in SETTING_GROUPS:
        group = made.add_argument_group(title)
        for field in ALL_FIELDS:
            if field.setting.group == title and field.setting.flags:
                _add_setting(group, field)
    for foreign in (*IGNORED_FLAGS, *REFUSED_FLAGS):
        made.add_argument(
            *foreign.flags,
            action=_OccurrenceAction,
            what=foreign,
            dest="said",
            nargs=foreign.nargs,
            help=argparse.SUPPRESS,
        )
    return made


def _add_setting(group: "argparse._ArgumentGroup", field: SettingField) -> None:
    setting = field.setting
    group.add_argument(
        *setting.flags,
        *setting.off.split(),
        action=_OccurrenceAction,
        what=field,
        dest="said",
        nargs=0 if field.value_type is bool else "?" if setting.alone else None,
        const=setting.alone,
        metavar=setting.metavar,
        help=setting_help(field).replace("%", "%%"),
    )


def setting_help(field: SettingField) -> str:
    """What a setting is, with its choices and its default."""
    choices = field.setting.choices.split()
    among = f" ({', '.join(choices)})" if choices and "|" not in field.setting.metavar else ""
    default = setting_default(field)
    return f"{field.setting.help}{among}" + (f" [{default}]" if default else "")


def setting_default(field: SettingField) -> str:
    """The default as help and documents show it; nothing where there is none."""
    value = field.default
    if field.setting.unset:
        return field.setting.unset
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or value == () or value == {} else str(value)


class _OccurrenceAction(argparse.Action):
    """Keeps what was said in the order of the command line: the setting, the flag that was used, the value."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, what: SettingField | LlamaServerFlag, **rest: Any
    ) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(option_strings, dest, **rest | {"default": argparse.SUPPRESS})
        self._option = what

    @property
    def off_flags(self) -> list[str]:
        """The flags that turn it off."""
        return self._option.setting.off.split() if isinstance(self._option, SettingField) else []

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or ""
        if self._option in REFUSED_FLAGS:
            raise UsageError(f"{flag} {self._option.reason}")
        namespace.said.append(
            (self._option, flag, "false" if flag in self.off_flags else values if isinstance(values, str) else "true")
        )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that looks the same in every version of Python."""

    def __init__(self, prog: str, **rest: Any) -> None:  # noqa: ANN401 - argparse's own
        width = min(_HELP_WIDTH, rest.pop("width", None) or int(os.environ.get("COLUMNS", _HELP_WIDTH)))
        super().__init__(prog, **rest | {"max_help_position": _HELP_COLUMN, "width": width})

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = f" {action.metavar}" if action.metavar else ""
        off = action.off_flags if isinstance(action, _OccurrenceAction) else []
        names = ", ".join(flag for flag in action.option_strings if flag not in off)
        names += f" / {', '.join(off)}" if off else ""
        return names + (f" [{action.metavar}]" if action.nargs == "?" else value)
