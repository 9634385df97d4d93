"""/v1/responses."""

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, BenchDialect, JsonBody, OutputKind
from welldone.bench.dialects.events import EventStreamTimer, Json
from welldone.bench.record import BenchRecord
from welldone.protocol.dialects.responses.emitter import CALL_TEXTS
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.envelope import Envelope

_TEXT_EVENTS: dict[str, OutputKind] = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning",
    "response.reasoning_summary_text": "reasoning",
    **{spec.event_prefix: "tool" for spec in CALL_TEXTS.values()},
}
"""Events with text, without their suffix."""
_FULL_TEXT_FIELDS = ("text", "refusal", "arguments", "input", "code")
"""The field with the complete text in the event that ends it."""


class ResponsesStreamTimer(EventStreamTimer):
    """Times a stream of responses."""

    def __init__(self, record: BenchRecord) -> None:
        super().__init__(record, ResponsesRepairer(fallback=Envelope("resp_bench", 0, "bench")))
        self._piecewise: set[str] = set()  # kinds of texts that arrive as deltas

    def _record_event(self, value: Json, kind: str, now: float) -> None:
        stem, _, suffix = kind.rpartition(".")
        if stem in _TEXT_EVENTS:
            self._record_text(value, stem, suffix, now)
        elif kind in ("response.created", "response.in_progress"):
            self._on_output("role", now)
        elif kind == "response.output_item.added":
            item = value.get("item")
            if isinstance(item, dict) and item.get("type") in CALL_TEXTS:
                self._on_output("tool", now)
        elif kind in ("response.completed", "response.incomplete"):
            self._record.finish_reason = _finish_reason(value.get("response"), suffix)

    def _record_text(self, value: Json, stem: str, suffix: str, now: float) -> None:
        text: object = None
        if suffix == "delta":
            text = value.get("delta")
            self._piecewise.add(stem)
        elif stem not in self._piecewise:  # the complete text: some servers send no deltas
            text = next((value[name] for name in _FULL_TEXT_FIELDS if name in value), None)
        if isinstance(text, str) and text:
            self._on_output(_TEXT_EVENTS[stem], now, text)


def _input_item(message: JsonBody, position: int) -> JsonBody:
    """Convert a message to an input item. Servers require assistant messages as complete output items."""
    if message["role"] != "assistant":
        return message
    part = {"type": "output_text", "text": message["content"], "annotations": []}
    return {"type": "message", "id": f"msg_{position}", "status": "completed", "role": "assistant", "content": [part]}


def _finish_reason(response: object, status: str) -> str:
    """Return why the answer ended, as the server reports it."""
    match response:
        case {"incomplete_details": {"reason": str(reason)}}:
            return reason[:MAX_MESSAGE_CHARS]
        case _:
            return status


RESPONSES = BenchDialect(
    "/responses",
    lambda record, _: ResponsesStreamTimer(record),
    messages_field="input",
    system_field="instructions",
    max_tokens_field="max_output_tokens",
    min_max_tokens=16,  # OpenAI's minimum
    preferred_fields={"store": False},
    convert_message=_input_item,
)
