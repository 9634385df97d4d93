"""Encoder of Responses events, and the tables of event types.

`ResponsesEmitter` assigns sequence numbers and indices, and closes items and parts with their full value, for both the
writer and the pass-through repairer. The same calls always give the same bytes.
"""

import msgspec

from welldone.core import sse
from welldone.core.answer_format import KEEP_ALIVE, TEXT_MARKER, escape_line_breaks, split_at_marker
from welldone.core.events import Json
from welldone.core.lenient_json import decode_text

_encode = msgspec.json.Encoder().encode
_SEQUENCE_NUMBER_KEY = b'"sequence_number":'


class TextEventSpec(msgspec.Struct, frozen=True):
    """Event prefix of a kind of text, and the member with its full value. A part also has an item type and a list."""

    event_prefix: str
    member: str
    item_type: str = ""
    part_list: str = "content"
    """Member of the item that contains the parts."""
    index_member: str = "content_index"
    """Member of an event with the index of the part."""
    part_event_prefix: str = "response.content_part"


PART_TEXTS = {
    "output_text": TextEventSpec("response.output_text", "text", "message"),
    "refusal": TextEventSpec("response.refusal", "refusal", "message"),
    "reasoning_text": TextEventSpec("response.reasoning_text", "text", "reasoning"),
    "summary_text": TextEventSpec(
        *("response.reasoning_summary_text", "text", "reasoning"),
        *("summary", "summary_index", "response.reasoning_summary_part"),
    ),
}
"""Text of the parts of messages and reasoning, by part type."""
CALL_TEXTS = {
    "function_call": TextEventSpec("response.function_call_arguments", "arguments"),
    "custom_tool_call": TextEventSpec("response.custom_tool_call_input", "input"),
    "mcp_call": TextEventSpec("response.mcp_call_arguments", "arguments"),
    "code_interpreter_call": TextEventSpec("response.code_interpreter_call_code", "code"),
}
"""Text that is a member of an item, by item type."""
ITEMS_WITH_STATUS = frozenset({"message", "function_call"})
"""Items with status in_progress, then completed or incomplete. Others may have other statuses or none."""
CLIENT_TOOL_CALLS = frozenset({"function_call", "custom_tool_call"})
"""Calls that the client runs."""
_STABLE_MEMBERS = {
    "message": ("id", "type", "role"),
    **dict.fromkeys(CLIENT_TOOL_CALLS, ("id", "type", "call_id", "name")),
}
"""Members that output_item.done cannot change."""


class TextAccumulator:
    """Text that is sent in deltas: a part of an item, or the arguments of a call."""

    def __init__(self, spec: TextEventSpec, address: Json, value: Json, extra_members: Json) -> None:
        self.spec = spec
        self.kind: str = str(value["type"])
        """Type of the part or item."""
        self.address = address
        """Members that identify the item and part in its events."""
        self.value = value
        """The part or item that contains the text."""
        self.extra_members = extra_members
        """Additional members of its events."""
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []
        self.is_open = True
        self.is_part_open = True
        start = {"type": f"{spec.event_prefix}.delta", "sequence_number": 0}
        event = encode_event(start | address | {"delta": TEXT_MARKER} | extra_members)
        before, number, rest = event.partition(_SEQUENCE_NUMBER_KEY)
        middle, after = split_at_marker(rest.removeprefix(b"0"))
        self.delta_template: tuple[bytes, bytes, bytes] = before + number, middle, after
        """Bytes of a delta before, between and after its sequence number and text."""

    @property
    def text(self) -> str:
        """Text so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class OutputItem:
    """An item of the output."""

    def __init__(self, index: int, value: Json) -> None:
        self.index = index
        self.id: str = str(value["id"])
        self.kind: str = str(value["type"])
        self.address: Json = {"item_id": self.id, "output_index": index}
        """Members that identify this item in an event."""
        self.value = value
        """The item as added; complete once it is closed."""
        self.parts: dict[str, list[TextAccumulator]] = {"summary": [], "content": []}
        self.is_open = True
        spec = CALL_TEXTS.get(self.kind)
        self.arguments: TextAccumulator | None = (
            None if spec is None else TextAccumulator(spec, self.address, value, {})
        )
        """Arguments or input, if it is a call."""

    def completed(self, upstream: Json) -> Json:
        """Return the complete item: members of the upstream, and the streamed text."""
        stable = {name: self.value[name] for name in _STABLE_MEMBERS.get(self.kind, ("id", "type"))}
        whole = self.value | upstream | stable
        for name, parts in self.parts.items():
            if parts or (name in whole and self.kind in ("message", "reasoning")):
                whole[name] = [text_part.value for text_part in parts]
        return whole if self.arguments is None else whole | {self.arguments.spec.member: self.arguments.text}


_COMMENTS_LIMIT = 5
"""Comments in a row, after which a keep-alive is an event: one a minute, with the default interval of 10 s. See
docs/decisions/024-responses-keep-alives.md."""


class ResponsesEmitter:
    """Writes the events of one stream into a buffer, which `drain` empties.

    `others` are unknown or optional members of an event. With `is_silent` no events are written: only the final
    Response is built.
    """

    def __init__(self, response: Json, *, is_silent: bool = False) -> None:
        self.response: Json = response
        """The Response so far."""
        self.items: list[OutputItem] = []
        self.final_response: Json | None = None
        """The Response of the terminal event."""
        self._sequence_number = 0
        self._quiet_number = 0  # of the event that follows the comments
        self._comments = 0  # in a row
        self._is_silent = is_silent
        self._frames: list[bytes] = []

    @property
    def has_started(self) -> bool:
        """Whether an event was written."""
        return self._sequence_number > 0

    def drain(self) -> bytes:
        """Return the events written since the last call."""
        frames, self._frames = self._frames, []
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def emit(self, event_type: str, fixed: Json, others: Json | None = None) -> None:
        """Write an event of this type. `fixed` members take precedence over `others`."""
        if not self._is_silent:
            fixed = {"type": event_type, "sequence_number": self._sequence_number} | fixed
            self._frames.append(encode_event(fixed | others | fixed if others else fixed))
        self._sequence_number += 1

    def keep_alive(self, *, is_event: bool = False) -> None:
        """Write a keep-alive: a comment, or an event if it is one, or if it follows a run of comments.

        There is no event before the first one of the response.
        """
        if self._sequence_number != self._quiet_number:
            self._quiet_number, self._comments = self._sequence_number, 0
        if self.has_started and (is_event or self._comments >= _COMMENTS_LIMIT):
            self.emit("keepalive", {})
        else:
            self._comments += 1
            self._frames.append(KEEP_ALIVE)

    def end_response(self, status: str, changes: Json, others: Json | None = None) -> Json:
        """Write the terminal event with `changes` to the Response; return that Response."""
        self.response = self.response | changes | {"status": status, "output": [item.value for item in self.items]}
        self.final_response = self.response
        self.emit(f"response.{status}", {"response": self.final_response}, others)
        return self.final_response

    def open_item(self, value: Json, others: Json | None = None) -> OutputItem:
        """Start an item."""
        item = OutputItem(len(self.items), value)
        self.items.append(item)
        self.emit("response.output_item.added", {"output_index": item.index, "item": value}, others)
        return item

    def open_part(self, item: OutputItem, value: Json, others: Json | None = None) -> TextAccumulator:
        """Start a part of an item."""
        spec = PART_TEXTS[value["type"]]
        parts = item.parts[spec.part_list]
        address = item.address | {spec.index_member: len(parts)}
        text_part = TextAccumulator(spec, address, value, {"logprobs": []} if value["type"] == "output_text" else {})
        parts.append(text_part)
        self.emit(f"{spec.part_event_prefix}.added", address | {"part": value}, others)
        return text_part

    def encode_delta(self, accumulator: TextAccumulator, text: str) -> bytes:
        """Return a text delta without buffering it; the buffer must be empty."""
        if self._is_silent:
            accumulator.pieces.append(text)
            self._sequence_number += 1
            return b""
        payload = _encode(text)[1:-1]
        return self._encode_payload(accumulator, text, payload if payload.isascii() else escape_line_breaks(payload))

    def encode_verbatim(self, accumulator: TextAccumulator, payload: bytes) -> bytes:
        """Do the same for the content of a JSON string, which is sent unchanged."""
        return self._encode_payload(accumulator, decode_text(payload), payload)

    def _encode_payload(self, accumulator: TextAccumulator, text: str, payload: bytes) -> bytes:
        accumulator.pieces.append(text)
        number = self._sequence_number
        self._sequence_number = number + 1
        before, middle, after = accumulator.delta_template
        return b"%b%d%b%b%b" % (before, number, middle, payload, after)

    def add_text(self, accumulator: TextAccumulator, text: str, others: Json | None = None) -> None:
        """Write a text delta."""
        if others and others != accumulator.extra_members:
            accumulator.pieces.append(text)
            fixed = accumulator.address | {"delta": text}
            self.emit(f"{accumulator.spec.event_prefix}.delta", fixed, accumulator.extra_members | others)
        else:
            self._frames.append(self.encode_delta(accumulator, text))

    def close_text(self, accumulator: TextAccumulator, others: Json | None = None) -> None:
        """Write the full value of a text, once."""
        if accumulator.is_open:
            accumulator.is_open = False
            name = {"name": accumulator.value["name"]} if accumulator.kind == "function_call" else {}
            logprobs = {"logprobs": accumulator.logprobs} if accumulator.extra_members else {}
            whole = accumulator.address | name | {accumulator.spec.member: accumulator.text}
            self.emit(f"{accumulator.spec.event_prefix}.done", whole, logprobs | (others or {}))

    def close_part(self, text_part: TextAccumulator, value: Json | None = None, others: Json | None = None) -> None:
        """End a part; `value` has its final members, as far as known."""
        if text_part.is_part_open:
            self.close_text(text_part)
            text_part.is_part_open = False
            whole = {"type": text_part.kind, text_part.spec.member: text_part.text}
            collected = {"logprobs": text_part.logprobs} if text_part.logprobs else {}
            text_part.value = text_part.value | collected | (value or {}) | whole
            self.emit(f"{text_part.spec.part_event_prefix}.done", text_part.address | {"part": text_part.value}, others)

    def close_item(self, item: OutputItem, status: str, value: Json | None = None, others: Json | None = None) -> None:
        """End an item with all its parts; `value` has its final members, as far as known."""
        for text_part in item.parts["content"] + item.parts["summary"]:
            self.close_part(text_part)
        if item.arguments is not None:
            self.close_text(item.arguments)
        upstream = value or {}
        has_status = item.kind in ITEMS_WITH_STATUS or item.value.get("status") or upstream.get("status")
        item.value = item.completed(upstream) | ({"status": status} if has_status else {})
        item.is_open = False
        self.emit("response.output_item.done", {"output_index": item.index, "item": item.value}, others)


def encode_event(value: Json) -> bytes:
    """Encode an event; its type is also the `event:` name."""
    return sse.named_frame(value["type"], escape_line_breaks(_encode(value)))


# Event types, from OpenAI's published types. Strict clients raise on any other.

PROGRESS_EVENTS = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events with an unfinished Response."""
TERMINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events with a finished Response. One of them ends the stream."""

_EVENT_PREFIXES = {spec.event_prefix: text_type for text_type, spec in (PART_TEXTS | CALL_TEXTS).items()}
TEXT_DELTA_EVENTS = {f"{prefix}.delta": text_type for prefix, text_type in _EVENT_PREFIXES.items()}
"""Part or item type by text delta event."""
TEXT_EVENTS = TEXT_DELTA_EVENTS | {f"{prefix}.done": text_type for prefix, text_type in _EVENT_PREFIXES.items()}
"""Part or item type by text delta or done event."""
_HOSTED_TOOL_STEPS = {
    "apply_patch_call": ("_operation_diff.delta", "_operation_diff.done"),
    "code_interpreter_call": (".in_progress", ".interpreting", ".completed"),
    "compaction": (".compacting",),
    "file_search_call": (".in_progress", ".searching", ".completed"),
    "image_generation_call": (".in_progress", ".generating", ".partial_image", ".completed"),
    "mcp_call": (".in_progress", ".completed", ".failed"),
    "mcp_list_tools": (".in_progress", ".completed", ".failed"),
    "shell_call": ("_command.added", "_command.delta", "_command.done"),
    "shell_call_output": ("_content.delta", "_content.done"),
    "web_search_call": (".in_progress", ".searching", ".completed"),
}
HOSTED_TOOL_EVENTS = {f"response.{tool}{step}": tool for tool, steps in _HOSTED_TOOL_STEPS.items() for step in steps}
"""Item type by event of a server-side tool."""
AUDIO_EVENTS = frozenset(
    {"response.audio.delta", "response.audio.done", "response.audio.transcript.delta", "response.audio.transcript.done"}
)
"""Events without an item."""
