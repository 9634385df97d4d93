"""Probes of tools: calls that the model may make, must make, or must not make, and what comes after them."""

from typing import Any

from welldone.check.dialect import MESSAGES
from welldone.check.probe import Probe
from welldone.check.probes.markup import find_markup
from welldone.check.probes.shapes import SHAPES, Tool
from welldone.check.reading import ToolCall
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

LEAK = "tool-no-markup-leak"

_WEATHER = Tool(
    "get_weather",
    "Get the weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_TIME = Tool("get_time", "Get the current time", {"type": "object", "properties": {}})
_PARIS = "What is the weather in Paris?"
_BOTH = "What is the weather in both Paris and Rome? Call get_weather for each of the two cities."
_IGNORED = "no tool was called although one had to be"
_ONE_CALL = 48  # tokens: a call of these tools takes about 30
_TWO_CALLS = 96


async def _auto(session: Session) -> None:
    _want_calls(await _ask(session, _PARIS, "auto"), "the model chose to call no tool")


async def _required(session: Session) -> None:
    _want_calls(await _ask(session, _PARIS, "required"), _IGNORED)


async def _required_whole(session: Session) -> None:
    _want_calls(await _ask(session, _PARIS, "required", stream=False), _IGNORED)


async def _named(session: Session) -> None:
    _want_calls(await _ask(session, _PARIS, _WEATHER.name), _IGNORED)


async def _no_arguments(session: Session) -> None:
    _want_calls(await _ask(session, "What time is it?", _TIME.name, tool=_TIME), _IGNORED)


async def _parallel(session: Session) -> None:
    # Messages has no such member: a call may always come with others there.
    is_parallel = ... if session.dialect is MESSAGES else True
    reply = await _ask(session, _BOTH, "required", max_tokens=_TWO_CALLS, parallel_tool_calls=is_parallel)
    _want_calls(reply, "the model did not make two calls", count=2)


async def _none(session: Session) -> None:
    reply = await _ask(session, _PARIS, "none", max_tokens=16)
    if reply.first.calls:
        # No rule speaks about it: what came is judged as any call.
        raise NotHeardError("a tool was called although tool_choice was none")


async def _result(session: Session) -> None:
    # Nine letters and digits: what Mistral's models, and they alone, want an id to be.
    call = ToolCall("callParis", _WEATHER.name, '{"city":"Paris"}')
    talk = SHAPES[session.dialect.name].talk(_PARIS, call, "Sunny, 21 degrees")
    await _ask(session, talk, None, max_tokens=32)


async def _ask(
    session: Session,
    content: str | list[dict[str, Any]],
    choice: str | None,
    *,
    tool: Tool = _WEATHER,
    max_tokens: int = _ONE_CALL,
    **members: Any,  # noqa: ANN401 - JSON
) -> Reply:
    """The reply where a tool is offered. Prompts that begin alike cost a server with a cache less."""
    shapes = SHAPES[session.dialect.name]
    asking = {"tools": [shapes.tool(tool)], "tool_choice": ... if choice is None else shapes.choice(choice), **members}
    reply = session.answered(await session.ask(content, max_tokens=max_tokens, **asking))
    # Where no tool may be called, JSON is what the model says. Its own markup is not for people even then.
    name = None if choice == "none" else tool.name
    markup = next(filter(None, (find_markup(said.text, name) for said in reply.choices)), None)
    if markup is not None:
        wanted = "tool_calls, and no markup in content"
        session.hold(LEAK, reply, is_kept=False, heard={"content": markup}, wanted=wanted)
    elif reply.first.calls:
        session.hold(LEAK, reply, is_kept=True)
    else:
        session.not_heard(LEAK, "no tool was called")
    return reply


def _want_calls(reply: Reply, otherwise: str, count: int = 1) -> None:
    if len(reply.first.calls) < count:
        raise NotHeardError(otherwise)


PROBES = (
    Probe(name="tools-auto", says="a question that a tool can answer", work=_auto, rules=(LEAK,)),
    Probe(name="tools-required", says="a tool that must be called, streamed", work=_required, rules=(LEAK,)),
    Probe(
        name="tools-required-whole",
        says="a tool that must be called, in one piece",
        work=_required_whole,
        rules=(LEAK,),
    ),
    Probe(name="tools-named", says="a tool that must be called, by its name", work=_named, rules=(LEAK,)),
    Probe(name="tools-no-arguments", says="a tool that takes no arguments", work=_no_arguments, rules=(LEAK,)),
    Probe(name="tools-parallel", says="two calls in one answer", work=_parallel, rules=(LEAK,)),
    Probe(name="tools-none", says="a tool that must not be called", work=_none, rules=(LEAK,)),
    Probe(name="tools-result", says="the answer to the result of a tool", work=_result, rules=(LEAK,)),
)
