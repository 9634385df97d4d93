"""Writer of /v1/messages: events of an answer as a stream and as one reply."""

from typing import ClassVar, assert_never

import msgspec

from welldone.core import events as ev
from welldone.core.answer_format import (
    CUSTOM_INPUT_MEMBER,
    KEEP_ALIVE,
    Affixes,
    TranslatedFormat,
    UsageSource,
    escape_line_breaks,
    known_usage,
)
from welldone.core.collect import CollectedChoice, CollectedReply
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, Usage
from welldone.core.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.core.state import CHAT_TRANSITIONS, StreamStateMachine
from welldone.dialects.messages import objects
from welldone.dialects.messages.emitter import PING, MessagesEmitter, encode_error_event

_MAX_QUEUED_CHARACTERS = 4 * 1024 * 1024
"""Limit of text between two argument deltas of one call: far more than any model's longest answer."""
_CUSTOM_INPUT_START, _CUSTOM_INPUT_END = f'{{"{CUSTOM_INPUT_MEMBER}":"', '"}'
"""JSON around the text of a custom tool call."""


class MessagesWriter:
    """Writes a Messages stream of one choice.

    Blocks are sequential: text that arrives between two argument deltas of a call is queued until the call ends.
    """

    def __init__(self, dialect: "MessagesFormat", envelope: Envelope, usage_source: UsageSource) -> None:
        self._dialect = dialect
        self._envelope = envelope
        self._usage_source = usage_source
        self._state_machine = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._emitter = MessagesEmitter()
        self._open_event_type: type[Event] | None = None  # event type of the open block
        self._queued: list[ev.Text | ev.Reasoning | ev.Refusal] = []
        self._queued_characters = 0
        self._pending_call: ev.ToolCall | None = None  # a call without arguments so far: its block is not open yet
        self._is_custom = False  # whether the open call is of a custom tool
        self._has_tool_use = False
        self._has_refusal = False
        self._timings: Json = {}
        self._usage: Usage | None = None
        self._finish: ev.Finish | None = None
        self._upstream_stop_sequence: str | None = None

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is sent later or not supported.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        if type(event) is ev.Text and self._open_event_type is ev.Text:
            return self._emitter.add_text(event.text)
        return self._send(event)

    def accepts_text(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether text or thinking is allowed now and would extend the open block."""
        return self._open_event_type is text_type and self._state_machine.accepts_text(index)

    def split_text(self, index: int, sent: bytes, text_type: type[ev.TextEvent]) -> Affixes | None:
        """Return the bytes around a further text of the open block."""
        return self._emitter.text_affixes

    def end(self) -> bytes:
        """Return message_delta and message_stop; nothing after a failure.

        Raises:
            EventOrderError: the choice is unfinished.
        """
        if not self._state_machine.end() or (finish := self._finish) is None:
            return b""
        stop = finish.stop_string or self._upstream_stop_sequence
        delta = objects.stop_members(
            finish.reason, stop, has_tool_use=self._has_tool_use, has_refusal=self._has_refusal
        )
        usage = known_usage(self._usage, self._usage_source, self._timings)
        return self._emitter.end_message(delta, objects.anthropic_usage_object(usage))

    def _send(self, event: Event) -> bytes:
        match event:
            case ev.Text() | ev.Reasoning() | ev.Refusal():
                return self._write_text(event)
            case ev.ToolCall():
                out = self._ensure_started() + self._end_block()
                self._open_event_type, self._pending_call, self._is_custom = ev.ToolCall, event, event.is_custom
                return out
            case ev.ToolArguments(text=text) if text and self._open_event_type is ev.ToolCall:
                if self._is_custom:
                    text = msgspec.json.encode(text)[1:-1].decode()  # a part of a JSON string
                return self._open_tool_use() + self._emitter.add_text(text)
            case ev.Finish(reason=reason):
                self._finish = event
                return self._ensure_started() + self._end_block(is_cut=reason in TRUNCATED_REASONS)
            case Usage():
                self._usage = event
            case Failure():
                # Leave the open block open: a client would run a call whose block has ended.
                return self._dialect.final_error_bytes(event)
            case ev.KeepAlive():
                return PING if self._emitter.has_started else KEEP_ALIVE
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK, fields={"timings": dict(timings)}):  # llama.cpp
                self._timings = timings
            case ev.UnknownFields(location=ev.FieldLocation.CHOICE, fields={"stop_reason": str(stop)}) if (
                stop in self._dialect.stop_sequences  # vLLM
            ):
                self._upstream_stop_sequence = stop
            case ev.ToolArguments() | ev.UnknownFields() | ev.ChoiceStart() | ev.Logprobs():
                pass  # message_start is sent with the first content; logprobs are not supported
            case _:
                assert_never(event)
        return b""

    def _write_text(self, event: ev.Text | ev.Reasoning | ev.Refusal) -> bytes:
        if isinstance(event, ev.Reasoning) and not self._dialect.includes_thinking:
            return b""
        if self._open_event_type is ev.ToolCall:
            self._queued.append(event)
            self._queued_characters += len(event.text)
            return b"" if self._queued_characters <= _MAX_QUEUED_CHARACTERS else self._end_block()
        opened = b""
        if self._open_event_type is not type(event):
            block = objects.thinking_block() if isinstance(event, ev.Reasoning) else objects.text_block()
            opened = self._ensure_started() + self._close_block() + self._emitter.open_block(objects.reply_block(block))
            self._open_event_type = type(event)
            self._has_refusal |= isinstance(event, ev.Refusal)
        return opened + self._emitter.add_text(event.text)

    def _open_tool_use(self) -> bytes:
        """Open the block of a call with its first arguments: a client would run a call that is cut before them."""
        tool_call, self._pending_call = self._pending_call, None
        if tool_call is None:
            return b""
        self._has_tool_use = True
        block = objects.tool_use_block(tool_call.id, tool_call.name, {}, tool_call.extra_fields)
        opened = self._emitter.open_block(objects.reply_block(block))
        return opened + (self._emitter.add_text(_CUSTOM_INPUT_START) if tool_call.is_custom else b"")

    def _ensure_started(self) -> bytes:
        """Write message_start, as late as possible, since it contains the prompt tokens."""
        if self._emitter.has_started:
            return b""
        known = known_usage(self._usage, self._usage_source, self._timings)
        usage = objects.anthropic_usage_object(known) | {
            "output_tokens": 0,
            "output_tokens_details": None,
        }
        return self._emitter.start_message(objects.reply_object(self._envelope, usage, []))

    def _end_block(self, *, is_cut: bool = False) -> bytes:
        """End the open block and write the queued text."""
        ended = self._close_block(is_cut=is_cut)
        queued, self._queued, self._queued_characters = self._queued, [], 0
        return ended + b"".join(map(self._write_text, queued)) + self._close_block()

    def _close_block(self, *, is_cut: bool = False) -> bytes:
        event_type, self._open_event_type = self._open_event_type, None
        last = b""
        if event_type is ev.ToolCall and is_cut:
            self._pending_call = None
        elif event_type is ev.ToolCall:
            is_empty = self._pending_call is not None
            last = self._open_tool_use()
            if self._is_custom:
                last += self._emitter.add_text(_CUSTOM_INPUT_END)
            elif is_empty:
                last += self._emitter.add_text("{}")
        elif event_type is ev.Reasoning:
            # Some clients keep a thinking block only if it has a signature, even an empty one.
            last = self._emitter.add_delta({"type": "signature_delta", "signature": ""})
        return last + self._emitter.close_block()


class MessagesFormat(TranslatedFormat):
    """Answers of /v1/messages.

    Without `includes_thinking` thinking is omitted: clients that did not request it expect text in the first block.
    """

    REPORTS_PROMPT_TOKENS_FIRST: ClassVar[bool] = True
    endpoint: Endpoint = Endpoint.MESSAGES

    def __init__(self, *, stop_sequences: tuple[str, ...] = (), includes_thinking: bool = True) -> None:
        self.stop_sequences = stop_sequences
        self.includes_thinking = includes_thinking

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> MessagesWriter:
        """Return a stream writer."""
        return MessagesWriter(self, envelope, usage_source)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        answer = reply.choices.get(0) or CollectedChoice()
        if not self.includes_thinking:
            answer = msgspec.structs.replace(answer, reasoning="")
        upstream_stop = answer.choice_fields.get("stop_reason")  # vLLM's stop string
        stop = answer.stop_string or (upstream_stop if upstream_stop in self.stop_sequences else None)
        usage, content = objects.anthropic_usage_object(reply.usage), objects.content_blocks(answer)
        has_calls, has_refusal = bool(answer.tool_calls), bool(answer.refusal)
        ending = objects.stop_members(answer.finish_reason, stop, has_tool_use=has_calls, has_refusal=has_refusal)
        return escape_line_breaks(msgspec.json.encode(objects.reply_object(envelope, usage, content) | ending))

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Allow one choice; tool arguments must be objects in a non-streamed reply."""
        facts = super().restrict(facts, is_stream=is_stream)
        return msgspec.structs.replace(facts, needs_object_arguments=not is_stream)

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event, which ends the stream."""
        return encode_error_event(failure)
