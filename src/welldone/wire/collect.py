"""The whole answer as a fold of its events: what a client gets that did not ask for a stream."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from welldone.wire import members
from welldone.wire.events import (
    Event,
    Extra,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)


class Call(msgspec.Struct):
    """A tool call with all its arguments."""

    id: str
    name: str
    arguments: str = ""
    """JSON text; the input of a custom call, which is free text."""
    more: Json = {}
    is_custom: bool = False
    inner: Json = {}
    pieces: list[str] = []
    """Arguments that are still being collected."""


class Answer(msgspec.Struct):
    """One choice, whole."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[Call] = []
    reason: str = ""
    """Empty where the choice never finished."""
    stop: str | None = None
    """The stop string that it ended at, where that is known."""
    logprobs: Json | None = None
    choice_fields: Json = {}
    delta_fields: Json = {}


class Reply(msgspec.Struct):
    """All choices, and what was said of them together."""

    answers: dict[int, Answer] = {}
    usage: Usage | None = None
    failure: Failure | None = None
    fields: Json = {}


def collect(events: Iterable[Event]) -> Reply:
    """The reply that `events` make."""
    reply = Reply()
    # Texts by choice and field: joined at the end, at no more than their cost.
    texts: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event:
            case Usage():
                reply.usage = event
            case Failure():
                reply.failure = event
            case KeepAlive():
                pass
            case Extra(place=Place.CHUNK, fields=fields):
                members.add_last(reply.fields, fields)
            case Text() | Reasoning() | Refusal():
                texts.setdefault((event.index, _FIELDS[type(event)]), []).append(event.text)
            case _:
                _add(reply.answers.setdefault(event.index, Answer()), event)
    for (index, name), pieces in texts.items():
        setattr(reply.answers.setdefault(index, Answer()), name, "".join(pieces))
    reply.fields = members.join(reply.fields)
    for answer in reply.answers.values():
        _finish(answer)
    return reply


_FIELDS: dict[type[Event], str] = {Text: "text", Reasoning: "reasoning", Refusal: "refusal"}


def _add(answer: Answer, event: Opening | ToolCall | ToolArguments | Logprobs | Finish | Extra) -> None:
    match event:
        case Opening():
            pass
        case ToolCall():
            answer.calls.append(Call(event.id, event.name, is_custom=event.is_custom))
            _add_members(answer.calls[-1], event)
        case ToolArguments():
            answer.calls[-1].pieces.append(event.text)
            _add_members(answer.calls[-1], event)
        case Logprobs(value=value):
            answer.logprobs = {} if answer.logprobs is None else answer.logprobs
            members.append(answer.logprobs, value)
        case Finish(reason=reason, stop=stop):
            answer.reason, answer.stop = reason, stop
        case Extra(place=Place.DELTA, fields=fields):
            members.add_delta(answer.delta_fields, fields)
        case Extra(fields=fields):
            members.add_last(answer.choice_fields, fields)
        case _:
            assert_never(event)


def _add_members(call: Call, event: ToolCall | ToolArguments) -> None:
    members.add_delta(call.more, event.more)
    members.add_delta(call.inner, event.inner)


def _finish(answer: Answer) -> None:
    """Join all that came in pieces."""
    answer.delta_fields = members.join(answer.delta_fields)
    answer.choice_fields = members.join(answer.choice_fields)
    answer.logprobs = None if answer.logprobs is None else members.join(answer.logprobs)
    for call in answer.calls:
        call.arguments = "".join(call.pieces)
        call.pieces.clear()
        call.more = members.join(call.more)
        call.inner = members.join(call.inner)
