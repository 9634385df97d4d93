"""The events of a /v1/messages stream, and the content blocks that they build.

Parsing is lenient, since a check must see past one violation to find the others: an event without an index belongs to
the last open block, and events without a block are listed separately.
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
"""Types of blocks that call a tool."""
BLOCK_MEMBERS: dict[str, dict[str, type[object]]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "signature": str},
    **{block_type: {"name": str, "input": dict} for block_type in TOOL_USE_BLOCKS},
}
"""Required members of a block by type; blocks of other types are server-specific."""
BLOCK_DELTAS: dict[str, dict[str, tuple[str, type[object]]]] = {
    "text": {"text_delta": ("text", str), "citations_delta": ("citation", dict)},
    "thinking": {"thinking_delta": ("thinking", str), "signature_delta": ("signature", str)},
    "tool_use": {"input_json_delta": ("partial_json", str)},
    "server_tool_use": {"input_json_delta": ("partial_json", str)},
}
"""Delta types by block type, each with its payload member."""
_SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution")
BLOCK_TYPES = frozenset(
    (
        *BLOCK_MEMBERS,
        *(f"{tool}_tool_result" for tool in (*_SERVER_TOOLS, "tool_search", "advisor", "mcp")),
        *("redacted_thinking", "mcp_tool_listing", "container_upload", "compaction", "fallback"),
    )
)
"""All block types of the API."""
STOP_REASONS = (
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"),
    *("model_context_window_exceeded", "compaction"),
)
TRUNCATING_STOP_REASONS = ("max_tokens", "pause_turn", "refusal", "model_context_window_exceeded", "compaction")
"""Reasons after which a tool call may be incomplete and must not be run."""
ANTHROPIC_ERROR_TYPES = (
    *("invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error"),
    *("conflict_error", "request_too_large", "rate_limit_error", "timeout_error", "api_error", "overloaded_error"),
)


class AnthropicEvent(stream.TraceEvent, frozen=True):
    """An event of /v1/messages."""

    @property
    def delta(self) -> dict[str, Any]:
        return as_object(self.json.get("delta"))


class AnthropicBlock:
    """A content block as its events build it."""

    def __init__(self, start: AnthropicEvent) -> None:
        self.start = start
        self.deltas: list[AnthropicEvent] = []
        self.is_stopped = False

    @property
    def start_block(self) -> dict[str, Any]:
        """The block in content_block_start."""
        return as_object(self.start.json.get("content_block"))

    @property
    def type(self) -> str:
        return as_text(self.start_block.get("type"))

    @property
    def input_json(self) -> str:
        """Joined JSON of the tool input."""
        return "".join(as_text(event.delta.get("partial_json")) for event in self.deltas)


class AnthropicStreamView:
    """A stream of /v1/messages. Blocks cover the events up to message_stop or an error."""

    def __init__(self, stream_messages: list[StreamMessage]) -> None:
        self.all_events: list[AnthropicEvent] = [
            AnthropicEvent(message, event_type(message)) for message in stream_messages
        ]
        """All events, including those after the end."""
        self.events: list[AnthropicEvent] = []
        """Events up to the end."""
        self.blocks: list[AnthropicBlock] = []
        self.misindexed: list[tuple[AnthropicEvent, int]] = []
        """Block events with a wrong index, each with the correct one."""
        self.overlapping: list[AnthropicEvent] = []
        """Starts of blocks while another one was open."""
        self.stray_events: list[AnthropicEvent] = []
        """Deltas and stops of blocks that are not open."""
        self._initial_blocks: list[dict[str, Any]] = []
        self._by_index: dict[int, AnthropicBlock] = {}
        self._open_blocks: list[AnthropicBlock] = []
        """Stack of started blocks; stopped ones are removed when they reach the top."""
        for event in self.all_events:
            self.events.append(event)
            if event.type in (MESSAGE_STOP, ANTHROPIC_ERROR_EVENT):
                break
            if event.type in BLOCK_EVENTS:
                self._read_block_event(event)
            elif event.type == MESSAGE_START:
                self._initial_blocks += content_blocks(as_object(event.json.get("message")))

    def of_type(self, event_type: str) -> list[AnthropicEvent]:
        """Return the events of one type."""
        return [event for event in self.events if event.type == event_type]

    @property
    def stop_event(self) -> AnthropicEvent | None:
        """The message_stop event."""
        last = self.events[-1] if self.events else None
        return last if last is not None and last.type == MESSAGE_STOP else None

    @cached_property
    def stop_reason(self) -> str:
        """Last stop reason; empty if there is none."""
        deltas = self.of_type(MESSAGE_DELTA)
        return as_text(deltas[-1].delta.get("stop_reason")) if deltas else ""

    @property
    def content(self) -> list[dict[str, Any]]:
        """Blocks as they start. Earlier tool calls are in message_start."""
        return self._initial_blocks + [block.start_block for block in self.blocks]

    def _read_block_event(self, event: AnthropicEvent) -> None:
        index = event.json.get("index")
        if event.type == BLOCK_START:
            self._start_block(event, index)
            return
        if is_int(index):
            block = self._by_index.get(index)
        else:
            # Clients that ignore the index append to the block that started last.
            block = self._last_open_block()
            self.misindexed.append((event, max(len(self.blocks) - 1, 0)))
        if block is None or block.is_stopped:
            self.stray_events.append(event)
        elif event.type == BLOCK_DELTA:
            block.deltas.append(event)
        else:
            block.is_stopped = True

    def _start_block(self, event: AnthropicEvent, index: object) -> None:
        # The index may or may not count the calls in message_start.
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
        while self._open_blocks and self._open_blocks[-1].is_stopped:
            self._open_blocks.pop()
        return self._open_blocks[-1] if self._open_blocks else None


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message."""
    return [as_object(block) for block in as_list(message.get("content"))]


def missing_members(value: dict[str, Any], members: Mapping[str, type[object]]) -> list[str]:
    """List the members that are missing or have another type."""
    return [name for name, member_type in members.items() if not isinstance(value.get(name), member_type)]
