"""`welldone serve`: an OpenAI-compatible server, on local models and in front of other servers."""

import argparse
import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.config.settings import RawSetting, SettingField, SettingsError
from welldone.server.config import ALL_FIELDS, read_config

# Flags of llama-server that are no settings here: some are always so or mean nothing, some cannot be honoured.
#
# Each row is written as a setting is: flags and what follows them, then what the user is told.


class LlamaServerFlag(NamedTuple):
    """One flag, or several that get the same answer."""

    usage: str
    reason: str

    @property
    def flags(self) -> list[str]:
        """The flags alone."""
        return [word for word in self.usage.split() if word.startswith("-")]

    @property
    def nargs(self) -> int | str:
        """How many values follow, as argparse wants it."""
        word = self.usage.split()[-1]
        return 0 if word.startswith("-") else "?" if word.startswith("[") else 1


_ALWAYS_ON = "is always on"
_NO_MEANING = "has no meaning here and is left out"
_USE_PULL = (
    "is not for serving: fetch the model first with `welldone pull hf:OWNER/REPO/FILE.gguf`, then serve it with -m"
)
_USE_COMMAND = "is not offered by our engine: start llama-server as the `command` of a model in welldone.toml"
_USE_REQUEST = "is not a setting: send it with each request"
_NOT_OFFERED = "is not offered"

IGNORED_FLAGS = (
    LlamaServerFlag("--send-done", _ALWAYS_ON),
    LlamaServerFlag("--metrics", _ALWAYS_ON),
    LlamaServerFlag("--cache-prompt", _ALWAYS_ON),
    LlamaServerFlag("--models-autoload", _ALWAYS_ON),
    LlamaServerFlag("--offline", f"{_ALWAYS_ON}: serving fetches nothing"),
    LlamaServerFlag("--log-prefix --log-timestamps", _ALWAYS_ON),
    LlamaServerFlag("--no-context-shift", "is always so"),
    LlamaServerFlag("--no-log-prefix --no-log-timestamps --no-perf --perf", _NO_MEANING),
    LlamaServerFlag(
        "--no-mmproj --no-mmproj-auto --mmproj-auto", f"{_NO_MEANING}: a projector is used with --mmproj only"
    ),
    LlamaServerFlag("--log-colors [WHEN]", f"{_NO_MEANING}: there are colours on a terminal only"),
    LlamaServerFlag("--threads-http N", f"{_NO_MEANING}: requests need no threads"),
    LlamaServerFlag("--prio --prio-batch --poll --poll-batch -dt --defrag-thold N", _NO_MEANING),
    LlamaServerFlag("-to --timeout N", f"{_NO_MEANING}: see --first-byte, --idle and --write"),
    LlamaServerFlag("--tags X", f"{_NO_MEANING}: llama-server only shows them"),
    LlamaServerFlag("-lv --verbosity --log-verbosity N", f"{_NO_MEANING}: see --log-level"),
)
"""Taken, with a note."""

REFUSED_FLAGS = (
    LlamaServerFlag(
        "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo -mmu --mmproj-url X",
        _USE_PULL,
    ),
    LlamaServerFlag("--models-dir --models-preset X", "is not known: write the models in welldone.toml"),
    LlamaServerFlag(
        "-rea --reasoning X",
        "is not known: --reasoning-budget 0 turns thinking off, as does the template's own value, mostly "
        """--chat-template-kwargs '{"enable_thinking": false}'""",
    ),
    LlamaServerFlag("--log-file FILE", "is not known: send standard error to the file, with 2> FILE"),
    LlamaServerFlag("--media-path PATH", "is not offered: no file is read for a client"),
    LlamaServerFlag(
        "--api-prefix --path --tools --mcp-servers-config --mcp-servers-json --slot-save-path X", _NOT_OFFERED
    ),
    LlamaServerFlag(
        "--props --agent -ag --ui-mcp-proxy --webui-mcp-proxy --reuse-port --no-models-autoload", _NOT_OFFERED
    ),
    LlamaServerFlag(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file -l --logit-bias -r --reverse-prompt X",
        _USE_REQUEST,
    ),
    LlamaServerFlag(
        "--dry-multiplier --dry-base --xtc-probability --xtc-threshold --mirostat --dynatemp-range X", _USE_REQUEST
    ),
    LlamaServerFlag("--ignore-eos --no-cache-prompt", _USE_REQUEST),
    LlamaServerFlag(
        "-md --model-draft --draft --draft-max --draft-min --spec-type --samplers --sampler-seq --keep X", _USE_COMMAND
    ),
    LlamaServerFlag(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --numa --rpc X", _USE_COMMAND
    ),
    LlamaServerFlag(
        "-dev --device -ot --override-tensor -ncmoe --n-cpu-moe --override-kv -C --cpu-mask -Cr --cpu-range X",
        _USE_COMMAND,
    ),
    LlamaServerFlag(
        "--lora-scaled --control-vector --control-vector-scaled -lm --load-mode -ctxcp --ctx-checkpoints X",
        _USE_COMMAND,
    ),
    LlamaServerFlag(
        "-cmoe --cpu-moe --context-shift --check-tensors --no-mmproj-offload --no-repack -nr -sp --special",
        _USE_COMMAND,
    ),
)
"""A mistake: what they ask for would not happen."""


# The command line of `welldone serve`, made from the settings.


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


def run(arguments: list[str]) -> ExitCode:
    """Serve until told to stop."""
    config = read_serve_config(arguments)
    # The server's packages are an extra: help, and what is wrong with a command line, can be had without them.
    code: ExitCode = importlib.import_module("welldone.cli.service").run(config)
    return code
