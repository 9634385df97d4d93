"""Types of command-line options: durations, numbers, JSON, URLs, keys, headers, report files."""

import argparse
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import UsageError
from welldone.http.address import normalize_base_url
from welldone.http.redaction import API_KEY_VARIABLE
from welldone.reporting import write_report

_MAX_USERS = 10_000  # a machine has a few times as many ephemeral ports
_MAX_DURATION_S = 24 * 3600.0
_DURATION_UNITS = {
    **dict.fromkeys(("ms", "msec", "millis"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_DURATION_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_DURATION_UNITS)})?")
_DURATION_SEPARATOR = re.compile(r"(?<=[a-z])\s*(?=\d)")  # between the parts of 1m30s, as in inference-benchmarker
EnumT = TypeVar("EnumT", bound=StrEnum)
_RESERVED_FIELDS = ("messages", "stream", "max_tokens")


def enum_choice(enum: type[EnumT]) -> Callable[[str], EnumT]:
    """Return a parser for the values of an enum."""

    def read(text: str) -> EnumT:
        try:
            return enum(text.lower())
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(enum)}") from None

    return read


def duration_from(least_s: float) -> Callable[[str], float]:
    """Return a parser for durations, in seconds."""

    def read(text: str) -> float:
        spans = [_DURATION_PART.fullmatch(piece) for piece in _DURATION_SEPARATOR.split(text.strip().lower())]
        seconds = sum(math.inf if span is None else float(span[1]) * _DURATION_UNITS[span[2] or "s"] for span in spans)
        if not least_s <= seconds <= _MAX_DURATION_S:
            message = f"{text!r} is not a time from {least_s:g}s to 24h, such as 500ms, 30s or 2m"
            raise argparse.ArgumentTypeError(message)
        return seconds

    return read


parse_duration: Callable[[str], float] = duration_from(0.001)
parse_duration_or_zero: Callable[[str], float] = duration_from(0.0)


def integer_between(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for integers in a range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def number_up_to(most: float, *, allows_zero: bool = False) -> Callable[[str], float]:
    """Return a parser for numbers above 0, or from 0 on."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= most or (number == 0 and not allows_zero):
            range_text = f"from 0 to {most:g}" if allows_zero else f"above 0 and up to {most:,.0f}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {range_text}")
        return number

    return read


user_count: Callable[[str], int] = integer_between(1, _MAX_USERS)
"""Parser for a number of concurrent users."""


def user_counts(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of numbers of users."""
    return tuple(user_count(word.strip()) for word in text.split(","))


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates cannot be sent
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('not a JSON object, such as {"reasoning_effort":"low"}')
    return value


def parse_extra_fields(text: str) -> dict[str, Any]:
    """Parse additional request fields for `bench`: none that it sets itself."""
    value = parse_json_object(text)
    for name in _RESERVED_FIELDS:
        if name in value:
            raise argparse.ArgumentTypeError(f"{name!r} is set by bench in every request; see --decode-options")
    return value


def parse_key_values(text: str) -> dict[str, str]:
    """Parse `name=value` pairs."""
    pairs = [word.partition("=") for word in text.split(",") if word.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as engine=vllm,tp=2")
    return {name.strip(): value.strip() for name, _, value in pairs}


# The server's URL, key and headers. A secret may be given as `env:NAME`, the environment variable that holds it.

ENV_PREFIX = "env:"
_CA_FILE = ("--ca-file FILE", "CA certificates to trust (https)")


def add_running_server_options(parser: CommandParser) -> None:
    """Add the options of a command that asks a server of this program, which the settings describe."""
    parser.option("--api-key KEY", f"API key, or env:NAME (default: {API_KEY_VARIABLE}, else from the settings)")
    parser.option(*_CA_FILE)
    parser.option("--config FILE", "a TOML file with settings (default: ./welldone.toml if it exists)")


def add_tested_server_options(parser: CommandParser, key_usage: str = "--api-key KEY") -> None:
    """Add the options of a command that tests any server. `tested_server_settings` reads them."""
    parser.option(key_usage, f"API key, or env:NAME (default: {API_KEY_VARIABLE}, if it is set)")
    headers = "a header for every request, as NAME: VALUE or NAME: env:VARIABLE"
    parser.option("--header LINE...", headers, parse_header)
    parser.option(*_CA_FILE)
    parser.option("--insecure", "do not verify the certificate (https)")


def tested_server_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the connection to a server that is tested."""
    return {
        "key": server_key(options.api_key),
        "ca_file": options.ca_file,
        "is_verified": not options.insecure,
        "headers": tuple((name, resolve_env(value, f"the header {name}")) for name, value in options.header),
    }


def server_url(text: str) -> str:
    """Normalise the base URL of a server's API."""
    url = normalize_base_url(text)
    if "@" in url:
        raise UsageError("the URL holds a user name or password, which would end up in logs; use --api-key instead")
    return url


def server_key(value: str | None) -> str | None:
    """Return the API key from the option, else from the environment."""
    return os.environ.get(API_KEY_VARIABLE) or None if value is None else resolve_env(value, "--api-key")


def parse_header(text: str) -> tuple[str, str]:
    """Parse a header line, `NAME: VALUE`."""
    name, colon, value = text.partition(":")
    if not colon:
        # Without the text: it may be a secret.
        raise argparse.ArgumentTypeError("not a header, such as 'X-Team: search'")
    return name.strip(), value.strip()


def resolve_env(value: str, source: str) -> str:
    """Return the value, or that of the environment variable that it names with `env:`."""
    if not value.startswith(ENV_PREFIX):
        return value
    name = value.removeprefix(ENV_PREFIX)
    if not os.environ.get(name):
        raise UsageError(f"{source} names the environment variable {name}, which is not set")
    return os.environ[name]


# Report files are checked before a run of minutes, not after it.


def check_report_path(path: Path, extensions: Iterable[str]) -> None:
    """Raise `UsageError` if a report cannot be written to the path."""
    name = ui.printable_name(path)
    if path.suffix.lower() not in extensions:
        raise UsageError(f"{name}: a report file must end in one of {', '.join(extensions)}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name}: no such folder: {ui.printable_name(path.parent)}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {name}: {'is a folder' if path.is_dir() else 'permission denied'}")


def write_reports(report: object, outputs: Iterable[tuple[Path, Mapping[str, Callable[[Any], str]]]]) -> list[Path]:
    """Write all files that can be written, each with its formats, then raise `UsageError` for the others."""
    written, failed = [], []
    for path, formats in outputs:
        try:
            with ui.file_errors("write", path):
                write_report(report, path, formats)
            written.append(path)
        except UsageError as error:
            failed.append(str(error))
    if failed:
        raise UsageError("; ".join(failed))
    return written


def make_writable_folder(path: Path) -> None:
    """Create a folder, or raise `UsageError` if it cannot be created or written to."""
    with ui.file_errors("create the folder", path):
        path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write into {ui.printable_name(path)}: permission denied")
