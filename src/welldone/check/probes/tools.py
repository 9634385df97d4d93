"""Probes of tools: optional, required, named, parallel and forbidden calls, and the result of a call."""

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

_TOOL_CALL_TAGS = (
    "<tool_call>",  # Hermes, Qwen
    "<|tool_call|>",  # Granite, Phi
    "<|tool_call_begin|>",  # Kimi
    "<\uff5ctool\u2581call\u2581begin\uff5c>",  # DeepSeek
    "[TOOL_CALLS]",  # Mistral
    "<function=",  # Llama 3.1, Qwen3 Coder
    "<|python_tag|>",  # Llama 3.1
)
"""Markup that models write for a tool call. In the text of an answer it shows that the server did not parse it."""
_MAX_SCANNED_CHARS = 10_000  # of a text; a call of a small tool is far shorter


def find_tool_markup(text: str, name: str | None) -> str | None:
    """Unparsed tool call markup in a text, or a JSON call of the tool `name`; None if there is none."""
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
    # Llama writes `parameters` for arguments. A model that repeats the tool definition has a schema there.
    arguments = call.get("arguments", call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return call.get("name") == name and arguments is not None and not is_schema


# ---- tools in each dialect


Json: TypeAlias = dict[str, Any]


class ProbeTool(msgspec.Struct, frozen=True):
    """A tool, independent of the dialect."""

    name: str
    description: str
    parameters: Json


class ToolShapes(msgspec.Struct, frozen=True):
    """Functions that write tools in one dialect."""

    tool: Callable[[ProbeTool], Json]
    tool_choice: Callable[[str], object]
    """`tool_choice` for auto, required or none, or for the tool of that name."""
    conversation: Callable[[str, ParsedToolCall, str], list[Json]]
    """Messages with the user's prompt, the call and its result."""


_TOOL_CHOICES = ("auto", "required", "none")


def _chat_tool(tool: ProbeTool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _chat_choice(word: str) -> object:
    return word if word in _TOOL_CHOICES else {"type": "function", "function": {"name": word}}


def _chat_conversation(question: str, call: ParsedToolCall, result: str) -> list[Json]:
    tool_call = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]


def _responses_tool(tool: ProbeTool) -> Json:
    # Strict schemas, the default, must forbid additional properties.
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
    function_call = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    output = {"type": "function_call_output", "call_id": call.id, "output": result}
    return [{"role": "user", "content": question}, function_call, output]


def _messages_tool(tool: ProbeTool) -> Json:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _messages_choice(word: str) -> object:
    names = {"auto": "auto", "required": "any", "none": "none"}
    return {"type": names[word]} if word in _TOOL_CHOICES else {"type": "tool", "name": word}


def _messages_conversation(question: str, call: ParsedToolCall, result: str) -> list[Json]:
    tool_use = {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    tool_result = {"type": "tool_result", "tool_use_id": call.id, "content": result}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": [tool_use]},
        {"role": "user", "content": [tool_result]},
    ]


TOOL_SHAPES: Mapping[str, ToolShapes] = {
    "chat": ToolShapes(_chat_tool, _chat_choice, _chat_conversation),
    "responses": ToolShapes(_responses_tool, _responses_choice, _responses_conversation),
    "messages": ToolShapes(_messages_tool, _messages_choice, _messages_conversation),
}


# ---- probes


NO_MARKUP_LEAK = "tool-no-markup-leak"

_WEATHER = ProbeTool(
    "get_weather",
    "Get the weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_TIME = ProbeTool("get_time", "Get the current time", {"type": "object", "properties": {}})
_ONE_CALL_PROMPT = "What is the weather in Paris?"
_TWO_CALLS_PROMPT = "What is the weather in both Paris and Rome? Call get_weather for each of the two cities."
_TOOL_CHOICE_IGNORED = "no tool was called, although tool_choice required it"
_ONE_CALL_TOKENS = 48  # a call of these tools takes about 30
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
    # /v1/messages has no such field: calls may always be parallel.
    is_parallel = ... if session.dialect is MESSAGES else True
    reply = await _send_with_tools(
        session, _TWO_CALLS_PROMPT, "required", max_tokens=_TWO_CALLS_TOKENS, parallel_tool_calls=is_parallel
    )
    _require_tool_calls(reply, "the model did not make two calls", count=2)


async def _probe_tools_none(session: Session) -> None:
    reply = await _send_with_tools(session, _ONE_CALL_PROMPT, "none", max_tokens=16)
    if reply.first_choice.tool_calls:
        # No rule is about tool_choice: the call itself is judged like any other.
        raise NotApplicableError("a tool was called, although tool_choice was none")


async def _probe_tools_result(session: Session) -> None:
    # Mistral's templates require an id of nine letters and digits.
    call = ParsedToolCall("callParis", _WEATHER.name, '{"city":"Paris"}')
    conversation = TOOL_SHAPES[session.dialect.name].conversation(_ONE_CALL_PROMPT, call, "Sunny, 21 degrees")
    await _send_with_tools(session, conversation, None, max_tokens=32)


async def _send_with_tools(
    session: Session,
    content: str | list[dict[str, Any]],
    choice: str | None,
    *,
    tool: ProbeTool = _WEATHER,
    max_tokens: int = _ONE_CALL_TOKENS,
    **members: Any,  # noqa: ANN401 - JSON
) -> ProbeReply:
    """Send a request with one tool. The prompts begin alike, so that prompt caches reuse them."""
    shapes = TOOL_SHAPES[session.dialect.name]
    fields = {
        "tools": [shapes.tool(tool)],
        "tool_choice": ... if choice is None else shapes.tool_choice(choice),
        **members,
    }
    reply = session.require_ok(await session.generate(content, max_tokens=max_tokens, **fields))
    # With tool_choice none, a JSON call is normal text; markup never is.
    name = None if choice == "none" else tool.name
    markup = next(filter(None, (find_tool_markup(parsed.text, name) for parsed in reply.choices)), None)
    if markup is not None:
        expected = "tool_calls, and no markup in content"
        session.check_rule(NO_MARKUP_LEAK, reply, passed=False, observed={"content": markup}, expected=expected)
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
        description="tool_choice auto, streamed",
        run=_probe_tools_auto,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-required",
        description="tool_choice required, streamed",
        run=_probe_tools_required,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-required-whole",
        description="tool_choice required, not streamed",
        run=_probe_tools_required_buffered,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-named",
        description="tool_choice with the name of a tool",
        run=_probe_tools_named,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(
        name="tools-no-arguments",
        description="a tool that takes no arguments",
        run=_probe_tools_no_arguments,
        rules=(NO_MARKUP_LEAK,),
    ),
    Probe(name="tools-parallel", description="parallel tool calls", run=_probe_tools_parallel, rules=(NO_MARKUP_LEAK,)),
    Probe(name="tools-none", description="tool_choice none", run=_probe_tools_none, rules=(NO_MARKUP_LEAK,)),
    Probe(
        name="tools-result",
        description="the answer to a tool result",
        run=_probe_tools_result,
        rules=(NO_MARKUP_LEAK,),
    ),
)
