"""Writer of /v1/responses: events of an answer as a stream and as one reply."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import ClassVar, assert_never

import msgspec

from welldone.core import events as ev
from welldone.core.answer_format import TextEncoder, TranslatedFormat, UsageSource, escape_line_breaks
from welldone.core.collect import CollectedChoice, CollectedReply
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, TextEvent, Usage
from welldone.core.state import CHAT_TRANSITIONS, StreamStateMachine
from welldone.dialects.responses import emitter as em
from welldone.dialects.responses import objects
from welldone.dialects.responses.emitter import OutputItem, ResponsesEmitter, TextAccumulator
from welldone.dialects.responses.objects import Clock

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete Response by finish reason."""


class ResponsesWriter:
    """Writes a stream of one choice; the dialect gets the final Response. With `is_silent` only that is built."""

    def __init__(
        self, dialect: "ResponsesFormat", envelope: Envelope, usage_source: UsageSource, *, is_silent: bool
    ) -> None:
        self._dialect = dialect
        self._state_machine = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._emitter = ResponsesEmitter(objects.response_object(envelope, dialect.echo), is_silent=is_silent)
        self._id_stem = envelope.id.removeprefix(objects.ID_PREFIX)
        self._usage_source = usage_source
        self._item: OutputItem | None = None  # open item and part
        self._current_part: TextAccumulator | None = None
        self._text: TextAccumulator | None = None  # the open part, if it is text and no logprobs are pending
        self._logprobs: list[Json] = []  # of the next text
        # Text with its logprobs that is written after the open call.
        self._queued: list[tuple[ev.Text | ev.Reasoning | ev.Refusal, list[Json]]] = []
        self._usage: Usage | None = None
        self._finish_reason = ""

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is sent later or not supported.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        if type(event) is ev.Text and self._text is not None:
            return self._emitter.encode_delta(self._text, event.text)
        self._write_event(event)
        return self._emitter.drain()

    def accepts_text(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether text or reasoning is allowed now and would be a delta of the open part, without logprobs."""
        return self._open_text(text_type) is not None and self._state_machine.accepts_text(index)

    def split_text(self, index: int, sent: bytes, text_type: type[ev.TextEvent]) -> TextEncoder | None:
        """Return an encoder of deltas of the open part: each has a number."""
        text_part = self._open_text(text_type)
        return None if text_part is None else partial(self._emitter.encode_verbatim, text_part)

    def end(self) -> bytes:
        """Return the terminal event, which contains the usage.

        Raises:
            EventOrderError: the choice is unfinished.
        """
        self._state_machine.end()
        if self._emitter.final_response is None:
            reason = _INCOMPLETE_REASONS.get(self._finish_reason)
            details = {} if reason is None else {"incomplete_details": {"reason": reason}}
            self._end_response("incomplete" if details else "completed", details)
        return self._emitter.drain()

    def _write_event(self, event: Event) -> None:
        match event:
            case Usage():
                self._usage = event
            case Failure():
                self._ensure_created()
                self._close_all("incomplete")
                self._end_response("failed", {"error": objects.response_error_object(event)})
            case ev.KeepAlive():
                self._emitter.keep_alive()
            case ev.ChoiceStart():
                self._ensure_created()
            case ev.Logprobs(value=value):
                self._logprobs += objects.text_logprobs(value)
                self._text = None
            case ev.Text() | ev.Reasoning() | ev.Refusal():
                logprobs = self._take_logprobs()
                if self._item is not None and self._item.arguments is not None:
                    self._queued.append((event, logprobs))  # more arguments of the call may follow
                else:
                    self._write_text(event, logprobs)
            case ev.ToolCall():
                self._take_logprobs()
                self._close_all("completed")
                id = self._make_item_id("ctc" if event.is_custom else "fc")
                names = self._dialect.call_names.get(event.name, {})
                self._item = self._emitter.open_item(objects.call_item(id, event) | names)
            case ev.ToolArguments(text=text):
                self._take_logprobs()
                item = self._emitter.items[-1]  # the open call
                item.value |= objects.extra_call_members(event.extra_fields)
                if text and item.arguments is not None:
                    self._emitter.add_text(item.arguments, text)
            case ev.Finish(reason=reason):
                self._finish_reason = reason
                self._close_all("incomplete" if reason in _INCOMPLETE_REASONS else "completed")
            case ev.UnknownFields():
                pass  # not supported by this dialect
            case _:
                assert_never(event)

    def _open_text(self, text_type: type[ev.TextEvent]) -> TextAccumulator | None:
        """Return the open part if the next text of this type is a delta of it, without logprobs."""
        text_part = self._current_part
        if text_type is ev.Text or text_part is None or self._logprobs:
            return self._text if text_type is ev.Text else None
        return text_part if text_part.kind == self._dialect.reasoning_part_type else None

    def _ensure_created(self) -> None:
        if not self._emitter.has_started:
            for event_type in ("response.created", "response.in_progress"):
                self._emitter.emit(event_type, {"response": self._emitter.response})

    def _end_response(self, status: str, changes: Json) -> None:
        usage = self._usage or self._usage_source()
        changes |= {
            "completed_at": objects.completed_at(status, self._dialect.clock),
            "usage": None if usage is None else objects.responses_usage_object(usage),
        }
        self._dialect.final_object = self._emitter.end_response(status, changes)

    def _take_logprobs(self) -> list[Json]:
        """Return and clear the pending logprobs; only text can carry them."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _write_text(self, event: ev.Text | ev.Reasoning | ev.Refusal, logprobs: list[Json]) -> None:
        if isinstance(event, ev.Text):
            self._text = text_part = self._open_part("output_text")
            text_part.logprobs += logprobs
            self._emitter.add_text(text_part, event.text, {"logprobs": logprobs} if logprobs else None)
        else:
            part_type = "refusal" if isinstance(event, ev.Refusal) else self._dialect.reasoning_part_type
            self._emitter.add_text(self._open_part(part_type), event.text)

    def _open_part(self, part_type: str) -> TextAccumulator:
        """Return the open part if it has this type; else close it and open another."""
        if self._current_part is not None:
            if self._current_part.kind == part_type:
                return self._current_part
            self._close_part(self._current_part)
        item_type = em.PART_TEXTS[part_type].item_type
        if self._item is None or self._item.kind != item_type:
            self._close_item("completed")
            id = self._make_item_id("msg" if item_type == "message" else "rs")
            self._item = self._emitter.open_item(objects.text_item(id, item_type))
        self._current_part = self._emitter.open_part(self._item, objects.part_object(part_type))
        return self._current_part

    def _close_all(self, status: str) -> None:
        """Close the open item, then write the queued text and close it too."""
        queued, self._queued = self._queued, []
        self._close_item(status)
        for event, logprobs in queued:
            self._write_text(event, logprobs)
        self._close_item(status)

    def _close_item(self, status: str) -> None:
        if self._current_part is not None:
            self._close_part(self._current_part)
        if self._item is not None:
            self._emitter.close_item(self._item, status)
            self._item = None

    def _close_part(self, text_part: TextAccumulator) -> None:
        if text_part.kind == "output_text":
            text_part.logprobs += self._take_logprobs()  # no further text came
        self._emitter.close_part(text_part)
        self._current_part = self._text = None

    def _make_item_id(self, prefix: str) -> str:
        """Derive the id of the next item from that of the stream: the same input gives the same bytes."""
        return f"{prefix}_{self._id_stem}_{len(self._emitter.items)}"


class ResponsesFormat(TranslatedFormat):
    """Answers of /v1/responses. `echo` has the members of the request that a Response repeats.

    With `is_summary` reasoning is sent as a summary. `clock` supplies `completed_at`; without it that is null.
    `call_names` has the members `name` and `namespace` of calls, by the name of the tool in the chat.
    """

    BUFFERED_EVENTS: ClassVar[tuple[type[TextEvent], ...]] = ev.TEXT_EVENTS
    endpoint: Endpoint = Endpoint.RESPONSES

    def __init__(
        self,
        echo: Json,
        *,
        is_summary: bool = False,
        clock: Clock | None = None,
        call_names: Mapping[str, Json] = MappingProxyType({}),
    ) -> None:
        self.echo = echo
        self.clock = clock
        self.call_names = call_names
        self.reasoning_part_type = "summary_text" if is_summary else "reasoning_text"

    def make_writer(self, envelope: Envelope, usage_source: UsageSource, *, is_silent: bool = False) -> ResponsesWriter:
        """Return a stream writer."""
        return ResponsesWriter(self, envelope, usage_source, is_silent=is_silent)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply: the final Response of the equivalent stream."""
        writer = self.make_writer(envelope, lambda: reply.usage, is_silent=True)
        for event in _replayed_events(reply.choices.get(0) or CollectedChoice()):
            writer.send(event)
        writer.end()
        return escape_line_breaks(msgspec.json.encode(self.final_object))

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event; the sequence number of the stream is not known here."""
        error = objects.response_error_object(failure)
        return em.encode_event({"type": "error", "sequence_number": 0, "param": None, **error})


def _replayed_events(answer: CollectedChoice) -> list[Event]:
    events: list[Event] = [ev.ChoiceStart(0)]
    events += [ev.Reasoning(0, answer.reasoning)] if answer.reasoning else []
    events += [] if answer.logprobs is None else [ev.Logprobs(0, answer.logprobs)]
    events += [ev.Text(0, answer.text)] if answer.text else []
    events += [ev.Refusal(0, answer.refusal)] if answer.refusal else []
    for number, tool_call in enumerate(answer.tool_calls):
        events.append(ev.ToolCall(0, number, tool_call.id, tool_call.name, tool_call.extra_fields, tool_call.is_custom))
        if tool_call.arguments:
            events.append(ev.ToolArguments(0, number, tool_call.arguments, {}, tool_call.is_custom))
    return [*events, ev.Finish(0, answer.finish_reason)]
