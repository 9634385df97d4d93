"""What options of `check` and `bench` hold: times, numbers, lists of them. What cannot be read is said in few words."""

import argparse
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from welldone.cli import ui
from welldone.cli.ui import UsageError
from welldone.http.address import normalize_base_url
from welldone.http.redaction import API_KEY_VARIABLE

_MAX_USERS = 10_000  # a machine has ports for a few times as many connections
_MAX_DURATION_S = 24 * 3600.0
_DURATION_UNITS = {
    **dict.fromkeys(("ms", "msec", "millis"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_DURATION_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_DURATION_UNITS)})?")
_DURATION_SEPARATOR = re.compile(r"(?<=[a-z])\s*(?=\d)")  # the parts of 1m30s, which inference-benchmarker takes
Word = TypeVar("Word", bound=StrEnum)
_RESERVED_FIELDS = ("messages", "stream", "max_tokens")


def enum_choice(enum: type[Word]) -> Callable[[str], Word]:
    """One of some words."""

    def read(text: str) -> Word:
        try:
            return enum(text.lower())
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(enum)}") from None

    return read


def parse_duration(text: str) -> float:
    """A time, in seconds."""
    found = _duration_s(text)
    if not 0 < found <= _MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0 and up to 24h, such as 500ms, 30s or 2m")
    return found


def parse_duration_or_zero(text: str) -> float:
    """A time that may be no time at all."""
    found = _duration_s(text)
    if not 0 <= found <= _MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to 24h, such as 0s, 30s or 2m")
    return found


def _duration_s(text: str) -> float:
    """The seconds; infinitely many where it is no time."""
    found = [_DURATION_PART.fullmatch(part) for part in _DURATION_SEPARATOR.split(text.strip().lower())]
    return sum(math.inf if one is None else float(one[1]) * _DURATION_UNITS[one[2] or "s"] for one in found)


def integer_between(least: int, most: int) -> Callable[[str], int]:
    """A whole number between two."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least:,} to {most:,}")
        return int(text)

    return read


def positive_number(most: float) -> Callable[[str], float]:
    """A number above 0."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and up to {most:,.0f}")
        return number

    return read


user_count = integer_between(1, _MAX_USERS)
"""How many users ask at once."""


def user_counts(text: str) -> tuple[int, ...]:
    """Numbers of users."""
    return tuple(user_count(part.strip()) for part in text.split(","))


def parse_json_object(text: str) -> dict[str, Any]:
    """Members for the body of a request."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # halves of characters cannot be sent
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('is no JSON object, such as {"reasoning_effort":"low"}')
    return value


def parse_extra_fields(text: str) -> dict[str, Any]:
    """Members that a request of `bench` has not of its own."""
    value = parse_json_object(text)
    for name in _RESERVED_FIELDS:
        if name in value:
            raise argparse.ArgumentTypeError(f"has {name!r}, which each request has of its own; see --decode-options")
    return value


def parse_key_values(text: str) -> dict[str, str]:
    """Names and what they stand for."""
    found = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(equals and name.strip() for name, equals, _ in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as engine=vllm,tp=2")
    return {name.strip(): value.strip() for name, _, value in found}


# What `check` and `bench` are told about a server: its address, its key, and headers. Secrets may be named by where
# they are: `env:NAME`.


ENV_PREFIX = "env:"


def server_url(text: str) -> str:
    """The address of a server's API."""
    url = normalize_base_url(text)
    if "@" in url:
        raise UsageError("a password in an address ends up in logs; use --api-key")
    return url


def server_key(value: str | None) -> str | None:
    """The server's key: what was said, or what the environment has."""
    return os.environ.get(API_KEY_VARIABLE) or None if value is None else resolve_env(value, "--api-key")


def parse_header(text: str) -> tuple[str, str]:
    """A header, as it stands in a request."""
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("is no header, such as 'X-Team: search'")  # the value may be a secret
    return name.strip(), value.strip()


def resolve_env(value: str, source: str) -> str:
    """What was said, or what the environment variable holds that was named."""
    if not value.startswith(ENV_PREFIX):
        return value
    name = value.removeprefix(ENV_PREFIX)
    if not os.environ.get(name):
        raise UsageError(f"{source} names the environment variable {name}, which is not set")
    return os.environ[name]


# The files of a report: what is wrong with one is said before a minute is spent on what it will hold.


def check_report_path(path: Path, extensions: Iterable[str]) -> None:
    """Say why a report cannot be written there, if it cannot."""
    name = ui.printable_name(str(path))
    if path.suffix.lower() not in extensions:
        raise UsageError(f"{name}: the name of a report ends in one of {', '.join(extensions)}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name}: there is no folder {ui.printable_name(str(path.parent))}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {name}: {'it is a folder' if path.is_dir() else 'permission denied'}")


def make_writable_folder(path: Path) -> None:
    """Make a folder for files to come, or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {ui.printable_name(str(path))}: {ui.error_text(error)}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write into {ui.printable_name(str(path))}: permission denied")
