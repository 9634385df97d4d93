"""Conversion of a decoded body into a Struct, with OpenAI's error messages, parameter names and codes.

An error message names the field, the limit and the type of the value; it repeats at most `SHOWN_VALUE_LENGTH`
characters of the value itself.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from welldone.core.events import Json
from welldone.core.repair_log import shorten

SHOWN_VALUE_LENGTH = 64
"""Characters of a value in an error message: enough to recognise it, too few to fill a log."""

StructType = TypeVar("StructType", bound=msgspec.Struct)


_VALUE_NAMES: dict[type, str] = {type(None): "null", bool: "a boolean", int: "an integer", float: "a decimal"}
_VALUE_NAMES |= {str: "a string", list: "an array"}


class FieldError(NamedTuple):
    """What is wrong with a field of a request."""

    message: str
    param: str | None
    code: str


def convert(body: Json, schema: type[StructType], path: str = "") -> StructType | FieldError:
    """Return the body as a Struct, or its first error. An integer may be 5.0: some clients have only floats.

    `path`: prefix of the parameter names, if the body is a part of a request.
    """
    while True:
        try:
            return msgspec.convert(body, schema)
        except msgspec.ValidationError as error:
            failure = _Failure(str(error), body, path)
        value = failure.value
        if not (failure.reason.startswith("Expected `int") and isinstance(value, float) and value.is_integer()):
            return failure.to_field_error(schema)
        body = _with_value(body, failure.steps, int(value))


def json_type_name(value: object) -> str:
    """Return the type of a value as OpenAI's error messages name it."""
    return _VALUE_NAMES.get(type(value), "an object")


def shorten_value(value: str | float) -> str:
    """Return the value as text of at most `SHOWN_VALUE_LENGTH` characters."""
    if isinstance(value, int) and abs(value) >= 10**SHOWN_VALUE_LENGTH:  # `str` of a huge integer is slow, or raises
        return "a number of many digits"
    return shorten(str(value), SHOWN_VALUE_LENGTH)


def string_or_type_name(value: object) -> str:
    """Return a string as it is, and the type name of any other value."""
    return value if isinstance(value, str) else json_type_name(value)


def wrong_type(param: str, expected: str, value: object) -> FieldError:
    """Return the error for a value of the wrong type."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_type_name(value)} instead."
    return FieldError(message, param, "invalid_type")


def wrong_value(param: str, value: object, allowed: Iterable[str]) -> FieldError:
    """Return the error for a value that is not one of the allowed ones."""
    words = ", ".join(f"'{word}'" for word in allowed)
    shown = shorten_value(string_or_type_name(value))
    return FieldError(f"Invalid value for '{param}': '{shown}'. Supported values are: {words}.", param, "invalid_value")


def missing(param: str) -> FieldError:
    """Return the error for a required field that is absent."""
    return FieldError(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def too_many(param: str, limit: int, count: int) -> FieldError:
    """Return the error for an array or object with too many elements."""
    message = f"Invalid '{param}': array too long. Expected at most {limit} elements, but got {count} instead."
    return FieldError(message, param, "array_above_max_length")


def empty_array(param: str) -> FieldError:
    """Return the error for an array that must not be empty."""
    message = f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array."
    return FieldError(message, param, "empty_array")


def too_long(param: str, limit: int, length: int) -> FieldError:
    """Return the error for a string with too many characters; one of an array has another code."""
    message = f"Invalid '{param}': string too long. Expected at most {limit} characters, but got {length}."
    return FieldError(message, param, "invalid_value" if param.endswith("]") else "string_above_max_length")


def out_of_range(param: str, value: float, limit: str, *, is_above: bool, unit: str) -> FieldError:
    """Return the error for a number outside of its range. `unit`: integer or decimal."""
    side, word, sign = ("above_max", "above maximum", "<=") if is_above else ("below_min", "below minimum", ">=")
    message = (
        f"Invalid '{param}': {unit} {word} value. Expected a value {sign} {limit}, "
        f"but got {shorten_value(value)} instead."
    )
    return FieldError(message, param, f"{unit}_{side}_value")


_TYPE_NAMES = {
    "int": "an integer",
    "float": "a decimal",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_EXPECTATION = re.compile(r"Expected `([^`]+)`(?:, got `\w+`|( of length)? ([<>])= (\S+))")


class _Failure:
    """A validation error of msgspec, such as "Expected `int` >= 1 - at `$.messages[0].n`"."""

    def __init__(self, text: str, body: Any, path: str) -> None:  # noqa: ANN401 - the parts of a body are of any type
        self.reason, _, location = text.rpartition(" - at `$")
        if not self.reason:  # an error of the body itself
            self.reason, location = text, ""
        self._param = path + location.removesuffix("`").removeprefix(".")
        self.steps: list[str | int] = [name or int(index) for name, index in _STEP.findall(location)]
        self._body = body
        self.value = body
        for step in self.steps:
            self.value = self.value[step]

    def to_field_error(self, schema: type[msgspec.Struct]) -> FieldError:
        param, value = self._param, self.value
        if self.reason.startswith("Object missing required field"):
            name = self.reason.split("`")[1]
            return missing(f"{param}.{name}" if self.steps else f"{param}{name}")
        if self.reason.startswith("Invalid "):  # of an enum or a tag
            return wrong_value(param, value, self._allowed_values(schema))
        expectation = _EXPECTATION.fullmatch(self.reason)
        if expectation is None:  # a pattern
            pattern = self.reason.partition("matching regex ")[2].replace("\\\\Z", "$")
            shown = shorten_value(string_or_type_name(value))
            message = f"Invalid '{param}': '{shown}'. Expected a string that matches the pattern {pattern}."
            return FieldError(message, param, "invalid_value")
        kinds, of_length, sign, limit = expectation.groups()
        if sign is None:
            return self._wrong_type(kinds.split(" | "))
        if not of_length:
            unit = "integer" if kinds == "int" else "decimal"
            return out_of_range(param, value, limit.removesuffix(".0"), is_above=sign == "<", unit=unit)
        if kinds != "str":
            return too_many(param, int(limit), len(value)) if sign == "<" else empty_array(param)
        if sign == "<":
            return too_long(param, int(limit), len(value))
        message = f"Invalid '{param}': string too short. Expected at least {limit} characters, but got {len(value)}."
        return FieldError(message, param, "invalid_value")

    def _wrong_type(self, kinds: list[str]) -> FieldError:
        """Return the error for a wrong type. Null counts as absent, except in an array and for a message's content."""
        param = self._param
        if self.value is None and len(kinds) == 1 and not param.endswith("]"):
            return missing(param)
        if param.endswith("].type") and kinds == ["str"]:  # the tag of an array's element
            return FieldError(
                f"Invalid value for '{param}': expected a string, but got {json_type_name(self.value)}.",
                param,
                "invalid_value",
            )
        return wrong_type(param, " or ".join(_TYPE_NAMES[name] for name in kinds if name != "null"), self.value)

    def _allowed_values(self, schema: type[msgspec.Struct]) -> list[str]:
        """Return the values of the enum, or the tags of the union, at the path of the error."""
        nodes = list(_alternatives(inspect.type_info(schema)))
        value: Any = self._body
        for step in self.steps:
            if isinstance(step, int):
                items = [node.item_type for node in nodes if isinstance(node, inspect.ListType)]
                nodes = [node for item in items for node in _alternatives(item)]
            else:
                structs = [node for node in nodes if isinstance(node, inspect.StructType)]
                if any(struct.tag_field == step for struct in structs):
                    return [str(struct.tag) for struct in structs]
                tagged = [struct for struct in structs if struct.tag in (None, value.get(struct.tag_field))]
                types = [field.type for struct in tagged for field in struct.fields if field.encode_name == step]
                nodes = [node for field_type in types for node in _alternatives(field_type)]
            value = value[step]
        words = [node.values for node in nodes if isinstance(node, inspect.LiteralType)]
        words += [tuple(node.cls) for node in nodes if isinstance(node, inspect.EnumType)]
        return [str(word) for values in words for word in values]


def _alternatives(node: inspect.Type) -> Iterator[inspect.Type]:
    """Return the members of a union, or the type itself, without annotations."""
    while isinstance(node, inspect.Metadata):
        node = node.type
    if isinstance(node, inspect.UnionType):
        for member in node.types:
            yield from _alternatives(member)
    else:
        yield node


def _with_value(container: Any, steps: list[str | int], value: int) -> Any:  # noqa: ANN401 - a dict or a list
    """Return a copy of the body with another value at a path."""
    if not steps:
        return value
    copied = container.copy()
    copied[steps[0]] = _with_value(container[steps[0]], steps[1:], value)
    return copied
