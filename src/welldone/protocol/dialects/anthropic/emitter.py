"""The one maker of a Messages stream's events: it names and numbers them, and keeps their order.

The start of the message, its blocks one after the other, why it stopped, the end.
"""

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.anthropic.objects import anthropic_error_object
from welldone.protocol.dialects.chat import escape_line_breaks
from welldone.protocol.events import Failure, Json
from welldone.protocol.lenient_json import normalise_object_text, parse_strict, scrub_object

_encode = msgspec.json.Encoder().encode
_TEXT_MARKER = "\x00text\x00"
_TEXT_MARKER_BYTES = _encode(_TEXT_MARKER)

BLOCK_TEXT_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
    "server_tool_use": ("input_json_delta", "partial_json"),
    "mcp_tool_use": ("input_json_delta", "partial_json"),
}
"""How a block's text goes on: the type of the delta, and its member."""


def encode_event(name: str, body: Json) -> bytes:
    """One named event, whose data says its name again as its type."""
    return sse.named_frame(name, escape_line_breaks(_encode({"type": name, **body})))


PING = encode_event("ping", {})


def encode_error_event(failure: Failure) -> bytes:
    """The event that ends a stream which failed."""
    return encode_event("error", anthropic_error_object(failure))


class MessagesEmitter:
    """Bytes of a right stream. A piece of text costs one string encode: all else of its event is made beforehand."""

    def __init__(self) -> None:
        self.has_started = False
        self.block: str | None = None
        """The type of the block that is open, if one is."""
        self._index = -1
        self._text_template: tuple[bytes, bytes] = (
            b"",
            b"",
        )  # an event with more of the open block's text, without that text

    def start_message(self, message: Json) -> bytes:
        """The message begins; it is empty yet."""
        self.has_started = True
        return encode_event("message_start", {"message": message})

    def open_block(self, block: Json, more: Json | None = None) -> bytes:
        """A block begins; the one before it ends. `more`: unknown members of the event."""
        before = self.close_block()
        self._index += 1
        kind = self.block = str(block["type"])
        if kind in BLOCK_TEXT_DELTAS:
            delta, member = BLOCK_TEXT_DELTAS[kind]
            marked = self.add_delta({"type": delta, member: _TEXT_MARKER})
            first, _, last = marked.rpartition(_TEXT_MARKER_BYTES)
            self._text_template = first, last
        return before + encode_event(
            "content_block_start", {"index": self._index, "content_block": block, **(more or {})}
        )

    def add_text(self, text: str) -> bytes:
        """More text of the open block: what is said, thought, or the JSON of a tool's input."""
        payload = _encode(text)
        before, after = self._text_template
        return before + (payload if payload.isascii() else escape_line_breaks(payload)) + after

    def add_delta(self, delta: Json, more: Json | None = None) -> bytes:
        """More of the open block, of any kind."""
        return encode_event("content_block_delta", {"index": self._index, "delta": delta, **(more or {})})

    def forward_event(self, value: Json) -> bytes:
        """An event that is not known, as it came."""
        return sse.named_frame(str(value["type"]), escape_line_breaks(_encode(value)))

    def close_block(self, more: Json | None = None) -> bytes:
        """The open block ends, if one is open."""
        if self.block is None:
            return b""
        self.block = None
        return encode_event("content_block_stop", {"index": self._index, **(more or {})})

    def end_message(self, delta: Json, usage: Json, more: Json | None = None, last: Json | None = None) -> bytes:
        """Why the message stopped, what was counted, and its end. `last`: unknown members of the last event."""
        stopped = encode_event("message_delta", {"delta": delta, "usage": usage, **(more or {})})
        return self.close_block() + stopped + encode_event("message_stop", last or {})


# A scribe that sends nothing: it keeps the message that its events make, for a client that asked for no stream.


class MessagesAccumulator(MessagesEmitter):
    """The message as it grows."""

    def __init__(self) -> None:
        super().__init__()
        self.message: Json = {}
        self.dropped_calls = 0
        """How many calls have an input in which no object can be read."""
        self._content: list[Json] = []
        self._pieces: list[str] = []

    def start_message(self, message: Json) -> bytes:
        """The message begins."""
        self.has_started = True
        self.message = {**message, "content": self._content}
        return b""

    def open_block(self, block: Json, more: Json | None = None) -> bytes:
        """A block begins."""
        self.close_block()
        self.block = str(block["type"])
        self._content.append(dict(block))
        return b""

    def add_text(self, text: str) -> bytes:
        """More text of the open block."""
        self._pieces.append(text)
        return b""

    def add_delta(self, delta: Json, more: Json | None = None) -> bytes:
        """More of the open block, of any kind; one that is not known has no place in a whole message."""
        block = self._content[-1]
        match delta["type"]:
            case "citations_delta":
                if not isinstance(block.get("citations"), list):
                    block["citations"] = []
                block["citations"].append(delta["citation"])
            case "signature_delta":
                block["signature"] = delta["signature"]
            case kind if self.block in BLOCK_TEXT_DELTAS and BLOCK_TEXT_DELTAS[self.block][0] == kind:
                self._pieces.append(delta[BLOCK_TEXT_DELTAS[self.block][1]])
            case _:
                block.update({name: value for name, value in delta.items() if name != "type"})
        return b""

    def forward_event(self, value: Json) -> bytes:
        """An event that is not known has no place in a whole message."""
        return b""

    def close_block(self, more: Json | None = None) -> bytes:
        """The open block ends, if one is open."""
        text, self._pieces = "".join(self._pieces), []
        kind, self.block = self.block, None
        if kind in ("text", "thinking"):
            self._content[-1][kind] = text
        elif text.strip():
            self._end_tool_use(text)
        return b""

    def _end_tool_use(self, text: str) -> None:
        value = parse_strict(text.encode())
        given = scrub_object(value) if isinstance(value, dict) else normalise_object_text(text)
        if given is None:
            self._content.pop()
            self.dropped_calls += 1
        else:
            self._content[-1]["input"] = given

    def end_message(self, delta: Json, usage: Json, more: Json | None = None, last: Json | None = None) -> bytes:
        """Why the message stopped, and what was counted."""
        self.close_block()
        self.message = {**self.message, **delta, "usage": {**self.message["usage"], **usage}, **(more or {})}
        return b""
