"""What was heard on /v1/messages: the events of one message, and the blocks that they build.

Reading is lenient, as a judge must see past one fault to name the others: an event without an index is about the block
that began last, and what belongs to no block is kept apart.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from welldone.rules.view import stream
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.stream import StreamMessage, event_type

MESSAGE_START, MESSAGE_DELTA, MESSAGE_STOP = "message_start", "message_delta", "message_stop"
BLOCK_START, BLOCK_DELTA, BLOCK_STOP = "content_block_start", "content_block_delta", "content_block_stop"
BLOCK_EVENTS = (BLOCK_START, BLOCK_DELTA, BLOCK_STOP)
MESSAGE_EVENTS = (MESSAGE_START, *BLOCK_EVENTS, MESSAGE_DELTA, MESSAGE_STOP)
PING_EVENT, ANTHROPIC_ERROR_EVENT = "ping", "error"
ANTHROPIC_EVENT_TYPES = frozenset((*MESSAGE_EVENTS, PING_EVENT, ANTHROPIC_ERROR_EVENT))

TOOL_USE_BLOCKS = ("tool_use", "server_tool_use", "mcp_tool_use")
"""The blocks that call a tool."""
BLOCK_MEMBERS: dict[str, dict[str, type[object]]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "signature": str},
    **{call: {"name": str, "input": dict} for call in TOOL_USE_BLOCKS},
}
"""What a block must hold, by its type; what others hold is known to the server that has them."""
BLOCK_DELTAS: dict[str, dict[str, tuple[str, type[object]]]] = {
    "text": {"text_delta": ("text", str), "citations_delta": ("citation", dict)},
    "thinking": {"thinking_delta": ("thinking", str), "signature_delta": ("signature", str)},
    "tool_use": {"input_json_delta": ("partial_json", str)},
    "server_tool_use": {"input_json_delta": ("partial_json", str)},
}
"""The deltas of a block, by its type, with the member that says more of it."""
_SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution")
BLOCK_TYPES = frozenset(
    (
        *BLOCK_MEMBERS,
        "redacted_thinking",
        *(f"{tool}_tool_result" for tool in (*_SERVER_TOOLS, "tool_search", "advisor")),
        "mcp_tool_result",
        "mcp_tool_listing",
        "container_upload",
        "compaction",
        "fallback",
    )
)
"""All types of blocks that the API has."""
STOP_REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
    "compaction",
)
TRUNCATING_STOP_REASONS = ("max_tokens", "pause_turn", "refusal", "model_context_window_exceeded", "compaction")
"""Reasons after which a call may be there, or be unfinished, and is not to be run."""
ANTHROPIC_ERROR_TYPES = (
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
)


class AnthropicEvent(stream.TraceEvent, frozen=True):
    """One event."""

    @property
    def delta(self) -> dict[str, Any]:
        return as_object(self.json.get("delta"))


class AnthropicBlock:
    """One block of a message, as its events built it."""

    def __init__(self, start: AnthropicEvent) -> None:
        self.start = start
        self.deltas: list[AnthropicEvent] = []
        self.is_stopped = False

    @property
    def start_block(self) -> dict[str, Any]:
        """What the start says of it."""
        return as_object(self.start.json.get("content_block"))

    @property
    def type(self) -> str:
        return as_text(self.start_block.get("type"))

    @property
    def input_json(self) -> str:
        """The JSON of a tool's input, joined."""
        return "".join(as_text(event.delta.get("partial_json")) for event in self.deltas)


class AnthropicStreamView:
    """One stream of /v1/messages up to the event that ends it."""

    def __init__(self, stream_messages: list[StreamMessage]) -> None:
        self.all_events = [AnthropicEvent(message, event_type(message)) for message in stream_messages]
        """All events, those after the end included."""
        self.events: list[AnthropicEvent] = []
        """Those up to the end."""
        self.blocks: list[AnthropicBlock] = []
        self.misindexed: list[tuple[AnthropicEvent, int]] = []
        """Events of blocks whose index is wrong, each with the right one."""
        self.overlapping: list[AnthropicEvent] = []
        """Starts of blocks while another was open."""
        self.stray_events: list[AnthropicEvent] = []
        """Deltas and stops of blocks that were not open."""
        self._initial_blocks: list[dict[str, Any]] = []
        self._by_index: dict[int, AnthropicBlock] = {}
        self._open_blocks: list[AnthropicBlock] = []
        """Blocks as they began, the last at the end; those that have ended are taken out when they come last."""
        for event in self.all_events:
            self.events.append(event)
            if event.type in (MESSAGE_STOP, ANTHROPIC_ERROR_EVENT):
                break
            if event.type in BLOCK_EVENTS:
                self._read_block_event(event)
            elif event.type == MESSAGE_START:
                self._initial_blocks += content_blocks(as_object(event.json.get("message")))

    def of_type(self, event_type: str) -> list[AnthropicEvent]:
        """Its events of one type."""
        return [event for event in self.events if event.type == event_type]

    @property
    def stop_event(self) -> AnthropicEvent | None:
        """The message_stop, if it came."""
        last = self.events[-1] if self.events else None
        return last if last is not None and last.type == MESSAGE_STOP else None

    @cached_property
    def stop_reason(self) -> str:
        """Why the message stopped; empty where nothing was said."""
        deltas = self.of_type(MESSAGE_DELTA)
        return as_text(deltas[-1].delta.get("stop_reason")) if deltas else ""

    @property
    def content(self) -> list[dict[str, Any]]:
        """Its blocks as their starts tell them; calls that were made before stand in the start of the message."""
        return self._initial_blocks + [block.start_block for block in self.blocks]

    def _read_block_event(self, event: AnthropicEvent) -> None:
        index = event.json.get("index")
        if event.type == BLOCK_START:
            self._start_block(event, index)
            return
        if is_int(index):
            block = self._by_index.get(index)
        else:
            # Clients that do not look at the index add to the block that began last.
            block = self._last_open_block()
            self.misindexed.append((event, max(len(self.blocks) - 1, 0)))
        if block is None or block.is_stopped:
            self.stray_events.append(event)
        elif event.type == BLOCK_DELTA:
            block.deltas.append(event)
        else:
            block.is_stopped = True

    def _start_block(self, event: AnthropicEvent, index: object) -> None:
        # Calls that stand in the start of the message may be counted as well.
        if not is_int(index) or index not in (len(self.blocks), len(self.blocks) + len(self._initial_blocks)):
            self.misindexed.append((event, len(self.blocks)))
        if self._last_open_block() is not None:
            self.overlapping.append(event)
        block = AnthropicBlock(event)
        self.blocks.append(block)
        self._open_blocks.append(block)
        if is_int(index):
            self._by_index[index] = block

    def _last_open_block(self) -> AnthropicBlock | None:
        """The block that is open; if there are several, the one that began last."""
        while self._open_blocks and self._open_blocks[-1].is_stopped:
            self._open_blocks.pop()
        return self._open_blocks[-1] if self._open_blocks else None


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message."""
    return [as_object(block) for block in as_list(message.get("content"))]


def missing_members(value: dict[str, Any], members: Mapping[str, type[object]]) -> list[str]:
    """The members that are missing, or of another kind."""
    return [name for name, kind in members.items() if not isinstance(value.get(name), kind)]
