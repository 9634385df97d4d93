"""Reader of /v1/responses: makes events from the items of a Response."""

from collections import deque

import msgspec

from welldone.core import events as ev
from welldone.core import fields
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure, Json
from welldone.core.repair_log import RepairLog
from welldone.dialects.event_sink import EventSink, finish_reason_or_failure
from welldone.dialects.responses import emitter as em
from welldone.dialects.responses.emitter import OutputItem, ResponsesEmitter, TextAccumulator
from welldone.dialects.responses.objects import extra_call_members, response_object

REASONING_FORMAT = "openai-responses-v1"
"""OpenRouter's name for the format of these reasoning details."""
_PART_GAP = "\n\n"
"""Between two parts of the reasoning, which a summary has for each thought."""


class ResponsesEvents(ResponsesEmitter, EventSink):
    """Makes events instead of bytes. Items of hosted tools and annotations have no event."""

    events: list[ev.Event]
    failure: Failure | None
    envelope: Envelope | None

    def __init__(self, fallback: Envelope, endpoint: Endpoint) -> None:
        super().__init__(response_object(fallback, {}), is_silent=True)
        EventSink.__init__(self, fallback, endpoint)
        self._call_indices: dict[TextAccumulator, int] = {}
        self._open_part: TextAccumulator | None = None  # the part whose text is sent
        self._waiting: deque[TextAccumulator] = deque()  # parts with text that is sent after it
        self._reasoning: TextAccumulator | None = None  # the last part with reasoning

    def keep_alive(self, *, is_event: bool = False) -> None:
        """Make a keep-alive."""
        self.events.append(ev.KeepAlive())

    def open_item(self, value: Json, others: Json | None = None) -> OutputItem:
        """Start an item: a call is an event of its own."""
        self._ensure_choice()
        item = super().open_item(value, others)
        if item.kind in em.CLIENT_TOOL_CALLS and item.arguments is not None:
            index = self._call_indices[item.arguments] = len(self._call_indices)
            is_custom = item.kind == "custom_tool_call"
            event = ev.ToolCall(0, index, value["call_id"], value["name"], extra_call_members(value), is_custom)
            self.events.append(event)
        return item

    def encode_delta(self, accumulator: TextAccumulator, text: str) -> bytes:
        """Make the event of a text delta."""
        super().encode_delta(accumulator, text)
        if text and self._is_next(accumulator):
            self._add_event(accumulator, text)
        return b""

    def add_text(self, accumulator: TextAccumulator, text: str, others: Json | None = None) -> None:
        """Make the events of a text delta with its log probabilities."""
        logprobs = (others or {}).get("logprobs")
        if logprobs and text and accumulator.kind == "output_text" and self._is_next(accumulator):
            # Of chat's members, those of Responses may lack `bytes`, which is no mistake.
            value = fields.read_chat_logprobs({"content": logprobs, "refusal": None}, RepairLog())
            self.events += [] if value is None else [ev.Logprobs(0, value)]
        self.encode_delta(accumulator, text)

    def close_part(self, text_part: TextAccumulator, value: Json | None = None, others: Json | None = None) -> None:
        """End a part, and add the text of those that wait for it."""
        super().close_part(text_part, value, others)
        while self._waiting and (self._open_part is None or not self._open_part.is_part_open):
            self._open_part = self._waiting.popleft()
            self._add_event(self._open_part, self._open_part.text)

    def _is_next(self, accumulator: TextAccumulator) -> bool:
        """Whether a text can be sent: a choice has one text, so parts that are open at once follow each other."""
        if accumulator.kind not in em.PART_TEXTS or accumulator is self._open_part:
            return True
        if self._open_part is None or not self._open_part.is_part_open:
            self._open_part = accumulator
            return True
        if accumulator not in self._waiting:
            self._waiting.append(accumulator)
        return False

    def close_item(self, item: OutputItem, status: str, value: Json | None = None, others: Json | None = None) -> None:
        """End an item. Encrypted reasoning is kept for the next request."""
        super().close_item(item, status, value, others)
        encrypted = item.value.get("encrypted_content")
        if item.kind == "reasoning" and isinstance(encrypted, str) and encrypted:
            self._add_detail(type="reasoning.encrypted", data=encrypted, id=item.id, format=REASONING_FORMAT)

    def end_response(self, status: str, changes: Json, others: Json | None = None) -> Json:
        """Finish the choice, unless the Response has failed."""
        final = super().end_response(status, changes, others)
        reason: str | Failure = "tool_calls" if self._call_indices else "stop"
        if status == "incomplete":
            word, field = changes["incomplete_details"]["reason"], "incomplete_details.reason"
            reason = finish_reason_or_failure(word, self._endpoint, field)
        if isinstance(reason, Failure):
            self.failure = reason
        elif status != "failed":
            self._ensure_choice()
            self.events.append(ev.Finish(0, reason))
        return final

    def _ensure_choice(self, index: int = 0) -> None:
        if self.envelope is None:
            self.envelope = msgspec.structs.replace(self._fallback, model=self.response["model"])
        super()._ensure_choice(index)

    def _add_event(self, accumulator: TextAccumulator, text: str) -> None:
        match accumulator.kind:
            case "output_text":
                self.events.append(ev.Text(0, text))
            case "refusal":
                self.events.append(ev.Refusal(0, text))
            case "reasoning_text" | "summary_text":
                self._add_reasoning(accumulator, text)
            case "function_call" | "custom_tool_call" as text_type:
                index = self._call_indices[accumulator]
                self.events.append(ev.ToolArguments(0, index, text, {}, text_type == "custom_tool_call"))
            case _:
                pass

    def _add_reasoning(self, accumulator: TextAccumulator, text: str) -> None:
        """Add reasoning. Of an item with both a text and a summary of it, what comes first is used."""
        before, item = self._reasoning, accumulator.address["item_id"]
        is_other = before is not None and before is not accumulator
        if before is not None and before.address["item_id"] == item and before.kind != accumulator.kind:
            return
        self._reasoning = accumulator
        self.events.append(ev.Reasoning(0, _PART_GAP + text if is_other else text))
