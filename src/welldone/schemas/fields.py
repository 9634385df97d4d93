"""Types of fields that several schemas share, and the documentation of a schema's fields."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, inspect


def note(text: str, **limits: Any) -> Meta:  # noqa: ANN401 - the arguments of Meta
    """Annotate a field with what the documents print about its values."""
    return Meta(description=text, **limits)


INT32_MAX = 2**31 - 1
"""The integers of engines have 32 bits."""
MODEL_NAME_LENGTH = 256
"""Longer than any known model name."""


class FieldHandling(StrEnum):
    """What the server does with a field."""

    FORWARDED = "validated, then forwarded"
    TRANSLATED = "validated, then translated for the engine"
    IGNORED = "accepted and ignored"
    REJECTED = "rejected"


FORWARDED = {"handling": FieldHandling.FORWARDED}
"""`extra` of a field that engines receive unchanged. A field without `extra` is translated."""

_EMPTY_CONTAINERS = [{"type": "object", "maxProperties": 0}, {"type": "array", "items": {}, "maxItems": 0}]
EMPTY_VALUES: dict[str, object] = {
    "anyOf": [{"type": "null"}, {"const": ""}, *_EMPTY_CONTAINERS, {"const": 0}, {"const": False}]
}
ANY_OBJECT: dict[str, object] = {"type": ["object", "null"], "additionalProperties": True}

ModelName: TypeAlias = Annotated[str, note("the model's name", max_length=MODEL_NAME_LENGTH)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1, extra=FORWARDED)]


def text_or_object(name: str) -> dict[str, Any]:
    """Return the JSON schema of a string, or of an object with a string of this name."""
    return {"anyOf": [{"type": "string"}, object_with_text(name)]}


def object_with_text(name: str) -> dict[str, Any]:
    """Return the JSON schema of an object with a string of this name."""
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


class FieldInfo(msgspec.Struct, frozen=True):
    """A field of a schema as the documents describe it."""

    name: str
    handling: FieldHandling
    note: str = ""
    extra: dict[str, Any] = {}


def ignored(*names: str, note: str = "") -> list[FieldInfo]:
    """Return fields that may have any value."""
    return [FieldInfo(name, FieldHandling.IGNORED, note) for name in names]


def rejected(**notes: str) -> list[FieldInfo]:
    """Return fields that must be empty. Their notes say why."""
    return [FieldInfo(name, FieldHandling.REJECTED, reason) for name, reason in notes.items()]


def describe_fields(schema: type[msgspec.Struct]) -> list[FieldInfo]:
    """Return name, handling and allowed values of each field: of the Struct, and of `UNREAD_FIELDS` of its classes."""
    struct = inspect.type_info(schema)
    assert isinstance(struct, inspect.StructType)
    out = []
    for field in struct.fields:
        extra: dict[str, Any] = {}
        note = default_note = ""
        for node in _annotations(field.type):
            if isinstance(node, inspect.Metadata):
                extra |= node.extra or {}
                note = note or (node.extra_json_schema or {}).get("description", "")
            default_note = default_note or _values_note(node)
        handling = extra.pop("handling", FieldHandling.TRANSLATED)
        out.append(FieldInfo(field.encode_name, handling, note or default_note, extra))
    for base in reversed(schema.__mro__):
        out += vars(base).get("UNREAD_FIELDS", ())
    return out


def _annotations(node: inspect.Type) -> Iterator[inspect.Type]:
    """Return the annotations and members of a field's type, from the outside."""
    yield node
    if isinstance(node, inspect.Metadata):
        yield from _annotations(node.type)
    elif isinstance(node, inspect.UnionType):
        for member in node.types:
            yield from _annotations(member)


def _values_note(node: inspect.Type) -> str:
    match node:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return ", ".join(map(str, node.values))
        case inspect.IntType() | inspect.FloatType() if node.ge is not None and node.le is not None:
            return f"{node.ge:g} to {node.le:g}"
        case _:
            return ""
