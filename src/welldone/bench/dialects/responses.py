"""/v1/responses."""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, HeaderPairs, JsonBody, StreamTimer, split_system_prompt
from welldone.bench.dialects.events import DeltaTarget, EventStreamTimer, Json
from welldone.bench.record import BenchRecord
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Envelope

_RESPONSES_ENVELOPE = Envelope("resp_bench", 0, "bench")
_TEXT_EVENT = "response.output_text"
_REFUSAL_EVENT = "response.refusal"
_REASONING_EVENTS = ("response.reasoning_text", "response.reasoning_summary_text")
_TOOL_ITEM_EVENTS = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
    "mcp_call": "response.mcp_call_arguments",
    "code_interpreter_call": "response.code_interpreter_call_code",
}
"""Tool call items, and the events with their arguments."""
_TEXT_EVENTS = frozenset({_TEXT_EVENT, _REFUSAL_EVENT, *_REASONING_EVENTS, *_TOOL_ITEM_EVENTS.values()})
_START_EVENTS = ("response.created", "response.in_progress")
_ITEM_ADDED = "response.output_item.added"
_END_EVENTS = ("response.completed", "response.incomplete")
_FULL_TEXT_FIELDS = ("text", "refusal", "arguments", "input", "code")
"""The field with the complete text in the event that ends it."""


class ResponsesBenchDialect:
    """Builds requests and times streams of responses."""

    path = "/responses"
    preferred_fields: Mapping[str, Any] = {"store": False}
    min_max_tokens = 16  # OpenAI's minimum

    def headers(self, key: str | None) -> HeaderPairs:
        return ()

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        system, others = split_system_prompt(messages)
        body = {
            **common_fields,
            "input": [_input_item(message, position) for position, message in enumerate(others)],
            "stream": True,
        }
        if system:
            body["instructions"] = system
        return body if max_tokens is None else body | {"max_output_tokens": max_tokens}

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        return ResponsesStreamTimer(record)


def _input_item(message: JsonBody, position: int) -> JsonBody:
    """Convert a message to an input item. Servers require assistant messages as complete output items."""
    if message["role"] != "assistant":
        return message
    part = {"type": "output_text", "text": message["content"], "annotations": []}
    return {"type": "message", "id": f"msg_{position}", "status": "completed", "role": "assistant", "content": [part]}


class ResponsesStreamTimer(EventStreamTimer):
    """Times a stream of responses."""

    def __init__(self, record: BenchRecord) -> None:
        super().__init__(record)
        self._piecewise: set[str] = set()  # kinds of texts that arrive as deltas

    def _make_repairer(self) -> PassthroughRepairer:
        return ResponsesRepairer(fallback=_RESPONSES_ENVELOPE)

    def _record_event(self, value: Json, kind: str, now: float) -> DeltaTarget | None:
        stem, _, suffix = kind.rpartition(".")
        if stem in _TEXT_EVENTS:
            return self._record_text(value, stem, suffix, now)
        if kind in _START_EVENTS:
            self._on_role(now)
        elif kind == _ITEM_ADDED:
            item = value.get("item")
            if isinstance(item, dict) and item.get("type") in _TOOL_ITEM_EVENTS:
                self._on_tool_call(now)
        elif kind in _END_EVENTS:
            self._record.finish_reason = _finish_reason(value.get("response"), suffix)
        return None

    def _record_text(self, value: Json, stem: str, suffix: str, now: float) -> DeltaTarget | None:
        if suffix == "delta":
            text = value.get("delta")
            self._piecewise.add(stem)
        else:  # the complete text: some servers send no deltas
            text = (
                None
                if stem in self._piecewise
                else next((value[name] for name in _FULL_TEXT_FIELDS if name in value), None)
            )
        if not isinstance(text, str) or not text:
            return None
        into = self.hidden_texts
        if stem == _TEXT_EVENT:
            into = self.texts
            self._on_text(text, now)
        elif stem == _REFUSAL_EVENT:
            self._on_refusal(text, now)
        elif stem in _REASONING_EVENTS:
            self._on_reasoning(text, now)
        else:
            self._on_tool_call(now)
            self._on_hidden_text(text, now)
        return DeltaTarget(("delta",), into) if suffix == "delta" else None


def _finish_reason(response: object, status: str) -> str:
    """Return why the answer ended, as the server reports it."""
    match response:
        case {"incomplete_details": {"reason": str(reason)}}:
            return reason[:MAX_MESSAGE_CHARS]
        case _:
            return status
