"""The blocks of a message, one after the other, however their server mixed them.

Text and thoughts end where another block begins; what still comes of them goes on in a block of its own. The input of
a tool cannot go on elsewhere: blocks that begin before it is whole wait for it.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from welldone.wire import faults
from welldone.wire.calls import JsonEnd
from welldone.wire.dialects.messages.scribe import PIECES, Scribe
from welldone.wire.dialects.messages.shapes import CALLS, EMPTY_AT_FIRST, MEMBERS, deltas_of, emptied, shaped, typed
from welldone.wire.events import Failure, Json
from welldone.wire.failures import garbage
from welldone.wire.kept import Kept, Room, is_json
from welldone.wire.notes import Notes
from welldone.wire.unicode import Joiner, scrub_object

_HELD_BYTES = 16 * 1024 * 1024  # of blocks that wait for another: as much as one frame may have
_WAITING = 128  # blocks that wait: as many calls as OpenAI's clients allow
_PIECE_BYTES = 256  # what a piece that waits costs in memory besides its text
_BLOCKS = {
    "text_delta": frozenset({"text"}),
    "citations_delta": frozenset({"text"}),
    "thinking_delta": frozenset({"thinking"}),
    "signature_delta": frozenset({"thinking"}),
    "input_json_delta": CALLS,
}
"""The blocks that a delta can be of."""


class _Block:
    """One block as far as it was heard."""

    def __init__(self, index: int | None, start: Json, more: Json, room: Room) -> None:
        self.index = index  # as its server counts
        self.kind: str = start["type"]
        is_emptied = self.kind in EMPTY_AT_FIRST
        self.given: Json | str = start["input"] if is_emptied else {}  # input that its start told
        self.start = {**start, "input": {}} if is_emptied else start
        self.more = more
        self.waiting: list[tuple[Json, Json]] = []
        self.is_stopped = False
        self.has_input = False
        self._end = JsonEnd()
        self._input = Kept(room)
        self._joiner = Joiner()  # of characters that come in halves

    @property
    def is_whole(self) -> bool:
        """Whether nothing can follow that may not stand in another block."""
        return self.is_stopped or self.kind not in CALLS or self._end.is_whole

    @property
    def is_broken(self) -> bool:
        """Whether it has an input that is no JSON object. Asked once."""
        return self.has_input and self._input.is_broken(is_object=True)

    def takes(self, delta: Json) -> bool:
        """Whether a delta can be of this block; of a block that we do not know, one that we do not know can."""
        kinds = _BLOCKS.get(delta["type"])
        return self.kind not in PIECES if kinds is None else self.kind in kinds

    def hear(self, delta: Json) -> Json:
        """A delta with whole characters only. Of a call's input, look at it, to know when it is whole."""
        kind, member = PIECES.get(self.kind, ("", ""))
        if delta["type"] != kind:
            return delta
        piece = self._joiner.feed(delta[member])
        if piece and self.kind in CALLS:
            self.has_input = True
            self._end.feed(piece)
            self._input.add(piece)
        return delta if piece == delta[member] else {**delta, member: piece}

    def rest(self) -> str:
        """What is left at the end: a half of a character that never found its other one."""
        return self._joiner.close()


class Blocks:
    """Hands blocks to a scribe, each in its turn. `mint` makes ids of tools."""

    def __init__(self, scribe: Scribe, notes: Notes, mint: Callable[[], str]) -> None:
        self.failure: Failure | None = None
        """Why the message cannot go on, where it cannot."""
        self.is_called = False
        """Whether there is a tool for the client to run."""
        self.broken = 0
        """How many tools have an input that is no JSON object."""
        self._scribe = scribe
        self._notes = notes
        self._mint = mint
        self._room = Room()
        self._current: _Block | None = None
        self._waiting: deque[_Block] = deque()
        self._held_bytes = 0
        self._count = 0
        self._told = 0  # of them, those that the start of the message had; not all servers count these
        self._ended: dict[int, bool] = {}  # the numbers of blocks that have ended, and whether their server said so
        self._ids: set[str] = set()

    def start(self, index: object, block: Json, more: Json) -> bytes:
        """A block begins."""
        number = _number(index)
        full = typed(block)
        if full != block:
            self._notes.note(faults.msg.BLOCK_START_FULL, block)
        if full is None:
            return b""  # its deltas will tell what it is
        deltas = deltas_of(full)
        twin = next((one for one in self._live() if one.index == number and _is_same(one.start, full)), None)
        if twin is not None:
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, index)
            return self._add_all(twin, deltas)
        if number not in (self._count, self._count - self._told):
            self._notes.note(faults.msg.BLOCK_INDEX, index)
        if deltas or (full["type"] in EMPTY_AT_FIRST and full["input"]):
            self._notes.note(faults.msg.BLOCK_START_EMPTY, block)
        if full["type"] in CALLS and not self._name(full):
            return b""
        return self._begin(_Block(number, emptied(full), more, self._room), deltas)

    def tell(self, content: list[object]) -> bytes:
        """Whole blocks, one after the other. What a stream must do is not asked of them."""
        notes, self._notes = self._notes, Notes()
        blocks = [scrub_object(block) for block in content if isinstance(block, dict)]
        out = [self.start(self._count, block, {}) + self.stop(self._count - 1, {}) for block in blocks]
        self._notes = notes
        self._told = self._count
        return b"".join(out)

    def delta(self, index: object, delta: Json, more: Json) -> bytes:
        """More of a block."""
        added = shaped(delta)
        if added != delta:
            self._notes.note(faults.msg.DELTA_TYPE, delta)
        if added is None:
            return b""
        number = _number(index)
        target = self._target(number, added)
        if target is None:
            return self._begin_by(number, added, more)
        if target.index != number:
            self._notes.note(faults.msg.BLOCK_INDEX if number is None else faults.msg.BLOCK_START_FIRST, index)
        return self._add(target, added, more)

    def stop(self, index: object, more: Json) -> bytes:
        """A block ends."""
        number = _number(index)
        live = self._live()
        targets = [one for one in live if one.index == number] if number is not None else live[:1]
        if number is None:
            self._notes.note(faults.msg.BLOCK_INDEX, index)
        else:
            if not targets and self._ended.get(number, True):  # else we have ended it already
                self._notes.note(faults.msg.BLOCK_START_FIRST, index)
            self._ended[number] = True
        for target in targets:
            target.is_stopped = True
        if self._current is None or not self._current.is_stopped:
            return b""
        return self._close(more) + self._release()

    def close(self) -> bytes:
        """The message ends, and so do its blocks."""
        live = self._live()
        if any(not block.is_stopped for block in live):
            self._notes.note(faults.msg.BLOCK_STOP)
        for block in live:
            block.is_stopped = True
        return self._close({}) + self._release()

    def _live(self) -> list[_Block]:
        return [*([] if self._current is None else [self._current]), *self._waiting]

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
        if any(block.index == number for block in self._live()):
            self._notes.note(faults.msg.DELTA_TYPE, delta)
        elif number is not None and not self._ended.get(number, True):  # we have ended it, and not its server
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, delta)
        else:
            self._notes.note(faults.msg.BLOCK_START_FIRST, delta)
        if kind == "input_json_delta" and delta["partial_json"].strip():
            self.failure = garbage("the input of a tool that has no name, or has ended")
        if kind not in ("text_delta", "thinking_delta"):
            return b""  # alone it says nothing
        member = MEMBERS[kind]
        start = {"type": member, member: ""} | ({"signature": ""} if member == "thinking" else {})
        return self._begin(_Block(number, start, {}, self._room), [(delta, more)])

    def _begin(self, block: _Block, deltas: list[tuple[Json, Json]]) -> bytes:
        self._count += 1
        self.is_called |= block.kind == "tool_use"
        if block.index is not None:
            self._ended.pop(block.index, None)
        out = b""
        if self._current is not None:
            self._notes.note(faults.msg.BLOCK_SEQUENTIAL, self._current.index)
            if self._current.is_whole:
                out = self._close({}) + self._release()
        if self._current is not None:
            self._waiting.append(block)
            self._hold(block.start, block.more)
        else:
            out += self._open(block)
        return out + self._add_all(block, deltas)

    def _add_all(self, block: _Block, deltas: list[tuple[Json, Json]]) -> bytes:
        return b"".join([self._add(block, delta, more) for delta, more in deltas])

    def _add(self, block: _Block, delta: Json, more: Json) -> bytes:
        delta = block.hear(delta)
        if block is self._current:
            return self._say(block, delta, more)
        block.waiting.append((delta, more))
        self._hold(delta, more)
        return b""

    def _hold(self, *values: Json) -> None:
        self._held_bytes += _PIECE_BYTES + len(msgspec.json.encode(values))
        if self._held_bytes > _HELD_BYTES or len(self._waiting) > _WAITING:
            self.failure = garbage("blocks that are mixed beyond what can be kept")

    def _open(self, block: _Block) -> bytes:
        self._current = block
        opened = self._scribe.open(block.start, block.more)
        waiting, block.waiting = block.waiting, []
        return opened + b"".join([self._say(block, delta, more) for delta, more in waiting])

    def _say(self, block: _Block, delta: Json, more: Json) -> bytes:
        kind, member = PIECES.get(block.kind, ("", ""))
        if delta["type"] == kind and len(delta) == 2 and not more:
            return self._scribe.say(delta[member])
        return self._scribe.delta(delta, more)

    def _close(self, more: Json) -> bytes:
        """The current block ends, if there is one."""
        block, self._current = self._current, None
        if block is None:
            return b""
        if block.index is not None:
            self._ended[block.index] = block.is_stopped
        last = block.rest()
        if block.given and not block.has_input:
            last = block.given if isinstance(block.given, str) else msgspec.json.encode(block.given).decode()
            self.broken += not is_json(last, is_object=True)
        self.broken += block.is_broken
        return (self._scribe.say(last) if last else b"") + self._scribe.close(more)

    def _release(self) -> bytes:
        """Say the blocks that waited, up to one that goes on."""
        out = b""
        while self._waiting and self._current is None:
            block = self._waiting.popleft()
            out += self._open(block)
            if block.is_stopped:
                out += self._close({})
        self._held_bytes = self._held_bytes if self._waiting else 0
        return out

    def _name(self, block: Json) -> bool:
        """Whether a tool has a name; give it an id, where it has none of its own."""
        if not block["name"]:
            self.failure = garbage("a tool without a name")
            return False
        if not isinstance(block.get("id"), str) or not block["id"] or block["id"] in self._ids:
            self._notes.note(faults.msg.TOOL_IDS, block)
            block["id"] = next(id for id in iter(self._mint, None) if id not in self._ids)
        self._ids.add(block["id"])
        return True


def _number(index: object) -> int | None:
    return index if type(index) is int and index >= 0 else None


def _is_same(start: Json, other: Json) -> bool:
    """Whether two starts are of one block."""
    return start["type"] == other["type"] and start.get("id") == other.get("id")
