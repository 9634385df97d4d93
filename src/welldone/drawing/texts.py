"""Texts of others, so that they can stand anywhere: nothing in them moves, hides or ends what is around them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

LONGEST = 1_000
"""Characters of one text, where nothing else is said: what a server says is quoted to be recognised, not to be read
whole."""

Value = TypeVar("Value")


def printable(text: str, longest: int = LONGEST) -> str:
    """The text in one line, not too long, and without characters that could move or hide what is around it."""
    cut = text if len(text) <= longest else text[:longest] + "…"
    return cut if cut.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def in_a_line(text: str, longest: int) -> str:
    """The beginning of a text as part of a line: what cannot be printed is a question mark."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:longest])


def inert(value: Value, longest: int = LONGEST) -> Value:
    """The same report, or part of one, with every text in it printable."""
    cleaned: Value = _inert(value, longest)
    return cleaned


def _inert(value: Any, longest: int) -> Any:  # noqa: ANN401 - any member of a report
    match value:
        case str():
            return printable(value, longest)
        case msgspec.Struct():
            members = {name: _inert(getattr(value, name), longest) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **members)
        case Mapping():
            return {_inert(name, longest): _inert(member, longest) for name, member in value.items()}
        case list() | tuple():
            return type(value)(_inert(member, longest) for member in value)
        case _:
            return value


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
