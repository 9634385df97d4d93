"""Fold of the events of an answer into a complete reply, for `stream=false`.

Unknown members of deltas are accumulated as `accumulate_delta` of openai-python does it: strings are joined, objects
are merged, list entries are merged by their `index`. Of members of a chunk or a choice the last value counts. In both
cases a list that repeats or extends the previous one replaces it (Perplexity sends all `citations` on each chunk), and
numbers are appended (vLLM sends the `token_ids` of each chunk).
"""

from collections.abc import Iterable
from typing import TypeAlias, assert_never

import msgspec

from welldone.core import events as ev
from welldone.core.events import Event, Failure, Json, Usage

_REPLACED_NAMES = frozenset({"index", "type", "id", "format"})
"""Replaced, not joined: `index` and `type` as in openai-python; the others repeat in `reasoning_details`."""
REASONING_DETAILS = "reasoning_details"
"""OpenRouter's list of reasoning blocks, signed or encrypted, which clients send back. Pieces may have no `index`."""
CONTENT_PARTS = "content_parts"
"""Field of this package for the parts of a `content` list that are not text. Equal parts are kept."""
_EntryKey: TypeAlias = tuple[int, str | None]


class _StringPieces(list[str]):
    """String that is being accumulated; joined at the end in linear time."""


class _IndexedEntries(list[object]):
    """List that is being accumulated, with the positions of entries that have an `index`."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[_EntryKey, int] = {}


def accumulate_delta(into: Json, fields: Json) -> None:
    """Add the members of a delta. Call `join_accumulated` at the end."""
    for name, value in fields.items():
        into[name] = _accumulate_value(name, into.get(name), value)


def accumulate_latest(into: Json, fields: Json, *, appends_lists: bool = False) -> None:
    """Add the members of a chunk or choice; null does not replace a value. Call `join_accumulated` at the end.

    With `appends_lists`, lists are always appended, such as those of log probabilities.
    """
    for name, value in fields.items():
        if isinstance(value, list):
            into[name] = _replace_or_extend(into.get(name), value, is_next=appends_lists)
        elif value is not None or name not in into:
            into[name] = value


def join_accumulated(fields: Json) -> Json:
    """Return the accumulated members as plain JSON."""
    return {name: _join_value(value) for name, value in fields.items()}


def _join_value(value: object) -> object:
    match value:
        case _StringPieces():
            return "".join(value)
        case _IndexedEntries():
            return [_join_value(item) for item in value]
        case dict():
            return join_accumulated(value)
        case _:
            return value


def _accumulate_value(name: str, before: object, value: object) -> object:
    match before, value:
        case _, None:
            return before
        case _, list():
            return _accumulate_list(name, before, value)
        case _, dict():
            into: Json = before if isinstance(before, dict) else {}
            accumulate_delta(into, value)
            return into
        case _StringPieces(), str() if name not in _REPLACED_NAMES:
            before.append(value)
            return before
        case str(), str() if name not in _REPLACED_NAMES:
            return _StringPieces((before, value))
        case _:
            return value


def _accumulate_list(name: str, before: object, value: list[object]) -> _IndexedEntries:
    is_blocks = name == REASONING_DETAILS
    has_pieces = is_blocks or name == CONTENT_PARTS or any(_entry_index(entry) is not None for entry in value)
    if not has_pieces:
        return _replace_or_extend(before, value)
    entries = before if isinstance(before, _IndexedEntries) else _IndexedEntries()
    for entry in value:
        _add_entry(entries, entry, is_block=is_blocks)
    return entries


def _add_entry(entries: _IndexedEntries, entry: object, *, is_block: bool) -> None:
    index = _entry_index(entry)
    if not isinstance(entry, dict) or (index is None and not is_block):
        entries.append(entry)
        return
    # OpenRouter sends a summary and the encrypted original with the same index and different types.
    entry_type = entry["type"] if isinstance(entry.get("type"), str) else None
    position = len(entries) - 1 if index is None else entries.positions.get((index, entry_type), -1)
    known = entries[position] if position >= 0 else None
    if isinstance(known, dict) and (index is not None or _is_continued(known, entry)):
        accumulate_delta(known, entry)
        return
    if index is not None:
        entries.positions[index, entry_type] = entries.positions[index, None] = len(entries)
    entries.append(_accumulate_value("", None, entry))


def _is_continued(block: Json, entry: Json) -> bool:
    """Whether `entry` continues a reasoning block: same type and id, and no signature yet."""
    is_same = all(entry.get(name) in (None, block.get(name)) for name in ("type", "id"))
    return is_same and not block.get("signature") and "data" not in entry


def _replace_or_extend(before: object, value: list[object], *, is_next: bool = False) -> _IndexedEntries:
    """Append `value`, or replace a list that it repeats. Numbers are always appended: a token may repeat."""
    entries = before if isinstance(before, _IndexedEntries) else _IndexedEntries()
    if not is_next and value[: len(entries)] == entries and not all(isinstance(item, int | float) for item in value):
        entries = _IndexedEntries()
    entries.extend(value)
    return entries


def _entry_index(entry: object) -> int | None:
    index = entry.get("index") if isinstance(entry, dict) else None
    return index if type(index) is int else None


class CollectedToolCall(msgspec.Struct):
    """Complete tool call."""

    id: str
    name: str
    arguments: str = ""
    """JSON text, or the free text input of a custom call."""
    extra_fields: Json = {}
    is_custom: bool = False
    inner_extra_fields: Json = {}
    pieces: list[str] = []
    """Arguments while they are being collected."""


class CollectedChoice(msgspec.Struct):
    """Complete choice."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: list[CollectedToolCall] = []
    finish_reason: str = ""
    """Empty if the choice did not finish."""
    stop_string: str | None = None
    """The stop string that ended the choice, if known."""
    logprobs: Json | None = None
    choice_fields: Json = {}
    delta_fields: Json = {}


class CollectedReply(msgspec.Struct):
    """Complete reply."""

    choices: dict[int, CollectedChoice] = {}
    usage: Usage | None = None
    failure: Failure | None = None
    unknown_fields: Json = {}


def collect(events: Iterable[Event]) -> CollectedReply:
    """Fold `events` into a reply."""
    reply = CollectedReply()
    # Texts by choice and field, joined at the end in linear time.
    texts: dict[tuple[int, str], list[str]] = {}
    for event in events:
        match event:
            case Usage():
                reply.usage = event
            case Failure():
                reply.failure = event
            case ev.KeepAlive():
                pass
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK, fields=fields):
                accumulate_latest(reply.unknown_fields, fields)
            case ev.Text() | ev.Reasoning() | ev.Refusal():
                texts.setdefault((event.index, _TEXT_FIELD_BY_EVENT[type(event)]), []).append(event.text)
            case _:
                _add_event(reply.choices.setdefault(event.index, CollectedChoice()), event)
    for (index, name), pieces in texts.items():
        setattr(reply.choices.setdefault(index, CollectedChoice()), name, "".join(pieces))
    reply.unknown_fields = join_accumulated(reply.unknown_fields)
    for choice in reply.choices.values():
        choice.delta_fields = join_accumulated(choice.delta_fields)
        choice.choice_fields = join_accumulated(choice.choice_fields)
        choice.logprobs = None if choice.logprobs is None else join_accumulated(choice.logprobs)
        for tool_call in choice.tool_calls:
            tool_call.arguments = "".join(tool_call.pieces)
            tool_call.pieces.clear()
            tool_call.extra_fields = join_accumulated(tool_call.extra_fields)
            tool_call.inner_extra_fields = join_accumulated(tool_call.inner_extra_fields)
    return reply


_TEXT_FIELD_BY_EVENT: dict[type[Event], str] = {ev.Text: "text", ev.Reasoning: "reasoning", ev.Refusal: "refusal"}


def _add_event(
    choice: CollectedChoice,
    event: ev.ChoiceStart | ev.ToolCall | ev.ToolArguments | ev.Logprobs | ev.Finish | ev.UnknownFields,
) -> None:
    match event:
        case ev.ChoiceStart():
            pass
        case ev.ToolCall():
            choice.tool_calls.append(CollectedToolCall(event.id, event.name, is_custom=event.is_custom))
            _add_extra_fields(choice.tool_calls[-1], event)
        case ev.ToolArguments():
            choice.tool_calls[event.call_index].pieces.append(event.text)
            _add_extra_fields(choice.tool_calls[event.call_index], event)
        case ev.Logprobs(value=value):
            choice.logprobs = {} if choice.logprobs is None else choice.logprobs
            accumulate_latest(choice.logprobs, value, appends_lists=True)
        case ev.Finish(reason=reason, stop_string=stop):
            choice.finish_reason, choice.stop_string = reason, stop
        case ev.UnknownFields(location=ev.FieldLocation.DELTA, fields=fields):
            accumulate_delta(choice.delta_fields, fields)
        case ev.UnknownFields(fields=fields):
            accumulate_latest(choice.choice_fields, fields)
        case _:
            assert_never(event)


def _add_extra_fields(tool_call: CollectedToolCall, event: ev.ToolCall | ev.ToolArguments) -> None:
    accumulate_delta(tool_call.extra_fields, event.extra_fields)
    accumulate_delta(tool_call.inner_extra_fields, event.inner_extra_fields)
