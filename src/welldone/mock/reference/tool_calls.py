"""Tool calls of the reference server: which tools a prompt mentions, and arguments that match their JSON schema."""

import json
import operator
import re
from collections.abc import Callable
from itertools import cycle, product
from typing import Any, TypeGuard

from welldone.core.events import Json
from welldone.core.lenient_json import as_object
from welldone.core.schema_check import resolve_reference
from welldone.gateway.errors import ApiError, invalid_request
from welldone.mock.reference.choices import MockToolCall, tokenize
from welldone.mock.reference.schemas import MockChatRequest, MockCustomTool, MockToolChoice
from welldone.schemas.messages import Function, ToolMessage

_NODES_LIMIT = 10_000
"""Values in one sample. Schemas of real tools need a few dozen; recursive references would never end."""
_DEPTH_LIMIT = 32
_OPTIONAL_DEPTH = 4
"""Depth up to which optional properties are filled in."""
_LENGTH_LIMIT = 10_000
_FORMATS = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "somebody@example.org",
    "uri": "https://example.org/",
    "uuid": "12345678-1234-4234-8234-123456789abc",
    "ipv4": "192.0.2.1",
}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda value, step: value % step == 0,
}
_MIN_STEP = 1e-9  # below it, the number of steps to a bound exceeds the precision of a float
_NUMBER = re.compile(r"\b\d{1,9}\b")


class SchemaSampler:
    """Creates a value that matches a schema. `strings` are used for its strings, in order."""

    def __init__(self, schema: Json, prompt: str = "", strings: tuple[str, ...] = ()) -> None:
        self._root = schema
        self._prompt = prompt
        self._strings = iter(strings)
        self._numbers = cycle([int(digits) for digits in _NUMBER.findall(prompt)] or [1])
        self._nodes_left = _NODES_LIMIT

    def sample(self) -> Any:  # noqa: ANN401 - any JSON
        """Return a value. Raises `ApiError` if the schema is invalid or its value would be too large."""
        return self._value(self._root, 0)

    def _value(self, schema: object, depth: int) -> Any:  # noqa: ANN401 - any JSON
        self._nodes_left -= 1
        if self._nodes_left < 0 or depth > _DEPTH_LIMIT:
            raise _invalid_schema("it is too deep or too large")
        if schema is True or schema == {}:
            return self._text({})
        if not isinstance(schema, dict):
            raise _invalid_schema("a schema must be an object, and a reference of the form '#/$defs/name' to one")
        if "$ref" in schema:
            return self._value(resolve_reference(schema["$ref"], self._root), depth + 1)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            prompt, words = self._prompt.lower(), schema["enum"]
            named = (word for word in words if isinstance(word, str) and word and word.lower() in prompt)
            return next(named, words[0])
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return self._value(schema[key][0], depth + 1)
        return self._of_type(schema, depth)

    def _of_type(self, schema: Json, depth: int) -> Any:  # noqa: ANN401 - any JSON
        schema_type = schema.get("type")
        if schema_type is None:
            schema_type = "object" if "properties" in schema else "array" if "items" in schema else "string"
        if isinstance(schema_type, list):
            schema_type = next((name for name in schema_type if name != "null"), "null")
        match schema_type:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._text(schema)
            case "integer" | "number":
                return self._number(schema, is_integer=schema_type == "integer")
            case "boolean" | "null":
                return True if schema_type == "boolean" else None
            case unknown:
                raise _invalid_schema(f"unknown type {str(unknown)[:40]!r}")

    def _object(self, schema: Json, depth: int) -> Json:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _invalid_schema("'properties' must be an object, and 'required' a list")
        names = properties if depth < _OPTIONAL_DEPTH else [name for name in properties if name in required]
        return {name: self._value(properties[name], depth + 1) for name in names}

    def _array(self, schema: Json, depth: int) -> list[Any]:
        count = max(_bound(schema, "minItems", 0), 1 if depth < _OPTIONAL_DEPTH else 0)
        return [self._value(schema.get("items", {}), depth + 1) for _ in range(min(count, _LENGTH_LIMIT))]

    def _text(self, schema: Json) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        text = next(self._strings, "something")
        minimum, maximum = _bound(schema, "minLength", 0), _bound(schema, "maxLength", _LENGTH_LIMIT)
        if minimum > _LENGTH_LIMIT:
            raise _invalid_schema("'minLength' is too large")
        return text.ljust(minimum, ".")[:maximum]

    def _number(self, schema: Json, *, is_integer: bool) -> int | float:
        step = schema.get("multipleOf", 1)
        if not _is_number(step) or step < _MIN_STEP:
            raise _invalid_schema("'multipleOf' must be a number above 0")
        limits = {name: schema[name] for name in _BOUNDS if isinstance(schema.get(name), int | float)}
        bounds = [value for name in _BOUNDS if name != "multipleOf" and _is_number(value := schema.get(name))]
        multiples = [(bound // step + offset) * step for bound in bounds for offset in (0, 1, -1)]
        for value in (next(self._numbers), 1, 0, *bounds, *multiples):
            is_within = all(_BOUNDS[name](value, limit) for name, limit in limits.items())
            if is_within and (not is_integer or value == int(value)):
                return int(value) if is_integer else value
        raise _invalid_schema("no number was found within its bounds")


def _bound(schema: Json, name: str, default: int) -> int:
    value = schema.get(name, default)
    if type(value) is not int or value < 0:
        raise _invalid_schema(f"'{name}' must be a non-negative integer")
    return value


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether it is a number that every JSON client represents exactly."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def _invalid_schema(reason: str) -> ApiError:
    return invalid_request(f"Invalid schema: {reason}.", code="invalid_schema")


_TOOL_CALLS_LIMIT = 8  # per answer; tests use two
_WORD = re.compile(r"[A-Za-z]+")
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PROPER_NAME = re.compile(r"(?<![.!?:] )(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+){0,3}\b", re.MULTILINE)
"""Capitalised words that do not start a sentence."""
# Words that do not characterise a tool.
_STOP_WORDS = frozenset(
    (
        *("a", "about", "all", "an", "and", "at", "by", "for", "from", "in", "into", "is", "it", "of", "on", "or"),
        *("some", "the", "to", "up", "current", "given", "now", "add", "call", "fetch", "find", "get", "give", "list"),
        *("look", "make", "query", "read", "return", "run", "search", "send", "set", "show", "tell"),
    )
)


def tool_calls_for(request: MockChatRequest) -> tuple[MockToolCall, ...]:
    """Return the tool calls that answer a request; none if it is answered with text."""
    functions = _selected_functions(request)
    names = list(dict.fromkeys(_PROPER_NAME.findall(request.prompt)))
    is_single = isinstance(request.tool_choice, MockToolChoice) or request.parallel_tool_calls is False
    if not is_single and "both" in request.prompt.lower() and len(functions) * max(1, len(names)) == 1:
        names = [*names, "something", "something"][:2]
    strings: list[tuple[str, ...]] = [(name,) for name in names] or [()]
    calls = list(product(functions, strings))[: 1 if is_single else _TOOL_CALLS_LIMIT]
    return tuple(_tool_call(function, request.prompt, words) for function, words in calls)


def _tool_call(function: Function, prompt: str, words: tuple[str, ...]) -> MockToolCall:
    """Return a call with JSON as its arguments, or text for a custom tool."""
    if isinstance(function, MockCustomTool):
        return MockToolCall(function.name, tokenize(" ".join(words) or prompt), is_custom=True)
    schema = {"type": "object"} | as_object(function.parameters)
    arguments = json.dumps(SchemaSampler(schema, prompt, words).sample(), ensure_ascii=False)
    return MockToolCall(function.name, tokenize(arguments))


def _selected_functions(request: MockChatRequest) -> list[Function]:
    if request.tool_choice == "none":
        return []
    if isinstance(request.tool_choice, MockToolChoice):
        name = request.tool_choice.name
        return [function for function in request.callable_functions if function.name == name][:1]
    mentioned = [function for function in request.callable_functions if _is_mentioned(function, request.prompt)]
    if request.tool_choice == "required":
        return mentioned or request.callable_functions[:1]
    return [] if isinstance(request.messages[-1], ToolMessage) else mentioned


def _is_mentioned(function: Function, prompt: str) -> bool:
    """Return whether the prompt contains the tool's name, a word of it, or the main word of its description."""
    if function.name in prompt:
        return True
    description = [word.lower() for word in _WORD.findall(function.description or "")[1:]]  # the first one is a verb
    main_word = [word for word in description if word not in _STOP_WORDS][:1]
    name_words = [word.lower() for word in _NAME_PART.findall(function.name)]
    words = {word for word in [*name_words, *main_word] if word not in _STOP_WORDS}
    return not words.isdisjoint(word.lower() for word in _WORD.findall(prompt))
