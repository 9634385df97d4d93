"""Checks of finish_reason."""

from collections.abc import Iterator

from welldone.rules.choices import KNOWN_FIELDS, is_null_or_empty
from welldone.rules.heard import TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def _key_present(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if "finish_reason" not in part.choice:
            yield Violation(part, part.choice, '"finish_reason":null')


def _not_empty(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "")


def _not_string(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "null")


def _null_placeholder(view: TraceView, reason: str) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.choice.get("finish_reason") == reason:
            yield Violation(part, {"finish_reason": reason}, '"finish_reason":null')


def _closed_enum(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.finish_reason is not None and part.finish_reason not in FINISH_REASONS:
            yield Violation(part, {"finish_reason": part.finish_reason}, f"one of {', '.join(FINISH_REASONS)}")


def _exactly_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.after_finish:
            if part.finish_reason is not None:
                yield Violation(part, {"finish_reason": part.finish_reason}, "one finish chunk for each choice")


def _always_sent(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for choice in view.unfinished_choices:
            wanted = '"delta":{},"finish_reason":"stop" on a chunk before [DONE]'
            yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", wanted)


def _last_of_choice(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.after_finish:
            yield Violation(part, part.choice, f"nothing for choice {choice.index} after its finish chunk")


def _own_chunk(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.finish_reason is not None and any(not is_null_or_empty(part.delta.get(key)) for key in KNOWN_FIELDS):
            yield Violation(part, {"delta": part.delta}, '"delta":{} and the finish_reason on a chunk of their own')


def _tool_calls(view: TraceView) -> Iterator[Violation]:
    request = view.trace.request or {}
    if isinstance(request.get("tool_choice"), dict):
        return  # with a named tool OpenAI itself says stop
    for choice in view.choices:
        # Calls that were cut are no calls: their arguments say so under a rule of their own.
        is_called = bool(choice.tool_calls) and all(call.has_valid_arguments for call in choice.tool_calls)
        if choice.finish_delta and choice.finish_delta.finish_reason == "stop" and is_called:
            yield Violation(choice.finish_delta, {"finish_reason": "stop"}, '"finish_reason":"tool_calls"')


def _function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for part in view.choice_deltas:
            if part.finish_reason == "function_call":
                yield Violation(part, {"finish_reason": "function_call"}, '"finish_reason":"tool_calls"')


FINISH_CHECKS = (
    RuleCheck(faults.fin.KEY_PRESENT, _key_present),
    RuleCheck(faults.fin.NULL_NOT_EMPTY, _not_empty),
    RuleCheck(faults.fin.NULL_NOT_STRING, _not_string),
    RuleCheck(faults.fin.CLOSED_ENUM, _closed_enum),
    RuleCheck(faults.fin.EXACTLY_ONCE, _exactly_once),
    RuleCheck(faults.fin.ALWAYS_SENT, _always_sent),
    RuleCheck(faults.fin.LAST_OF_CHOICE, _last_of_choice),
    RuleCheck(faults.fin.OWN_CHUNK, _own_chunk),
    RuleCheck(faults.fin.TOOL_CALLS, _tool_calls),
    RuleCheck(faults.fin.FUNCTION_CALL_LEGACY, _function_call, required_fields=("request",)),
)
