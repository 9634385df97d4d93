"""The whole answer as a fold of its events: what a client gets that did not ask for a stream."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

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
    more: Json = {}


class Answer(msgspec.Struct):
    """One choice, whole."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[Call] = []
    reason: str = ""
    """Empty where the choice never finished."""
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
                reply.fields = _joined(reply.fields, fields)
            case Text(text=text):
                texts.setdefault((event.index, "text"), []).append(text)
            case Reasoning(text=text):
                texts.setdefault((event.index, "reasoning"), []).append(text)
            case Refusal(text=text):
                texts.setdefault((event.index, "refusal"), []).append(text)
            case _:
                _add(reply.answers.setdefault(event.index, Answer()), event)
    for (index, name), pieces in texts.items():
        answer = reply.answers.setdefault(index, Answer())
        setattr(answer, name, "".join(pieces))
    return reply


def _add(answer: Answer, event: Opening | ToolCall | ToolArguments | Logprobs | Finish | Extra) -> None:
    match event:
        case Opening():
            pass
        case ToolCall():
            answer.calls.append(Call(event.id, event.name, "", event.more))
        case ToolArguments():
            answer.calls[-1].arguments += event.text
            answer.calls[-1].more = answer.calls[-1].more | event.more
        case Logprobs(value=value):
            answer.logprobs = value if answer.logprobs is None else _joined(answer.logprobs, value)
        case Finish(reason=reason):
            answer.reason = reason
        case Extra(place=Place.DELTA, fields=fields):
            answer.delta_fields = _joined(answer.delta_fields, fields)
        case Extra(fields=fields):
            answer.choice_fields = _joined(answer.choice_fields, fields)
        case _:
            assert_never(event)


def _joined(before: Json, after: Json) -> Json:
    """Fields of several chunks as one: lists go on, all else is replaced."""
    joined = dict(before)
    for key, value in after.items():
        joined[key] = _both(joined.get(key), value)
    return joined


def _both(before: object, after: object) -> object:
    if isinstance(before, list) and isinstance(after, list):
        return before + after
    return before if after is None else after
