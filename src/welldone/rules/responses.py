"""What was heard on /v1/responses: the events, and the items and pieces that they speak about.

Reading is lenient, as a judge must see past one fault to name the others: an event finds its item by id, by index or
by being next to it, and what was never added is there from the first event about it.
"""

from functools import cached_property
from typing import Any

from welldone.rules import messages
from welldone.rules.choices import as_list, as_object, as_text, is_int
from welldone.rules.messages import Message, type_of

CREATED = "response.created"
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
KEEPALIVE = "keepalive"
ERROR = "error"
ENDS = ("response.completed", "response.incomplete", "response.failed")
LIFECYCLE = frozenset((CREATED, "response.queued", "response.in_progress", *ENDS))
TEXTS = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
"""The events that say a text, and the type of the part that it belongs to."""
INPUTS = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
}
"""The events that say the input of a tool, and the member that has all of it."""
PARTS = ("response.content_part", "response.reasoning_summary_part")
ANNOTATION = "response.output_text.annotation.added"
_NAMELESS = frozenset(f"response.shell_call_command.{step}" for step in ("added", "delta", "done"))
"""Events that have an index but no `item_id`."""
_HOSTED = {
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
"""Events of tools that run on the server: nothing is known of them but which item they are about."""
ABOUT_ITEMS = frozenset(
    (
        ITEM_ADDED,
        ITEM_DONE,
        ANNOTATION,
        *_NAMELESS,
        *(f"{name}.{step}" for name in (*TEXTS, *INPUTS) for step in ("delta", "done")),
        *(f"{name}.{step}" for name in PARTS for step in ("added", "done")),
        *(f"response.{name}.{step}" for name, steps in _HOSTED.items() for step in steps),
    )
)
_AUDIO = ("response.audio.delta", "response.audio.done", "response.audio.transcript.delta")
KNOWN = LIFECYCLE | ABOUT_ITEMS | {KEEPALIVE, ERROR, *_AUDIO, "response.audio.transcript.done"}
"""All types of the specification, and the keep-alive that all clients pass over."""


class Event(messages.Event, frozen=True):
    """One event."""

    @property
    def name(self) -> str:
        """Its type without the last word, which says what happens."""
        return self.type.rpartition(".")[0]

    @property
    def step(self) -> str:
        """That word: added, delta or done, mostly."""
        return self.type.rpartition(".")[2]

    @property
    def response(self) -> dict[str, Any]:
        return as_object(self.json.get("response"))

    @property
    def item(self) -> dict[str, Any]:
        return as_object(self.json.get("item"))

    @property
    def output_index(self) -> int | None:
        return _index(self.json.get("output_index"))

    @property
    def has_item_id(self) -> bool:
        """Whether an event of this type tells the id of its item beside the item itself."""
        return self.type not in (ITEM_ADDED, ITEM_DONE) and self.type not in _NAMELESS

    @property
    def item_id(self) -> str:
        """The id of the item, wherever it stands; empty where it is missing."""
        return as_text(self.json.get("item_id") if self.has_item_id else self.item.get("id"))

    @property
    def slot(self) -> str:
        """Which list of the item its piece is in: content or summary; empty where it is about no piece."""
        if self.name.startswith("response.reasoning_summary"):
            return "summary"
        return "content" if self.name in TEXTS or self.name in PARTS or self.type == ANNOTATION else ""

    @property
    def part_index(self) -> int | None:
        return _index(self.json.get(f"{self.slot}_index"))

    @property
    def kind(self) -> str:
        """The type of the part that it is about."""
        if self.slot == "summary":
            return "summary_text"
        if self.name in PARTS:
            return as_text(as_object(self.json.get("part")).get("type"))
        return TEXTS.get(self.name, "output_text")

    @property
    def value(self) -> object:
        """What it closes, in full."""
        return self.json.get(INPUTS.get(self.name) or ("refusal" if self.kind == "refusal" else "text"))


class Piece:
    """What is said bit by bit: a text, a refusal, a thought, or the input of a tool."""

    def __init__(self, kind: str, first: Event, place: int) -> None:
        self.kind = kind
        self.first = first
        self.place = place
        self.added: Event | None = None
        self.deltas: list[str] = []
        self.said: Event | None = None
        """The event that has the whole value."""
        self.done: Event | None = None
        """The event that ends its part."""
        self.other: Event | None = None
        """An event of another kind than its part is."""

    @cached_property
    def text(self) -> str:
        """What the deltas said."""
        return "".join(self.deltas)

    @property
    def is_reasoning(self) -> bool:
        return self.kind in ("reasoning_text", "summary_text")


class Item:
    """One item of the output, and what its events said."""

    def __init__(self, first: Event, place: int) -> None:
        self.first = first
        self.place = place
        self.id = first.item_id
        self.added: Event | None = None
        self.done: Event | None = None
        self.pieces: dict[str, list[Piece]] = {"content": [], "summary": []}
        self.input: Piece | None = None

    @property
    def type(self) -> str:
        """What it is; empty where nobody told."""
        told = [as_text(event.item.get("type")) for event in (self.added, self.done) if event is not None]
        return next(filter(None, told), "")

    @property
    def last(self) -> Event:
        """The event that tells most of it."""
        return self.done or self.added or self.first

    @property
    def all_pieces(self) -> list[Piece]:
        return [*self.pieces["content"], *self.pieces["summary"]]


def text_at(item: dict[str, Any], slot: str, place: int) -> str:
    """The text or refusal that an item has in full at some place; empty where there is none."""
    parts = as_list(item.get(slot))
    return part_text(parts[place]) if place < len(parts) else ""


def part_text(part: object) -> str:
    """The text of a part, or its refusal."""
    told = as_object(part)
    return as_text(told.get("refusal") if told.get("type") == "refusal" else told.get("text"))


class Output:
    """A stream of /v1/responses up to the event that ends it."""

    def __init__(self, heard: list[Message]) -> None:
        self.events = [Event(message, type_of(message)) for message in heard]
        """All of them, those after the end included."""
        self.items: list[Item] = []
        self.about: list[tuple[Event, Item]] = []
        """Each event about an item, with that item."""
        self.parts: list[tuple[Event, Piece]] = []
        """Each event about a part, with what it says."""
        self.late: list[Event] = []
        """Events about what was closed."""
        self.end: Event | None = None
        """The event that ends the stream."""
        self._by_id: dict[str, Item] = {}
        self._by_index: dict[int, Item] = {}
        for event in self.events:
            if event.type in ABOUT_ITEMS:
                self._read(event)
            elif event.type in ENDS:
                self.end = event
                break

    @cached_property
    def lifecycle(self) -> list[Event]:
        """The events that hold a Response."""
        return [event for event in self.events if event.type in LIFECYCLE]

    @property
    def is_whole(self) -> bool:
        """Whether it came to an end that is no failure."""
        return self.end is not None and self.end.type != "response.failed"

    def _read(self, event: Event) -> None:
        item = self._item(event)
        item.id = item.id or event.item_id
        self.about.append((event, item))
        if item.done is not None:
            self.late.append(event)
        elif event.type == ITEM_ADDED:
            item.added = event
        elif event.type == ITEM_DONE:
            item.done = event
        elif event.slot:
            piece = _part(item, event)
            self.parts.append((event, piece))
            self._say(piece, event)
        elif event.name in INPUTS:
            item.input = item.input or Piece("input", event, 0)
            self._say(item.input, event)

    def _item(self, event: Event) -> Item:
        index = event.output_index
        by_index = None if index is None else self._by_index.get(index)
        if event.type == ITEM_ADDED:
            is_late = by_index is not None and by_index.added is None and by_index.done is None
            return by_index if by_index is not None and is_late else self._open(event)
        found = self._by_id.get(event.item_id) or by_index
        if found is None and index is None and self.items and self.items[-1].done is None:
            return self.items[-1]
        return found or self._open(event)

    def _open(self, event: Event) -> Item:
        item = Item(event, len(self.items))
        self.items.append(item)
        self._by_index[item.place if event.output_index is None else event.output_index] = item
        if item.id:
            self._by_id[item.id] = item
        return item

    def _say(self, piece: Piece, event: Event) -> None:
        is_part = event.name in PARTS
        if piece.done is not None or (piece.said is not None and not is_part and event.type != ANNOTATION):
            self.late.append(event)
        elif event.step == "delta":
            piece.deltas.append(as_text(event.json.get("delta")))
        elif is_part and event.step == "added":
            piece.added = event
        elif is_part:
            piece.done = event
        elif event.step == "done":
            piece.said = event


def _part(item: Item, event: Event) -> Piece:
    """The piece that an event about a part speaks of."""
    pieces, index = item.pieces[event.slot], event.part_index
    known = pieces[index] if index is not None and index < len(pieces) else None
    if event.name in PARTS and event.step == "added":
        # One that comes too late still belongs to what was said before it.
        if known is not None and known.added is None and known.done is None:
            return known
    elif known is not None:
        if event.kind and event.kind != known.kind:
            known.other = known.other or event
        return known
    elif pieces and pieces[-1].done is None and event.kind == pieces[-1].kind:
        return pieces[-1]
    piece = Piece(event.kind, event, len(pieces))
    pieces.append(piece)
    return piece


def _index(value: object) -> int | None:
    return value if is_int(value) and value >= 0 else None
