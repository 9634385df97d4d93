"""What options of `check` and `bench` hold: times, numbers, lists of them. What cannot be read is said in few words."""

import argparse
import json
import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

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
