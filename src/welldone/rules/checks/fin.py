"""Checks of finish_reason."""

from collections.abc import Iterator

from welldone.rules.choices import KNOWN_FIELDS, is_nothing
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import fin as faults

REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def _key_present(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if "finish_reason" not in part.choice:
            yield Place(part, part.choice, '"finish_reason":null')


def _not_empty(heard: Heard) -> Iterator[Place]:
    yield from _instead_of_null(heard, "")


def _not_string(heard: Heard) -> Iterator[Place]:
    yield from _instead_of_null(heard, "null")


def _instead_of_null(heard: Heard, reason: str) -> Iterator[Place]:
    for part in heard.parts:
        if part.choice.get("finish_reason") == reason:
            yield Place(part, {"finish_reason": reason}, '"finish_reason":null')


def _closed_enum(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if part.finish is not None and part.finish not in REASONS:
            yield Place(part, {"finish_reason": part.finish}, f"one of {', '.join(REASONS)}")


def _exactly_once(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        for part in choice.after_finish:
            if part.finish is not None:
                yield Place(part, {"finish_reason": part.finish}, "one finish chunk for each choice")


def _always_sent(heard: Heard) -> Iterator[Place]:
    if heard.dones:
        for choice in heard.unfinished:
            wanted = '"delta":{},"finish_reason":"stop" on a chunk before [DONE]'
            yield Place(choice.parts[-1], f"no finish_reason for choice {choice.key}", wanted)


def _last_of_choice(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        for part in choice.after_finish:
            yield Place(part, part.choice, f"nothing for choice {choice.key} after its finish chunk")


def _own_chunk(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if part.finish is not None and any(not is_nothing(part.delta.get(key)) for key in KNOWN_FIELDS):
            yield Place(part, {"delta": part.delta}, '"delta":{} and the finish_reason on a chunk of their own')


def _tool_calls(heard: Heard) -> Iterator[Place]:
    request = heard.trace.request or {}
    if isinstance(request.get("tool_choice"), dict):
        return  # with a named tool OpenAI itself says stop
    for choice in heard.choices:
        # Calls that were cut are no calls: their arguments say so under a rule of their own.
        is_called = bool(choice.calls) and all(call.is_readable for call in choice.calls)
        if choice.finish and choice.finish.finish == "stop" and is_called:
            yield Place(choice.finish, {"finish_reason": "stop"}, '"finish_reason":"tool_calls"')


def _function_call(heard: Heard) -> Iterator[Place]:
    if not (heard.trace.request or {}).get("functions"):
        for part in heard.parts:
            if part.finish == "function_call":
                yield Place(part, {"finish_reason": "function_call"}, '"finish_reason":"tool_calls"')


RULES = (
    Rule(faults.KEY_PRESENT, _key_present),
    Rule(faults.NULL_NOT_EMPTY, _not_empty),
    Rule(faults.NULL_NOT_STRING, _not_string),
    Rule(faults.CLOSED_ENUM, _closed_enum),
    Rule(faults.EXACTLY_ONCE, _exactly_once),
    Rule(faults.ALWAYS_SENT, _always_sent),
    Rule(faults.LAST_OF_CHOICE, _last_of_choice),
    Rule(faults.OWN_CHUNK, _own_chunk),
    Rule(faults.TOOL_CALLS, _tool_calls),
    Rule(faults.FUNCTION_CALL_LEGACY, _function_call, needs=("request",)),
)
