"""Tools as each dialect says them: what may be called, what must be, and what came of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.check.reading import ToolCall

Json: TypeAlias = dict[str, Any]


class Tool(msgspec.Struct, frozen=True):
    """A tool."""

    name: str
    says: str
    """What it does."""
    parameters: Json


class Shapes(msgspec.Struct, frozen=True):
    """The shapes of one dialect."""

    tool: Callable[[Tool], Json]
    choice: Callable[[str], object]
    """`tool_choice` for auto, required or none, or for the tool of that name."""
    talk: Callable[[str, ToolCall, str], list[Json]]
    """What the user said, the call that was made of it, and its result."""


_WORDS = ("auto", "required", "none")


# ---- chat


def _chat_tool(tool: Tool) -> Json:
    function = {"name": tool.name, "description": tool.says, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _chat_choice(word: str) -> object:
    return word if word in _WORDS else {"type": "function", "function": {"name": word}}


def _chat_talk(asked: str, call: ToolCall, result: str) -> list[Json]:
    made = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]


# ---- responses


def _responses_tool(tool: Tool) -> Json:
    # Schemas are strict by default, and then allow nothing that they do not name.
    closed = {**tool.parameters, "additionalProperties": False}
    return {"type": "function", "name": tool.name, "description": tool.says, "parameters": closed, "strict": True}


def _responses_choice(word: str) -> object:
    return word if word in _WORDS else {"type": "function", "name": word}


def _responses_talk(asked: str, call: ToolCall, result: str) -> list[Json]:
    made = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    given = {"type": "function_call_output", "call_id": call.id, "output": result}
    return [{"role": "user", "content": asked}, made, given]


# ---- messages


def _messages_tool(tool: Tool) -> Json:
    return {"name": tool.name, "description": tool.says, "input_schema": tool.parameters}


def _messages_choice(word: str) -> object:
    names = {"auto": "auto", "required": "any", "none": "none"}
    return {"type": names[word]} if word in _WORDS else {"type": "tool", "name": word}


def _messages_talk(asked: str, call: ToolCall, result: str) -> list[Json]:
    made = {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    given = {"type": "tool_result", "tool_use_id": call.id, "content": result}
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [given]},
    ]


SHAPES: Mapping[str, Shapes] = {
    "chat": Shapes(_chat_tool, _chat_choice, _chat_talk),
    "responses": Shapes(_responses_tool, _responses_choice, _responses_talk),
    "messages": Shapes(_messages_tool, _messages_choice, _messages_talk),
}
"""By dialect."""
