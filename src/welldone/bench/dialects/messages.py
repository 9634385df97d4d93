"""/v1/messages, Anthropic's API."""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, HeaderPairs, JsonBody, StreamTimer, split_system_prompt
from welldone.bench.dialects.events import DeltaTarget, EventStreamTimer, Json
from welldone.bench.record import BenchRecord
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Envelope

_MESSAGES_ENVELOPE = Envelope("msg_bench", 0, "bench")
_ANTHROPIC_VERSION_HEADER = (ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION)
_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_TOOL_BLOCK_TYPES = ("tool_use", "server_tool_use", "mcp_tool_use")


class MessagesBenchDialect:
    """Builds requests and times streams of messages."""

    path = "/messages"
    preferred_fields: Mapping[str, Any] = {}
    min_max_tokens = 1

    def headers(self, key: str | None) -> HeaderPairs:
        return (_ANTHROPIC_VERSION_HEADER,) if key is None else (_ANTHROPIC_VERSION_HEADER, ("x-api-key", key))

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        system, others = split_system_prompt(messages)
        body = {**common_fields, "messages": others, "stream": True}
        if system:
            body["system"] = system
        return body if max_tokens is None else body | {"max_tokens": max_tokens}

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        return MessagesStreamTimer(record)


class MessagesStreamTimer(EventStreamTimer):
    """Times a stream of messages."""

    def _make_repairer(self) -> PassthroughRepairer:
        return MessagesRepairer(fallback=_MESSAGES_ENVELOPE)

    def _record_event(self, value: Json, kind: str, now: float) -> DeltaTarget | None:
        delta = value.get("delta")
        if kind == "content_block_delta":
            return self._record_delta(delta, now)
        if kind == "content_block_start":
            self._record_block_start(value.get("content_block"), now)
        elif kind == "message_start":
            self._on_role(now)
        elif kind == "message_delta" and isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self._record.finish_reason = delta["stop_reason"][:MAX_MESSAGE_CHARS]
        return None

    def _record_delta(self, delta: object, now: float) -> DeltaTarget | None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        member = _DELTA_FIELDS.get(kind) if isinstance(kind, str) else None
        text = delta.get(member) if isinstance(delta, dict) and member is not None else None
        if not isinstance(text, str) or not text or member is None:
            return None
        self._record_text(member, text, now)
        return DeltaTarget(("delta", member), self.texts if member == "text" else self.hidden_texts)

    def _record_block_start(self, block: object, now: float) -> None:
        """Record the start of a block; some servers send all of its content here."""
        match block:
            case {"type": "text", "text": str(text)} if text:
                self._record_text("text", text, now)
            case {"type": "thinking", "thinking": str(text)} if text:
                self._record_text("thinking", text, now)
            case {"type": kind} if kind in _TOOL_BLOCK_TYPES:
                self._on_tool_call(now)
            case _:
                pass  # empty blocks, or blocks without text

    def _record_text(self, field: str, text: str, now: float) -> None:
        if field == "text":
            self._on_text(text, now)
        elif field == "thinking":
            self._on_reasoning(text, now)
        else:
            self._on_tool_call(now)
            self._on_hidden_text(text, now)
