"""The whole answer as a fold of its events: what a client gets that did not ask for a stream."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from welldone.wire import members
from welldone.wire.events import (
    Event,
    UnknownFields,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    ChoiceStart,
    FieldLocation,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)


class CollectedToolCall(msgspec.Struct):
    """A tool call with all its arguments."""

    id: str
    name: str
    arguments: str = ""
    """JSON text; the input of a custom call, which is free text."""
    extra_fields: Json = {}
    is_custom: bool = False
    inner_extra_fields: Json = {}
    pieces: list[str] = []
    """Arguments that are still being collected."""


class CollectedChoice(msgspec.Struct):
    """One choice, whole."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: list[CollectedToolCall] = []
    finish_reason: str = ""
    """Empty where the choice never finished."""
    stop_string: str | None = None
    """The stop string that it ended at, where that is known."""
    logprobs: Json | None = None
    choice_fields: Json = {}
    delta_fields: Json = {}


class CollectedReply(msgspec.Struct):
    """All choices, and what was said of them together."""

    choices: dict[int, CollectedChoice] = {}
    usage: Usage | None = None
    failure: Failure | None = None
    unknown_fields: Json = {}


def collect(events: Iterable[Event]) -> CollectedReply:
    """The reply that `events` make."""
    reply = CollectedReply()
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
            case UnknownFields(location=FieldLocation.CHUNK, fields=fields):
                members.accumulate_latest(reply.unknown_fields, fields)
            case Text() | Reasoning() | Refusal():
                texts.setdefault((event.index, _TEXT_FIELD_BY_EVENT[type(event)]), []).append(event.text)
            case _:
                _add_event(reply.choices.setdefault(event.index, CollectedChoice()), event)
    for (index, name), pieces in texts.items():
        setattr(reply.choices.setdefault(index, CollectedChoice()), name, "".join(pieces))
    reply.unknown_fields = members.join_accumulated(reply.unknown_fields)
    for answer in reply.choices.values():
        _join_pieces(answer)
    return reply


_TEXT_FIELD_BY_EVENT: dict[type[Event], str] = {Text: "text", Reasoning: "reasoning", Refusal: "refusal"}


def _add_event(
    choice: CollectedChoice, event: ChoiceStart | ToolCall | ToolArguments | Logprobs | Finish | UnknownFields
) -> None:
    match event:
        case ChoiceStart():
            pass
        case ToolCall():
            choice.tool_calls.append(CollectedToolCall(event.id, event.name, is_custom=event.is_custom))
            _add_extra_fields(choice.tool_calls[-1], event)
        case ToolArguments():
            choice.tool_calls[-1].pieces.append(event.text)
            _add_extra_fields(choice.tool_calls[-1], event)
        case Logprobs(value=value):
            choice.logprobs = {} if choice.logprobs is None else choice.logprobs
            members.accumulate_lists(choice.logprobs, value)
        case Finish(reason=reason, stop_string=stop):
            choice.finish_reason, choice.stop_string = reason, stop
        case UnknownFields(location=FieldLocation.DELTA, fields=fields):
            members.accumulate_delta(choice.delta_fields, fields)
        case UnknownFields(fields=fields):
            members.accumulate_latest(choice.choice_fields, fields)
        case _:
            assert_never(event)


def _add_extra_fields(call: CollectedToolCall, event: ToolCall | ToolArguments) -> None:
    members.accumulate_delta(call.extra_fields, event.extra_fields)
    members.accumulate_delta(call.inner_extra_fields, event.inner_extra_fields)


def _join_pieces(choice: CollectedChoice) -> None:
    """Join all that came in pieces."""
    choice.delta_fields = members.join_accumulated(choice.delta_fields)
    choice.choice_fields = members.join_accumulated(choice.choice_fields)
    choice.logprobs = None if choice.logprobs is None else members.join_accumulated(choice.logprobs)
    for call in choice.tool_calls:
        call.arguments = "".join(call.pieces)
        call.pieces.clear()
        call.extra_fields = members.join_accumulated(call.extra_fields)
        call.inner_extra_fields = members.join_accumulated(call.inner_extra_fields)
