"""Reader of /v1/messages: makes events from the blocks of a message."""

import msgspec

from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure, Finish, Json, Reasoning, Text, ToolArguments, ToolCall
from welldone.dialects.event_sink import EventSink, finish_reason_or_failure
from welldone.dialects.messages.emitter import BLOCK_TEXT_DELTAS, MessagesEmitter

THINKING_FORMAT = "anthropic-claude-v1"
"""OpenRouter's name for the format of these reasoning details."""
_CALL_MEMBERS = frozenset({"type", "id", "name", "input"})


class MessagesEvents(MessagesEmitter, EventSink):
    """Makes events instead of bytes; all methods return no bytes.

    Blocks that only Anthropic's servers fill, such as those of hosted tools, and citations have no event.
    """

    failure: Failure | None

    def __init__(self, fallback: Envelope, endpoint: Endpoint) -> None:
        super().__init__()
        EventSink.__init__(self, fallback, endpoint)
        self._call_index = -1
        self._thinking: list[str] = []  # of the open block, which its signature covers
        self._signature = ""

    def start_message(self, message: Json, more: Json | None = None) -> bytes:
        """Read the model. The choice starts with the first block: an error before it becomes an HTTP status."""
        self.has_started = True
        self._fallback = msgspec.structs.replace(self._fallback, model=message["model"])
        return b""

    def open_block(self, block: Json, more: Json | None = None) -> bytes:
        """Start a block: a call is an event of its own."""
        self.close_block()
        self._ensure_choice()
        self.block = str(block["type"])
        if self.block == "tool_use":
            self._call_index += 1
            extra_fields = {name: value for name, value in block.items() if name not in _CALL_MEMBERS}
            self.events.append(ToolCall(0, self._call_index, block["id"], block["name"], extra_fields))
        elif self.block == "redacted_thinking":
            self._add_detail(type="reasoning.encrypted", data=block["data"], format=THINKING_FORMAT)
        return b""

    def add_text(self, text: str) -> bytes:
        """Extend the open block."""
        if not text:
            return b""
        match self.block:
            case "text":
                self.events.append(Text(0, text))
            case "thinking":
                self.events.append(Reasoning(0, text))
                self._thinking.append(text)
            case "tool_use":
                self.events.append(ToolArguments(0, self._call_index, text))
            case _:
                pass
        return b""

    def add_delta(self, delta: Json, more: Json | None = None) -> bytes:
        """Extend the open block by a delta that has unknown members, or is not text."""
        delta_type, member = BLOCK_TEXT_DELTAS.get(str(self.block), ("", ""))
        if delta["type"] == delta_type:
            self.add_text(delta[member])
        elif delta["type"] == "signature_delta":
            self._signature += delta["signature"]
        return b""

    def forward_event(self, value: Json) -> bytes:
        """Ignore an unknown event."""
        return b""

    def close_block(self, more: Json | None = None) -> bytes:
        """End the open block. A signature is sent with the text that it covers, as the server wants both back."""
        if self._signature:
            text = "".join(self._thinking)
            self._add_detail(type="reasoning.text", text=text, signature=self._signature, format=THINKING_FORMAT)
        self._thinking, self._signature, self.block = [], "", None
        return b""

    def end_message(self, delta: Json, usage: Json, more: Json | None = None, last: Json | None = None) -> bytes:
        """Finish the choice."""
        self.close_block()
        self._ensure_choice()
        reason = finish_reason_or_failure(delta["stop_reason"], self._endpoint, "stop_reason")
        if isinstance(reason, Failure):
            self.failure = reason
        else:
            self.events.append(Finish(0, reason, delta["stop_sequence"]))
        return b""
