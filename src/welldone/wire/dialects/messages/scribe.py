"""The one maker of a Messages stream's events: it names and numbers them, and keeps their order.

The start of the message, its blocks one after the other, why it stopped, the end.
"""

import msgspec

from welldone.wire import sse
from welldone.wire.dialects.messages.objects import error_object
from welldone.wire.dialects.stream import escape
from welldone.wire.events import Failure, Json

_encode = msgspec.json.Encoder().encode
_MARK = "\x00text\x00"
_MARK_BYTES = _encode(_MARK)

PIECES = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
    "server_tool_use": ("input_json_delta", "partial_json"),
    "mcp_tool_use": ("input_json_delta", "partial_json"),
}
"""How a block's text goes on: the type of the delta, and its member."""


def event(name: str, body: Json) -> bytes:
    """One named event, whose data says its name again as its type."""
    return sse.named(name, escape(_encode({"type": name, **body})))


PING = event("ping", {})


def last_words(failure: Failure) -> bytes:
    """The event that ends a stream which failed."""
    return event("error", error_object(failure))


class Scribe:
    """Bytes of a right stream. A piece of text costs one string encode: all else of its event is made beforehand."""

    def __init__(self) -> None:
        self.has_started = False
        self.block: str | None = None
        """The type of the block that is open, if one is."""
        self._index = -1
        self._piece: tuple[bytes, bytes] = b"", b""  # an event with more of the open block's text, without that text

    def start(self, message: Json) -> bytes:
        """The message begins; it is empty yet."""
        self.has_started = True
        return event("message_start", {"message": message})

    def open(self, block: Json, more: Json | None = None) -> bytes:
        """A block begins; the one before it ends. `more`: unknown members of the event."""
        before = self.close()
        self._index += 1
        kind = self.block = str(block["type"])
        if kind in PIECES:
            delta, member = PIECES[kind]
            marked = self.delta({"type": delta, member: _MARK})
            first, _, last = marked.rpartition(_MARK_BYTES)
            self._piece = first, last
        return before + event("content_block_start", {"index": self._index, "content_block": block, **(more or {})})

    def say(self, text: str) -> bytes:
        """More text of the open block: what is said, thought, or the JSON of a tool's input."""
        payload = _encode(text)
        before, after = self._piece
        return before + (payload if payload.isascii() else escape(payload)) + after

    def delta(self, delta: Json, more: Json | None = None) -> bytes:
        """More of the open block, of any kind."""
        return event("content_block_delta", {"index": self._index, "delta": delta, **(more or {})})

    def forward(self, value: Json) -> bytes:
        """An event that is not known, as it came."""
        return sse.named(str(value["type"]), escape(_encode(value)))

    def close(self, more: Json | None = None) -> bytes:
        """The open block ends, if one is open."""
        if self.block is None:
            return b""
        self.block = None
        return event("content_block_stop", {"index": self._index, **(more or {})})

    def end(self, delta: Json, usage: Json, more: Json | None = None, last: Json | None = None) -> bytes:
        """Why the message stopped, what was counted, and its end. `last`: unknown members of the last event."""
        stopped = event("message_delta", {"delta": delta, "usage": usage, **(more or {})})
        return self.close() + stopped + event("message_stop", last or {})
