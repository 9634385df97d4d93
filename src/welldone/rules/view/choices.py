"""The choices of a stream, each as the list of what the chunks said of it, and their tool calls put together."""

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeGuard

import msgspec

from welldone.rules.view.stream import StreamMessage

KNOWN_FIELDS = frozenset(
    ("role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning")
)
"""The members of a delta that have a meaning of their own; all others are extras of a server."""
REASONING_FIELDS = ("reasoning_content", "reasoning")


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is an integer; to Python, but not to JSON, a bool is one too."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_null_or_empty(value: object) -> bool:
    """Whether a member says nothing: null or empty."""
    return value is None or value == "" or value == [] or value == {}


def as_object(value: object) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The value where it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def lenient_index(value: object) -> int | None:
    """An index as a lenient client reads it: "1" counts as 1."""
    if is_int(value):
        return value
    if isinstance(value, str) and len(value) < 9 and value.isascii() and value.isdigit():
        return int(value)
    return None


def is_json(text: str, kind: type[object]) -> bool:
    """Whether the text is JSON of that kind."""
    try:
        return isinstance(json.loads(text, parse_int=str), kind)
    except (ValueError, RecursionError):
        return False


ARGUMENTS_MEMBER = {"function": "arguments", "custom": "input"}
"""The types of a call, which are also the names of its object, and the member that has the arguments."""


def call_type(entry: dict[str, Any]) -> str:
    """The type of a call. Later pieces do not repeat it: then its object tells it."""
    kind = entry.get("type")
    if isinstance(kind, str) and kind in ARGUMENTS_MEMBER:
        return kind
    return "custom" if isinstance(entry.get("custom"), dict) and not entry.get("function") else "function"


class ChoiceDelta(msgspec.Struct, frozen=True):
    """What one chunk says of one choice."""

    message: StreamMessage
    choice_index: int
    """The choice's index; where that is missing, its place in the list."""
    choice: dict[str, Any]
    delta: dict[str, Any]
    text: str
    """The new text; empty where there is none."""

    @property
    def finish_reason(self) -> object:
        """The reason that ends the choice; None for null and for what servers send in its place."""
        reason = self.choice.get("finish_reason")
        return None if reason == "" or reason == "null" else reason

    @property
    def role(self) -> object:
        return self.delta.get("role")

    @property
    def reasoning(self) -> str:
        return as_text(self.delta.get("reasoning_content")) or as_text(self.delta.get("reasoning"))

    @property
    def tool_call_entries(self) -> list[Any]:
        """The entries of its `tool_calls`."""
        return as_list(self.delta.get("tool_calls"))

    @property
    def is_noop(self) -> bool:
        """Whether it changes nothing for a client."""
        if self.text or self.finish_reason is not None or self.choice.get("logprobs") is not None:
            return False
        return all(is_null_or_empty(value) for value in self.delta.values())

    @property
    def all_text(self) -> list[str]:
        """All text of the delta that a person or a tool may see."""
        said = [self.text, *(as_text(self.delta.get(key)) for key in ("refusal", *REASONING_FIELDS))]
        for entry in map(as_object, self.tool_call_entries):
            kind = call_type(entry)
            said.append(as_text(as_object(entry.get(kind)).get(ARGUMENTS_MEMBER[kind])))
        return said


class AssembledToolCall:
    """A tool call as a client puts it together."""

    def __init__(self, number: int, index: int | None) -> None:
        self.number = number
        """Which one of the choice it is, by first appearance."""
        self.index = index
        self.deltas: list[ToolCallDelta] = []
        self.id = ""
        self.name = ""

    @cached_property
    def arguments(self) -> str | None:
        """The arguments joined; None where a piece of them is no string."""
        texts = [piece.arguments for piece in self.deltas if isinstance(piece.arguments, str)]
        return "".join(texts) if len(texts) == len(self.deltas) else None

    @property
    def is_custom(self) -> bool:
        """Whether it calls a custom tool, whose input is free text."""
        return self.deltas[0].call_type == "custom"

    @property
    def has_valid_arguments(self) -> bool:
        """Whether its arguments, if it has any, are JSON."""
        return not self.arguments or is_json(self.arguments, object)


class ToolCallDelta(msgspec.Struct, frozen=True):
    """One entry of a delta's `tool_calls`."""

    choice_delta: ChoiceDelta
    entry: dict[str, Any]
    call: AssembledToolCall
    is_first: bool
    has_index_clash: bool
    """Whether it begins a new call on an index that another call has."""
    is_late: bool
    """Whether a later call had begun before it."""
    previous_id: str
    """The id that the call had before this piece."""

    @property
    def call_type(self) -> str:
        return call_type(self.entry)

    @property
    def function(self) -> dict[str, Any]:
        """The object that has the name and the arguments."""
        return as_object(self.entry.get(self.call_type))

    @property
    def arguments(self) -> object:
        """The arguments, or the input of a custom tool: text, if it is right."""
        return self.function.get(ARGUMENTS_MEMBER[self.call_type], "")

    @property
    def id(self) -> str:
        return as_text(self.entry.get("id"))

    @property
    def name(self) -> str:
        return as_text(self.function.get("name"))


class _ToolCallAssembler:
    """Sorts the entries of one choice into calls: by index, or by order where the index is missing."""

    def __init__(self) -> None:
        self.deltas: list[ToolCallDelta] = []
        self._by_index: dict[int, AssembledToolCall] = {}
        self._last: AssembledToolCall | None = None
        self._count = 0

    def add(self, part: ChoiceDelta, entry: dict[str, Any]) -> None:
        index = lenient_index(entry.get("index"))
        identity, name = as_text(entry.get("id")), as_text(as_object(entry.get(call_type(entry))).get("name"))
        call = self._last if index is None else self._by_index.get(index)
        has_new_id = call is not None and identity != "" and call.id not in ("", identity)
        has_new_name = call is not None and index is None and not identity and name != "" and call.name != ""
        clashes = index is not None and has_new_id and name != ""
        begins = call is None or clashes or (index is None and (has_new_id or has_new_name))
        if call is None or begins:
            call = self._start_call(index)
        known_id = call.id
        call.id, call.name = call.id or identity, call.name or name
        is_late = call.number < self._count - 1
        piece = ToolCallDelta(part, entry, call, begins, clashes, is_late, known_id)
        call.deltas.append(piece)
        self.deltas.append(piece)
        self._last = call

    def _start_call(self, index: int | None) -> AssembledToolCall:
        call = AssembledToolCall(self._count, index)
        self._count += 1
        if index is not None:
            self._by_index[index] = call
        return call


class ChoiceView:
    """One answer of a stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.deltas: list[ChoiceDelta] = []

    @cached_property
    def finish_delta(self) -> ChoiceDelta | None:
        """Its first chunk with a finish reason."""
        return next((part for part in self.deltas if part.finish_reason is not None), None)

    @cached_property
    def after_finish(self) -> list[ChoiceDelta]:
        """What was said of it after that chunk."""
        for place, part in enumerate(self.deltas):
            if part.finish_reason is not None:
                return self.deltas[place + 1 :]
        return []

    @cached_property
    def tool_call_deltas(self) -> list[ToolCallDelta]:
        """The pieces of its tool calls, in the order heard."""
        gatherer = _ToolCallAssembler()
        for part in self.deltas:
            for entry in part.tool_call_entries:
                gatherer.add(part, as_object(entry))
        return gatherer.deltas

    @cached_property
    def tool_calls(self) -> list[AssembledToolCall]:
        return [piece.call for piece in self.tool_call_deltas if piece.is_first]

    @cached_property
    def text(self) -> str:
        return "".join(part.text for part in self.deltas)


def read_choice_deltas(message: StreamMessage, *, is_chat: bool) -> list[ChoiceDelta]:
    """What a chunk says, choice by choice."""
    parts = []
    for place, entry in enumerate(as_list(message.json.get("choices"))):
        choice = as_object(entry)
        index = lenient_index(choice.get("index"))
        # A `message` where the delta should be still says what the server meant.
        said: dict[str, Any] = next(
            (choice[key] for key in ("delta", "message") if isinstance(choice.get(key), dict)), {}
        )
        text = as_text(said.get("content") if is_chat else choice.get("text"))
        parts.append(ChoiceDelta(message, place if index is None else index, choice, said if is_chat else {}, text))
    return parts


def group_by_choice(parts: Iterable[ChoiceDelta]) -> list[ChoiceView]:
    """The choices, in the order of their first appearance."""
    choices: dict[int, ChoiceView] = {}
    for part in parts:
        choices.setdefault(part.choice_index, ChoiceView(part.choice_index)).deltas.append(part)
    return list(choices.values())
