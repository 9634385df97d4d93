"""Checks of tool calls, on the deltas as a client puts them together: by index, or by order where it is missing."""

from collections.abc import Iterator

from welldone.rules.choices import ARGUMENTS, Call, Choice, Piece, as_text, is_int, is_json
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import Severity
from welldone.wire.faults import tool as faults

CUT_SHORT = ("length", "content_filter")
"""Reasons after which a call may be unfinished."""


def _pieces(heard: Heard) -> Iterator[Piece]:
    for choice in heard.choices:
        yield from choice.pieces


def _first_pieces(heard: Heard) -> Iterator[Piece]:
    return (piece for piece in _pieces(heard) if piece.is_first)


def _later_pieces(heard: Heard) -> Iterator[Piece]:
    return (piece for piece in _pieces(heard) if not piece.is_first)


def _index_required(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        if piece.entry.get("index") is None:
            yield Place(piece.part, piece.entry, f'"index":{piece.call.number}')


def _index_int(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        index = piece.entry.get("index")
        if index is not None and not is_int(index):
            yield Place(piece.part, {"index": index}, f'"index":{piece.call.number}')


def _index_distinct(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        if piece.clashes:
            yield Place(piece.part, piece.entry, f'"index":{piece.call.number}')


def _index_contiguous(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        expected = 0
        for piece in choice.pieces:
            index = piece.call.index
            if index is None or not piece.is_first or piece.clashes:
                continue
            # Only who comes too early is at fault, not who was overtaken.
            if index > expected or index < 0:
                yield Place(piece.part, {"index": index}, f'"index":{expected}')
            expected = max(expected, index + 1)


def _id_first(heard: Heard) -> Iterator[Place]:
    for piece in _first_pieces(heard):
        if not piece.id:
            yield Place(piece.part, piece.entry, '"id":"call_..." on the first delta of the call')


def _id_once(heard: Heard) -> Iterator[Place]:
    for piece in _later_pieces(heard):
        if piece.id and piece.id == piece.known_id:
            yield Place(piece.part, piece.entry, "no id on later deltas of the call")


def _id_stable(heard: Heard) -> Iterator[Place]:
    seen: set[tuple[int, str]] = set()  # each choice is a message of its own
    for piece in _pieces(heard):
        name = piece.part.key, piece.id
        if piece.is_first and name in seen:
            yield Place(piece.part, piece.entry, "an id of its own for each call")
        elif not piece.is_first and piece.id and piece.known_id not in ("", piece.id):
            yield Place(piece.part, piece.entry, f'"id":"{piece.known_id[:80]}", or none')
        if piece.is_first and piece.id:
            seen.add(name)


def _type_first(heard: Heard) -> Iterator[Place]:
    for piece in _first_pieces(heard):
        if str(piece.entry.get("type")) not in ARGUMENTS:
            yield Place(piece.part, piece.entry, f'"type":"{piece.kind}" on the first delta of the call')


def _name_whole(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        if piece.is_first and not piece.name and piece.kind in piece.entry:
            wanted = f'"{piece.kind}":{{"name":"<the whole name>"}} on the first delta of the call'
            yield Place(piece.part, piece.entry, wanted)
        elif not piece.is_first and piece.name and _first_name(piece.call) not in ("", piece.name):
            yield Place(piece.part, piece.entry, "the whole name on the first delta of the call")


def _first_name(call: Call) -> str:
    return call.pieces[0].name


def _name_once(heard: Heard) -> Iterator[Place]:
    for piece in _later_pieces(heard):
        if piece.name and piece.name == _first_name(piece.call):
            yield Place(piece.part, piece.entry, "no name on later deltas of the call")


def _later_fields(heard: Heard) -> Iterator[Place]:
    for piece in _later_pieces(heard):
        members = {key: piece.entry.get(key, ...) for key in ("id", "type")} | {"name": piece.function.get("name", ...)}
        empty = [key for key, value in members.items() if value in (None, "")]
        if empty:
            # Clients join strings: '' adds nothing. A null is a value.
            severity = None if None in members.values() else Severity.TOLERATED
            yield Place(piece.part, piece.entry, f"no {', '.join(empty)} on later deltas of the call", severity)


def _args_string(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        if not isinstance(piece.arguments, str):
            member = ARGUMENTS[piece.kind]
            yield Place(piece.part, {member: piece.arguments}, f'"{member}":"<text>"')


def _ended_calls(heard: Heard) -> Iterator[Call]:
    """The calls of functions, of choices that were not cut short. The input of custom tools need not be JSON."""
    for choice in heard.choices:
        if choice.finish and choice.finish.finish not in CUT_SHORT:
            yield from (call for call in choice.calls if not call.is_custom)


def _args_json_object(heard: Heard) -> Iterator[Place]:
    for call in _ended_calls(heard):
        # Arguments that are no strings, and a {} before the rest, have rules of their own.
        if not call.arguments or _late_arguments(call) is not None or is_json(call.arguments, dict):
            continue
        # Other JSON can at least be read: the model's choice more than the server's fault.
        severity = Severity.TOLERATED if call.is_readable else None
        yield Place(call.pieces[-1].part, {"arguments": call.arguments}, "one JSON object when joined", severity)


def _args_first_empty(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        for call in choice.calls:
            if _late_arguments(call) is not None:
                yield Place(call.pieces[0].part, {"arguments": "{}"}, '"arguments":""')


def _late_arguments(call: Call) -> Piece | None:
    """The piece that begins anew after arguments that began with a whole {}."""
    pieces = [piece for piece in call.pieces if as_text(piece.arguments).strip()]
    if call.is_custom or len(pieces) < 2 or pieces[0].arguments != "{}":
        return None
    return pieces[1] if as_text(pieces[1].arguments).lstrip().startswith("{") else None


def _args_no_arg_call(heard: Heard) -> Iterator[Place]:
    for call in _ended_calls(heard):
        if call.arguments == "":
            yield Place(call.pieces[-1].part, call.pieces[-1].entry, '"arguments":"{}"')


def _function_present(heard: Heard) -> Iterator[Place]:
    for piece in _pieces(heard):
        if not isinstance(piece.entry.get(piece.kind), dict):
            yield Place(piece.part, piece.entry, f'"{piece.kind}":{{"{ARGUMENTS[piece.kind]}":"..."}}')


def _one_at_a_time(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if len(part.entries) > 1:
            yield Place(part, {"tool_calls": part.entries}, "one entry in each delta")
    for piece in _pieces(heard):
        if piece.is_late:
            yield Place(piece.part, piece.entry, "all pieces of one call before the next call begins")


def _no_content(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if part.text and part.entries:
            yield Place(part, {"delta": part.delta}, "the content on a chunk before the tool call")


def _calls_null(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if "tool_calls" in part.delta and not part.entries:
            yield Place(part, {"tool_calls": part.delta["tool_calls"]}, "no tool_calls key")


def _finish_follows(heard: Heard) -> Iterator[Place]:
    for choice in heard.unfinished:
        if choice.calls:
            yield Place(choice.parts[-1], _unfinished(choice), '"delta":{},"finish_reason":"tool_calls"')


def _unfinished(choice: Choice) -> str:
    return f"no finish_reason after the tool calls of choice {choice.key}"


def _legacy(heard: Heard) -> Iterator[Place]:
    if not (heard.trace.request or {}).get("functions"):
        for part in heard.parts:
            if part.delta.get("function_call") is not None:
                yield Place(part, {"function_call": part.delta["function_call"]}, "tool_calls")


RULES = (
    Rule(faults.INDEX_REQUIRED, _index_required),
    Rule(faults.INDEX_INT, _index_int),
    Rule(faults.INDEX_DISTINCT, _index_distinct),
    Rule(faults.INDEX_CONTIGUOUS, _index_contiguous),
    Rule(faults.ID_FIRST, _id_first),
    Rule(faults.ID_ONCE, _id_once),
    Rule(faults.ID_STABLE, _id_stable),
    Rule(faults.TYPE_FIRST, _type_first),
    Rule(faults.NAME_WHOLE, _name_whole),
    Rule(faults.NAME_ONCE, _name_once),
    Rule(faults.LATER_FIELDS_ABSENT, _later_fields),
    Rule(faults.ARGS_STRING, _args_string),
    Rule(faults.ARGS_JSON_OBJECT, _args_json_object),
    Rule(faults.ARGS_FIRST_EMPTY, _args_first_empty),
    Rule(faults.ARGS_NO_ARG_CALL, _args_no_arg_call),
    Rule(faults.FUNCTION_PRESENT, _function_present),
    Rule(faults.ONE_AT_A_TIME, _one_at_a_time),
    Rule(faults.NO_CONTENT_IN_SAME_DELTA, _no_content),
    Rule(faults.CALLS_NULL, _calls_null),
    Rule(faults.FINISH_FOLLOWS, _finish_follows, needs=("end",)),
    Rule(faults.LEGACY_FUNCTION_CALL, _legacy, needs=("request",)),
)
