"""Encoder of Messages events: message_start, content blocks in sequence, message_delta, message_stop.

`MessagesEmitter` writes a stream, `MessagesAccumulator` builds the message for a non-streamed reply.
"""

import msgspec

from welldone.core import sse
from welldone.core.answer_format import TEXT_MARKER, Affixes, encode_text, escape_line_breaks, split_at_marker
from welldone.core.events import Failure, Json
from welldone.core.lenient_json import normalise_object_text, parse_strict, scrub_object
from welldone.dialects.messages.objects import anthropic_error_object

_encode = msgspec.json.Encoder().encode

TOOL_USE_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose input is streamed as JSON."""
BLOCK_TEXT_DELTAS: dict[str, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    **dict.fromkeys(TOOL_USE_BLOCKS, ("input_json_delta", "partial_json")),
}
"""Delta type and member that extend the text of a block, by block type."""


def encode_event(name: str, body: Json) -> bytes:
    """Encode an event; its data repeats the name as `type`."""
    return sse.named_frame(name, escape_line_breaks(_encode({"type": name, **body})))


PING = encode_event("ping", {})


def encode_error_event(failure: Failure) -> bytes:
    """Encode the event that ends a failed stream."""
    return encode_event("error", anthropic_error_object(failure))


class MessagesEmitter:
    """Writes the events of one message. Text deltas come from a template: only the text itself is encoded."""

    def __init__(self) -> None:
        self.has_started: bool = False
        self.block: str | None = None
        """Type of the open block."""
        self._index = -1
        self.text_affixes: Affixes = b"", b""
        """A text delta of the open block, before and after the text."""

    def start_message(self, message: Json, more: Json | None = None) -> bytes:
        """Start the message; its content is empty. `more` has unknown members of the event."""
        self.has_started = True
        return self._write("message_start", {"message": message, **(more or {})})

    def open_block(self, block: Json, more: Json | None = None) -> bytes:
        """Start a block and end the previous one. `more` has unknown members of the event."""
        closed = self.close_block()
        self._index += 1
        block_type = self.block = str(block["type"])
        if block_type in BLOCK_TEXT_DELTAS:
            delta, member = BLOCK_TEXT_DELTAS[block_type]
            body = {"index": self._index, "delta": {"type": delta, member: TEXT_MARKER}}
            self.text_affixes = split_at_marker(encode_event("content_block_delta", body))
        start = {"index": self._index, "content_block": block, **(more or {})}
        return closed + self._write("content_block_start", start)

    def add_text(self, text: str) -> bytes:
        """Extend the open block: its text, thinking, or the JSON of its tool input."""
        return encode_text(self.text_affixes, text)

    def add_delta(self, delta: Json, more: Json | None = None) -> bytes:
        """Write a delta of the open block."""
        return self._write("content_block_delta", {"index": self._index, "delta": delta, **(more or {})})

    def forward_event(self, value: Json) -> bytes:
        """Write an unknown event unchanged."""
        return sse.named_frame(str(value["type"]), escape_line_breaks(_encode(value)))

    def close_block(self, more: Json | None = None) -> bytes:
        """End the open block, if any."""
        if self.block is None:
            return b""
        self.block = None
        return self._write("content_block_stop", {"index": self._index, **(more or {})})

    def end_message(self, delta: Json, usage: Json, more: Json | None = None, last: Json | None = None) -> bytes:
        """Write message_delta with its unknown members `more`, and message_stop with `last`."""
        closed = self.close_block() + self._write("message_delta", {"delta": delta, "usage": usage, **(more or {})})
        return closed + self._write("message_stop", last or {})

    def _write(self, name: str, body: Json) -> bytes:
        return encode_event(name, body)


class MessagesAccumulator(MessagesEmitter):
    """Builds the message instead of writing events; all methods return no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.message: Json = {}
        self.dropped_calls: int = 0
        """Number of tool calls removed because their input is not an object."""
        self._texts: list[str] = []

    def add_text(self, text: str) -> bytes:
        """Extend the open block."""
        self._texts.append(text)
        return b""

    def forward_event(self, value: Json) -> bytes:
        """Ignore an unknown event."""
        return b""

    def _write(self, name: str, body: Json) -> bytes:
        match name:
            case "message_start":
                self.message = {**body["message"], "content": []}
            case "content_block_start":
                self.message["content"].append(dict(body["content_block"]))
            case "content_block_delta":
                self._apply_delta(self.message["content"][-1], body["delta"])
            case "content_block_stop":
                self._end_block(self.message["content"])
            case "message_delta":
                delta, usage = body.pop("delta"), body.pop("usage")
                self.message |= delta | {"usage": self.message["usage"] | usage} | body
            case _:
                pass  # message_stop
        return b""

    def _apply_delta(self, block: Json, delta: Json) -> None:
        match delta["type"]:
            case "citations_delta":
                if not isinstance(block.get("citations"), list):
                    block["citations"] = []
                block["citations"].append(delta["citation"])
            case "signature_delta":
                block["signature"] = delta["signature"]
            case delta_type if BLOCK_TEXT_DELTAS.get(block["type"], ("", ""))[0] == delta_type:
                self._texts.append(delta[BLOCK_TEXT_DELTAS[block["type"]][1]])
            case _:
                block.update({name: value for name, value in delta.items() if name != "type"})

    def _end_block(self, content: list[Json]) -> None:
        text, self._texts = "".join(self._texts), []
        block_type = content[-1]["type"]
        if block_type in ("text", "thinking"):
            content[-1][block_type] = text
        elif text.strip():
            value = parse_strict(text.encode())
            tool_input = scrub_object(value) if isinstance(value, dict) else normalise_object_text(text)
            if tool_input is None:
                content.pop()
                self.dropped_calls += 1
            else:
                content[-1]["input"] = tool_input
