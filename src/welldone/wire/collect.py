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
    # Texts by choice and field, those of unknown fields of deltas too: joined at the end, at no more than their cost.
    texts: dict[tuple[int, str], list[str]] = {}
    unknown: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event:
            case Usage():
                reply.usage = event
            case Failure():
                reply.failure = event
            case KeepAlive():
                pass
            case Extra(place=Place.CHUNK, fields=fields):
                _join(reply.fields, fields)
            case Text() | Reasoning() | Refusal():
                texts.setdefault((event.index, _FIELDS[type(event)]), []).append(event.text)
            case Extra(place=Place.DELTA, index=index, fields=fields):
                _add_fields(reply.answers.setdefault(index, Answer()), index, fields, unknown)
            case _:
                _add(reply.answers.setdefault(event.index, Answer()), event)
    _finish(reply, texts, unknown)
    return reply


def _finish(reply: Reply, texts: dict[tuple[int, str], list[str]], unknown: dict[tuple[int, str], list[str]]) -> None:
    for (index, name), pieces in texts.items():
        setattr(reply.answers.setdefault(index, Answer()), name, "".join(pieces))
    for (index, name), pieces in unknown.items():
        reply.answers[index].delta_fields[name] = "".join(pieces)
    for answer in reply.answers.values():
        for call in answer.calls:
            call.arguments = "".join(call.pieces)
            call.pieces.clear()


def _add_fields(answer: Answer, index: int, fields: Json, unknown: dict[tuple[int, str], list[str]]) -> None:
    for key, value in fields.items():
        if isinstance(value, str):
            unknown.setdefault((index, key), []).append(value)
        elif value is not None:
            unknown.pop((index, key), None)
    _join(answer.delta_fields, fields)


_FIELDS: dict[type[Event], str] = {Text: "text", Reasoning: "reasoning", Refusal: "refusal"}


def _add(answer: Answer, event: Opening | ToolCall | ToolArguments | Logprobs | Finish | Extra) -> None:
    match event:
        case Opening():
            pass
        case ToolCall():
            call = Call(event.id, event.name, "", dict(event.more), event.is_custom, dict(event.inner))
            answer.calls.append(call)
        case ToolArguments():
            answer.calls[-1].pieces.append(event.text)
            answer.calls[-1].more.update(event.more)
            answer.calls[-1].inner.update(event.inner)
        case Logprobs(value=value):
            answer.logprobs = {} if answer.logprobs is None else answer.logprobs
            _join(answer.logprobs, value)
        case Finish(reason=reason, stop=stop):
            answer.reason, answer.stop = reason, stop
        case Extra(fields=fields):
            _join(answer.choice_fields, fields)
        case _:
            assert_never(event)


def _join(into: Json, fields: Json) -> None:
    """Add the fields of one more chunk: lists go on; all else is replaced, but not by null."""
    for key, value in fields.items():
        before = into.get(key)
        if isinstance(value, list):
            # A list of our own, so that adding to it costs no more than what is added.
            into[key] = [*value] if not isinstance(before, list) else before
            if isinstance(before, list):
                before.extend(value)
        elif value is not None or key not in into:
            into[key] = value
