"""Probes of tools: calls that the model may make, must make, or must not make, and what comes after them."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.check.probe import Probe
from welldone.check.reading import ParsedToolCall
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session
from welldone.check.settings import MESSAGES
from welldone.rules.view.choices import as_object

# What models write to call a tool, where it stands in a text: a server should have made a call of it.


_TOOL_CALL_TAGS = (
    "<tool_call>",  # Hermes, Qwen
    "<|tool_call|>",  # Granite, Phi
    "<|tool_call_begin|>",  # Kimi
    "<\uff5ctool\u2581call\u2581begin\uff5c>",  # DeepSeek
    "[TOOL_CALLS]",  # Mistral
    "<function=",  # Llama 3.1, Qwen3 Coder
    "<|python_tag|>",  # Llama 3.1
)
"""They mean a call and nothing else."""
_MAX_SCANNED_CHARS = 10_000  # characters of a text that are looked at: a call of a small tool is far shorter


def find_tool_markup(text: str, name: str | None) -> str | None:
    """The markup of a call in a text; None where there is none. JSON counts where it calls `name`, if that is given."""
    text = text[:_MAX_SCANNED_CHARS]
    for tag in _TOOL_CALL_TAGS:
        if tag in text:
            return text[text.index(tag) :]
    if name is None:
        return None
    fenced = (piece.removeprefix("json") for piece in text.split("```")[1::2])
    return next((piece.strip() for piece in (text, *fenced) if _is_json_tool_call(piece, name)), None)


def _is_json_tool_call(text: str, name: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    call = as_object(value[0] if isinstance(value, list) and value else value)
    # Llama says `parameters` for arguments. A model that recites the tool itself has a schema there.
    arguments = call.get("arguments", call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return call.get("name") == name and arguments is not None and not is_schema


# Tools as each dialect says them: what may be called, what must be, and what came of it.


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


NO_MARKUP_LEAK = "tool-no-markup-leak"

_WEATHER = ProbeTool(
    "get_weather",
    "Get the weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_TIME = ProbeTool("get_time", "Get the current time", {"type": "object", "properties": {}})
_ONE_CALL_PROMPT = "What is the weather in Paris?"
_TWO_CALLS_PROMPT = "What is the weather in both Paris and Rome? Call get_weather for each of the two cities."
_TOOL_CHOICE_IGNORED = "no tool was called although one had to be"
_ONE_CALL_TOKENS = 48  # tokens: a call of these tools takes about 30
_TWO_CALLS_TOKENS = 96


async def _probe_tools_auto(session: Session) -> None:
    _require_tool_calls(await _send_with_tools(session, _ONE_CALL_PROMPT, "auto"), "the model chose to call no tool")


async def _probe_tools_required(session: Session) -> None:
    _require_tool_calls(await _send_with_tools(session, _ONE_CALL_PROMPT, "required"), _TOOL_CHOICE_IGNORED)


async def _probe_tools_required_buffered(session: Session) -> None:
    _require_tool_calls(
        await _send_with_tools(session, _ONE_CALL_PROMPT, "required", stream=False), _TOOL_CHOICE_IGNORED
    )


async def _probe_tools_named(session: Session) -> None:
    _require_tool_calls(await _send_with_tools(session, _ONE_CALL_PROMPT, _WEATHER.name), _TOOL_CHOICE_IGNORED)


async def _probe_tools_no_arguments(session: Session) -> None:
    _require_tool_calls(
        await _send_with_tools(session, "What time is it?", _TIME.name, tool=_TIME), _TOOL_CHOICE_IGNORED
    )


async def _probe_tools_parallel(session: Session) -> None:
    # Messages has no such member: a call may always come with others there.
    is_parallel = ... if session.dialect is MESSAGES else True
    reply = await _send_with_tools(
        session, _TWO_CALLS_PROMPT, "required", max_tokens=_TWO_CALLS_TOKENS, parallel_tool_calls=is_parallel
    )
    _require_tool_calls(reply, "the model did not make two calls", count=2)


async def _probe_tools_none(session: Session) -> None:
    reply = await _send_with_tools(session, _ONE_CALL_PROMPT, "none", max_tokens=16)
    if reply.first_choice.tool_calls:
        # No rule speaks about it: what came is judged as any call.
        raise NotApplicableError("a tool was called although tool_choice was none")


async def _probe_tools_result(session: Session) -> None:
    # Nine letters and digits: what Mistral's models, and they alone, want an id to be.
    call = ParsedToolCall("callParis", _WEATHER.name, '{"city":"Paris"}')
    talk = TOOL_SHAPES[session.dialect.name].conversation(_ONE_CALL_PROMPT, call, "Sunny, 21 degrees")
    await _send_with_tools(session, talk, None, max_tokens=32)


async def _send_with_tools(
    session: Session,
    content: str | list[dict[str, Any]],
    choice: str | None,
    *,
    tool: ProbeTool = _WEATHER,
    max_tokens: int = _ONE_CALL_TOKENS,
    **members: Any,  # noqa: ANN401 - JSON
) -> ProbeReply:
    """The reply where a tool is offered. Prompts that begin alike cost a server with a cache less."""
    shapes = TOOL_SHAPES[session.dialect.name]
    asking = {
        "tools": [shapes.tool(tool)],
        "tool_choice": ... if choice is None else shapes.tool_choice(choice),
        **members,
    }
    reply = session.require_ok(await session.generate(content, max_tokens=max_tokens, **asking))
    # Where no tool may be called, JSON is what the model says. Its own markup is not for people even then.
    name = None if choice == "none" else tool.name
    markup = next(filter(None, (find_tool_markup(said.text, name) for said in reply.choices)), None)
    if markup is not None:
        wanted = "tool_calls, and no markup in content"
        session.check_rule(NO_MARKUP_LEAK, reply, passed=False, observed={"content": markup}, expected=wanted)
    elif reply.first_choice.tool_calls:
        session.check_rule(NO_MARKUP_LEAK, reply, passed=True)
    else:
        session.not_applicable(NO_MARKUP_LEAK, "no tool was called")
    return reply


def _require_tool_calls(reply: ProbeReply, reason: str, count: int = 1) -> None:
    if len(reply.first_choice.tool_calls) < count:
        raise NotApplicableError(reason)


TOOL_PROBES = (
    Probe(
        name="tools-auto",
        description="a question that a tool can answer",
        run=_probe_tools_auto,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-required",
        description="a tool that must be called, streamed",
        run=_probe_tools_required,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-required-whole",
        description="a tool that must be called, in one piece",
        run=_probe_tools_required_buffered,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-named",
        description="a tool that must be called, by its name",
        run=_probe_tools_named,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-no-arguments",
        description="a tool that takes no arguments",
        run=_probe_tools_no_arguments,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-parallel", description="two calls in one answer", run=_probe_tools_parallel, rules=(NO_MARKUP_LEAK,)
    ),
    Probe(
        name="tools-none", description="a tool that must not be called", run=_probe_tools_none, rules=(NO_MARKUP_LEAK,)
    ),
    Probe(
        name="tools-result",
        description="the answer to the result of a tool",
        run=_probe_tools_result,
        rules=(NO_MARKUP_LEAK,),
    ),
)
