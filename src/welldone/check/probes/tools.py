"""Probes of tools: optional, required, named, parallel and forbidden calls, and the result of a call."""

import json
from functools import partial
from typing import Any, TypeAlias

import msgspec

from welldone.check.reading import ParsedToolCall
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Probe, Session, stream_and_whole
from welldone.check.settings import GEMINI, MESSAGES
from welldone.rules.checks.tools import find_tool_markup

# ---- tools in each dialect


Json: TypeAlias = dict[str, Any]


class ProbeTool(msgspec.Struct, frozen=True):
    """A tool, independent of the dialect."""

    name: str
    description: str
    parameters: Json
    prompt: str = ""
    """A prompt to which a model calls the tool."""


def write_tool(dialect: str, tool: ProbeTool) -> Json:
    """A tool as the dialect writes it."""
    names = {"name": tool.name, "description": tool.description}
    if dialect == "gemini":
        # Google refuses an object without properties.
        parameters = {"parameters": tool.parameters} if tool.parameters["properties"] else {}
        return {"functionDeclarations": [{**names, **parameters}]}
    if dialect == "messages":
        return {**names, "input_schema": tool.parameters}
    if dialect == "chat":
        return {"type": "function", "function": {**names, "parameters": tool.parameters}}
    # Strict schemas, the default, must forbid additional properties.
    closed = {**tool.parameters, "additionalProperties": False}
    return {"type": "function", **names, "parameters": closed, "strict": True}


def _tool_choice(dialect: str, word: str) -> object:
    """`tool_choice` for auto, required or none, or for the tool of that name."""
    if dialect == "gemini":
        mode = {"auto": "AUTO", "required": "ANY", "none": "NONE"}.get(word)
        config = {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [word]}
        return {"functionCallingConfig": config}
    if dialect == "messages":
        choice_type = {"auto": "auto", "required": "any", "none": "none"}.get(word)
        return {"type": choice_type} if choice_type else {"type": "tool", "name": word}
    if word in ("auto", "required", "none"):
        return word
    return {"type": "function", **({"function": {"name": word}} if dialect == "chat" else {"name": word})}


def _tool_conversation(dialect: str, question: str, tool_call: ParsedToolCall, result: str) -> list[Json]:
    """Messages with the user's prompt, the call and its result."""
    if dialect == "gemini":
        function_call = {"id": tool_call.id, "name": tool_call.name, "args": json.loads(tool_call.arguments)}
        answer = {"functionResponse": {"id": tool_call.id, "name": tool_call.name, "response": {"result": result}}}
        turns = (("user", {"text": question}), ("model", {"functionCall": function_call}), ("user", answer))
        return [{"role": role, "parts": [content_part]} for role, content_part in turns]
    user = {"role": "user", "content": question}
    if dialect == "messages":
        tool_input = json.loads(tool_call.arguments)
        tool_use = {"type": "tool_use", "id": tool_call.id, "name": tool_call.name, "input": tool_input}
        tool_result = {"type": "tool_result", "tool_use_id": tool_call.id, "content": result}
        return [user, {"role": "assistant", "content": [tool_use]}, {"role": "user", "content": [tool_result]}]
    function = {"name": tool_call.name, "arguments": tool_call.arguments}
    if dialect == "responses":
        output = {"type": "function_call_output", "call_id": tool_call.id, "output": result}
        return [user, {"type": "function_call", "call_id": tool_call.id, **function}, output]
    chat_call = {"id": tool_call.id, "type": "function", "function": function}
    assistant = {"role": "assistant", "content": None, "tool_calls": [chat_call]}
    return [user, assistant, {"role": "tool", "tool_call_id": tool_call.id, "content": result}]


# ---- probes


NO_MARKUP_LEAK = "tool-no-markup-leak"

_WEATHER = ProbeTool(
    "get_weather",
    "Get the weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "What is the weather in Paris?",
)
_TIME = ProbeTool("get_time", "Get the current time", {"type": "object", "properties": {}}, "What time is it?")
_TWO_CALLS_PROMPT = "What is the weather in both Paris and Rome? Call get_weather for each of the two cities."
_ONE_CALL_TOKENS = 48  # a call of these tools takes about 30
_TWO_CALLS_TOKENS = 96


async def _probe_tool_call(session: Session, *, choice: str, tool: ProbeTool = _WEATHER, stream: bool = True) -> None:
    reply = await _send_with_tools(session, tool.prompt, choice, tool=tool, stream=stream)
    if not reply.first_choice.tool_calls:
        although = "" if choice == "auto" else ", although tool_choice required it"
        raise NotApplicableError(f"no tool was called{although}")


async def _probe_tools_parallel(session: Session) -> None:
    # /v1/messages and Gemini have no such field: calls may always be parallel.
    is_parallel = ... if session.dialect in (MESSAGES, GEMINI) else True
    reply = await _send_with_tools(
        session, _TWO_CALLS_PROMPT, "required", max_tokens=_TWO_CALLS_TOKENS, parallel_tool_calls=is_parallel
    )
    if len(reply.first_choice.tool_calls) < 2:
        raise NotApplicableError("the model did not make two calls")


async def _probe_tools_none(session: Session) -> None:
    reply = await _send_with_tools(session, _WEATHER.prompt, "none", max_tokens=16)
    if reply.first_choice.tool_calls:
        # No rule is about tool_choice: the call itself is judged like any other.
        raise NotApplicableError("a tool was called, although tool_choice was none")


async def _probe_tools_result(session: Session) -> None:
    # Mistral's templates require an id of nine letters and digits.
    tool_call = ParsedToolCall("callParis", _WEATHER.name, '{"city":"Paris"}')
    conversation = _tool_conversation(session.dialect.name, _WEATHER.prompt, tool_call, "Sunny, 21 degrees")
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
    dialect = session.dialect.name
    tool_choice = ... if choice is None else _tool_choice(dialect, choice)
    members["toolConfig" if session.dialect is GEMINI else "tool_choice"] = tool_choice
    reply = await session.answer(content, max_tokens=max_tokens, tools=[write_tool(dialect, tool)], **members)
    # With tool_choice none, a JSON call is normal text; markup never is.
    names = () if choice == "none" else (tool.name,)
    markup = next(filter(None, (find_tool_markup(parsed.text, names) for parsed in reply.choices)), None)
    is_known = any(violation.reply is reply and violation.rule == NO_MARKUP_LEAK for violation in session.violations)
    if markup is not None and not is_known:
        expected = "tool_calls, and no markup in content"
        session.check_rule(NO_MARKUP_LEAK, reply, False, {"content": markup}, expected)
    elif is_known or reply.first_choice.tool_calls:
        session.check_rule(NO_MARKUP_LEAK, reply, passed=True)
    else:
        session.not_applicable(NO_MARKUP_LEAK, "no tool was called")
    return reply


_auto, _required, _named = (partial(_probe_tool_call, choice=choice) for choice in ("auto", "required", _WEATHER.name))
_no_arguments = partial(_probe_tool_call, choice=_TIME.name, tool=_TIME)
_RULES = (NO_MARKUP_LEAK,)
TOOL_PROBES = (
    Probe("tools-auto", "tool_choice auto, streamed", _auto, _RULES),
    *stream_and_whole("tools-required", "tool_choice required", _required, _RULES),
    Probe("tools-named", "tool_choice with the name of a tool", _named, _RULES),
    Probe("tools-no-arguments", "a tool that takes no arguments", _no_arguments, _RULES),
    Probe("tools-parallel", "parallel tool calls", _probe_tools_parallel, _RULES),
    Probe("tools-none", "tool_choice none", _probe_tools_none, _RULES),
    Probe("tools-result", "the answer to a tool result", _probe_tools_result, _RULES),
)
