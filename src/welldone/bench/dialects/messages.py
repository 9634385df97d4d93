"""/v1/messages, Anthropic's API."""

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, BenchDialect, OutputKind
from welldone.bench.dialects.events import EventStreamTimer, Json
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.envelope import Envelope

_DELTA_FIELDS: dict[str, tuple[str, OutputKind]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "reasoning"),
    "input_json_delta": ("partial_json", "tool"),
}
_TOOL_BLOCK_TYPES = ("tool_use", "server_tool_use", "mcp_tool_use")


class MessagesStreamTimer(EventStreamTimer):
    """Times a stream of messages."""

    def _record_event(self, value: Json, kind: str, now: float) -> None:
        delta = value.get("delta")
        if kind == "content_block_delta":
            self._record_delta(delta, now)
        elif kind == "content_block_start":
            self._record_block_start(value.get("content_block"), now)
        elif kind == "message_start":
            self._on_output("role", now)
        elif kind == "message_delta" and isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self._record.finish_reason = delta["stop_reason"][:MAX_MESSAGE_CHARS]

    def _record_delta(self, delta: object, now: float) -> None:
        if isinstance(delta, dict) and str(delta.get("type")) in _DELTA_FIELDS:
            member, kind = _DELTA_FIELDS[delta["type"]]
            text = delta.get(member)
            if isinstance(text, str) and text:
                self._on_output(kind, now, text)

    def _record_block_start(self, block: object, now: float) -> None:
        """Record the start of a block; some servers send all of its content here."""
        match block:
            case {"type": "text", "text": str(text)} if text:
                self._on_output("text", now, text)
            case {"type": "thinking", "thinking": str(text)} if text:
                self._on_output("reasoning", now, text)
            case {"type": kind} if kind in _TOOL_BLOCK_TYPES:
                self._on_output("tool", now)
            case _:
                pass  # empty blocks, or blocks without text


MESSAGES = BenchDialect(
    "/messages",
    lambda record, _: MessagesStreamTimer(record, MessagesRepairer(fallback=Envelope("msg_bench", 0, "bench"))),
    system_field="system",
    fixed_headers=((ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION),),
    key_header="x-api-key",
)
