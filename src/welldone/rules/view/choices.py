"""The choices of a stream: their deltas, and their tool calls as a client assembles them."""

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeGuard

import msgspec

from welldone.rules.view.stream import StreamMessage

KNOWN_FIELDS = frozenset(
    ("role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning")
)
"""Members of a delta that the protocol defines; all others are server extensions."""
REASONING_FIELDS = ("reasoning_content", "reasoning")


def is_int(value: object) -> TypeGuard[int]:
    """Whether a JSON value is an integer (in Python a bool is one too)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_null_or_empty(value: object) -> bool:
    """Whether a member is null or empty."""
    return value is None or value == "" or value == [] or value == {}


def as_object(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def lenient_index(value: object) -> int | None:
    """Read an index as a lenient client does: "1" counts as 1."""
    if is_int(value):
        return value
    if isinstance(value, str) and len(value) < 9 and value.isascii() and value.isdigit():
        return int(value)
    return None


def is_json(text: str, value_type: type[object]) -> bool:
    """Whether the text is JSON of that type."""
    try:
        return isinstance(json.loads(text, parse_int=str), value_type)
    except (ValueError, RecursionError):
        return False


ARGUMENTS_MEMBER = {"function": "arguments", "custom": "input"}
"""The member with the arguments, by type of the call. The type is also the name of the object that has it."""


def call_type(entry: dict[str, Any]) -> str:
    """Return the type of a call; later deltas omit it, and their object identifies it."""
    tool_type = entry.get("type")
    if isinstance(tool_type, str) and tool_type in ARGUMENTS_MEMBER:
        return tool_type
    return "custom" if isinstance(entry.get("custom"), dict) and not entry.get("function") else "function"


class ChoiceDelta(msgspec.Struct, frozen=True):
    """One entry of a chunk's `choices`."""

    message: StreamMessage
    choice_index: int
    """Index of the choice; its list position if the index is missing."""
    choice: dict[str, Any]
    delta: dict[str, Any]
    text: str
    """New text; empty if there is none."""

    @property
    def finish_reason(self) -> object:
        """The finish reason; None also for the empty string and "null", which servers send in its place."""
        reason = self.choice.get("finish_reason")
        return None if reason == "" or reason == "null" else reason

    @property
    def frame_number(self) -> int:
        return self.message.frame_number

    @property
    def role(self) -> object:
        return self.delta.get("role")

    @property
    def reasoning(self) -> str:
        return as_text(self.delta.get("reasoning_content")) or as_text(self.delta.get("reasoning"))

    @property
    def tool_call_entries(self) -> list[Any]:
        return as_list(self.delta.get("tool_calls"))

    @property
    def is_noop(self) -> bool:
        """Whether it changes nothing for a client."""
        if self.text or self.finish_reason is not None or self.choice.get("logprobs") is not None:
            return False
        return all(is_null_or_empty(value) for value in self.delta.values())

    @property
    def all_text(self) -> list[str]:
        """All strings of the delta that reach a user or a tool."""
        texts = [self.text, *(as_text(self.delta.get(key)) for key in ("refusal", *REASONING_FIELDS))]
        for entry in map(as_object, self.tool_call_entries):
            tool_type = call_type(entry)
            texts.append(as_text(as_object(entry.get(tool_type)).get(ARGUMENTS_MEMBER[tool_type])))
        return texts


class AssembledToolCall:
    """A tool call as a client assembles it."""

    def __init__(self, number: int, index: int | None) -> None:
        self.number = number
        """Position among the calls of the choice, by first appearance."""
        self.index = index
        self.deltas: list[ToolCallDelta] = []
        self.id = ""
        self.name = ""
        self.has_arguments = False

    @cached_property
    def arguments(self) -> str | None:
        """Joined arguments; None if one delta has something other than a string."""
        texts = [delta.arguments for delta in self.deltas if isinstance(delta.arguments, str)]
        return "".join(texts) if len(texts) == len(self.deltas) else None

    @property
    def is_custom(self) -> bool:
        """Whether it calls a custom tool, which takes free text."""
        return self.deltas[0].call_type == "custom"

    @property
    def has_valid_arguments(self) -> bool:
        """Whether its arguments are JSON or empty."""
        return not self.arguments or is_json(self.arguments, object)


class ToolCallDelta(msgspec.Struct, frozen=True):
    """One entry of a delta's `tool_calls`."""

    choice_delta: ChoiceDelta
    entry: dict[str, Any]
    call: AssembledToolCall
    is_first: bool
    has_index_clash: bool
    """Whether it starts a new call on the index of another call."""
    is_late: bool
    """Whether a later call had already started."""
    previous_id: str
    """The id of the call before this delta."""

    @property
    def frame_number(self) -> int:
        return self.choice_delta.frame_number

    @property
    def call_type(self) -> str:
        return call_type(self.entry)

    @property
    def function(self) -> dict[str, Any]:
        """The object with the name and the arguments."""
        return as_object(self.entry.get(self.call_type))

    @property
    def arguments(self) -> object:
        """The arguments, or the input of a custom tool: a string unless malformed."""
        return self.function.get(ARGUMENTS_MEMBER[self.call_type], "")

    @property
    def id(self) -> str:
        return as_text(self.entry.get("id"))

    @property
    def name(self) -> str:
        return as_text(self.function.get("name"))


def _assemble_tool_calls(choice_deltas: list[ChoiceDelta]) -> list[ToolCallDelta]:
    """Assign the entries of one choice to calls: by index, or by order if the index is missing."""
    deltas: list[ToolCallDelta] = []
    by_index: dict[int, AssembledToolCall] = {}
    last: AssembledToolCall | None = None
    count = 0
    for choice_delta in choice_deltas:
        for entry in map(as_object, choice_delta.tool_call_entries):
            index = lenient_index(entry.get("index"))
            identity, name = as_text(entry.get("id")), as_text(as_object(entry.get(call_type(entry))).get("name"))
            tool_call = last if index is None else by_index.get(index)
            has_new_id = tool_call is not None and identity != "" and tool_call.id not in ("", identity)
            has_new_name = tool_call is not None and index is None and not identity and "" not in (name, tool_call.name)
            # A second start without arguments between: the call of the first one, with another id.
            is_repeated = tool_call is not None and name == tool_call.name and not tool_call.has_arguments
            clashes = index is not None and has_new_id and name != "" and not is_repeated
            is_first = tool_call is None or clashes or (index is None and (has_new_id or has_new_name))
            if tool_call is None or is_first:
                tool_call = AssembledToolCall(count, index)
                count += 1
                if index is not None:
                    by_index[index] = tool_call
            previous_id = tool_call.id
            tool_call.id, tool_call.name = tool_call.id or identity, tool_call.name or name
            is_late = tool_call.number < count - 1
            deltas.append(ToolCallDelta(choice_delta, entry, tool_call, is_first, clashes, is_late, previous_id))
            tool_call.deltas.append(deltas[-1])
            tool_call.has_arguments |= not is_null_or_empty(deltas[-1].arguments)
            last = tool_call
    return deltas


class ChoiceView:
    """One choice of a stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.deltas: list[ChoiceDelta] = []

    @cached_property
    def finish_delta(self) -> ChoiceDelta | None:
        """First delta with a finish reason."""
        return next((delta for delta in self.deltas if delta.finish_reason is not None), None)

    @cached_property
    def after_finish(self) -> list[ChoiceDelta]:
        """Deltas after that one."""
        for index, delta in enumerate(self.deltas):
            if delta.finish_reason is not None:
                return self.deltas[index + 1 :]
        return []

    @cached_property
    def tool_call_deltas(self) -> list[ToolCallDelta]:
        """Deltas of its tool calls, in order of arrival."""
        return _assemble_tool_calls(self.deltas)

    @cached_property
    def tool_calls(self) -> list[AssembledToolCall]:
        return [delta.call for delta in self.tool_call_deltas if delta.is_first]

    @cached_property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


def read_choice_deltas(message: StreamMessage, *, is_chat: bool) -> list[ChoiceDelta]:
    """Parse the `choices` of a chunk."""
    choice_deltas = []
    for position, entry in enumerate(as_list(message.json.get("choices"))):
        choice = as_object(entry)
        index = lenient_index(choice.get("index"))
        # Some servers send a `message` in place of the delta.
        delta: dict[str, Any] = next(
            (choice[key] for key in ("delta", "message") if isinstance(choice.get(key), dict)), {}
        )
        text = as_text(delta.get("content") if is_chat else choice.get("text"))
        choice_deltas.append(
            ChoiceDelta(message, position if index is None else index, choice, delta if is_chat else {}, text)
        )
    return choice_deltas


def group_by_choice(choice_deltas: Iterable[ChoiceDelta]) -> list[ChoiceView]:
    """Group deltas by choice, in order of first appearance."""
    choices: dict[int, ChoiceView] = {}
    for delta in choice_deltas:
        choices.setdefault(delta.choice_index, ChoiceView(delta.choice_index)).deltas.append(delta)
    return list(choices.values())
