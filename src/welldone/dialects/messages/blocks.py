"""Sequencer of content blocks: writes one block after the other, however the server interleaves them.

Text and thinking blocks end when another block starts; later deltas of them open a new block. Tool input cannot be
split over blocks: blocks that start before it is complete are queued.
"""

import re
from collections import deque
from collections.abc import Callable

import msgspec

from welldone.core.events import Failure, Json
from welldone.core.fields import bad_stream_failure, broken_rule_failure
from welldone.core.lenient_json import NOT_JSON, CharacterJoiner, as_object, parse_strict, scrub_object
from welldone.core.repair_log import RepairLog, format_json
from welldone.core.text_filters import BufferedText, ByteBudget, is_valid_json
from welldone.core.tool_calls import JsonEndDetector
from welldone.dialects.messages.emitter import BLOCK_TEXT_DELTAS, TOOL_USE_BLOCKS, MessagesEmitter
from welldone.dialects.same_dialect import has_content

STREAMED_INPUT_BLOCKS = TOOL_USE_BLOCKS - {"mcp_tool_use"}
"""Blocks whose input deltas all clients read; for the others some clients read only the start."""
_DELTAS = {
    "text_delta": ("text", {"text"}),
    "citations_delta": ("citation", {"text"}),
    "thinking_delta": ("thinking", {"thinking"}),
    "signature_delta": ("signature", {"thinking"}),
    "input_json_delta": ("partial_json", TOOL_USE_BLOCKS),
}
"""Payload member of a delta, and the block types that it can extend, by delta type."""
_TYPE_DEFINING_MEMBERS = {"text": "text", "thinking": "thinking", "tool_use": "name"}
"""Member that identifies the type of a block without `type`."""
_START_RULE = "msg-block-start-full"
_STRING_MEMBERS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def complete_block(block: Json, repair_log: RepairLog) -> Json | None:
    """Add the missing members of a block; None if its type is unknown."""
    block_type = block.get("type")
    if not isinstance(block_type, str) or not block_type:
        block_type = next((name for name, member in _TYPE_DEFINING_MEMBERS.items() if member in block), None)
        if block_type is None:
            repair_log.drop(_START_RULE, block)
            return None
    full = {**block, "type": block_type}
    if block_type in TOOL_USE_BLOCKS:
        name, tool_input = block.get("name"), _initial_input(block.get("input"), block_type, repair_log)
        return full | {"name": name if isinstance(name, str) else "", "input": tool_input}
    for member in _STRING_MEMBERS.get(block_type, ()):
        if not isinstance(block.get(member), str):
            repair_log.drop(_START_RULE, block.get(member))
            full[member] = ""
    return full


def _initial_input(value: object, block_type: str, repair_log: RepairLog) -> Json | str:
    """Return the input in a start. Incomplete text stays text if it can be sent as a delta."""
    text = bytes(value).decode() if isinstance(value, msgspec.Raw) else value
    if isinstance(text, str):
        parsed = parse_strict(text.encode())
        if block_type in STREAMED_INPUT_BLOCKS and not isinstance(parsed, dict):
            return text.strip()
        text = text if parsed is NOT_JSON else parsed
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    if not isinstance(text, dict):
        _drop_input(text, _START_RULE, repair_log)
    return as_object(text)


_NO_INPUT = re.compile(r'(?:"(?:[^"\\]|\\.)*+":|"\s*"|null|false|0|[\[\]{},])*+')


def _drop_input(value: object, rule: str, repair_log: RepairLog) -> None:
    """Drop tool input. All its values are content, under any name."""
    text = value if isinstance(value, str) else format_json(value)
    repair_log.drop(rule, None if _NO_INPUT.fullmatch(text) else text)


def initial_deltas(block: Json, repair_log: RepairLog) -> list[tuple[Json, Json]]:
    """Convert the content of a start to deltas: some clients read only deltas."""
    deltas: list[Json] = []
    if block["type"] == "text":
        citations = repair_log.read_objects(block.get("citations") or [], _START_RULE)
        deltas = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in citations]
    elif block["type"] == "thinking":
        deltas = [{"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature") if block[name]]
    return [(delta, {}) for delta in deltas]


def without_content(block: Json) -> Json:
    """Empty a start. A tool call keeps its input, which deltas may or may not repeat."""
    if block["type"] == "text":
        return block | {"text": ""} | ({"citations": []} if isinstance(block.get("citations"), list) else {})
    return block | {"thinking": "", "signature": ""} if block["type"] == "thinking" else block


def normalise_delta(delta: Json) -> Json | None:
    """Add the type of a delta and normalise its payload; None if it has none."""
    delta_type = delta.get("type")
    if not isinstance(delta_type, str):
        delta_type = next((name for name, (member, _) in _DELTAS.items() if member in delta), None)
        if delta_type is None:
            return None
    if delta_type not in _DELTAS:
        return delta
    member = _DELTAS[delta_type][0]
    value = delta.get(member)
    if delta_type == "input_json_delta" and isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    is_valid = isinstance(value, dict if delta_type == "citations_delta" else str)
    return {**delta, "type": delta_type, member: value} if is_valid else None


_MAX_QUEUED_BYTES = 16 * 1024 * 1024  # the limit of one frame
_MAX_QUEUED_BLOCKS = 128  # OpenAI's limit for tools
_QUEUED_DELTA_OVERHEAD_BYTES = 256  # memory per queued delta besides its text


class _BlockState:
    """A block and the input received for it."""

    def __init__(self, index: int | None, start: Json, more: Json, room: ByteBudget) -> None:
        self.index = index  # as numbered by the server
        self.kind: str = start["type"]
        is_emptied = self.kind in STREAMED_INPUT_BLOCKS
        self.initial_input: Json | str = start["input"] if is_emptied else {}
        self.start = {**start, "input": {}} if is_emptied else start
        self.more = more
        self.queued_deltas: list[tuple[Json, Json]] = []
        self.is_stopped = False
        self.has_input = False
        self._end = JsonEndDetector()
        self.input = BufferedText(room)
        self.joiner = CharacterJoiner()  # of surrogate pairs split over deltas
        self.start_text = ""  # text of the start, as long as the deltas may repeat it
        self.repeated = 0  # characters of `start_text` that they have repeated
        self.start_signature: object = None  # the same of the signature

    @property
    def is_complete(self) -> bool:
        """Whether later deltas can go to another block."""
        return self.is_stopped or self.kind not in TOOL_USE_BLOCKS or self._end.is_complete

    def accepts(self, delta: Json) -> bool:
        """Whether a delta can extend this block. An unknown delta can extend an unknown block."""
        if delta["type"] not in _DELTAS:
            return self.kind not in BLOCK_TEXT_DELTAS
        return self.kind in _DELTAS[delta["type"]][1]

    def receive_delta(self, delta: Json) -> Json:
        """Join split characters in a delta, drop repeated text, and track whether tool input is complete."""
        delta_type, member = BLOCK_TEXT_DELTAS.get(self.kind, ("", ""))
        if delta["type"] != delta_type:
            return delta
        text = self.joiner.feed(delta[member])
        if self.start_text:
            text = self._without_repetition(text)
        if text and self.kind in TOOL_USE_BLOCKS:
            self.has_input = True
            self._end.feed(text)
            self.input.add(text)
        return delta if text == delta[member] else {**delta, member: text}

    def _without_repetition(self, text: str) -> str:
        """Cut what repeats the start's text from a delta; put that text back before a delta that differs."""
        size = min(len(text), len(self.start_text) - self.repeated)
        if not self.start_text.startswith(text[:size], self.repeated):
            text, self.start_text = self.start_text[: self.repeated] + text, ""
            return text
        self.repeated += size
        if self.repeated == len(self.start_text):
            self.start_text = ""
        return text[size:]


class BlockSequencer:
    """Passes blocks to an emitter, one at a time."""

    def __init__(self, emitter: MessagesEmitter, repair_log: RepairLog, next_tool_id: Callable[[], str]) -> None:
        self.failure: Failure | None = None
        """Set if the message cannot continue."""
        self.is_plain_text: bool = False
        """Whether the last event extended the open text, and did nothing else."""
        self.has_tool_use: bool = False
        """Whether there is a call of a client tool."""
        self.broken_inputs: int = 0
        """Number of tool calls whose input is not a JSON object."""
        self._emitter = emitter
        self._repair_log = repair_log
        self._next_tool_id = next_tool_id
        self._room = ByteBudget()
        self._current: _BlockState | None = None
        self._queued: deque[_BlockState] = deque()
        self._queued_bytes = 0
        self._has_answer = False
        self._count = 0
        self._initial_count = 0  # blocks in message_start, which not all servers count
        self._ended: dict[int, bool] = {}  # index of an ended block -> whether the server ended it
        self._ids: set[str] = set()

    @property
    def may_be_whole(self) -> bool:
        """Whether there is text or a call, no tool input is incomplete or broken, and no other block is open."""
        are_whole = (block.is_stopped or (block.has_input and block.is_complete) for block in self._open_blocks())
        return self._has_answer and not self.broken_inputs and all(are_whole)

    def start_block(self, index: object, block: Json, more: Json) -> bytes:
        """Start a block."""
        number = _block_index(index)
        full = complete_block(block, self._repair_log)
        self._repair_log.record_if(full != block, _START_RULE, block)
        if full is None:
            return b""  # the first delta will identify the type
        deltas = initial_deltas(full, self._repair_log)
        for open_block in self._open_blocks():
            is_same = all(open_block.start.get(name) == full.get(name) for name in ("type", "id"))
            if is_same and open_block.index == number:
                self._repair_log.record("msg-block-sequential", index)
                return self._add_deltas(open_block, deltas)
        if number not in (self._count, self._count - self._initial_count):
            self._repair_log.record("msg-block-index", index)
        if deltas or (full["type"] in STREAMED_INPUT_BLOCKS and full["input"]):
            self._repair_log.record("msg-block-start-empty", block)
        if full["type"] in TOOL_USE_BLOCKS and not self._ensure_tool_id(full):
            return b""
        block_state = _BlockState(number, without_content(full), more, self._room)
        out = self._begin_block(block_state, deltas)
        start_text: str = deltas[0][0].get(full["type"], "") if deltas else ""
        # MiniMax (cline/cline#9215) and LiteLLM (BerriAI/litellm#34433) send it again in deltas. The same digit or line
        # break twice is more likely two tokens.
        block_state.start_text = start_text if len(start_text.strip()) > 1 else ""
        block_state.start_signature = full.get("signature") or None
        return out

    def add_whole_blocks(self, content: object) -> bytes:
        """Write complete blocks. Stream rules do not apply to them, so nothing is logged."""
        repair_log, self._repair_log = self._repair_log, RepairLog()
        blocks = [scrub_object(block) for block in self._repair_log.read_objects(content, _START_RULE)]
        out = [self.start_block(self._count, block, {}) + self.stop_block(self._count - 1, {}) for block in blocks]
        self.failure = self.failure or broken_rule_failure(self._repair_log)
        self._repair_log = repair_log
        self._initial_count = self._count
        return b"".join(out)

    def add_delta(self, index: object, delta: Json, more: Json) -> bytes:
        """Extend a block."""
        added = normalise_delta(delta)
        self._repair_log.record_if(added != delta, "msg-delta-type", delta)
        if added is None:
            self._repair_log.drop("msg-delta-type", delta)
            return b""
        number = _block_index(index)
        target = self._block_for_delta(number, added)
        if target is None:
            return self._begin_with_delta(number, added, more)
        if target.index != number:
            self._repair_log.record("msg-block-index" if number is None else "msg-block-start-first", index)
        if added["type"] == "signature_delta":
            repeated, target.start_signature = target.start_signature, None
            if added["signature"] == repeated:
                return b""
        return self._add_block_delta(target, added, more)

    def stop_block(self, index: object, more: Json) -> bytes:
        """End a block."""
        number = _block_index(index)
        open_blocks = self._open_blocks()
        targets = [block for block in open_blocks if block.index == number] if number is not None else open_blocks[:1]
        if number is None:
            self._repair_log.record("msg-block-index", index)
        else:
            if not targets and self._ended.get(number, True):  # else we ended it already
                self._repair_log.record("msg-block-start-first", index)
            self._ended[number] = True
        for target in targets:
            target.is_stopped = True
        if self._current is None or not self._current.is_stopped:
            return b""
        return self._close_current(more) + self._release_queued()

    def close_all(self) -> bytes:
        """End all open blocks at the end of the message."""
        open_blocks = self._open_blocks()
        self._repair_log.record_if(any(not block.is_stopped for block in open_blocks), "msg-block-stop")
        for block in open_blocks:
            block.is_stopped = True
        return self._close_current({}) + self._release_queued()

    def _open_blocks(self) -> list[_BlockState]:
        return [*([] if self._current is None else [self._current]), *self._queued]

    def _block_for_delta(self, number: int | None, delta: Json) -> _BlockState | None:
        fitting = [block for block in self._open_blocks() if block.accepts(delta)]
        for block in fitting:
            if block.index == number and number is not None:
                return block
        # A missing index, or that of a block that the server ended, can only refer to an open block.
        is_wrong = number is None or self._ended.get(number, False)
        return fitting[-1] if fitting and is_wrong else None

    def _begin_with_delta(self, number: int | None, delta: Json, more: Json) -> bytes:
        """Start a block with a delta, after a missing start or an early end."""
        delta_type, rule = delta["type"], "msg-block-start-first"
        if any(block.index == number for block in self._open_blocks()):
            rule = "msg-delta-type"
        elif number is not None and not self._ended.get(number, True):  # we ended it, not the server
            rule = "msg-block-sequential"
        if delta_type == "input_json_delta" and delta["partial_json"].strip():
            self.failure = bad_stream_failure("the input of a tool that has no name, or has ended")
        if delta_type not in ("text_delta", "thinking_delta"):  # only these identify a block
            (self._repair_log.drop if has_content(delta) else self._repair_log.record)(rule, delta)
            return b""
        self._repair_log.record(rule, delta)
        member = _DELTAS[delta_type][0]
        start = {"type": member, member: ""} | ({"signature": ""} if member == "thinking" else {})
        return self._begin_block(_BlockState(number, start, {}, self._room), [(delta, more)])

    def _begin_block(self, block: _BlockState, deltas: list[tuple[Json, Json]]) -> bytes:
        self._count += 1
        self.has_tool_use |= block.kind == "tool_use"
        self._has_answer |= block.kind in ("text", "tool_use")
        if block.index is not None:
            self._ended.pop(block.index, None)
        out = b""
        if self._current is not None:
            self._repair_log.record("msg-block-sequential", self._current.index)
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
            self.failure = bad_stream_failure("interleaved blocks that exceed the buffer limit")

    def _open_block(self, block: _BlockState) -> bytes:
        self._current = block
        opened = self._emitter.open_block(block.start, block.more)
        queued, block.queued_deltas = block.queued_deltas, []
        return opened + b"".join([self._emit_delta(block, delta, more) for delta, more in queued])

    def _emit_delta(self, block: _BlockState, delta: Json, more: Json) -> bytes:
        delta_type, member = BLOCK_TEXT_DELTAS.get(block.kind, ("", ""))
        if delta["type"] == delta_type and len(delta) == 2 and not more:
            has_more = self._queued or block.start_text
            self.is_plain_text = delta_type != "input_json_delta" and block.joiner.is_idle and not has_more
            return self._emitter.add_text(delta[member])
        return self._emitter.add_delta(delta, more)

    def _close_current(self, more: Json) -> bytes:
        block, self._current = self._current, None
        if block is None:
            return b""
        if block.index is not None:
            self._ended[block.index] = block.is_stopped
        last = block.start_text[: block.repeated] + block.joiner.close()
        if block.has_input and block.initial_input and (text := block.input.take()) is not None:
            parsed = parse_strict(text.encode())
            self.broken_inputs += not isinstance(parsed, dict)
            if block.initial_input not in (text, parsed):  # the deltas do not repeat it, but replace it
                _drop_input(block.initial_input, "msg-block-start-empty", self._repair_log)
        if block.initial_input and not block.has_input:
            initial = block.initial_input
            last = initial if isinstance(initial, str) else msgspec.json.encode(initial).decode()
            self.broken_inputs += not is_valid_json(last, is_object=True)
        self.broken_inputs += block.has_input and block.input.take_is_invalid(is_object=True)
        return (self._emitter.add_text(last) if last else b"") + self._emitter.close_block(more)

    def _release_queued(self) -> bytes:
        """Write queued blocks, up to one that is still open."""
        out = b""
        while self._queued and self._current is None:
            block = self._queued.popleft()
            out += self._open_block(block)
            if block.is_stopped:
                out += self._close_current({})
        self._queued_bytes = self._queued_bytes if self._queued else 0
        return out

    def _ensure_tool_id(self, block: Json) -> bool:
        """Give a tool call a unique id; False (and `failure`) if it has no name."""
        if not block["name"]:
            self.failure = bad_stream_failure("a tool without a name")
            return False
        if not isinstance(block.get("id"), str) or not block["id"] or block["id"] in self._ids:
            self._repair_log.record("msg-tool-ids", block)
            block["id"] = next(id for id in iter(self._next_tool_id, None) if id not in self._ids)
        self._ids.add(block["id"])
        return True


def _block_index(index: object) -> int | None:
    return index if type(index) is int and index >= 0 else None
