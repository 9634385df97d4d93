"""/v1/messages, Anthropic's API."""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.alike import Json
from welldone.bench.dialects.dialect import Body, Headers, apart
from welldone.bench.dialects.ear import SHOWN, Ear
from welldone.bench.dialects.native import More, NativeEar
from welldone.bench.record import Record
from welldone.wire.dialects.messages import MessagesNative
from welldone.wire.dialects.messages.objects import VERSION, VERSION_HEADER
from welldone.wire.head import Head
from welldone.wire.native import Native

_NOBODY = Head("msg_bench", 0, "bench")
_VERSION = (VERSION_HEADER, VERSION)
_MEMBERS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


class Messages:
    """How messages are asked for and heard."""

    path = "/messages"
    wanted: Mapping[str, Any] = {}
    least_tokens = 1

    def headers(self, key: str | None) -> Headers:
        return (_VERSION,) if key is None else (_VERSION, ("x-api-key", key))

    def body(self, members: Body, messages: list[Body], limit_tokens: int | None) -> Body:
        system, others = apart(messages)
        body = {**members, "messages": others, "stream": True}
        if system:
            body["system"] = system
        return body if limit_tokens is None else body | {"max_tokens": limit_tokens}

    def ear(self, record: Record, body: Body) -> Ear:
        return MessagesEar(record)


class MessagesEar(NativeEar):
    """Hears one stream of messages."""

    def _mender(self) -> Native:
        return MessagesNative(fallback=_NOBODY)

    def _hear(self, value: Json, kind: str, now: float) -> More | None:
        delta = value.get("delta")
        if kind == "content_block_delta":
            return self._hear_delta(delta, now)
        if kind == "content_block_start":
            self._hear_start(value.get("content_block"), now)
        elif kind == "message_start":
            self._open(now)
        elif kind == "message_delta" and isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self._record.finish = delta["stop_reason"][:SHOWN]
        return None

    def _hear_delta(self, delta: object, now: float) -> More | None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        member = _MEMBERS.get(kind) if isinstance(kind, str) else None
        text = delta.get(member) if isinstance(delta, dict) and member is not None else None
        if not isinstance(text, str) or not text or member is None:
            return None
        self._hear_text(member, text, now)
        return More(("delta", member), self.texts if member == "text" else self.unseen)

    def _hear_start(self, block: object, now: float) -> None:
        """A block that begins; some say all of it here."""
        match block:
            case {"type": "text", "text": str(text)} if text:
                self._hear_text("text", text, now)
            case {"type": "thinking", "thinking": str(text)} if text:
                self._hear_text("thinking", text, now)
            case {"type": kind} if kind in _CALLS:
                self._call(now)
            case _:
                pass  # blocks that are empty yet, or no words

    def _hear_text(self, member: str, text: str, now: float) -> None:
        if member == "text":
            self._say(text, now)
        elif member == "thinking":
            self._think(text, now)
        else:
            self._call(now)
            self._mutter(text, now)
