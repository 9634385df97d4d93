"""A scribe that sends nothing: it keeps the message that its events make, for a client that asked for no stream."""

from welldone.wire.dialects.messages.scribe import BLOCK_TEXT_DELTAS, MessagesEmitter
from welldone.wire.events import Json
from welldone.wire.lenient import normalise_object_text, parse_strict
from welldone.wire.unicode import scrub_object


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
