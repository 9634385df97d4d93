"""Texts of others, so that they can stand anywhere: nothing in them moves, hides or ends what is around them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

MAX_TEXT_CHARS = 1_000
"""Characters of one text, where nothing else is said: what a server says is quoted to be recognised, not to be read
whole."""

ValueT = TypeVar("ValueT")


def sanitize_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """The text in one line, not too long, and without characters that could move or hide what is around it."""
    cut = text if len(text) <= max_chars else text[:max_chars] + "…"
    return cut if cut.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def single_line(text: str, max_chars: int) -> str:
    """The beginning of a text as part of a line: what cannot be printed is a question mark."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:max_chars])


def sanitize(value: ValueT, max_chars: int = MAX_TEXT_CHARS) -> ValueT:
    """The same report, or part of one, with every text in it printable."""
    cleaned: ValueT = _sanitize_value(value, max_chars)
    return cleaned


def _sanitize_value(value: Any, max_chars: int) -> Any:  # noqa: ANN401 - any member of a report
    match value:
        case str():
            return sanitize_text(value, max_chars)
        case msgspec.Struct():
            members = {name: _sanitize_value(getattr(value, name), max_chars) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **members)
        case Mapping():
            return {
                _sanitize_value(name, max_chars): _sanitize_value(member, max_chars) for name, member in value.items()
            }
        case list() | tuple():
            return type(value)(_sanitize_value(member, max_chars) for member in value)
        case _:
            return value


def pluralize(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
