"""The blocks of a message, one after the other, however their server mixed them.

Text and thoughts end where another block begins; what still comes of them goes on in a block of its own. The input of
a tool cannot go on elsewhere: the blocks that begin before it is whole wait for it.
"""

from collections.abc import Callable

import msgspec

from welldone.wire import faults
from welldone.wire.calls import CALLS_LIMIT, JsonEnd
from welldone.wire.dialects.messages.objects import text_block, thinking_block
from welldone.wire.dialects.messages.scribe import PIECES, Scribe
from welldone.wire.events import Failure, Json
from welldone.wire.failures import garbage
from welldone.wire.kept import Kept, Room
from welldone.wire.notes import Notes

_HELD_BYTES = 16 * 1024 * 1024  # of blocks that wait for another: as much as one frame may have
_PIECE_BYTES = 256  # what a piece that waits costs besides its text
_TEXT, _THINKING = frozenset({"text"}), frozenset({"thinking"})
CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose input comes as JSON, in pieces."""
_MEMBERS = {
    "text_delta": "text",
    "citations_delta": "citation",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_FITS = {
    "text_delta": _TEXT,
    "citations_delta": _TEXT,
    "thinking_delta": _THINKING,
    "signature_delta": _THINKING,
    "input_json_delta": CALLS,
}


class _Block:
    """One block as far as it was heard."""

    def __init__(self, index: int | None, start: Json, more: Json, room: Room) -> None:
        self.index = index  # as its server counts
        self.start = start
        self.more = more
        self.kind: str = start["type"]
        self.waiting: list[tuple[Json, Json]] = []
        self.is_stopped = False
        self.input: Json = {}  # of a call, as its start told it
        self.end = JsonEnd()
        self.said = Kept(room)
        self.has_input = False

    def takes(self, delta: Json) -> bool:
        """Whether a delta can be of this block; of one that is not known, a delta of any type can."""
        fits = _FITS.get(delta["type"])
        return self.kind in fits if fits is not None else self.kind not in PIECES

    def hear(self, delta: Json) -> None:
        """Keep of a call's input what tells whether it is whole."""
        if self.kind in CALLS and delta["partial_json"]:
            self.has_input = True
            self.end.feed(delta["partial_json"])
            self.said.add(delta["partial_json"])


class Blocks:
    """Hands blocks to a scribe in their turn. `mint` makes ids of tools."""

    def __init__(self, scribe: Scribe, notes: Notes, mint: Callable[[], str]) -> None:
        self.failure: Failure | None = None
        """Why the answer cannot go on, where it cannot."""
        self.is_called = False
        """Whether there is a tool for the client to run."""
        self.broken = 0
        """How many tools have an input that is no JSON object."""
        self._scribe = scribe
        self._notes = notes
        self._mint = mint
        self._room = Room()
        self._current: _Block | None = None
        self._waiting: list[_Block] = []
        self._held_bytes = 0
        self._count = 0
        self._ended: dict[int, bool] = {}  # blocks that have ended, and whether their server said so
        self._ids: set[str] = set()

    def start(self, index: object, block: Json, more: Json) -> bytes:
        """A block begins."""
        number = self._number(index)
        if number is None or number != self._count:
            self._notes.note(faults.msg.BLOCK_INDEX, index)
        start = self._named(_typed(block))
        if start is None:
            return b""
        before = next((one for one in self._live() if one.index == number and number is not None), None)
        if before is not None:
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, index)
            before.index, before.is_stopped = None, True
        return self._begin(number, start, more, _first_deltas(block, start["type"], self._notes))

    def delta(self, index: object, delta: Json, more: Json) -> bytes:
        """More of a block."""
        shaped = _shaped(delta)
        if shaped is None:
            self._notes.note(faults.msg.DELTA_TYPE, delta)
            return b""
        number = self._number(index)
        target = self._target(number, shaped)
        if target is not None:
            if target.index != number:
                self._notes.note(faults.msg.BLOCK_INDEX, index)
            return self._add(target, shaped, more)
        return self._begin_by(number, shaped, more)

    def stop(self, index: object, more: Json) -> bytes:
        """A block ends."""
        number = self._number(index)
        target = next((one for one in self._live() if one.index == number or number is None), None)
        if target is None:
            if number not in self._ended:
                self._notes.note(faults.msg.BLOCK_START_FIRST, index)
            elif self._ended[number]:
                self._notes.note(faults.msg.BLOCK_INDEX, index)
            self._ended[-1 if number is None else number] = True
            return b""
        target.is_stopped = True
        if target is not self._current:
            return b""
        return self._close(more) + self._release()

    def close(self) -> bytes:
        """The message ends: so do its blocks."""
        if any(not block.is_stopped for block in self._live()):
            self._notes.note(faults.msg.BLOCK_STOP)
        for block in self._live():
            block.is_stopped = True
        return self._close({}) + self._release() if self._current is not None else b""

    def _live(self) -> list[_Block]:
        return [*([] if self._current is None else [self._current]), *self._waiting]

    def _number(self, index: object) -> int | None:
        return index if type(index) is int and index >= 0 else None

    def _target(self, number: int | None, delta: Json) -> _Block | None:
        """The block that a delta is of, if it has begun and not ended."""
        fitting = [block for block in self._live() if block.takes(delta)]
        for block in fitting:
            if block.index == number and number is not None:
                return block
        # A number that is missing, or of a block whose end was said, is a mistake: it can only mean what is open.
        is_wrong = number is None or self._ended.get(number, False)
        return fitting[-1] if fitting and is_wrong else None

    def _begin_by(self, number: int | None, delta: Json, more: Json) -> bytes:
        """A block begins with its first delta: its start never came, or it has ended already."""
        kind = delta["type"]
        if kind == "input_json_delta":
            if delta["partial_json"].strip():
                self._notes.note(faults.msg.BLOCK_START_FIRST, number)
                self.failure = garbage("a tool's input without the tool's name")
            return b""
        if kind not in _FITS or kind in ("signature_delta", "citations_delta"):
            self._notes.note(faults.msg.DELTA_TYPE, kind)  # of no block that could be known
            return b""
        is_known = number in self._ended or any(block.index == number for block in self._live())
        self._notes.note(faults.msg.BLOCK_SEQUENTIAL if is_known else faults.msg.BLOCK_START_FIRST, number)
        if any(block.index == number for block in self._live()):
            number = None
        start = text_block() if kind == "text_delta" else thinking_block()
        return self._begin(number, start, {}, [(delta, more)])

    def _begin(self, number: int | None, start: Json, more: Json, deltas: list[tuple[Json, Json]]) -> bytes:
        block = _Block(number, start, more, self._room)
        self._count += 1
        if number is not None:
            self._ended.pop(number, None)
        if block.kind in CALLS:
            block.input = start["input"]
            block.start = {**start, "input": {}}
            self.is_called |= block.kind == "tool_use"
        out = b""
        current = self._current
        if current is not None and (current.kind not in CALLS or current.end.is_whole):
            self._note_end(current)
            out = self._close({}) + self._release()
        if self._current is None:
            out += self._open(block)
        else:
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, number)
            self._waiting.append(block)
            self._hold(start)
        return out + b"".join(self._add(block, delta, rest) for delta, rest in deltas)

    def _note_end(self, block: _Block) -> None:
        if not block.is_stopped:
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, block.index)

    def _add(self, block: _Block, delta: Json, more: Json) -> bytes:
        block.hear(delta)
        if block is self._current:
            return self._say(block, delta, more)
        block.waiting.append((delta, more))
        self._hold(delta)
        return b""

    def _hold(self, value: Json) -> None:
        self._held_bytes += _PIECE_BYTES + len(msgspec.json.encode(value))
        if self._held_bytes > _HELD_BYTES or len(self._waiting) > CALLS_LIMIT:
            self.failure = garbage("blocks that are mixed beyond what can be kept")

    def _open(self, block: _Block) -> bytes:
        self._current = block
        opened = self._scribe.open(block.start, block.more)
        waiting, block.waiting = block.waiting, []
        return opened + b"".join(self._say(block, delta, more) for delta, more in waiting)

    def _say(self, block: _Block, delta: Json, more: Json) -> bytes:
        if not more and len(delta) == 2 and block.kind in PIECES:
            kind, member = PIECES[block.kind]
            if delta["type"] == kind:
                return self._scribe.say(delta[member])
        return self._scribe.delta(delta, more)

    def _close(self, more: Json) -> bytes:
        """The current block ends."""
        block, self._current = self._current, None
        if block is None:
            return b""
        if block.index is not None:
            self._ended[block.index] = block.is_stopped
        said = b""
        if block.kind in CALLS and block.input and not block.has_input:
            self._notes.note(faults.msg.BLOCK_START_EMPTY, block.input)
            said = self._scribe.say(msgspec.json.encode(block.input).decode())
        elif block.has_input and block.said.is_broken(is_object=True):
            self.broken += 1
        return said + self._scribe.close(more)

    def _release(self) -> bytes:
        """Say the blocks that waited, up to one that is not whole."""
        out = b""
        while self._waiting and self._current is None:
            block = self._waiting.pop(0)
            out += self._open(block)
            if block.is_stopped or (self._waiting and (block.kind not in CALLS or block.end.is_whole)):
                out += self._close({})
        if not self._waiting:
            self._held_bytes = 0
        return out

    def _named(self, block: Json | None) -> Json | None:
        """The start of a block; a tool's with an id of its own. None where nothing can be made of it."""
        if block is None:
            self._notes.note(faults.msg.BLOCK_KNOWN)
            return None
        if block["type"] not in CALLS:
            return block
        name, id = block.get("name"), block.get("id")
        if not isinstance(name, str) or not name:
            self._notes.note(faults.msg.TOOL_IDS, block)
            self.failure = garbage("a tool without a name")
            return None
        if not isinstance(id, str) or not id or id in self._ids:
            self._notes.note(faults.msg.TOOL_IDS, block)
            block["id"] = id = self._mint()
        self._ids.add(id)
        return block


def _typed(block: Json) -> Json | None:
    """The start of a block, empty and with the members that clients need; None where its type cannot be told."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        kind = next((kind for kind, (_, member) in PIECES.items() if isinstance(block.get(member), str)), None)
        if kind is None and "name" in block:
            kind = "tool_use"
    match kind:
        case None:
            return None
        case "text":
            empty: Json = {"type": kind, "text": ""}
            return {**block, **empty} | ({"citations": []} if isinstance(block.get("citations"), list) else {})
        case "thinking":
            return {**block, "type": kind, "thinking": "", "signature": ""}
        case _ if kind in CALLS:
            given = block.get("input")
            return {**block, "type": kind, "input": given if isinstance(given, dict) else {}}
        case _:
            return {**block, "type": kind}


def _first_deltas(block: Json, kind: str, notes: Notes) -> list[tuple[Json, Json]]:
    """What a start says already: it goes out as deltas, since some clients read nothing else."""
    found: list[Json] = []
    if kind in ("text", "thinking"):
        delta, member = PIECES[kind]
        text, signature = block.get(member), block.get("signature")
        if isinstance(text, str) and text:
            found.append({"type": delta, member: text})
        if kind == "thinking" and isinstance(signature, str) and signature:
            found.append({"type": "signature_delta", "signature": signature})
        citations = block.get("citations")
        if kind == "text" and isinstance(citations, list):
            found += [{"type": "citations_delta", "citation": one} for one in citations if isinstance(one, dict)]
    if found:
        notes.note(faults.msg.BLOCK_START_EMPTY, block)
    return [(delta, {}) for delta in found]


def _shaped(delta: Json) -> Json | None:
    """A delta with its type, and its value in the right form; None where it has none."""
    kind = delta.get("type")
    if not isinstance(kind, str):
        kind = next((kind for kind, member in _MEMBERS.items() if member in delta), None)
    if kind is None:
        return None
    member = _MEMBERS.get(kind)
    if member is None:
        return {**delta, "type": kind}
    value = delta.get(member)
    if kind == "input_json_delta" and isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    if not isinstance(value, dict if kind == "citations_delta" else str):
        return None
    return {**delta, "type": kind, member: value}
