"""The one maker of frames of the Responses dialect.

It numbers the events, counts items and parts, and closes what is open with its full value: so writer and native mender
need only say what happens. The same calls always make the same bytes.
"""

import msgspec

from welldone.wire import sse
from welldone.wire.dialects.dialect import KEEP_ALIVE
from welldone.wire.dialects.stream import escape
from welldone.wire.events import Json

_encode = msgspec.json.Encoder().encode
_MARK = "\x00text\x00"
_MARK_BYTES = _encode(_MARK)
_NUMBER = b'"sequence_number":'


class Way(msgspec.Struct, frozen=True):
    """How one kind of text is said: in `.delta` events, and whole in a `.done` event and in a member."""

    stem: str
    member: str


PARTS = {
    "output_text": Way("response.output_text", "text"),
    "refusal": Way("response.refusal", "refusal"),
    "reasoning_text": Way("response.reasoning_text", "text"),
    "summary_text": Way("response.reasoning_summary_text", "text"),
}
"""Texts that are parts of a message or of reasoning."""
CALLS = {
    "function_call": Way("response.function_call_arguments", "arguments"),
    "custom_tool_call": Way("response.custom_tool_call_input", "input"),
    "mcp_call": Way("response.mcp_call_arguments", "arguments"),
    "code_interpreter_call": Way("response.code_interpreter_call_code", "code"),
}
"""Texts that are members of an item."""
WITH_STATUS = frozenset({"message", "function_call"})
"""Items that are in progress, and then completed or incomplete. Others may have a status, and words of their own."""
NAMED = frozenset({"function_call", "custom_tool_call"})
"""Items that the client acts on: by their name, and with their call_id."""
_FIXED = {"message": ("id", "type", "role"), **dict.fromkeys(NAMED, ("id", "type", "call_id", "name"))}
"""Members of an item that hold from when it was added."""


class Strand:
    """A text that is said in pieces: a part of an item, or the arguments of a call."""

    def __init__(self, way: Way, address: Json, value: Json, tail: Json) -> None:
        self.way = way
        self.address = address
        """The members that tell of whom its events are."""
        self.value = value
        """The part or the item that the text is a member of."""
        self.tail = tail
        """Other members that its events have."""
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []
        self.is_open = True
        self.is_part_open = True
        kind = f"{way.stem}.delta"
        made = frame({"type": kind, "sequence_number": 0, **address, "delta": _MARK, **tail})
        before, number, rest = made.partition(_NUMBER)
        middle, _, after = rest.removeprefix(b"0").rpartition(_MARK_BYTES)
        self.around = before + number, middle, after
        """The bytes of its deltas, without their number and text."""

    @property
    def kind(self) -> str:
        """Its type, or that of the item that it is a member of."""
        return str(self.value["type"])

    @property
    def whole(self) -> str:
        """What was said so far; what it was closed with."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class Item:
    """One thing of the output."""

    def __init__(self, index: int, value: Json) -> None:
        self.index = index
        self.value = value
        """As it was added; when it is closed, whole."""
        self.content: list[Strand] = []
        self.summary: list[Strand] = []
        self.call: Strand | None = None
        """Its arguments, if it is a call."""
        self.is_open = True
        way = CALLS.get(self.kind)
        if way is not None:
            self.call = Strand(way, self.address, value, {})

    @property
    def id(self) -> str:
        """Its id, the same in all its events."""
        return str(self.value["id"])

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.value["type"])

    def whole(self, theirs: Json) -> Json:
        """It when it is whole: with members that its server told, and what it said, wherever it stands."""
        whole = self.value | theirs | {name: self.value[name] for name in _FIXED.get(self.kind, ("id", "type"))}
        for place, parts in (("summary", self.summary), ("content", self.content)):
            if parts or (place in whole and self.kind in ("message", "reasoning")):
                whole[place] = [part.value for part in parts]
        return whole if self.call is None else whole | {self.call.way.member: self.call.whole}

    @property
    def address(self) -> Json:
        """The members that tell that an event is of this item."""
        return {"item_id": self.id, "output_index": self.index}


class Scribe:
    """Makes the frames of one stream. They are kept until they are taken.

    `others` are members of an event that this dialect does not know, or does not need. One that `is_silent` makes no
    frames: only the Response that the stream ends with.
    """

    def __init__(self, response: Json, *, is_silent: bool = False) -> None:
        self.response = response
        """The Response, without what is still to come."""
        self.items: list[Item] = []
        self.final: Json | None = None
        """The Response as it was said last, when it has ended."""
        self._number = 0
        self._is_silent = is_silent
        self._out: list[bytes] = []

    @property
    def has_begun(self) -> bool:
        """Whether something was said."""
        return self._number > 0

    def take(self) -> bytes:
        """The frames made since they were last taken."""
        out = self._out
        if len(out) == 1:
            self._out = []
            return out[0]
        taken = b"".join(out)
        out.clear()
        return taken

    def event(self, kind: str, fixed: Json, others: Json | None = None) -> None:
        """An event of this type; its number is given here. Where `others` say something else, what is `fixed` holds."""
        if not self._is_silent:
            fixed = {"type": kind, "sequence_number": self._number} | fixed
            self._out.append(frame(fixed | others | fixed if others else fixed))
        self._number += 1

    def respond(self, kind: str, others: Json | None = None) -> None:
        """An event that carries the Response, before anything of its output is said."""
        self.event(kind, {"response": self.response}, others)

    def keep_alive(self) -> None:
        """A sign of life; before the stream has begun only a comment may come."""
        if self.has_begun:
            self.event("keepalive", {})
        else:
            self._out.append(KEEP_ALIVE)

    def end(self, status: str, changed: Json, others: Json | None = None) -> Json:
        """The event that ends the stream, with what has `changed` in the Response; the Response as it says it."""
        self.response = self.response | changed | {"status": status, "output": [item.value for item in self.items]}
        self.final = self.response
        self.event(f"response.{status}", {"response": self.final}, others)
        return self.final

    def open_item(self, value: Json, others: Json | None = None) -> Item:
        """A new item, as it begins."""
        item = Item(len(self.items), value)
        self.items.append(item)
        self.event("response.output_item.added", {"output_index": item.index, "item": value}, others)
        return item

    def open_part(self, item: Item, value: Json, others: Json | None = None) -> Strand:
        """A new part of an item, as it begins."""
        is_summary = value["type"] == "summary_text"
        parts = item.summary if is_summary else item.content
        address = item.address | {"summary_index" if is_summary else "content_index": len(parts)}
        tail: Json = {"logprobs": []} if value["type"] == "output_text" else {}
        part = Strand(PARTS[value["type"]], address, value, tail)
        parts.append(part)
        self.event(f"{_part_stem(part)}.added", address | {"part": value}, others)
        return part

    def piece(self, strand: Strand, text: str) -> bytes:
        """The frame that says more of a text. It is not kept: nothing that was kept may wait."""
        strand.pieces.append(text)
        number = self._number
        self._number = number + 1
        if self._is_silent:
            return b""
        before, middle, after = strand.around
        payload = _encode(text)
        if not payload.isascii():
            payload = escape(payload)
        return b"%b%d%b%b%b" % (before, number, middle, payload, after)

    def say(self, strand: Strand, text: str, others: Json | None = None) -> None:
        """More of a text."""
        if others and others != strand.tail:
            strand.pieces.append(text)
            said = strand.address | {"delta": text}
            self.event(f"{strand.way.stem}.delta", said, strand.tail | others)
        else:
            self._out.append(self.piece(strand, text))

    def close_text(self, strand: Strand, others: Json | None = None) -> None:
        """A text is whole."""
        if strand.is_open:
            strand.is_open = False
            name = {"name": strand.value["name"]} if strand.kind == "function_call" else {}
            logprobs = {"logprobs": strand.logprobs} if strand.tail else {}
            whole = strand.address | name | {strand.way.member: strand.whole}
            self.event(f"{strand.way.stem}.done", whole, logprobs | (others or {}))

    def close_part(self, part: Strand, value: Json | None = None, others: Json | None = None) -> None:
        """A part is whole; `value` are its members at its end, where they are known."""
        if part.is_part_open:
            self.close_text(part)
            part.is_part_open = False
            whole = {"type": part.kind, part.way.member: part.whole}
            collected = {"logprobs": part.logprobs} if part.logprobs else {}
            part.value = part.value | collected | (value or {}) | whole
            self.event(f"{_part_stem(part)}.done", part.address | {"part": part.value}, others)

    def close_item(self, item: Item, status: str, value: Json | None = None, others: Json | None = None) -> None:
        """An item is whole, with all in it; `value` are its members at its end, where they are known."""
        for part in item.content + item.summary:
            self.close_part(part)
        if item.call is not None:
            self.close_text(item.call)
        theirs = value or {}
        has_status = item.kind in WITH_STATUS or item.value.get("status") or theirs.get("status")
        item.value = item.whole(theirs) | ({"status": status} if has_status else {})
        item.is_open = False
        self.event("response.output_item.done", {"output_index": item.index, "item": item.value}, others)


def frame(value: Json) -> bytes:
    """One event as it is sent: its type stands in a line of its own too."""
    return sse.named(value["type"], escape(_encode(value)))


def _part_stem(part: Strand) -> str:
    return "response.reasoning_summary_part" if part.kind == "summary_text" else "response.content_part"
