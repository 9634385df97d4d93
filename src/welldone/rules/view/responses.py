"""The events of a /v1/responses stream, grouped by output item and content part.

Parsing is lenient, since a check must see past one violation to find the others: an event is matched to its item by id,
by index or by position, and an item that was never added exists from the first event about it.
"""

from functools import cached_property
from typing import Any

from welldone.rules.view import stream
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.stream import StreamMessage, event_type

RESPONSE_CREATED = "response.created"
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
KEEPALIVE_EVENT = "keepalive"
RESPONSES_ERROR_EVENT = "error"
RESPONSE_END_EVENTS = ("response.completed", "response.incomplete", "response.failed")
RESPONSE_LIFECYCLE_EVENTS = frozenset(
    (RESPONSE_CREATED, "response.queued", "response.in_progress", *RESPONSE_END_EVENTS)
)
TEXT_EVENTS = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
"""Part type by event prefix, for events that carry text."""
TOOL_INPUT_EVENTS = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
}
"""Member with the full value by event prefix, for events that carry tool input."""
PART_EVENTS = ("response.content_part", "response.reasoning_summary_part")
ANNOTATION_ADDED = "response.output_text.annotation.added"
_EVENTS_WITHOUT_ITEM_ID = frozenset(f"response.shell_call_command.{step}" for step in ("added", "delta", "done"))
"""They have an `output_index` only."""
_HOSTED_TOOL_STEPS = {
    "apply_patch_call_operation_diff": ("delta", "done"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "compaction": ("compacting",),
    "file_search_call": ("in_progress", "searching", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
    "mcp_call": ("in_progress", "completed", "failed"),
    "mcp_list_tools": ("in_progress", "completed", "failed"),
    "shell_call_output_content": ("delta", "done"),
    "web_search_call": ("in_progress", "searching", "completed"),
}
"""Events of server-side tools. Only their item is checked."""
ITEM_EVENTS = frozenset(
    (
        ITEM_ADDED,
        ITEM_DONE,
        ANNOTATION_ADDED,
        *_EVENTS_WITHOUT_ITEM_ID,
        *(f"{name}.{step}" for name in (*TEXT_EVENTS, *TOOL_INPUT_EVENTS) for step in ("delta", "done")),
        *(f"{name}.{step}" for name in PART_EVENTS for step in ("added", "done")),
        *(f"response.{name}.{step}" for name, steps in _HOSTED_TOOL_STEPS.items() for step in steps),
    )
)
_AUDIO_EVENTS = ("response.audio.delta", "response.audio.done", "response.audio.transcript.delta")
RESPONSES_EVENT_TYPES = (
    RESPONSE_LIFECYCLE_EVENTS
    | ITEM_EVENTS
    | {KEEPALIVE_EVENT, RESPONSES_ERROR_EVENT, *_AUDIO_EVENTS, "response.audio.transcript.done"}
)
"""All types of the specification, and the keep-alive event that all clients ignore."""


class ResponsesEvent(stream.TraceEvent, frozen=True):
    """An event of /v1/responses."""

    @property
    def event_prefix(self) -> str:
        """Type without its last component."""
        return self.type.rpartition(".")[0]

    @property
    def event_suffix(self) -> str:
        """Last component of the type, such as added, delta or done."""
        return self.type.rpartition(".")[2]

    @property
    def response(self) -> dict[str, Any]:
        return as_object(self.json.get("response"))

    @property
    def item(self) -> dict[str, Any]:
        return as_object(self.json.get("item"))

    @property
    def output_index(self) -> int | None:
        return _valid_index(self.json.get("output_index"))

    @property
    def has_item_id(self) -> bool:
        """Whether events of this type have an `item_id`."""
        return self.type not in (ITEM_ADDED, ITEM_DONE) and self.type not in _EVENTS_WITHOUT_ITEM_ID

    @property
    def item_id(self) -> str:
        """Id of the item, from `item_id` or the item itself; empty if missing."""
        return as_text(self.json.get("item_id") if self.has_item_id else self.item.get("id"))

    @property
    def part_list(self) -> str:
        """List of the item that has the part: `content` or `summary`; empty if the event is not about a part."""
        if self.event_prefix.startswith("response.reasoning_summary"):
            return "summary"
        return (
            "content"
            if self.event_prefix in TEXT_EVENTS or self.event_prefix in PART_EVENTS or self.type == ANNOTATION_ADDED
            else ""
        )

    @property
    def part_index(self) -> int | None:
        return _valid_index(self.json.get(f"{self.part_list}_index"))

    @property
    def part_type(self) -> str:
        """Type of the part that the event is about."""
        if self.part_list == "summary":
            return "summary_text"
        if self.event_prefix in PART_EVENTS:
            return as_text(as_object(self.json.get("part")).get("type"))
        return TEXT_EVENTS.get(self.event_prefix, "output_text")

    @property
    def full_value(self) -> object:
        """Full value that a done event carries."""
        return self.json.get(
            TOOL_INPUT_EVENTS.get(self.event_prefix) or ("refusal" if self.part_type == "refusal" else "text")
        )


class StreamedText:
    """Text that arrives in deltas: output text, a refusal, reasoning, or tool input."""

    def __init__(self, part_type: str, first_event: ResponsesEvent, index: int) -> None:
        self.part_type = part_type
        self.first_event = first_event
        self.part_list: str = first_event.part_list
        self.index = index
        self.part_added: ResponsesEvent | None = None
        self.deltas: list[str] = []
        self.text_done: ResponsesEvent | None = None
        """Event with the full value."""
        self.part_done: ResponsesEvent | None = None
        """Event that ends the part."""
        self.mismatched_event: ResponsesEvent | None = None
        """First event whose type does not match the part."""

    @cached_property
    def text(self) -> str:
        """Joined deltas."""
        return "".join(self.deltas)

    @property
    def is_reasoning(self) -> bool:
        return self.part_type in ("reasoning_text", "summary_text")


class ResponsesItem:
    """An output item with its events."""

    def __init__(self, first_event: ResponsesEvent, index: int) -> None:
        self.first_event = first_event
        self.index = index
        self.id: str = first_event.item_id
        self.added: ResponsesEvent | None = None
        self.done: ResponsesEvent | None = None
        self.texts: dict[str, list[StreamedText]] = {"content": [], "summary": []}
        self.input_text: StreamedText | None = None

    @property
    def type(self) -> str:
        """Type of the item; empty if no event has it."""
        types = [as_text(event.item.get("type")) for event in (self.added, self.done) if event is not None]
        return next(filter(None, types), "")

    @property
    def last_event(self) -> ResponsesEvent:
        """The event with the most complete item."""
        return self.done or self.added or self.first_event

    @property
    def all_texts(self) -> list[StreamedText]:
        return [*self.texts["content"], *self.texts["summary"]]


def text_in(item: dict[str, Any], text: StreamedText) -> str:
    """Return the text or refusal that an item has at the place of a streamed text; empty if there is none."""
    parts = as_list(item.get(text.part_list))
    return part_text(parts[text.index]) if text.index < len(parts) else ""


def part_text(content_part: object) -> str:
    """Return the text of a part, or its refusal."""
    members = as_object(content_part)
    return as_text(members.get("refusal") if members.get("type") == "refusal" else members.get("text"))


class ResponsesStreamView:
    """A stream of /v1/responses. Items and parts cover the events up to the terminal one."""

    def __init__(self, stream_messages: list[StreamMessage]) -> None:
        self.events: list[ResponsesEvent] = [
            ResponsesEvent(message, event_type(message)) for message in stream_messages
        ]
        """All events, including those after the terminal one."""
        self.items: list[ResponsesItem] = []
        self.item_events: list[tuple[ResponsesEvent, ResponsesItem]] = []
        """Events about an item, with that item."""
        self.part_events: list[tuple[ResponsesEvent, StreamedText]] = []
        """Events about a part, with its text."""
        self.late_events: list[ResponsesEvent] = []
        """Events about an item or part that was already done."""
        self.end_event: ResponsesEvent | None = None
        """The terminal event."""
        self._by_id: dict[str, ResponsesItem] = {}
        self._by_index: dict[int, ResponsesItem] = {}
        for event in self.events:
            if event.type in ITEM_EVENTS:
                self._read_item_event(event)
            elif event.type in RESPONSE_END_EVENTS:
                self.end_event = event
                break

    @cached_property
    def lifecycle_events(self) -> list[ResponsesEvent]:
        """Events that contain a Response."""
        return [event for event in self.events if event.type in RESPONSE_LIFECYCLE_EVENTS]

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended with a terminal event other than response.failed."""
        return self.end_event is not None and self.end_event.type != "response.failed"

    def _read_item_event(self, event: ResponsesEvent) -> None:
        item = self._item_for(event)
        item.id = item.id or event.item_id
        self.item_events.append((event, item))
        if item.done is not None:
            self.late_events.append(event)
        elif event.type == ITEM_ADDED:
            item.added = event
        elif event.type == ITEM_DONE:
            item.done = event
        elif event.part_list:
            text = _text_for(item, event)
            self.part_events.append((event, text))
            self._add_to_text(text, event)
        elif event.event_prefix in TOOL_INPUT_EVENTS:
            item.input_text = item.input_text or StreamedText("input", event, 0)
            self._add_to_text(item.input_text, event)

    def _item_for(self, event: ResponsesEvent) -> ResponsesItem:
        index = event.output_index
        by_index = None if index is None else self._by_index.get(index)
        if event.type == ITEM_ADDED:
            is_late = by_index is not None and by_index.added is None and by_index.done is None
            return by_index if by_index is not None and is_late else self._open_item(event)
        item = self._by_id.get(event.item_id) or by_index
        if item is None and index is None and self.items and self.items[-1].done is None:
            return self.items[-1]
        return item or self._open_item(event)

    def _open_item(self, event: ResponsesEvent) -> ResponsesItem:
        item = ResponsesItem(event, len(self.items))
        self.items.append(item)
        self._by_index[item.index if event.output_index is None else event.output_index] = item
        if item.id:
            self._by_id[item.id] = item
        return item

    def _add_to_text(self, text: StreamedText, event: ResponsesEvent) -> None:
        is_part = event.event_prefix in PART_EVENTS
        is_text_event = not is_part and event.type != ANNOTATION_ADDED
        if text.part_done is not None or (text.text_done is not None and is_text_event):
            self.late_events.append(event)
        elif event.event_suffix == "delta":
            text.deltas.append(as_text(event.json.get("delta")))
        elif is_part and event.event_suffix == "added":
            text.part_added = event
        elif is_part:
            text.part_done = event
        elif event.event_suffix == "done":
            text.text_done = event


def _text_for(item: ResponsesItem, event: ResponsesEvent) -> StreamedText:
    texts, index = item.texts[event.part_list], event.part_index
    known = texts[index] if index is not None and index < len(texts) else None
    if event.event_prefix in PART_EVENTS and event.event_suffix == "added":
        # A late part.added still belongs to the deltas before it.
        if known is not None and known.part_added is None and known.part_done is None:
            return known
    elif known is not None:
        if event.part_type and event.part_type != known.part_type:
            known.mismatched_event = known.mismatched_event or event
        return known
    elif texts and texts[-1].part_done is None and event.part_type == texts[-1].part_type:
        return texts[-1]
    text = StreamedText(event.part_type, event, len(texts))
    texts.append(text)
    return text


def _valid_index(value: object) -> int | None:
    return value if is_int(value) and value >= 0 else None
