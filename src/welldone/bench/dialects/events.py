"""/v1/messages and /v1/responses: streams of named events, which the repairer of the dialect reads and judges."""

from abc import abstractmethod

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, BenchDialect, JsonBody, OutputKind, StreamTimer
from welldone.bench.report import BenchRecord
from welldone.core.envelope import Envelope
from welldone.dialects.messages.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.responses.emitter import CALL_TEXTS
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.same_dialect import PassthroughRepairer


class EventStreamTimer(StreamTimer):
    """Times a stream of a dialect with a pass-through repairer."""

    def __init__(self, record: BenchRecord, repairer: PassthroughRepairer) -> None:
        super().__init__(record)
        self._repairer = repairer
        self._repairer.on_event = self._on_event
        self._repairer.on_text = self._on_text
        self._now = 0.0
        self._is_cut = False
        self._last_kind: OutputKind = "text"

    # For the dialects.

    @abstractmethod
    def _record_event(self, value: JsonBody, event_type: str, now: float) -> None:
        """Record an event."""

    @property
    def is_done(self) -> bool:
        return self._repairer.is_done and self._repairer.failure is None

    @property
    def truncation(self) -> str:
        failure = self._repairer.failure
        return failure.message[:MAX_MESSAGE_CHARS] if self._is_cut and failure is not None else ""

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._repairer.repair_log.counts())

    def feed(self, data: bytes, now: float) -> None:
        self._now = now
        self._repairer.feed(data)
        self._check_end()

    def close(self, now: float) -> None:
        self._now = now
        had_failed = self._repairer.failure is not None
        self._repairer.close()
        self._is_cut = not had_failed and self._repairer.failure is not None
        self._check_end()

    def _check_end(self) -> None:
        """Check whether the answer is complete."""
        native = self._repairer
        if native.failure is not None:
            if not self._is_cut:
                self._on_failure(native.failure.message)
        elif native.is_done and native.usage is not None:  # earlier counts do not cover the whole answer
            self._on_usage(native.usage)

    def _on_event(self, value: JsonBody, name: str) -> None:
        if not self._repairer.is_done:
            event_type = value.get("type")
            self._record_event(value, event_type if isinstance(event_type, str) else name, self._now)

    def _on_text(self, text: str) -> None:
        """Record the text of an event like the one before."""
        self._on_output(self._last_kind, self._now, text)

    def _on_output(self, output_kind: OutputKind, now: float, text: str = "") -> None:
        self._last_kind = output_kind
        super()._on_output(output_kind, now, text)


_DELTA_FIELDS: dict[str, tuple[str, OutputKind]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "reasoning"),
    "input_json_delta": ("partial_json", "tool"),
}
_TOOL_BLOCK_TYPES = ("tool_use", "server_tool_use", "mcp_tool_use")


class MessagesStreamTimer(EventStreamTimer):
    """Times a stream of messages."""

    def _record_event(self, value: JsonBody, event_type: str, now: float) -> None:
        delta = value.get("delta")
        if event_type == "content_block_delta":
            self._record_delta(delta, now)
        elif event_type == "content_block_start":
            self._record_block_start(value.get("content_block"), now)
        elif event_type == "message_start":
            self._on_output("role", now)
        elif event_type == "message_delta" and isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self._record.finish_reason = delta["stop_reason"][:MAX_MESSAGE_CHARS]

    def _record_delta(self, delta: object, now: float) -> None:
        if isinstance(delta, dict) and str(delta.get("type")) in _DELTA_FIELDS:
            member, output_kind = _DELTA_FIELDS[delta["type"]]
            text = delta.get(member)
            if isinstance(text, str) and text:
                self._on_output(output_kind, now, text)

    def _record_block_start(self, block: object, now: float) -> None:
        """Record the start of a block; some servers send all of its content here."""
        match block:
            case {"type": "text", "text": str(text)} if text:
                self._on_output("text", now, text)
            case {"type": "thinking", "thinking": str(text)} if text:
                self._on_output("reasoning", now, text)
            case {"type": block_type} if block_type in _TOOL_BLOCK_TYPES:
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

    def _record_event(self, value: JsonBody, event_type: str, now: float) -> None:
        stem, _, suffix = event_type.rpartition(".")
        if stem in _TEXT_EVENTS:
            self._record_text(value, stem, suffix, now)
        elif event_type in ("response.created", "response.in_progress"):
            self._on_output("role", now)
        elif event_type == "response.output_item.added":
            item = value.get("item")
            if isinstance(item, dict) and item.get("type") in CALL_TEXTS:
                self._on_output("tool", now)
        elif event_type in ("response.completed", "response.incomplete"):
            self._record.finish_reason = _finish_reason(value.get("response"), suffix)

    def _record_text(self, value: JsonBody, stem: str, suffix: str, now: float) -> None:
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
    content = [{"type": "output_text", "text": message["content"], "annotations": []}]
    return {"type": "message", "id": f"msg_{position}", "status": "completed", "role": "assistant", "content": content}


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
