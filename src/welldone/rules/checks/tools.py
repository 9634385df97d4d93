"""Checks of tool calls, assembled as a client does it: by index, or by order if the index is missing (`tool-`)."""

from collections.abc import Iterator

from welldone.protocol.catalog import Severity
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.choices import (
    ARGUMENTS_MEMBER,
    AssembledToolCall,
    ToolCallDelta,
    as_text,
    is_int,
    is_json,
)
from welldone.rules.view.view import TraceView

TRUNCATING_FINISH_REASONS = ("length", "content_filter")
"""Reasons after which a call may be incomplete."""


def _tool_call_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    for choice in view.choices:
        yield from choice.tool_call_deltas


def _first_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    return (call_delta for call_delta in _tool_call_deltas(view) if call_delta.is_first)


def _later_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    return (call_delta for call_delta in _tool_call_deltas(view) if not call_delta.is_first)


def _index_required(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        if call_delta.entry.get("index") is None:
            yield Violation(call_delta.choice_delta, call_delta.entry, f'"index":{call_delta.call.number}')


def _index_int(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        index = call_delta.entry.get("index")
        if index is not None and not is_int(index):
            yield Violation(call_delta.choice_delta, {"index": index}, f'"index":{call_delta.call.number}')


def _index_distinct(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        if call_delta.has_index_clash:
            yield Violation(call_delta.choice_delta, call_delta.entry, f'"index":{call_delta.call.number}')


def _index_contiguous(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        expected = 0
        for call_delta in choice.tool_call_deltas:
            index = call_delta.call.index
            if index is None or not call_delta.is_first or call_delta.has_index_clash:
                continue
            # Report the call that comes too early, not the one that it overtakes.
            if index > expected or index < 0:
                yield Violation(call_delta.choice_delta, {"index": index}, f'"index":{expected}')
            expected = max(expected, index + 1)


def _id_first(view: TraceView) -> Iterator[Violation]:
    for call_delta in _first_deltas(view):
        if not call_delta.id:
            yield Violation(call_delta.choice_delta, call_delta.entry, '"id":"call_..." on the first delta of the call')


def _id_once(view: TraceView) -> Iterator[Violation]:
    for call_delta in _later_deltas(view):
        if call_delta.id and call_delta.id == call_delta.previous_id:
            yield Violation(call_delta.choice_delta, call_delta.entry, "no id on later deltas of the call")


def _id_stable(view: TraceView) -> Iterator[Violation]:
    seen: set[tuple[int, str]] = set()  # ids are unique within a choice
    for call_delta in _tool_call_deltas(view):
        name = call_delta.choice_delta.choice_index, call_delta.id
        if call_delta.is_first and name in seen:
            yield Violation(call_delta.choice_delta, call_delta.entry, "an id of its own for each call")
        elif not call_delta.is_first and call_delta.id and call_delta.previous_id not in ("", call_delta.id):
            yield Violation(call_delta.choice_delta, call_delta.entry, f'"id":"{call_delta.previous_id[:80]}", or none')
        if call_delta.is_first and call_delta.id:
            seen.add(name)


def _type_first(view: TraceView) -> Iterator[Violation]:
    for call_delta in _first_deltas(view):
        if str(call_delta.entry.get("type")) not in ARGUMENTS_MEMBER:
            yield Violation(
                call_delta.choice_delta,
                call_delta.entry,
                f'"type":"{call_delta.call_type}" on the first delta of the call',
            )


def _name_whole(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        if call_delta.is_first and not call_delta.name and call_delta.call_type in call_delta.entry:
            expected = f'"{call_delta.call_type}":{{"name":"<the whole name>"}} on the first delta of the call'
            yield Violation(call_delta.choice_delta, call_delta.entry, expected)
        elif not call_delta.is_first and call_delta.name and _first_name(call_delta.call) not in ("", call_delta.name):
            yield Violation(call_delta.choice_delta, call_delta.entry, "the whole name on the first delta of the call")


def _first_name(call: AssembledToolCall) -> str:
    return call.deltas[0].name


def _name_once(view: TraceView) -> Iterator[Violation]:
    for call_delta in _later_deltas(view):
        if call_delta.name and call_delta.name == _first_name(call_delta.call):
            yield Violation(call_delta.choice_delta, call_delta.entry, "no name on later deltas of the call")


def _later_fields(view: TraceView) -> Iterator[Violation]:
    for call_delta in _later_deltas(view):
        members = {key: call_delta.entry.get(key, ...) for key in ("id", "type")} | {
            "name": call_delta.function.get("name", ...)
        }
        empty = [key for key, value in members.items() if value in (None, "")]
        if empty:
            # Clients concatenate strings: "" is harmless, null is not.
            severity = None if None in members.values() else Severity.TOLERATED
            yield Violation(
                call_delta.choice_delta,
                call_delta.entry,
                f"no {', '.join(empty)} on later deltas of the call",
                severity,
            )


def _args_string(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        if not isinstance(call_delta.arguments, str):
            member = ARGUMENTS_MEMBER[call_delta.call_type]
            yield Violation(call_delta.choice_delta, {member: call_delta.arguments}, f'"{member}":"<text>"')


def _ended_calls(view: TraceView) -> Iterator[AssembledToolCall]:
    """Yield the function calls of finished choices. The input of custom tools need not be JSON."""
    for choice in view.choices:
        if choice.finish_delta and choice.finish_delta.finish_reason not in TRUNCATING_FINISH_REASONS:
            yield from (call for call in choice.tool_calls if not call.is_custom)


def _args_json_object(view: TraceView) -> Iterator[Violation]:
    for call in _ended_calls(view):
        # tool-args-string and tool-args-first-empty report the other cases.
        if not call.arguments or _late_arguments(call) is not None or is_json(call.arguments, dict):
            continue
        # JSON of another type is readable, and more often the model's doing than the server's.
        severity = Severity.TOLERATED if call.has_valid_arguments else None
        yield Violation(
            call.deltas[-1].choice_delta, {"arguments": call.arguments}, "one JSON object when joined", severity
        )


def _args_first_empty(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for call in choice.tool_calls:
            if _late_arguments(call) is not None:
                yield Violation(call.deltas[0].choice_delta, {"arguments": "{}"}, '"arguments":""')


def _late_arguments(call: AssembledToolCall) -> ToolCallDelta | None:
    """Return the delta that starts the arguments again after an initial {}."""
    with_arguments = [call_delta for call_delta in call.deltas if as_text(call_delta.arguments).strip()]
    if call.is_custom or len(with_arguments) < 2 or with_arguments[0].arguments != "{}":
        return None
    return with_arguments[1] if as_text(with_arguments[1].arguments).lstrip().startswith("{") else None


def _args_no_arg_call(view: TraceView) -> Iterator[Violation]:
    for call in _ended_calls(view):
        if call.arguments == "":
            yield Violation(call.deltas[-1].choice_delta, call.deltas[-1].entry, '"arguments":"{}"')


def _function_present(view: TraceView) -> Iterator[Violation]:
    for call_delta in _tool_call_deltas(view):
        if not isinstance(call_delta.entry.get(call_delta.call_type), dict):
            yield Violation(
                call_delta.choice_delta,
                call_delta.entry,
                f'"{call_delta.call_type}":{{"{ARGUMENTS_MEMBER[call_delta.call_type]}":"..."}}',
            )


def _one_at_a_time(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if len(choice_delta.tool_call_entries) > 1:
            yield Violation(choice_delta, {"tool_calls": choice_delta.tool_call_entries}, "one entry in each delta")
    for call_delta in _tool_call_deltas(view):
        if call_delta.is_late:
            yield Violation(
                call_delta.choice_delta, call_delta.entry, "all deltas of one call before the next call begins"
            )


def _no_content_in_same_delta(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if choice_delta.text and choice_delta.tool_call_entries:
            yield Violation(choice_delta, {"delta": choice_delta.delta}, "the content on a chunk before the tool call")


def _calls_null(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if "tool_calls" in choice_delta.delta and not choice_delta.tool_call_entries:
            yield Violation(choice_delta, {"tool_calls": choice_delta.delta["tool_calls"]}, "no tool_calls key")


def _finish_follows(view: TraceView) -> Iterator[Violation]:
    for choice in view.unfinished_choices:
        if choice.tool_calls:
            observed = f"no finish_reason after the tool calls of choice {choice.index}"
            yield Violation(choice.deltas[-1], observed, '"delta":{},"finish_reason":"tool_calls"')


def _legacy_function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for choice_delta in view.choice_deltas:
            if choice_delta.delta.get("function_call") is not None:
                yield Violation(choice_delta, {"function_call": choice_delta.delta["function_call"]}, "tool_calls")


TOOL_CHECKS = (
    RuleCheck("tool-index-required", _index_required),
    RuleCheck("tool-index-int", _index_int),
    RuleCheck("tool-index-distinct", _index_distinct),
    RuleCheck("tool-index-contiguous", _index_contiguous),
    RuleCheck("tool-id-first", _id_first),
    RuleCheck("tool-id-once", _id_once),
    RuleCheck("tool-id-stable", _id_stable),
    RuleCheck("tool-type-first", _type_first),
    RuleCheck("tool-name-whole", _name_whole),
    RuleCheck("tool-name-once", _name_once),
    RuleCheck("tool-later-fields-absent", _later_fields),
    RuleCheck("tool-args-string", _args_string),
    RuleCheck("tool-args-json-object", _args_json_object),
    RuleCheck("tool-args-first-empty", _args_first_empty),
    RuleCheck("tool-args-no-arg-call", _args_no_arg_call),
    RuleCheck("tool-function-present", _function_present),
    RuleCheck("tool-one-at-a-time", _one_at_a_time),
    RuleCheck("tool-no-content-in-same-delta", _no_content_in_same_delta),
    RuleCheck("tool-calls-null", _calls_null),
    RuleCheck("tool-finish-follows", _finish_follows, required_fields=("end",)),
    RuleCheck("tool-legacy-function-call", _legacy_function_call, required_fields=("request",)),
)
