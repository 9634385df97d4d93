"""Tools as each dialect says them: what may be called, what must be, and what came of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.check.reading import ParsedToolCall

Json: TypeAlias = dict[str, Any]


class ProbeTool(msgspec.Struct, frozen=True):
    """A tool."""

    name: str
    description: str
    """What it does."""
    parameters: Json


class ToolShapes(msgspec.Struct, frozen=True):
    """The shapes of one dialect."""

    tool: Callable[[ProbeTool], Json]
    tool_choice: Callable[[str], object]
    """`tool_choice` for auto, required or none, or for the tool of that name."""
    conversation: Callable[[str, ParsedToolCall, str], list[Json]]
    """What the user said, the call that was made of it, and its result."""


_TOOL_CHOICES = ("auto", "required", "none")


# ---- chat


def _chat_tool(tool: ProbeTool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _chat_choice(word: str) -> object:
    return word if word in _TOOL_CHOICES else {"type": "function", "function": {"name": word}}


def _chat_conversation(question: str, call: ParsedToolCall, result: str) -> list[Json]:
    made = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]


# ---- responses


def _responses_tool(tool: ProbeTool) -> Json:
    # Schemas are strict by default, and then allow nothing that they do not name.
    closed = {**tool.parameters, "additionalProperties": False}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": closed,
        "strict": True,
    }


def _responses_choice(word: str) -> object:
    return word if word in _TOOL_CHOICES else {"type": "function", "name": word}


def _responses_conversation(question: str, call: ParsedToolCall, result: str) -> list[Json]:
    made = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    given = {"type": "function_call_output", "call_id": call.id, "output": result}
    return [{"role": "user", "content": question}, made, given]


# ---- messages


def _messages_tool(tool: ProbeTool) -> Json:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _messages_choice(word: str) -> object:
    names = {"auto": "auto", "required": "any", "none": "none"}
    return {"type": names[word]} if word in _TOOL_CHOICES else {"type": "tool", "name": word}


def _messages_conversation(question: str, call: ParsedToolCall, result: str) -> list[Json]:
    made = {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    given = {"type": "tool_result", "tool_use_id": call.id, "content": result}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [given]},
    ]


TOOL_SHAPES: Mapping[str, ToolShapes] = {
    "chat": ToolShapes(_chat_tool, _chat_choice, _chat_conversation),
    "responses": ToolShapes(_responses_tool, _responses_choice, _responses_conversation),
    "messages": ToolShapes(_messages_tool, _messages_choice, _messages_conversation),
}
"""By dialect."""
