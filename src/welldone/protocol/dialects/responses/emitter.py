"""The one maker of frames of the Responses dialect.

It numbers the events, counts items and parts, and closes what is open with its full value: so writer and native mender
need only say what happens. The same calls always make the same bytes.
"""

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.base import KEEP_ALIVE
from welldone.protocol.dialects.chat import escape_line_breaks
from welldone.protocol.events import Json

_encode = msgspec.json.Encoder().encode
_TEXT_MARKER = "\x00text\x00"
_TEXT_MARKER_BYTES = _encode(_TEXT_MARKER)
_SEQUENCE_NUMBER_KEY = b'"sequence_number":'


class TextEventSpec(msgspec.Struct, frozen=True):
    """How one kind of text is said: in `.delta` events, and whole in a `.done` event and in a member."""

    event_prefix: str
    member: str


PART_TEXTS = {
    "output_text": TextEventSpec("response.output_text", "text"),
    "refusal": TextEventSpec("response.refusal", "refusal"),
    "reasoning_text": TextEventSpec("response.reasoning_text", "text"),
    "summary_text": TextEventSpec("response.reasoning_summary_text", "text"),
}
"""Texts that are parts of a message or of reasoning."""
CALL_TEXTS = {
    "function_call": TextEventSpec("response.function_call_arguments", "arguments"),
    "custom_tool_call": TextEventSpec("response.custom_tool_call_input", "input"),
    "mcp_call": TextEventSpec("response.mcp_call_arguments", "arguments"),
    "code_interpreter_call": TextEventSpec("response.code_interpreter_call_code", "code"),
}
"""Texts that are members of an item."""
ITEMS_WITH_STATUS = frozenset({"message", "function_call"})
"""Items that are in progress, and then completed or incomplete. Others may have a status, and words of their own."""
CLIENT_TOOL_CALLS = frozenset({"function_call", "custom_tool_call"})
"""Items that the client acts on: by their name, and with their call_id."""
_STABLE_MEMBERS = {
    "message": ("id", "type", "role"),
    **dict.fromkeys(CLIENT_TOOL_CALLS, ("id", "type", "call_id", "name")),
}
"""Members of an item that hold from when it was added."""


class TextAccumulator:
    """A text that is said in pieces: a part of an item, or the arguments of a call."""

    def __init__(self, spec: TextEventSpec, address: Json, value: Json, extra_members: Json) -> None:
        self.spec = spec
        self.address = address
        """The members that tell of whom its events are."""
        self.value = value
        """The part or the item that the text is a member of."""
        self.extra_members = extra_members
        """Other members that its events have."""
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []
        self.is_open = True
        self.is_part_open = True
        kind = f"{spec.event_prefix}.delta"
        made = encode_event({"type": kind, "sequence_number": 0, **address, "delta": _TEXT_MARKER, **extra_members})
        before, number, rest = made.partition(_SEQUENCE_NUMBER_KEY)
        middle, _, after = rest.removeprefix(b"0").rpartition(_TEXT_MARKER_BYTES)
        self.delta_template = before + number, middle, after
        """The bytes of its deltas, without their number and text."""

    @property
    def kind(self) -> str:
        """Its type, or that of the item that it is a member of."""
        return str(self.value["type"])

    @property
    def text(self) -> str:
        """What was said so far; what it was closed with."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class OutputItem:
    """One thing of the output."""

    def __init__(self, index: int, value: Json) -> None:
        self.index = index
        self.value = value
        """As it was added; when it is closed, whole."""
        self.content: list[TextAccumulator] = []
        self.summary: list[TextAccumulator] = []
        self.arguments: TextAccumulator | None = None
        """Its arguments, if it is a call."""
        self.is_open = True
        way = CALL_TEXTS.get(self.kind)
        if way is not None:
            self.arguments = TextAccumulator(way, self.address, value, {})

    @property
    def id(self) -> str:
        """Its id, the same in all its events."""
        return str(self.value["id"])

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.value["type"])

    def completed(self, upstream: Json) -> Json:
        """It when it is whole: with members that its server told, and what it said, wherever it stands."""
        whole = (
            self.value | upstream | {name: self.value[name] for name in _STABLE_MEMBERS.get(self.kind, ("id", "type"))}
        )
        for place, parts in (("summary", self.summary), ("content", self.content)):
            if parts or (place in whole and self.kind in ("message", "reasoning")):
                whole[place] = [part.value for part in parts]
        return whole if self.arguments is None else whole | {self.arguments.spec.member: self.arguments.text}

    @property
    def address(self) -> Json:
        """The members that tell that an event is of this item."""
        return {"item_id": self.id, "output_index": self.index}


class ResponsesEmitter:
    """Makes the frames of one stream. They are kept until they are taken.

    `others` are members of an event that this dialect does not know, or does not need. One that `is_silent` makes no
    frames: only the Response that the stream ends with.
    """

    def __init__(self, response: Json, *, is_silent: bool = False) -> None:
        self.response = response
        """The Response, without what is still to come."""
        self.items: list[OutputItem] = []
        self.final_response: Json | None = None
        """The Response as it was said last, when it has ended."""
        self._sequence_number = 0
        self._is_silent = is_silent
        self._frames: list[bytes] = []

    @property
    def has_started(self) -> bool:
        """Whether something was said."""
        return self._sequence_number > 0

    def drain(self) -> bytes:
        """The frames made since they were last taken."""
        out = self._frames
        if len(out) == 1:
            self._frames = []
            return out[0]
        taken = b"".join(out)
        out.clear()
        return taken

    def emit(self, kind: str, fixed: Json, others: Json | None = None) -> None:
        """An event of this type; its number is given here. Where `others` say something else, what is `fixed` holds."""
        if not self._is_silent:
            fixed = {"type": kind, "sequence_number": self._sequence_number} | fixed
            self._frames.append(encode_event(fixed | others | fixed if others else fixed))
        self._sequence_number += 1

    def emit_response(self, kind: str, others: Json | None = None) -> None:
        """An event that carries the Response, before anything of its output is said."""
        self.emit(kind, {"response": self.response}, others)

    def keep_alive(self) -> None:
        """A sign of life; before the stream has begun only a comment may come."""
        if self.has_started:
            self.emit("keepalive", {})
        else:
            self._frames.append(KEEP_ALIVE)

    def end_response(self, status: str, changes: Json, others: Json | None = None) -> Json:
        """The event that ends the stream, with what has `changed` in the Response; the Response as it says it."""
        self.response = self.response | changes | {"status": status, "output": [item.value for item in self.items]}
        self.final_response = self.response
        self.emit(f"response.{status}", {"response": self.final_response}, others)
        return self.final_response

    def open_item(self, value: Json, others: Json | None = None) -> OutputItem:
        """A new item, as it begins."""
        item = OutputItem(len(self.items), value)
        self.items.append(item)
        self.emit("response.output_item.added", {"output_index": item.index, "item": value}, others)
        return item

    def open_part(self, item: OutputItem, value: Json, others: Json | None = None) -> TextAccumulator:
        """A new part of an item, as it begins."""
        is_summary = value["type"] == "summary_text"
        parts = item.summary if is_summary else item.content
        address = item.address | {"summary_index" if is_summary else "content_index": len(parts)}
        tail: Json = {"logprobs": []} if value["type"] == "output_text" else {}
        part = TextAccumulator(PART_TEXTS[value["type"]], address, value, tail)
        parts.append(part)
        self.emit(f"{_part_event_prefix(part)}.added", address | {"part": value}, others)
        return part

    def encode_delta(self, accumulator: TextAccumulator, text: str) -> bytes:
        """The frame that says more of a text. It is not kept: nothing that was kept may wait."""
        accumulator.pieces.append(text)
        number = self._sequence_number
        self._sequence_number = number + 1
        if self._is_silent:
            return b""
        before, middle, after = accumulator.delta_template
        payload = _encode(text)
        if not payload.isascii():
            payload = escape_line_breaks(payload)
        return b"%b%d%b%b%b" % (before, number, middle, payload, after)

    def add_text(self, accumulator: TextAccumulator, text: str, others: Json | None = None) -> None:
        """More of a text."""
        if others and others != accumulator.extra_members:
            accumulator.pieces.append(text)
            said = accumulator.address | {"delta": text}
            self.emit(f"{accumulator.spec.event_prefix}.delta", said, accumulator.extra_members | others)
        else:
            self._frames.append(self.encode_delta(accumulator, text))

    def close_text(self, accumulator: TextAccumulator, others: Json | None = None) -> None:
        """A text is whole."""
        if accumulator.is_open:
            accumulator.is_open = False
            name = {"name": accumulator.value["name"]} if accumulator.kind == "function_call" else {}
            logprobs = {"logprobs": accumulator.logprobs} if accumulator.extra_members else {}
            whole = accumulator.address | name | {accumulator.spec.member: accumulator.text}
            self.emit(f"{accumulator.spec.event_prefix}.done", whole, logprobs | (others or {}))

    def close_part(self, part: TextAccumulator, value: Json | None = None, others: Json | None = None) -> None:
        """A part is whole; `value` are its members at its end, where they are known."""
        if part.is_part_open:
            self.close_text(part)
            part.is_part_open = False
            whole = {"type": part.kind, part.spec.member: part.text}
            collected = {"logprobs": part.logprobs} if part.logprobs else {}
            part.value = part.value | collected | (value or {}) | whole
            self.emit(f"{_part_event_prefix(part)}.done", part.address | {"part": part.value}, others)

    def close_item(self, item: OutputItem, status: str, value: Json | None = None, others: Json | None = None) -> None:
        """An item is whole, with all in it; `value` are its members at its end, where they are known."""
        for part in item.content + item.summary:
            self.close_part(part)
        if item.arguments is not None:
            self.close_text(item.arguments)
        theirs = value or {}
        has_status = item.kind in ITEMS_WITH_STATUS or item.value.get("status") or theirs.get("status")
        item.value = item.completed(theirs) | ({"status": status} if has_status else {})
        item.is_open = False
        self.emit("response.output_item.done", {"output_index": item.index, "item": item.value}, others)


def encode_event(value: Json) -> bytes:
    """One event as it is sent: its type stands in a line of its own too."""
    return sse.named_frame(value["type"], escape_line_breaks(_encode(value)))


def _part_event_prefix(part: TextAccumulator) -> str:
    return "response.reasoning_summary_part" if part.kind == "summary_text" else "response.content_part"


# The events of the Responses dialect, by what they are about.
#
# They are those of OpenAI's published types. Clients that check the type throw at any other.


PROGRESS_EVENTS = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events that carry a Response that goes on."""
TERMINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events that carry a Response that has ended: one of them is the last."""

TEXT_DELTA_EVENTS = {f"{way.event_prefix}.delta": kind for kind, way in (PART_TEXTS | CALL_TEXTS).items()}
"""More of a text, and the type of the part or item that it is of."""
TEXT_EVENTS = TEXT_DELTA_EVENTS | {f"{way.event_prefix}.done": kind for kind, way in (PART_TEXTS | CALL_TEXTS).items()}
"""More of a text, or all of it."""
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
PART_ADDED = frozenset({"response.content_part.added", "response.reasoning_summary_part.added"})
PART_DONE = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
ANNOTATION_ADDED = "response.output_text.annotation.added"

ITEM_TYPE_OF_PART = {
    "output_text": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "summary_text": "reasoning",
}
"""The type of the item that a part is of."""
INDEX_MEMBER_OF_PART = {kind: "summary_index" if kind == "summary_text" else "content_index" for kind in PART_TEXTS}
"""The member that tells which part of its item it is."""

_HOSTED_TOOL_STEPS = {
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "compaction": ("compacting",),
    "file_search_call": ("in_progress", "searching", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
    "mcp_call": ("in_progress", "completed", "failed"),
    "mcp_list_tools": ("in_progress", "completed", "failed"),
    "web_search_call": ("in_progress", "searching", "completed"),
}
HOSTED_TOOL_EVENTS = {
    f"response.{kind}.{step}": kind for kind, steps in _HOSTED_TOOL_STEPS.items() for step in steps
} | {
    "response.apply_patch_call_operation_diff.delta": "apply_patch_call",
    "response.apply_patch_call_operation_diff.done": "apply_patch_call",
    "response.shell_call_command.added": "shell_call",
    "response.shell_call_command.delta": "shell_call",
    "response.shell_call_command.done": "shell_call",
    "response.shell_call_output_content.delta": "shell_call_output",
    "response.shell_call_output_content.done": "shell_call_output",
}
"""What a tool of the server does, and the type of the item that tells of it."""
AUDIO_EVENTS = frozenset(
    {
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
    }
)
"""Events that are about no item."""


OUTPUT_EVENTS = frozenset(
    {
        *TEXT_EVENTS,
        *PART_ADDED,
        *PART_DONE,
        ANNOTATION_ADDED,
        *HOSTED_TOOL_EVENTS,
        *AUDIO_EVENTS,
        ITEM_ADDED,
        ITEM_DONE,
    },
)
"""All events that tell of the output."""
