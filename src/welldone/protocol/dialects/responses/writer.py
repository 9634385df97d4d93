"""Writer of /v1/responses: events of an answer as a stream and as one reply."""

from collections.abc import Callable
from typing import ClassVar, assert_never

import msgspec

from welldone.protocol import state
from welldone.protocol.collect import CollectedChoice, CollectedReply
from welldone.protocol.dialects.base import TranslatedDialect, UsageSource
from welldone.protocol.dialects.chat import escape_line_breaks
from welldone.protocol.dialects.responses.emitter import OutputItem, ResponsesEmitter, TextAccumulator, encode_event
from welldone.protocol.dialects.responses.objects import (
    Clock,
    call_item,
    completed_at,
    extra_call_members,
    message_item,
    part_object,
    reasoning_item,
    response_error_object,
    response_object,
    responses_usage_object,
    text_logprobs,
)
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceEvent,
    ChoiceStart,
    Event,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.state import StreamStateMachine

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete Response by finish reason."""


class ResponsesWriter:
    """Writes a stream of one choice; calls `on_end` with the final Response.

    With `is_summary` reasoning is sent as a summary. With `is_silent` only the Response is built. `clock` supplies
    `completed_at`; without it that is null.
    """

    def __init__(
        self,
        envelope: Envelope,
        echo: Json,
        usage_source: UsageSource,
        on_end: Callable[[Json], None],
        *,
        is_summary: bool = False,
        is_silent: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._state_machine = StreamStateMachine(state.CHAT_TRANSITIONS, is_ordered=True)
        self._emitter = ResponsesEmitter(response_object(envelope, echo), is_silent=is_silent)
        self._id_stem = envelope.id.removeprefix(ID_PREFIX[Endpoint.RESPONSES])
        self._usage_source = usage_source
        self._on_end = on_end
        self._clock = clock
        self._reasoning_part_type = "summary_text" if is_summary else "reasoning_text"
        self._item: OutputItem | None = None  # open item and part
        self._part: TextAccumulator | None = None
        self._text: TextAccumulator | None = None  # the open part, if it is text and no logprobs are pending
        self._logprobs: list[Json] = []  # of the next text
        # Text with its logprobs that is written after the open call.
        self._queued: list[tuple[Text | Reasoning | Refusal, list[Json]]] = []
        self._usage: Usage | None = None
        self._finish_reason = ""

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is sent later or not supported.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        if type(event) is Text and self._text is not None:
            return self._emitter.encode_delta(self._text, event.text)
        self._write_event(event)
        return self._emitter.drain()

    def accepts_text(self, index: int) -> bool:
        """Whether text is allowed now and would be a delta without logprobs."""
        return self._text is not None and self._state_machine.accepts_text(index)

    def end(self) -> bytes:
        """Return the terminal event, which contains the usage.

        Raises:
            EventOrderError: the choice is unfinished.
        """
        self._state_machine.end()
        if self._emitter.final_response is None:
            reason = _INCOMPLETE_REASONS.get(self._finish_reason)
            if reason is None:
                self._end_response("completed", {})
            else:
                self._end_response("incomplete", {"incomplete_details": {"reason": reason}})
        return self._emitter.drain()

    def _write_event(self, event: Event) -> None:
        match event:
            case Usage():
                self._usage = event
            case Failure():
                self._ensure_created()
                self._close_all("incomplete")
                self._end_response("failed", {"error": response_error_object(event)})
            case KeepAlive():
                self._emitter.keep_alive()
            case _:
                self._write_choice_event(event)

    def _write_choice_event(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStart():
                self._ensure_created()
            case Logprobs(value=value):
                self._logprobs += text_logprobs(value)
                self._text = None
            case Text() | Reasoning() | Refusal():
                logprobs = self._take_logprobs()
                if self._item is not None and self._item.arguments is not None:
                    self._queued.append((event, logprobs))  # more arguments of the call may follow
                else:
                    self._write_text(event, logprobs)
            case ToolCall():
                self._take_logprobs()
                self._close_all("completed")
                id = self._make_item_id("ctc" if event.is_custom else "fc")
                self._item = self._emitter.open_item(call_item(id, event))
            case ToolArguments():
                self._take_logprobs()
                self._add_arguments(event)
            case Finish(reason=reason):
                self._finish_reason = reason
                self._close_all("incomplete" if reason in _INCOMPLETE_REASONS else "completed")
            case UnknownFields():
                pass  # not supported by this dialect
            case _:
                assert_never(event)

    def _ensure_created(self) -> None:
        if not self._emitter.has_started:
            self._emitter.emit_response("response.created")
            self._emitter.emit_response("response.in_progress")

    def _end_response(self, status: str, changes: Json) -> None:
        usage = self._usage or self._usage_source()
        final = {
            "completed_at": completed_at(status, self._clock),
            "usage": None if usage is None else responses_usage_object(usage),
        }
        self._on_end(self._emitter.end_response(status, changes | final))

    def _take_logprobs(self) -> list[Json]:
        """Return and clear the pending logprobs; only text can carry them."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _write_text(self, event: Text | Reasoning | Refusal, logprobs: list[Json]) -> None:
        match event:
            case Text(text=text):
                part = self._open_part("message", "output_text")
                part.logprobs += logprobs
                self._emitter.add_text(part, text, {"logprobs": logprobs} if logprobs else None)
                self._text = part
            case Refusal(text=text):
                self._emitter.add_text(self._open_part("message", "refusal"), text)
            case Reasoning(text=text):
                self._emitter.add_text(self._open_part("reasoning", self._reasoning_part_type), text)
            case _:
                assert_never(event)

    def _open_part(self, item: str, kind: str) -> TextAccumulator:
        """Return the open part if it has this type; else close it and open another."""
        if self._part is not None:
            if self._part.kind == kind:
                return self._part
            self._close_part(self._part)
        if self._item is None or self._item.kind != item:
            self._close_item("completed")
            value = (
                message_item(self._make_item_id("msg"))
                if item == "message"
                else reasoning_item(self._make_item_id("rs"))
            )
            self._item = self._emitter.open_item(value)
        self._part = self._emitter.open_part(self._item, part_object(kind))
        return self._part

    def _add_arguments(self, event: ToolArguments) -> None:
        item = self._emitter.items[-1]  # the open call
        item.value |= extra_call_members(event.extra_fields)
        if event.text and item.arguments is not None:
            self._emitter.add_text(item.arguments, event.text)

    def _close_all(self, status: str) -> None:
        """Close the open item, then write the queued text and close it too."""
        queued, self._queued = self._queued, []
        self._close_item(status)
        for event, logprobs in queued:
            self._write_text(event, logprobs)
        self._close_item(status)

    def _close_item(self, status: str) -> None:
        if self._part is not None:
            self._close_part(self._part)
        if self._item is not None:
            self._emitter.close_item(self._item, status)
            self._item = None

    def _close_part(self, part: TextAccumulator) -> None:
        if part.kind == "output_text":
            part.logprobs += self._take_logprobs()  # no further text came
        self._emitter.close_part(part)
        self._part = self._text = None

    def _make_item_id(self, prefix: str) -> str:
        """Derive the id of the next item from that of the stream: the same input gives the same bytes."""
        return f"{prefix}_{self._id_stem}_{len(self._emitter.items)}"


class ResponsesDialect(TranslatedDialect):
    """Dialect of /v1/responses. For `echo`, `is_summary` and `clock` see `response_object` and `ResponsesWriter`."""

    BUFFERS_OUTPUT: ClassVar[bool] = True

    def __init__(self, echo: Json, *, is_summary: bool = False, clock: Clock | None = None) -> None:
        self._echo = echo
        self._clock = clock
        self._is_summary = is_summary

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> ResponsesWriter:
        """Return a stream writer."""
        return self._make_responses_writer(envelope, usage_source, is_silent=False)

    def _make_responses_writer(
        self, envelope: Envelope, usage_source: UsageSource, *, is_silent: bool
    ) -> ResponsesWriter:
        return ResponsesWriter(
            envelope,
            self._echo,
            usage_source,
            self._store_final,
            is_summary=self._is_summary,
            is_silent=is_silent,
            clock=self._clock,
        )

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply: the final Response of the equivalent stream."""
        writer = self._make_responses_writer(envelope, lambda: reply.usage, is_silent=True)
        for event in _replayed_events(reply.choices.get(0) or CollectedChoice()):
            writer.send(event)
        writer.end()
        return escape_line_breaks(msgspec.json.encode(self.final_object))

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event; the sequence number of the stream is not known here."""
        error = response_error_object(failure)
        return encode_event({"type": "error", "sequence_number": 0, "param": None, **error})

    def _store_final(self, response: Json) -> None:
        self.final_object = response


def _replayed_events(answer: CollectedChoice) -> list[Event]:
    events: list[Event] = [ChoiceStart(0)]
    if answer.reasoning:
        events.append(Reasoning(0, answer.reasoning))
    if answer.logprobs is not None:
        events.append(Logprobs(0, answer.logprobs))
    if answer.text:
        events.append(Text(0, answer.text))
    if answer.refusal:
        events.append(Refusal(0, answer.refusal))
    for number, call in enumerate(answer.tool_calls):
        events.append(ToolCall(0, number, call.id, call.name, call.extra_fields, call.is_custom))
        if call.arguments:
            events.append(ToolArguments(0, number, call.arguments, {}, call.is_custom))
    return [*events, Finish(0, answer.finish_reason)]
