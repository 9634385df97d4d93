"""What one delta says: role, text, reasoning, refusal and tool calls, in whatever shape they came."""

import math
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import msgspec

from welldone.protocol import catalog
from welldone.protocol.collect import CONTENT_PARTS
from welldone.protocol.events import (
    CALL_TYPE_AND_ARGUMENTS_FIELD,
    ChoiceStart,
    Event,
    FieldLocation,
    Json,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
)
from welldone.protocol.lenient_json import CharacterJoiner, clean_unicode, scrub_json, scrub_object
from welldone.protocol.repair_log import RepairLog, format_json
from welldone.protocol.request_facts import RequestFacts

_DELTA_FIELDS = frozenset(
    {"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"}
)
_CONTENT_ALTERNATIVES = ("tool_calls", "function_call", "reasoning_content", "reasoning", "refusal")
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
_CALL_FIELDS = frozenset({"index", "id", "type", "function"})
_CUSTOM_CALL_FIELDS = _CALL_FIELDS | {"custom"}
_INNER_CALL_FIELDS = {
    is_custom: frozenset({"name", member}) for is_custom, (_, member) in CALL_TYPE_AND_ARGUMENTS_FIELD.items()
}
_TextEventType: TypeAlias = type[Text] | type[Reasoning] | type[Refusal]
_MIN_REPEATED_LENGTH = 4  # characters: so long a text, twice the same, is one that is repeated
_SEEN_CALLS_LIMIT = 4096  # calls that are told apart for notes and half characters; beyond, none is right anyway
NO_CALL_INDEX = -1
"""The number of a tool call whose server did not say which it is."""


class DeltaReader:
    """Events out of deltas. It keeps halves of characters, and what a server that repeats itself has said."""

    def __init__(self, facts: RequestFacts, repair_log: RepairLog) -> None:
        self.is_plain_text_safe = True
        """Whether a delta with nothing but text needs no look: no half of a character, no role without content."""
        self._may_split_characters = False  # strings may hold halves of characters
        self._facts = facts
        self._repair_log = repair_log
        self._joiners: dict[
            int, dict[tuple[_TextEventType | None, int], CharacterJoiner]
        ] = {}  # by choice; by kind of text and call
        # Whole texts of `message`, by choice and field; None where they turned out to be pieces.
        self._message_texts: dict[tuple[int, str], str | None] = {}
        self._choices_with_message_calls: set[int] = set()  # choices whose `message` gave its calls
        self._choices_with_bare_role: set[int] = set()  # choices whose role came without content
        self._choices_with_role: set[int] = set()  # choices whose role came
        self._seen_calls: set[tuple[int, int | str]] = set()  # calls of which something came, by number or id

    def expect_split_characters(self) -> None:
        """From here on strings may hold halves of characters: a frame was not strict JSON in UTF-8."""
        self._may_split_characters = True
        self.is_plain_text_safe = False

    def read(self, delta: Json, index: int, riders: list[Event], events: list[Event]) -> None:
        """Add the events of `delta`; `riders` go before the first that makes a chunk with something in it."""
        fields = scrub_object({key: value for key, value in delta.items() if _is_unknown_field(key, value)})
        if fields:
            events.append(UnknownFields(index, FieldLocation.DELTA, fields))
        said = self._read_content(delta.get("content"), index, events)
        content = "".join(text for kind, text in said if kind is Text)
        if "role" in delta:
            self._read_role(delta, index, content, events)
        reasoning = self._read_reasoning(delta)
        # Log probabilities are those of the content, where a delta has both.
        events += [] if content and reasoning else riders
        self._emit_text(Reasoning, reasoning, index, events)
        events += riders if content and reasoning else []
        if index in self._choices_with_bare_role and (content or any(delta.get(key) for key in _CONTENT_ALTERNATIVES)):
            if content and not any(delta.get(key) for key in _CONTENT_ALTERNATIVES):
                self._repair_log.record(catalog.delta.ROLE_CONTENT_EMPTY)
            self._choices_with_bare_role.discard(index)
            self.is_plain_text_safe = not self._may_split_characters and not self._choices_with_bare_role
        for kind, text in said:
            self._emit_text(kind, text, index, events)
        refusal = delta.get("refusal") or ""
        if not isinstance(refusal, str):
            self._repair_log.record(catalog.ext.REFUSAL, refusal)
            refusal = format_json(refusal)
        self._emit_text(Refusal, refusal, index, events)
        if "tool_calls" in delta:
            self._read_tool_calls(delta["tool_calls"], index, events)
            if content and delta["tool_calls"]:
                self._repair_log.record(catalog.tool.NO_CONTENT_IN_SAME_DELTA, delta)
        if isinstance(delta.get("function_call"), dict):
            self._read_function_call(delta["function_call"], index, events)

    def add_text(self, text: str, index: int, riders: list[Event], events: list[Event]) -> None:
        """Add plain text, behind its riders."""
        events += riders
        self._emit_text(Text, text, index, events)

    def message_to_delta(self, message: Json, index: int, *, has_deltas: bool = False) -> Json:
        """What a whole `message` adds to the ones before it: some servers repeat all they have said in each event.

        `has_deltas`: the text came in deltas, so that a message at the end only repeats it.
        """
        delta = {key: value for key, value in message.items() if key != "tool_calls"}
        for key in _TEXT_FIELDS:
            if has_deltas and key in delta:
                del delta[key]
            elif isinstance(message.get(key), str):
                delta[key] = self._new_text(message[key], index, key)
        has_calls = has_deltas and any(choice == index for choice, _ in self._seen_calls)
        if message.get("tool_calls") and index not in self._choices_with_message_calls and not has_calls:
            self._choices_with_message_calls.add(index)
            delta["tool_calls"] = message["tool_calls"]
        return delta

    def _new_text(self, text: str, index: int, key: str) -> str:
        """What is new in a text that may be all so far, or only the next piece."""
        said = self._message_texts.get((index, key), "")
        if said is None or not text:
            return text
        if len(text) > len(said) and text.startswith(said):
            self._message_texts[index, key] = text
            return text[len(said) :]
        if text == said and len(text) >= _MIN_REPEATED_LENGTH:
            return ""
        self._message_texts[index, key] = None
        return text

    def close_choice(self, index: int) -> list[Event]:
        """What was held back of one choice."""
        events: list[Event] = []
        for (kind, call), joiner in self._joiners.pop(index, {}).items():
            if rest := joiner.close():
                events.append(ToolArguments(index, call, rest) if kind is None else kind(index, rest))
        return events

    def close(self) -> list[Event]:
        """What was held back of all choices."""
        events: list[Event] = []
        for index in sorted(self._joiners):
            events += self.close_choice(index)
        return events

    def _emit_text(self, kind: _TextEventType, text: str, index: int, events: list[Event]) -> None:
        text = self._join_characters(text, index, kind)
        if text:
            events.append(kind(index, text))

    def _join_characters(self, text: str, index: int, kind: _TextEventType | None, call: int = 0) -> str:
        """The text without the half of a character at its end, and with the one from before."""
        if not self._may_split_characters or not text:
            return text
        joiners = self._joiners.setdefault(index, {})
        if len(joiners) > _SEEN_CALLS_LIMIT:
            return clean_unicode(text)
        return joiners.setdefault((kind, call), CharacterJoiner()).feed(text)

    def _read_content(self, content: object, index: int, events: list[Event]) -> list[tuple[_TextEventType, str]]:
        """The texts in a `content`. Parts that a string cannot hold are added as the unknown field `content_parts`."""
        if content is None:
            return []
        if isinstance(content, str):
            return [(Text, content)]
        self._repair_log.record(catalog.delta.CONTENT_STRING, content)
        if isinstance(content, dict) and isinstance(content.get("type"), str):
            content = [content]
        if not isinstance(content, list):
            return [(Text, format_json(content))]
        said: list[tuple[_TextEventType, str]] = []
        others: list[object] = []
        for part in content:
            other = _read_part(part, said)
            if other is not None:
                others.append(scrub_json(other))
        if others:
            events.append(UnknownFields(index, FieldLocation.DELTA, {CONTENT_PARTS: others}))
        return [(kind, "".join(text for _, text in texts)) for kind, texts in groupby(said, itemgetter(0))]

    def _read_role(self, delta: Json, index: int, content: str, events: list[Event]) -> None:
        role = delta["role"]
        if role is None or role == "":
            self._repair_log.record(catalog.delta.ROLE_ABSENT_LATER, delta)
            return
        if role != "assistant":
            self._repair_log.record(catalog.delta.ROLE_ASSISTANT, role)
        if index not in self._choices_with_role:
            self._choices_with_role.add(index)
            self._check_role_content(delta, index, content)
        events.append(ChoiceStart(index))

    def _check_role_content(self, delta: Json, index: int, content: str) -> None:
        """The role comes with an empty content, unless a call, a thought or a refusal comes first."""
        if content:
            self._repair_log.record(catalog.delta.ROLE_CONTENT_EMPTY, delta)
        elif delta.get("content") is None:
            self._choices_with_bare_role.add(index)
            self.is_plain_text_safe = False

    def _read_reasoning(self, delta: Json) -> str:
        ours, other = delta.get("reasoning_content"), delta.get("reasoning")
        if isinstance(other, str) and other:
            self._repair_log.record(catalog.ext.REASONING_FIELD, delta)
        texts = [text for text in (ours, other) if isinstance(text, str) and text]
        return "".join(dict.fromkeys(texts))  # relays send the same text under both names

    def _read_tool_calls(self, entries: object, index: int, events: list[Event]) -> None:
        if not entries or not isinstance(entries, list):
            self._repair_log.record(catalog.tool.CALLS_NULL, entries)
            return
        if len(entries) > 1:
            self._repair_log.record(catalog.tool.ONE_AT_A_TIME, entries)
        for entry in entries:
            if isinstance(entry, dict):
                self._read_tool_call(entry, index, events)
            else:
                self._repair_log.record(catalog.tool.FUNCTION_PRESENT, entry)

    def _read_tool_call(self, entry: Json, index: int, events: list[Event]) -> None:
        note = self._repair_log.record
        is_custom = _is_custom(entry)
        kind, member = CALL_TYPE_AND_ARGUMENTS_FIELD[is_custom]
        function = entry.get(kind)
        if not isinstance(function, dict):
            note(catalog.tool.FUNCTION_PRESENT, entry)
            function = {}
        number = self._read_call_index(entry)
        id, name = _clean_string(entry.get("id")), _clean_string(function.get("name"))
        key = index, number if number >= 0 else id
        is_first = key not in self._seen_calls
        if len(self._seen_calls) < _SEEN_CALLS_LIMIT:
            self._seen_calls.add(key)
        fields = ((entry, "id"), (entry, "type"), (function, "name"))
        if not is_first and any(key in part and part[key] in (None, "") for part, key in fields):
            note(catalog.tool.LATER_FIELDS_ABSENT, entry)
        more = _unknown_members(entry, _CUSTOM_CALL_FIELDS if is_custom else _CALL_FIELDS)
        inner = _unknown_members(function, _INNER_CALL_FIELDS[is_custom])
        text = function.get(member, "")
        if text is None:
            note(catalog.tool.ARGS_STRING, entry)
        arguments = self._read_arguments(text, index, number)
        if id or name:
            if is_first and entry.get("type") != kind:
                note(catalog.tool.TYPE_FIRST, entry)
            events.append(ToolCall(index, number, id, name, more, is_custom, inner))
            more = inner = {}
        if arguments or more or inner:
            events.append(ToolArguments(index, number, arguments, more, is_custom, inner))

    def _read_call_index(self, entry: Json) -> int:
        number = entry.get("index")
        if type(number) is int and number >= 0:
            return number
        if number is None:
            self._repair_log.record(catalog.tool.INDEX_REQUIRED, entry)
            return NO_CALL_INDEX
        self._repair_log.record(catalog.tool.INDEX_INT, entry)
        number = parse_index(number)
        return NO_CALL_INDEX if number is None else number

    def _read_function_call(self, call: Json, index: int, events: list[Event]) -> None:
        """The deprecated form of a call: there is only one, and it has no id."""
        if not self._facts.uses_legacy_functions:
            self._repair_log.record(catalog.tool.LEGACY_FUNCTION_CALL, call)
        name = _clean_string(call.get("name"))
        arguments = self._read_arguments(call.get("arguments"), index, 0)
        if name:
            events.append(ToolCall(index, 0, "", name))
        if arguments:
            events.append(ToolArguments(index, 0, arguments))

    def _read_arguments(self, arguments: object, index: int, call: int) -> str:
        if arguments is None:
            return ""
        if isinstance(arguments, str):
            return self._join_characters(arguments, index, None, call)
        self._repair_log.record(catalog.tool.ARGS_STRING, arguments)
        return msgspec.json.encode(scrub_json(arguments)).decode()


def _read_part(part: object, texts: list[tuple[_TextEventType, str]]) -> object:
    """Add the text or the thoughts of a part of `content`; what else there is in it, or None."""
    if isinstance(part, str):
        texts.append((Text, part))
        return None
    if not isinstance(part, dict):
        return part
    kind = part.get("type", "text")
    if kind == "text" and isinstance(part.get("text"), str):
        texts.append((Text, part["text"]))
        rest = {key: value for key, value in part.items() if key != "text"}
    elif kind == "thinking" and isinstance(part.get("thinking"), str | list):
        rest = {key: value for key, value in part.items() if key != "thinking"}
        if others := _read_thinking(part["thinking"], texts):
            rest["thinking"] = others
    else:
        return part
    return rest if rest.keys() - {"type"} else None


def _read_thinking(thinking: str | list[object], texts: list[tuple[_TextEventType, str]]) -> list[object]:
    """Add the texts of a part with thoughts, as Mistral's Magistral sends them; the parts in it that are no text."""
    others: list[object] = []
    for part in [thinking] if isinstance(thinking, str) else thinking:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append((Reasoning, text))
        else:
            others.append(part)
    return others


def parse_index(value: object) -> int | None:
    """The number that a JSON value means where an index belongs."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, float) and value.is_integer() and 0 <= value < 10**9:
        return int(value)
    return None


def _is_custom(entry: Json) -> bool:
    """Whether a piece is of a custom call. Later pieces have no type, and are told by their member."""
    kind = entry.get("type")
    return kind == "custom" or (
        kind != "function" and isinstance(entry.get("custom"), dict) and not entry.get("function")
    )


def _unknown_members(members: Json, known: frozenset[str]) -> Json:
    """The members that OpenAI's object does not have."""
    return {} if known.issuperset(members) else scrub_object({k: v for k, v in members.items() if k not in known})


def _is_unknown_field(key: str, value: object) -> bool:
    if key not in _DELTA_FIELDS:
        return True
    is_null = value is None or (
        isinstance(value, float) and not math.isfinite(value)
    )  # which JSON can only say as null
    return key.startswith("reasoning") and not isinstance(value, str) and not is_null


def _clean_string(value: object) -> str:
    if isinstance(value, str):
        return clean_unicode(value)
    return str(value) if type(value) is int else ""


# Unknown fields of a delta, in a form that clients which add deltas up can stand.


_LIST_FIELDS_LIMIT = 1024  # list fields of one choice that are counted
CHUNK_FIELDS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
CHOICE_FIELDS = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})
RESERVED_FIELDS = frozenset(
    {"event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text"}
)
"""Names that mean something elsewhere in the protocol: some client may take them for that at the top of a chunk."""


class UnknownDeltaFields:
    """The unknown fields of one choice's deltas.

    The official client adds deltas up: strings are joined, numbers summed, lists merged by the index of their entries,
    without which it raises.
    """

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._entry_counts: dict[str, int] = {}

    def normalise(self, event: UnknownFields) -> UnknownFields:
        """The fields of a delta as they may be sent."""
        return UnknownFields(
            event.index,
            event.location,
            {key: self._normalise_value(key, value) for key, value in event.fields.items()},
            event.in_own_chunk,
        )

    def _normalise_value(self, name: str, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._repair_log.record(catalog.ext.NUMBER_FIELDS, {name: value})
        return self._index_entries(name, value)

    def _index_entries(self, name: str, value: object) -> object:
        if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
            return value
        before = self._entry_counts.get(name, 0)
        if before or len(self._entry_counts) < _LIST_FIELDS_LIMIT:
            self._entry_counts[name] = before + len(value)
        if before == 0 or all(isinstance(item, dict) and type(item.get("index")) is int for item in value):
            return value
        self._repair_log.record(catalog.ext.LIST_FIELDS_INDEXED, {name: value})
        return [
            {**item, "index": place} if isinstance(item, dict) and type(item.get("index")) is not int else item
            for place, item in enumerate(value, before)
        ]
