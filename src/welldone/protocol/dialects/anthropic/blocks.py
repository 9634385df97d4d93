"""The blocks of a message, one after the other, however their server mixed them.

Text and thoughts end where another block begins; what still comes of them goes on in a block of its own. The input of
a tool cannot go on elsewhere: blocks that begin before it is whole wait for it.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from welldone.protocol import catalog
from welldone.protocol.dialects.anthropic.emitter import BLOCK_TEXT_DELTAS, MessagesEmitter
from welldone.protocol.events import Failure, Json
from welldone.protocol.fields import bad_stream_failure
from welldone.protocol.lenient_json import CharacterJoiner, as_list, as_object, parse_strict, scrub_object
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.text_filters import BufferedText, ByteBudget, is_valid_json
from welldone.protocol.tool_calls import JsonEndDetector

# The shapes of blocks and deltas, as servers send them and as they should be.


TOOL_USE_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose input comes as JSON, in pieces."""
STREAMED_INPUT_BLOCKS = TOOL_USE_BLOCKS - {"mcp_tool_use"}
"""Those whose input all clients read in pieces; of the others some read only what the start tells."""
DELTA_MEMBERS = {
    "text_delta": "text",
    "citations_delta": "citation",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""What a delta adds, by its type."""
_TYPE_DEFINING_MEMBERS = {"text": "text", "thinking": "thinking", "tool_use": "name"}
"""The member that tells the type of a block which does not say it."""
_STRING_MEMBERS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def complete_block(block: Json) -> Json | None:
    """A block with its type and that type's members; None where its type cannot be told."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        found = [name for name, member in _TYPE_DEFINING_MEMBERS.items() if member in block]
        if not found:
            return None
        kind = found[0]
    full = {**block, "type": kind}
    if kind in TOOL_USE_BLOCKS:
        name = block.get("name")
        return full | {"name": name if isinstance(name, str) else "", "input": _initial_input(block.get("input"), kind)}
    for member in _STRING_MEMBERS.get(kind, ()):
        if not isinstance(block.get(member), str):
            full[member] = ""
    return full


def _initial_input(given: object, kind: str) -> Json | str:
    """The input that a start tells. As a text it may be cut: then it is kept as text, where deltas can say it."""
    text = bytes(given).decode() if isinstance(given, msgspec.Raw) else given
    if not isinstance(text, str):
        return as_object(text)
    value = parse_strict(text.encode())
    is_text = kind in STREAMED_INPUT_BLOCKS and not isinstance(value, dict)
    return text.strip() if is_text else as_object(value)


def initial_deltas(block: Json) -> list[tuple[Json, Json]]:
    """What a start says already, as deltas: some clients read nothing else."""
    found: list[Json] = []
    if block["type"] == "text":
        cited = [one for one in as_list(block.get("citations")) if isinstance(one, dict)]
        found = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
        found += [{"type": "citations_delta", "citation": one} for one in cited]
    elif block["type"] == "thinking":
        found = [{"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature") if block[name]]
    return [(delta, {}) for delta in found]


def without_content(block: Json) -> Json:
    """A start that says nothing yet; a call keeps its input until it is known whether deltas say it again."""
    if block["type"] == "text":
        return block | {"text": ""} | ({"citations": []} if isinstance(block.get("citations"), list) else {})
    return block | {"thinking": "", "signature": ""} if block["type"] == "thinking" else block


def normalise_delta(delta: Json) -> Json | None:
    """A delta with its type, and what it adds in the right form; None where it adds nothing that can be read."""
    kind = delta.get("type")
    if not isinstance(kind, str):
        found = [kind for kind, member in DELTA_MEMBERS.items() if member in delta]
        if not found:
            return None
        kind = found[0]
    member = DELTA_MEMBERS.get(kind)
    if member is None:
        return delta
    value = delta.get(member)
    if kind == "input_json_delta" and isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    is_right = isinstance(value, dict if kind == "citations_delta" else str)
    return {**delta, "type": kind, member: value} if is_right else None


_MAX_QUEUED_BYTES = 16 * 1024 * 1024  # of blocks that wait for another: as much as one frame may have
_MAX_QUEUED_BLOCKS = 128  # blocks that wait: as many calls as OpenAI's clients allow
_QUEUED_DELTA_OVERHEAD_BYTES = 256  # what a piece that waits costs in memory besides its text
_BLOCK_TYPES_BY_DELTA = {
    "text_delta": frozenset({"text"}),
    "citations_delta": frozenset({"text"}),
    "thinking_delta": frozenset({"thinking"}),
    "signature_delta": frozenset({"thinking"}),
    "input_json_delta": TOOL_USE_BLOCKS,
}
"""The blocks that a delta can be of."""


class _BlockState:
    """One block as far as it was heard."""

    def __init__(self, index: int | None, start: Json, more: Json, room: ByteBudget) -> None:
        self.index = index  # as its server counts
        self.kind: str = start["type"]
        is_emptied = self.kind in STREAMED_INPUT_BLOCKS
        self.initial_input: Json | str = start["input"] if is_emptied else {}  # input that its start told
        self.start = {**start, "input": {}} if is_emptied else start
        self.more = more
        self.queued_deltas: list[tuple[Json, Json]] = []
        self.is_stopped = False
        self.has_input = False
        self._end = JsonEndDetector()
        self._input = BufferedText(room)
        self._joiner = CharacterJoiner()  # of characters that come in halves

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow that may not stand in another block."""
        return self.is_stopped or self.kind not in TOOL_USE_BLOCKS or self._end.is_complete

    @property
    def is_broken(self) -> bool:
        """Whether it has an input that is no JSON object. Asked once."""
        return self.has_input and self._input.take_is_invalid(is_object=True)

    def accepts(self, delta: Json) -> bool:
        """Whether a delta can be of this block; of a block that we do not know, one that we do not know can."""
        kinds = _BLOCK_TYPES_BY_DELTA.get(delta["type"])
        return self.kind not in BLOCK_TEXT_DELTAS if kinds is None else self.kind in kinds

    def receive_delta(self, delta: Json) -> Json:
        """A delta with whole characters only. Of a call's input, look at it, to know when it is whole."""
        kind, member = BLOCK_TEXT_DELTAS.get(self.kind, ("", ""))
        if delta["type"] != kind:
            return delta
        piece = self._joiner.feed(delta[member])
        if piece and self.kind in TOOL_USE_BLOCKS:
            self.has_input = True
            self._end.feed(piece)
            self._input.add(piece)
        return delta if piece == delta[member] else {**delta, member: piece}

    def flush(self) -> str:
        """What is left at the end: a half of a character that never found its other one."""
        return self._joiner.close()


class BlockSequencer:
    """Hands blocks to a scribe, each in its turn. `mint` makes ids of tools."""

    def __init__(self, emitter: MessagesEmitter, repair_log: RepairLog, next_tool_id: Callable[[], str]) -> None:
        self.failure: Failure | None = None
        """Why the message cannot go on, where it cannot."""
        self.has_tool_use = False
        """Whether there is a tool for the client to run."""
        self.broken_inputs = 0
        """How many tools have an input that is no JSON object."""
        self._emitter = emitter
        self._repair_log = repair_log
        self._next_tool_id = next_tool_id
        self._room = ByteBudget()
        self._current: _BlockState | None = None
        self._queued: deque[_BlockState] = deque()
        self._queued_bytes = 0
        self._count = 0
        self._initial_count = 0  # of them, those that the start of the message had; not all servers count these
        self._ended: dict[int, bool] = {}  # the numbers of blocks that have ended, and whether their server said so
        self._ids: set[str] = set()

    def start_block(self, index: object, block: Json, more: Json) -> bytes:
        """A block begins."""
        number = _block_index(index)
        full = complete_block(block)
        if full != block:
            self._repair_log.record(catalog.msg.BLOCK_START_FULL, block)
        if full is None:
            return b""  # its deltas will tell what it is
        deltas = initial_deltas(full)
        twin = next(
            (one for one in self._open_blocks() if one.index == number and _is_same_block(one.start, full)), None
        )
        if twin is not None:
            self._repair_log.record(catalog.msg.BLOCK_SEQUENTIAL, index)
            return self._add_deltas(twin, deltas)
        if number not in (self._count, self._count - self._initial_count):
            self._repair_log.record(catalog.msg.BLOCK_INDEX, index)
        if deltas or (full["type"] in STREAMED_INPUT_BLOCKS and full["input"]):
            self._repair_log.record(catalog.msg.BLOCK_START_EMPTY, block)
        if full["type"] in TOOL_USE_BLOCKS and not self._ensure_tool_id(full):
            return b""
        return self._begin_block(_BlockState(number, without_content(full), more, self._room), deltas)

    def add_whole_blocks(self, content: list[object]) -> bytes:
        """Whole blocks, one after the other. What a stream must do is not asked of them."""
        notes, self._repair_log = self._repair_log, RepairLog()
        blocks = [scrub_object(block) for block in content if isinstance(block, dict)]
        out = [self.start_block(self._count, block, {}) + self.stop_block(self._count - 1, {}) for block in blocks]
        self._repair_log = notes
        self._initial_count = self._count
        return b"".join(out)

    def add_delta(self, index: object, delta: Json, more: Json) -> bytes:
        """More of a block."""
        added = normalise_delta(delta)
        if added != delta:
            self._repair_log.record(catalog.msg.DELTA_TYPE, delta)
        if added is None:
            return b""
        number = _block_index(index)
        target = self._block_for_delta(number, added)
        if target is None:
            return self._begin_with_delta(number, added, more)
        if target.index != number:
            self._repair_log.record(catalog.msg.BLOCK_INDEX if number is None else catalog.msg.BLOCK_START_FIRST, index)
        return self._add_block_delta(target, added, more)

    def stop_block(self, index: object, more: Json) -> bytes:
        """A block ends."""
        number = _block_index(index)
        live = self._open_blocks()
        targets = [one for one in live if one.index == number] if number is not None else live[:1]
        if number is None:
            self._repair_log.record(catalog.msg.BLOCK_INDEX, index)
        else:
            if not targets and self._ended.get(number, True):  # else we have ended it already
                self._repair_log.record(catalog.msg.BLOCK_START_FIRST, index)
            self._ended[number] = True
        for target in targets:
            target.is_stopped = True
        if self._current is None or not self._current.is_stopped:
            return b""
        return self._close_current(more) + self._release_queued()

    def close_all(self) -> bytes:
        """The message ends, and so do its blocks."""
        live = self._open_blocks()
        if any(not block.is_stopped for block in live):
            self._repair_log.record(catalog.msg.BLOCK_STOP)
        for block in live:
            block.is_stopped = True
        return self._close_current({}) + self._release_queued()

    def _open_blocks(self) -> list[_BlockState]:
        return [*([] if self._current is None else [self._current]), *self._queued]

    def _block_for_delta(self, number: int | None, delta: Json) -> _BlockState | None:
        """The block that a delta is of, if it has begun and not ended."""
        fitting = [block for block in self._open_blocks() if block.accepts(delta)]
        for block in fitting:
            if block.index == number and number is not None:
                return block
        # A number that is missing, or of a block whose end was said, is a mistake: it can only mean what is open.
        is_wrong = number is None or self._ended.get(number, False)
        return fitting[-1] if fitting and is_wrong else None

    def _begin_with_delta(self, number: int | None, delta: Json, more: Json) -> bytes:
        """A block begins with its first delta: its start never came, or it has ended already."""
        kind = delta["type"]
        if any(block.index == number for block in self._open_blocks()):
            self._repair_log.record(catalog.msg.DELTA_TYPE, delta)
        elif number is not None and not self._ended.get(number, True):  # we have ended it, and not its server
            self._repair_log.record(catalog.msg.BLOCK_SEQUENTIAL, delta)
        else:
            self._repair_log.record(catalog.msg.BLOCK_START_FIRST, delta)
        if kind == "input_json_delta" and delta["partial_json"].strip():
            self.failure = bad_stream_failure("the input of a tool that has no name, or has ended")
        if kind not in ("text_delta", "thinking_delta"):
            return b""  # alone it says nothing
        member = DELTA_MEMBERS[kind]
        start = {"type": member, member: ""} | ({"signature": ""} if member == "thinking" else {})
        return self._begin_block(_BlockState(number, start, {}, self._room), [(delta, more)])

    def _begin_block(self, block: _BlockState, deltas: list[tuple[Json, Json]]) -> bytes:
        self._count += 1
        self.has_tool_use |= block.kind == "tool_use"
        if block.index is not None:
            self._ended.pop(block.index, None)
        out = b""
        if self._current is not None:
            self._repair_log.record(catalog.msg.BLOCK_SEQUENTIAL, self._current.index)
            if self._current.is_complete:
                out = self._close_current({}) + self._release_queued()
        if self._current is not None:
            self._queued.append(block)
            self._count_queued(block.start, block.more)
        else:
            out += self._open_block(block)
        return out + self._add_deltas(block, deltas)

    def _add_deltas(self, block: _BlockState, deltas: list[tuple[Json, Json]]) -> bytes:
        return b"".join([self._add_block_delta(block, delta, more) for delta, more in deltas])

    def _add_block_delta(self, block: _BlockState, delta: Json, more: Json) -> bytes:
        delta = block.receive_delta(delta)
        if block is self._current:
            return self._emit_delta(block, delta, more)
        block.queued_deltas.append((delta, more))
        self._count_queued(delta, more)
        return b""

    def _count_queued(self, *values: Json) -> None:
        self._queued_bytes += _QUEUED_DELTA_OVERHEAD_BYTES + len(msgspec.json.encode(values))
        if self._queued_bytes > _MAX_QUEUED_BYTES or len(self._queued) > _MAX_QUEUED_BLOCKS:
            self.failure = bad_stream_failure("blocks that are mixed beyond what can be kept")

    def _open_block(self, block: _BlockState) -> bytes:
        self._current = block
        opened = self._emitter.open_block(block.start, block.more)
        waiting, block.queued_deltas = block.queued_deltas, []
        return opened + b"".join([self._emit_delta(block, delta, more) for delta, more in waiting])

    def _emit_delta(self, block: _BlockState, delta: Json, more: Json) -> bytes:
        kind, member = BLOCK_TEXT_DELTAS.get(block.kind, ("", ""))
        if delta["type"] == kind and len(delta) == 2 and not more:
            return self._emitter.add_text(delta[member])
        return self._emitter.add_delta(delta, more)

    def _close_current(self, more: Json) -> bytes:
        """The current block ends, if there is one."""
        block, self._current = self._current, None
        if block is None:
            return b""
        if block.index is not None:
            self._ended[block.index] = block.is_stopped
        last = block.flush()
        if block.initial_input and not block.has_input:
            last = (
                block.initial_input
                if isinstance(block.initial_input, str)
                else msgspec.json.encode(block.initial_input).decode()
            )
            self.broken_inputs += not is_valid_json(last, is_object=True)
        self.broken_inputs += block.is_broken
        return (self._emitter.add_text(last) if last else b"") + self._emitter.close_block(more)

    def _release_queued(self) -> bytes:
        """Say the blocks that waited, up to one that goes on."""
        out = b""
        while self._queued and self._current is None:
            block = self._queued.popleft()
            out += self._open_block(block)
            if block.is_stopped:
                out += self._close_current({})
        self._queued_bytes = self._queued_bytes if self._queued else 0
        return out

    def _ensure_tool_id(self, block: Json) -> bool:
        """Whether a tool has a name; give it an id, where it has none of its own."""
        if not block["name"]:
            self.failure = bad_stream_failure("a tool without a name")
            return False
        if not isinstance(block.get("id"), str) or not block["id"] or block["id"] in self._ids:
            self._repair_log.record(catalog.msg.TOOL_IDS, block)
            block["id"] = next(id for id in iter(self._next_tool_id, None) if id not in self._ids)
        self._ids.add(block["id"])
        return True


def _block_index(index: object) -> int | None:
    return index if type(index) is int and index >= 0 else None


def _is_same_block(start: Json, other: Json) -> bool:
    """Whether two starts are of one block."""
    return start["type"] == other["type"] and start.get("id") == other.get("id")
