"""Reader of deltas: role, text, reasoning, refusal, tool calls and unknown fields, in any shape that servers send."""

import math
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from welldone.core import events as ev
from welldone.core.collect import CONTENT_PARTS
from welldone.core.events import Event, Json
from welldone.core.fields import parse_count
from welldone.core.lenient_json import CharacterJoiner, clean_string, clean_unicode, scrub_json, scrub_object
from welldone.core.repair_log import RepairLog, format_json, is_empty
from welldone.core.request_facts import ReasoningListener, RequestFacts
from welldone.core.state import NO_INDEXES, with_index

_DELTA_FIELDS = frozenset(
    {"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"}
)
_PLAIN_DELTA_FIELDS = _DELTA_FIELDS - {"reasoning_content", "reasoning"}
_CONTENT_ALTERNATIVES = ("tool_calls", "function_call", "reasoning_content", "reasoning", "refusal")
REASONING_FIELDS = ("reasoning_content", "reasoning")
_CALL_FIELDS = frozenset({"index", "id", "type", "function"})
_CUSTOM_CALL_FIELDS = _CALL_FIELDS | {"custom"}
_INNER_CALL_FIELDS = {
    is_custom: frozenset({"name", member}) for is_custom, (_, member) in ev.CALL_TYPE_AND_ARGUMENTS_FIELD.items()
}
_TextEventType: TypeAlias = type[ev.Text] | type[ev.Reasoning] | type[ev.Refusal]
_ContentType: TypeAlias = _TextEventType | type[ev.ToolCall]
_CONTENT_FIELDS: dict[str, _ContentType] = {"content": ev.Text, "refusal": ev.Refusal}
_CONTENT_FIELDS |= dict.fromkeys(REASONING_FIELDS, ev.Reasoning)
_CONTENT_FIELDS |= dict.fromkeys(("tool_calls", "function_call"), ev.ToolCall)
_MIN_REPEATED_LENGTH = 4  # characters from which two equal texts count as a repetition
_SEEN_CALLS_LIMIT = 4096  # calls that are tracked for checks and split characters; more than any real answer has
NO_CALL_INDEX = -1
"""Index of a tool call for which the server sent none."""
CHUNK_FIELDS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
CHOICE_FIELDS = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})
RESERVED_FIELDS = frozenset(
    {"event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text"}
)
"""Names with a meaning elsewhere in the protocol, which clients may misinterpret at the top level of a chunk."""


class DeltaReader:
    """Reads deltas; stores partial characters, and the texts of servers that send cumulative messages."""

    def __init__(self, facts: RequestFacts, repair_log: RepairLog) -> None:
        self.is_plain_text_safe: bool = True
        """Whether a delta with only text needs no further checks: no partial characters, no role without content."""
        self.on_reasoning: ReasoningListener | None = None
        self._may_split_characters = False  # strings may contain partial characters
        self._facts = facts
        self._repair_log = repair_log
        # By choice, then by text event type (None: arguments) and call.
        self._joiners: dict[int, dict[tuple[_TextEventType | None, int], CharacterJoiner]] = {}
        # Texts of `message`, by choice and field; None once they proved to be increments.
        self._message_texts: dict[tuple[int, str], str | None] = {}
        self._message_calls: dict[int, list[object]] = {}  # tool calls of the last `message`, by choice
        self._messages: dict[int, dict[str, list[Any]]] = {}  # pieces of messages beside deltas, by choice
        self._read_from_messages: set[tuple[int, _ContentType]] = set()
        self.received: set[tuple[int, _ContentType]] = set()
        """Choices and event types of their content."""
        self._choices_with_bare_role: frozenset[int] = NO_INDEXES  # choices whose role had no content
        self._choices_with_role: frozenset[int] = NO_INDEXES
        self._seen_calls: dict[tuple[int, int | str], None] = {}  # choice, and index or id of the call

    def expect_split_characters(self) -> None:
        """Expect strings with partial characters from here on: a frame was not strict JSON in UTF-8."""
        self._may_split_characters = True
        self.is_plain_text_safe = False

    def read(self, delta: Json, index: int, logprobs: list[Event], events: list[Event]) -> None:
        """Append the events of `delta`; `logprobs` precede the first event with content."""
        fields = {
            key: value
            for key, value in delta.items()
            if key not in _PLAIN_DELTA_FIELDS and _is_unknown_field(key, value)
        }
        if fields:
            events.append(ev.UnknownFields(index, ev.FieldLocation.DELTA, scrub_object(fields)))
        raw = delta.get("content")
        texts = [(ev.Text, raw)] if isinstance(raw, str) else self._read_content(raw, index, events)
        content = raw if isinstance(raw, str) else "".join([text for text_type, text in texts if text_type is ev.Text])
        if "role" in delta:
            self._read_role(delta, index, content, events)
        reasoning = self._read_reasoning(delta) if "reasoning_content" in delta or "reasoning" in delta else ""
        # In a delta with both, the log probabilities belong to the content.
        events += [] if content and reasoning else logprobs
        self._emit_text(ev.Reasoning, reasoning, index, events)
        events += logprobs if content and reasoning else []
        if index in self._choices_with_bare_role:
            has_alternative = any(map(delta.get, _CONTENT_ALTERNATIVES))
            if content and not has_alternative:
                self._repair_log.record("delta-role-content-empty")
            if content or has_alternative:
                self._choices_with_bare_role -= {index}
                self.is_plain_text_safe = not self._may_split_characters and not self._choices_with_bare_role
        for text_type, text in texts:
            self._emit_text(text_type, text, index, events)
        if refusal := delta.get("refusal"):
            if not isinstance(refusal, str):
                self._repair_log.record("ext-refusal", refusal)
                refusal = format_json(scrub_json(refusal))
            self._emit_text(ev.Refusal, refusal, index, events)
        if delta.get("tool_calls") or delta.get("function_call"):
            self.received.add((index, ev.ToolCall))
        if "tool_calls" in delta:
            self._read_tool_calls(delta["tool_calls"], index, events)
            if content and delta["tool_calls"]:
                self._repair_log.record("tool-no-content-in-same-delta", delta)
        if (function_call := delta.get("function_call")) is not None:
            rule = "tool-legacy-function-call"
            self._repair_log.record_if(not self._facts.uses_legacy_functions, rule, function_call)
            if is_empty(delta.get("tool_calls")):  # llama-cpp-python sends each call in both forms
                self._read_function_call(self._repair_log.read_object(function_call, rule), index, events)

    def add_text(self, text: str, index: int, logprobs: list[Event], events: list[Event]) -> None:
        """Append text, after its log probabilities."""
        events += logprobs
        self._emit_text(ev.Text, text, index, events)

    def add_message(self, delta: Json, message: Json, index: int) -> Json:
        """Return the delta with what the `message` beside it adds: the next piece, or the whole answer so far.

        Beside a delta, a message waits for one without a delta, or for the end: what deltas deliver, it only repeats.
        """
        pending = self._messages.setdefault(index, {})
        for key, value in message.items():
            if delta.get(key) or self._is_delivered(key, index) or (key == "role" and delta):
                continue
            if key == "tool_calls":
                if not value or not (value := self._new_calls(value, index)):
                    continue
            elif key in _CONTENT_FIELDS and isinstance(value, str):
                value = self._new_text(value, index, key)
            known = pending.get(key, []) if key in _CONTENT_FIELDS else []
            if isinstance(value, str) or value not in known:
                known.append(value)
            pending[key] = known
        return delta or self._take_message(index)

    def _is_delivered(self, key: str, index: int) -> bool:
        """Whether this content was received in deltas."""
        content = index, _CONTENT_FIELDS.get(key)
        return content in self.received and content not in self._read_from_messages

    def _take_message(self, index: int) -> Json:
        pieces = self._messages.pop(index, {})
        rest = {key: _join_pieces(values) for key, values in pieces.items() if not self._is_delivered(key, index)}
        self._read_from_messages |= {(index, content) for key, content in _CONTENT_FIELDS.items() if rest.get(key)}
        return rest

    def _new_calls(self, calls: object, index: int) -> list[object]:
        """The calls that the last message did not have."""
        known = self._message_calls.get(index, [])
        calls = self._message_calls[index] = calls if isinstance(calls, list) else [calls]
        if calls[: len(known)] != known:
            self._repair_log.drop("delta-not-message", calls)
        return calls[len(known) :]

    def _new_text(self, text: str, index: int, key: str) -> str:
        """The new part of a text that may be cumulative or an increment."""
        previous = self._message_texts.get((index, key), "")
        if previous is None or not text:
            return text
        if len(text) > len(previous) and text.startswith(previous):
            self._message_texts[index, key] = text
            return text[len(previous) :]
        if text == previous and len(text) >= _MIN_REPEATED_LENGTH:
            return ""
        self._message_texts[index, key] = None
        return text

    def close_choice(self, index: int) -> list[Event]:
        """Return the events that were held back for a choice."""
        events: list[Event] = []
        if index in self._messages and (message := self._take_message(index)):
            self.read(message, index, [], events)
        for (text_type, number), joiner in self._joiners.pop(index, {}).items():
            if rest := joiner.close():
                events.append(ev.ToolArguments(index, number, rest) if text_type is None else text_type(index, rest))
        return events

    def close(self) -> list[Event]:
        """Return the events that were held back for all choices."""
        return [event for index in sorted(self._joiners | self._messages) for event in self.close_choice(index)]

    def _emit_text(self, text_type: _TextEventType, text: str, index: int, events: list[Event]) -> None:
        if self._may_split_characters:
            text = self._join_characters(text, index, text_type)
        if text:
            self.received.add((index, text_type))
            events.append(text_type(index, text))

    def _join_characters(self, text: str, index: int, text_type: _TextEventType | None, call_index: int = 0) -> str:
        """Prepend the partial character of the previous piece and hold back the one at the end."""
        if not self._may_split_characters or not text:
            return text
        joiners = self._joiners.setdefault(index, {})
        if len(joiners) > _SEEN_CALLS_LIMIT:
            return clean_unicode(text)
        return joiners.setdefault((text_type, call_index), CharacterJoiner()).feed(text)

    def _read_content(self, content: object, index: int, events: list[Event]) -> list[tuple[_TextEventType, str]]:
        """Texts of a `content` that is no string. Parts other than text become the unknown field `content_parts`."""
        if content is None:
            return []
        self._repair_log.record("delta-content-string", content)
        if isinstance(content, dict) and isinstance(content.get("type"), str):
            content = [content]
        if not isinstance(content, list):
            return [(ev.Text, format_json(scrub_json(content)))]
        texts: list[tuple[_TextEventType, str]] = []
        others: list[object] = []
        for content_part in content:
            rest = _read_part(content_part, texts)
            if rest is not None:
                others.append(scrub_json(rest))
        if others:
            events.append(ev.UnknownFields(index, ev.FieldLocation.DELTA, {CONTENT_PARTS: others}))
        return [(text_type, "".join(text for _, text in group)) for text_type, group in groupby(texts, itemgetter(0))]

    def _read_role(self, delta: Json, index: int, content: str, events: list[Event]) -> None:
        role = delta["role"]
        if role is None or role == "":
            self._repair_log.record("delta-role-absent-later", delta)
            return
        self._repair_log.record_if(role != "assistant", "delta-role-assistant", role)
        if index not in self._choices_with_role:
            self._choices_with_role = with_index(self._choices_with_role, index)
            # The role has an empty content, unless a tool call, reasoning or a refusal follows.
            if content:
                self._repair_log.record("delta-role-content-empty", delta)
            elif delta.get("content") is None:
                self._choices_with_bare_role = with_index(self._choices_with_bare_role, index)
                self.is_plain_text_safe = False
        events.append(ev.ChoiceStart(index))

    def _read_reasoning(self, delta: Json) -> str:
        reasoning_content, reasoning = delta.get("reasoning_content"), delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            self._repair_log.record("ext-reasoning-field", delta)
        texts = [text for text in (reasoning_content, reasoning) if isinstance(text, str) and text]
        if texts and self.on_reasoning is not None:
            self.on_reasoning([name for name in REASONING_FIELDS if delta.get(name) in texts])
            self.on_reasoning = None
        return "".join(dict.fromkeys(texts))  # some proxies send the same text under both names

    def _read_tool_calls(self, entries: object, index: int, events: list[Event]) -> None:
        if not entries or not isinstance(entries, list):
            calls: list[object] = [entries] if entries and isinstance(entries, dict) else []
            self._repair_log.drop("tool-calls-null", None if calls else entries)
            entries = calls
        if len(entries) > 1:
            self._repair_log.record("tool-one-at-a-time", entries)
        for entry in entries:
            if tool_call := self._repair_log.read_object(entry, "tool-function-present"):
                self._read_tool_call(tool_call, index, events)

    def _read_tool_call(self, entry: Json, index: int, events: list[Event]) -> None:
        record = self._repair_log.record
        is_custom = _is_custom(entry)
        call_type, member = ev.CALL_TYPE_AND_ARGUMENTS_FIELD[is_custom]
        function = entry.get(call_type)
        if not isinstance(function, dict):
            beside = {} if function else {name: entry[name] for name in _INNER_CALL_FIELDS[is_custom] if name in entry}
            function = beside or self._repair_log.read_object(function, "tool-function-present")
            if beside:
                record("tool-function-present", entry)
                entry = {name: item for name, item in entry.items() if name not in beside}
        number = entry.get("index")
        if type(number) is not int or number < 0:
            record("tool-index-required" if number is None else "tool-index-int", entry)
            parsed = parse_index(number)
            number = NO_CALL_INDEX if parsed is None else parsed
        id, name = clean_string(entry.get("id")), clean_string(function.get("name"))
        if not name and function.get("name"):
            self._repair_log.drop("tool-name-whole", function["name"])
        key = index, number if number >= 0 else id
        is_first = key not in self._seen_calls
        if len(self._seen_calls) < _SEEN_CALLS_LIMIT:
            self._seen_calls[key] = None
        fields = ((entry, "id"), (entry, "type"), (function, "name"))
        if not is_first and any(key in holder and holder[key] in (None, "") for holder, key in fields):
            record("tool-later-fields-absent", entry)
        known = _CUSTOM_CALL_FIELDS if is_custom else _CALL_FIELDS
        extra_fields = _unknown_members(entry, known - {"function"} if is_custom and entry.get("function") else known)
        inner_fields = _unknown_members(function, _INNER_CALL_FIELDS[is_custom])
        text = function.get(member, "")
        if text is None:
            record("tool-args-string", entry)
        arguments = self._read_arguments(text, index, number)
        if id or name:
            if is_first and entry.get("type") != call_type:
                record("tool-type-first", entry)
            events.append(ev.ToolCall(index, number, id, name, extra_fields, is_custom, inner_fields))
            extra_fields = inner_fields = {}
        if arguments or extra_fields or inner_fields:
            events.append(ev.ToolArguments(index, number, arguments, extra_fields, is_custom, inner_fields))

    def _read_function_call(self, function_call: Json, index: int, events: list[Event]) -> None:
        """Read the deprecated `function_call`: one call per choice, without an id."""
        name = clean_string(function_call.get("name"))
        arguments = self._read_arguments(function_call.get("arguments"), index, 0)
        inner_fields = _unknown_members(function_call, _INNER_CALL_FIELDS[False])
        if name:
            events.append(ev.ToolCall(index, 0, "", name, {}, False, inner_fields))
            inner_fields = {}
        if arguments or inner_fields:
            events.append(ev.ToolArguments(index, 0, arguments, {}, False, inner_fields))

    def _read_arguments(self, arguments: object, index: int, call_index: int) -> str:
        if arguments is None:
            return ""
        if isinstance(arguments, str):
            return self._join_characters(arguments, index, None, call_index)
        self._repair_log.record("tool-args-string", arguments)
        return msgspec.json.encode(scrub_json(arguments)).decode()


def _join_pieces(values: list[Any]) -> object:
    """Join the pieces of a text, or of a list."""
    values = [value for value in values if value] or values[-1:]
    if all(isinstance(value, str) for value in values):
        return "".join(values)
    if len(values) == 1:
        return values[0]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _read_part(content_part: object, texts: list[tuple[_TextEventType, str]]) -> object:
    """Append the text or reasoning of a part of `content`; return the rest of the part, or None."""
    if isinstance(content_part, str):
        texts.append((ev.Text, content_part))
        return None
    if not isinstance(content_part, dict):
        return content_part
    part_type = content_part.get("type", "text")
    if part_type == "text" and isinstance(content_part.get("text"), str):
        texts.append((ev.Text, content_part["text"]))
        rest = {key: value for key, value in content_part.items() if key != "text"}
    elif part_type == "thinking" and isinstance(content_part.get("thinking"), str | list):
        rest = {key: value for key, value in content_part.items() if key != "thinking"}
        if others := _read_thinking(content_part["thinking"], texts):
            rest["thinking"] = others
    else:
        return content_part
    return rest if rest.keys() - {"type"} else None


def _read_thinking(thinking: str | list[object], texts: list[tuple[_TextEventType, str]]) -> list[object]:
    """Append the texts of a `thinking` part, as Mistral's Magistral sends it; return its other parts."""
    others: list[object] = []
    for thinking_part in [thinking] if isinstance(thinking, str) else thinking:
        text = thinking_part.get("text") if isinstance(thinking_part, dict) else thinking_part
        if isinstance(text, str):
            texts.append((ev.Reasoning, text))
        else:
            others.append(thinking_part)
    return others


def parse_index(value: object) -> int | None:
    """Parse an index that a server sent as a string or a float; None if it is neither."""
    number = parse_count(value)
    return number if number is not None and number < 10**9 else None


def _is_custom(entry: Json) -> bool:
    """Whether a piece belongs to a custom call. Later pieces have no type; their member decides."""
    call_type = entry.get("type")
    return call_type == "custom" or (
        call_type != "function" and isinstance(entry.get("custom"), dict) and not entry.get("function")
    )


def _unknown_members(members: Json, known: frozenset[str]) -> Json:
    return {} if known.issuperset(members) else scrub_object({k: v for k, v in members.items() if k not in known})


def _is_unknown_field(key: str, value: object) -> bool:
    if key not in _DELTA_FIELDS:
        return True
    # JSON has no NaN or infinity: encoders write null.
    is_null = value is None or (isinstance(value, float) and not math.isfinite(value))
    return key.startswith("reasoning") and not isinstance(value, str) and not is_null
