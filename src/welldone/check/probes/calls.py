"""Probes of tools in the dialects that have shapes of their own for them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.check.probe import Probe
from welldone.check.reading import ToolCall
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

Json: TypeAlias = dict[str, Any]

_CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_NOTHING: Json = {"type": "object", "properties": {}}
_PARIS = "What is the weather in Paris?"
_BOTH = "What is the weather in both Paris and Rome? Call get_weather for each of the two cities."
_IGNORED = "no tool was called although one had to be"
_ONE_CALL = 48  # tokens: a call of these tools takes about 30
_TWO_CALLS = 96


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """How a dialect says what has to do with tools."""

    tool: Callable[[str, str, Json], Json]
    """A tool, by its name, what it does and the schema of its arguments."""
    choices: Mapping[str, object]
    """`tool_choice` for auto, required and none."""
    named: Callable[[str], Json]
    """`tool_choice` for one tool."""
    round: Callable[[str, ToolCall, str], list[Json]]
    """A talk: what the user said, the call that was made of it, and its result."""


def probes_of(shapes: Shapes) -> tuple[Probe, ...]:
    """The probes, in a dialect."""
    weather = shapes.tool("get_weather", "Get the weather of a city", _CITY)
    clock = shapes.tool("get_time", "Get the current time", _NOTHING)

    async def ask(session: Session, talk: str | list[Json], choice: object, **members: Any) -> Reply:  # noqa: ANN401
        members = {"max_tokens": _ONE_CALL, "tools": [weather], "tool_choice": choice, **members}
        return session.answered(await session.ask(talk, **members))

    async def auto(session: Session) -> None:
        _want_calls(await ask(session, _PARIS, shapes.choices["auto"]), "the model chose to call no tool")

    async def required(session: Session) -> None:
        _want_calls(await ask(session, _PARIS, shapes.choices["required"]), _IGNORED)

    async def required_whole(session: Session) -> None:
        _want_calls(await ask(session, _PARIS, shapes.choices["required"], stream=False), _IGNORED)

    async def named(session: Session) -> None:
        _want_calls(await ask(session, _PARIS, shapes.named("get_weather")), _IGNORED)

    async def no_arguments(session: Session) -> None:
        _want_calls(await ask(session, "What time is it?", shapes.named("get_time"), tools=[clock]), _IGNORED)

    async def parallel(session: Session) -> None:
        reply = await ask(session, _BOTH, shapes.choices["required"], max_tokens=_TWO_CALLS)
        _want_calls(reply, "the model did not make two calls", count=2)

    async def none(session: Session) -> None:
        if (await ask(session, _PARIS, shapes.choices["none"], max_tokens=16)).first.calls:
            # No rule speaks about it: what came is judged as any call.
            raise NotHeardError("a tool was called although none might be")

    async def result(session: Session) -> None:
        reply = await ask(session, _PARIS, shapes.named("get_weather"))
        _want_calls(reply, _IGNORED)
        talk = shapes.round(_PARIS, reply.first.calls[0], "Sunny, 21 degrees")
        await ask(session, talk, shapes.choices["auto"], max_tokens=32)

    return (
        Probe(name="tools-auto", says="a question that a tool can answer", work=auto),
        Probe(name="tools-required", says="a tool that must be called, streamed", work=required),
        Probe(name="tools-required-whole", says="a tool that must be called, in one piece", work=required_whole),
        Probe(name="tools-named", says="a tool that must be called, by its name", work=named),
        Probe(name="tools-no-arguments", says="a tool that takes no arguments", work=no_arguments),
        Probe(name="tools-parallel", says="two calls in one answer", work=parallel),
        Probe(name="tools-none", says="a tool that must not be called", work=none),
        Probe(name="tools-result", says="a call, and the answer to its result", work=result),
    )


def _want_calls(reply: Reply, otherwise: str, count: int = 1) -> None:
    if len(reply.first.calls) < count:
        raise NotHeardError(otherwise)
