"""Checks of tool calls, on the deltas as a client puts them together: by index, or by order where it is missing."""

from collections.abc import Iterator

from welldone.protocol import catalog
from welldone.protocol.catalog.rule import Severity
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.choices import (
    ARGUMENTS_MEMBER,
    AssembledToolCall,
    ChoiceView,
    ToolCallDelta,
    as_text,
    is_int,
    is_json,
)
from welldone.rules.view.view import TraceView

TRUNCATING_FINISH_REASONS = ("length", "content_filter")
"""Reasons after which a call may be unfinished."""


def _tool_call_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    for choice in view.choices:
        yield from choice.tool_call_deltas


def _first_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    return (piece for piece in _tool_call_deltas(view) if piece.is_first)


def _later_deltas(view: TraceView) -> Iterator[ToolCallDelta]:
    return (piece for piece in _tool_call_deltas(view) if not piece.is_first)


def _index_required(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        if piece.entry.get("index") is None:
            yield Violation(piece.choice_delta, piece.entry, f'"index":{piece.call.number}')


def _index_int(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        index = piece.entry.get("index")
        if index is not None and not is_int(index):
            yield Violation(piece.choice_delta, {"index": index}, f'"index":{piece.call.number}')


def _index_distinct(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        if piece.has_index_clash:
            yield Violation(piece.choice_delta, piece.entry, f'"index":{piece.call.number}')


def _index_contiguous(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        expected = 0
        for piece in choice.tool_call_deltas:
            index = piece.call.index
            if index is None or not piece.is_first or piece.has_index_clash:
                continue
            # Only who comes too early is at fault, not who was overtaken.
            if index > expected or index < 0:
                yield Violation(piece.choice_delta, {"index": index}, f'"index":{expected}')
            expected = max(expected, index + 1)


def _id_first(view: TraceView) -> Iterator[Violation]:
    for piece in _first_deltas(view):
        if not piece.id:
            yield Violation(piece.choice_delta, piece.entry, '"id":"call_..." on the first delta of the call')


def _id_once(view: TraceView) -> Iterator[Violation]:
    for piece in _later_deltas(view):
        if piece.id and piece.id == piece.previous_id:
            yield Violation(piece.choice_delta, piece.entry, "no id on later deltas of the call")


def _id_stable(view: TraceView) -> Iterator[Violation]:
    seen: set[tuple[int, str]] = set()  # each choice is a message of its own
    for piece in _tool_call_deltas(view):
        name = piece.choice_delta.choice_index, piece.id
        if piece.is_first and name in seen:
            yield Violation(piece.choice_delta, piece.entry, "an id of its own for each call")
        elif not piece.is_first and piece.id and piece.previous_id not in ("", piece.id):
            yield Violation(piece.choice_delta, piece.entry, f'"id":"{piece.previous_id[:80]}", or none')
        if piece.is_first and piece.id:
            seen.add(name)


def _type_first(view: TraceView) -> Iterator[Violation]:
    for piece in _first_deltas(view):
        if str(piece.entry.get("type")) not in ARGUMENTS_MEMBER:
            yield Violation(
                piece.choice_delta, piece.entry, f'"type":"{piece.call_type}" on the first delta of the call'
            )


def _name_whole(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        if piece.is_first and not piece.name and piece.call_type in piece.entry:
            wanted = f'"{piece.call_type}":{{"name":"<the whole name>"}} on the first delta of the call'
            yield Violation(piece.choice_delta, piece.entry, wanted)
        elif not piece.is_first and piece.name and _first_name(piece.call) not in ("", piece.name):
            yield Violation(piece.choice_delta, piece.entry, "the whole name on the first delta of the call")


def _first_name(call: AssembledToolCall) -> str:
    return call.deltas[0].name


def _name_once(view: TraceView) -> Iterator[Violation]:
    for piece in _later_deltas(view):
        if piece.name and piece.name == _first_name(piece.call):
            yield Violation(piece.choice_delta, piece.entry, "no name on later deltas of the call")


def _later_fields(view: TraceView) -> Iterator[Violation]:
    for piece in _later_deltas(view):
        members = {key: piece.entry.get(key, ...) for key in ("id", "type")} | {"name": piece.function.get("name", ...)}
        empty = [key for key, value in members.items() if value in (None, "")]
        if empty:
            # Clients join strings: '' adds nothing. A null is a value.
            severity = None if None in members.values() else Severity.TOLERATED
            yield Violation(
                piece.choice_delta, piece.entry, f"no {', '.join(empty)} on later deltas of the call", severity
            )


def _args_string(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        if not isinstance(piece.arguments, str):
            member = ARGUMENTS_MEMBER[piece.call_type]
            yield Violation(piece.choice_delta, {member: piece.arguments}, f'"{member}":"<text>"')


def _ended_calls(view: TraceView) -> Iterator[AssembledToolCall]:
    """The calls of functions, of choices that were not cut short. The input of custom tools need not be JSON."""
    for choice in view.choices:
        if choice.finish_delta and choice.finish_delta.finish_reason not in TRUNCATING_FINISH_REASONS:
            yield from (call for call in choice.tool_calls if not call.is_custom)


def _args_json_object(view: TraceView) -> Iterator[Violation]:
    for call in _ended_calls(view):
        # Arguments that are no strings, and a {} before the rest, have rules of their own.
        if not call.arguments or _late_arguments(call) is not None or is_json(call.arguments, dict):
            continue
        # Other JSON can at least be read: the model's choice more than the server's fault.
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
    """The piece that begins anew after arguments that began with a whole {}."""
    pieces = [piece for piece in call.deltas if as_text(piece.arguments).strip()]
    if call.is_custom or len(pieces) < 2 or pieces[0].arguments != "{}":
        return None
    return pieces[1] if as_text(pieces[1].arguments).lstrip().startswith("{") else None


def _args_no_arg_call(view: TraceView) -> Iterator[Violation]:
    for call in _ended_calls(view):
        if call.arguments == "":
            yield Violation(call.deltas[-1].choice_delta, call.deltas[-1].entry, '"arguments":"{}"')


def _function_present(view: TraceView) -> Iterator[Violation]:
    for piece in _tool_call_deltas(view):
        if not isinstance(piece.entry.get(piece.call_type), dict):
            yield Violation(
                piece.choice_delta, piece.entry, f'"{piece.call_type}":{{"{ARGUMENTS_MEMBER[piece.call_type]}":"..."}}'
            )


def _one_at_a_time(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if len(part.tool_call_entries) > 1:
            yield Violation(part, {"tool_calls": part.tool_call_entries}, "one entry in each delta")
    for piece in _tool_call_deltas(view):
        if piece.is_late:
            yield Violation(piece.choice_delta, piece.entry, "all pieces of one call before the next call begins")


def _no_content_in_same_delta(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.text and part.tool_call_entries:
            yield Violation(part, {"delta": part.delta}, "the content on a chunk before the tool call")


def _calls_null(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if "tool_calls" in part.delta and not part.tool_call_entries:
            yield Violation(part, {"tool_calls": part.delta["tool_calls"]}, "no tool_calls key")


def _finish_follows(view: TraceView) -> Iterator[Violation]:
    for choice in view.unfinished_choices:
        if choice.tool_calls:
            yield Violation(choice.deltas[-1], _describe_unfinished(choice), '"delta":{},"finish_reason":"tool_calls"')


def _describe_unfinished(choice: ChoiceView) -> str:
    return f"no finish_reason after the tool calls of choice {choice.index}"


def _legacy_function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for part in view.choice_deltas:
            if part.delta.get("function_call") is not None:
                yield Violation(part, {"function_call": part.delta["function_call"]}, "tool_calls")


TOOL_CHECKS = (
    RuleCheck(catalog.tool.INDEX_REQUIRED, _index_required),
    RuleCheck(catalog.tool.INDEX_INT, _index_int),
    RuleCheck(catalog.tool.INDEX_DISTINCT, _index_distinct),
    RuleCheck(catalog.tool.INDEX_CONTIGUOUS, _index_contiguous),
    RuleCheck(catalog.tool.ID_FIRST, _id_first),
    RuleCheck(catalog.tool.ID_ONCE, _id_once),
    RuleCheck(catalog.tool.ID_STABLE, _id_stable),
    RuleCheck(catalog.tool.TYPE_FIRST, _type_first),
    RuleCheck(catalog.tool.NAME_WHOLE, _name_whole),
    RuleCheck(catalog.tool.NAME_ONCE, _name_once),
    RuleCheck(catalog.tool.LATER_FIELDS_ABSENT, _later_fields),
    RuleCheck(catalog.tool.ARGS_STRING, _args_string),
    RuleCheck(catalog.tool.ARGS_JSON_OBJECT, _args_json_object),
    RuleCheck(catalog.tool.ARGS_FIRST_EMPTY, _args_first_empty),
    RuleCheck(catalog.tool.ARGS_NO_ARG_CALL, _args_no_arg_call),
    RuleCheck(catalog.tool.FUNCTION_PRESENT, _function_present),
    RuleCheck(catalog.tool.ONE_AT_A_TIME, _one_at_a_time),
    RuleCheck(catalog.tool.NO_CONTENT_IN_SAME_DELTA, _no_content_in_same_delta),
    RuleCheck(catalog.tool.CALLS_NULL, _calls_null),
    RuleCheck(catalog.tool.FINISH_FOLLOWS, _finish_follows, required_fields=("end",)),
    RuleCheck(catalog.tool.LEGACY_FUNCTION_CALL, _legacy_function_call, required_fields=("request",)),
)
