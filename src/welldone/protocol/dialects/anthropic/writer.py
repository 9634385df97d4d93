"""The dialect of /v1/messages: events as its stream, and as its whole reply."""

from typing import ClassVar, assert_never

import msgspec

from welldone.protocol.collect import CollectedChoice, CollectedReply
from welldone.protocol.dialects.anthropic.emitter import PING, MessagesEmitter, encode_error_event
from welldone.protocol.dialects.anthropic.objects import (
    anthropic_usage_object,
    content_blocks,
    message_object,
    stop_reason_and_sequence,
    text_block,
    thinking_block,
    tool_use_block,
)
from welldone.protocol.dialects.base import CUSTOM_INPUT_MEMBER, KEEP_ALIVE, TranslatedDialect, UsageSource
from welldone.protocol.dialects.chat import escape_line_breaks
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
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
from welldone.protocol.fields import usage_from_timings
from welldone.protocol.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.protocol.state import CHAT_TRANSITIONS, StreamState, StreamStateMachine

_MAX_QUEUED_CHARACTERS = (
    4 * 1024 * 1024
)  # said between two pieces of one call: far more than any model's longest answer


_CUSTOM_INPUT_START, _CUSTOM_INPUT_END = f'{{"{CUSTOM_INPUT_MEMBER}":"', '"}'
"""What stands around the text of a custom call."""


class MessagesWriter:
    """A right stream of messages, of one choice.

    `stops` are the request's stop sequences. Blocks come one after the other: what is said between two pieces of one
    call's arguments waits until that call has ended.
    """

    def __init__(
        self,
        envelope: Envelope,
        usage_source: UsageSource,
        *,
        stop_sequences: tuple[str, ...] = (),
        includes_thinking: bool = True,
    ) -> None:
        self._envelope = envelope
        self._usage_source = usage_source
        self._stop_sequences = stop_sequences
        self._includes_thinking = includes_thinking
        self._automaton = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._emitter = MessagesEmitter()
        self._open_event_type: type[Event] | None = None  # what the open block is of
        self._queued: list[Text | Reasoning | Refusal] = []
        self._queued_characters = 0
        self._pending_call: ToolCall | None = None  # a call that has no arguments yet: its block has not begun
        self._is_custom = False  # the open call is a custom one
        self._has_tool_use = False
        self._has_refusal = False
        self._timings: Json | None = None
        self._usage: Usage | None = None
        self._finish: Finish | None = None
        self._upstream_stop_sequence: str | None = None

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later, or cannot be said here.

        Raises:
            OutOfTurnError: it may not come now.
        """
        self._automaton.accept(event)
        if type(event) is Text and self._open_event_type is Text:
            return self._emitter.add_text(event.text)
        return self._send(event)

    def accepts_text(self, index: int) -> bool:
        """Whether text may come now, and would go out at once."""
        return self._open_event_type is Text and self._automaton.accepts_text(index)

    def end(self) -> bytes:
        """Why the message stopped, what was counted, and its end; nothing after a failure.

        Raises:
            OutOfTurnError: something is still open.
        """
        is_failed = self._automaton.stream_state is StreamState.FAILED
        self._automaton.end()
        finish = self._finish
        if is_failed or finish is None:
            return b""
        stop = finish.stop_string or self._upstream_stop_sequence
        reason, stop = stop_reason_and_sequence(
            finish.reason, stop, has_tool_use=self._has_tool_use, has_refusal=self._has_refusal
        )
        return self._emitter.end_message(
            {"stop_reason": reason, "stop_sequence": stop}, anthropic_usage_object(self._known_usage())
        )

    def _send(self, event: Event) -> bytes:
        match event:
            case Text() | Reasoning() | Refusal():
                return self._write_text(event)
            case ToolCall():
                out = self._ensure_started() + self._end_block()
                self._open_event_type, self._pending_call, self._is_custom = ToolCall, event, event.is_custom
                return out
            case ToolArguments(text=text):
                return self._write_arguments(text)
            case Finish(reason=reason):
                self._finish = event
                return self._ensure_started() + self._end_block(is_cut=reason in TRUNCATED_REASONS)
            case Usage():
                self._usage = event
                return b""
            case Failure():
                # What is open stays open: a client might run a call whose block has ended.
                return encode_error_event(event)
            case KeepAlive():
                return PING if self._emitter.has_started else KEEP_ALIVE
            case UnknownFields():
                self._read_extra_fields(event)
                return b""
            case ChoiceStart() | Logprobs():
                return b""  # the message begins when there is something to say; probabilities have no place in it
            case _:
                assert_never(event)

    def _write_text(self, event: Text | Reasoning | Refusal) -> bytes:
        if isinstance(event, Reasoning) and not self._includes_thinking:
            return b""
        if self._open_event_type is ToolCall:
            self._queued.append(event)
            self._queued_characters += len(event.text)
            return b"" if self._queued_characters <= _MAX_QUEUED_CHARACTERS else self._end_block()
        opened = b""
        if self._open_event_type is not type(event):
            opened = self._ensure_started() + self._close_block()
            opened += self._emitter.open_block(thinking_block() if isinstance(event, Reasoning) else text_block())
            self._open_event_type = type(event)
            self._has_refusal |= isinstance(event, Refusal)
        return opened + self._emitter.add_text(event.text)

    def _write_arguments(self, text: str) -> bytes:
        """More of a call's arguments; none where they only had members that a block cannot be given later."""
        if not text or self._open_event_type is not ToolCall:
            return b""
        return self._open_tool_use() + self._emitter.add_text(_json_string_fragment(text) if self._is_custom else text)

    def _open_tool_use(self) -> bytes:
        """The block of a call begins with its arguments: a client would run one that was cut before them."""
        call, self._pending_call = self._pending_call, None
        if call is None:
            return b""
        self._has_tool_use = True
        opened = self._emitter.open_block(tool_use_block(call.id, call.name, {}, call.extra_fields))
        return opened + (self._emitter.add_text(_CUSTOM_INPUT_START) if call.is_custom else b"")

    def _ensure_started(self) -> bytes:
        """The start of the message, once: as late as can be, since it says how long the prompt is."""
        if self._emitter.has_started:
            return b""
        usage = anthropic_usage_object(self._known_usage()) | {"output_tokens": 0}
        usage.pop("output_tokens_details", None)
        return self._emitter.start_message(message_object(self._envelope, usage, content=[], reason=None, stop=None))

    def _end_block(self, *, is_cut: bool = False) -> bytes:
        """End what is open, and say what waited for its end."""
        ended = self._close_block(is_cut=is_cut)
        held, self._queued, self._queued_characters = self._queued, [], 0
        return ended + b"".join(map(self._write_text, held)) + self._close_block()

    def _close_block(self, *, is_cut: bool = False) -> bytes:
        said, self._open_event_type = self._open_event_type, None
        last = b""
        if said is ToolCall and is_cut:
            self._pending_call = None
        elif said is ToolCall:
            is_bare = self._pending_call is not None
            last = self._open_tool_use()
            if self._is_custom:
                last += self._emitter.add_text(_CUSTOM_INPUT_END)
            elif is_bare:
                last += self._emitter.add_text("{}")
        elif said is Reasoning:
            # Some clients take a thought along only if a signature came, be it empty.
            last = self._emitter.add_delta({"type": "signature_delta", "signature": ""})
        return last + self._emitter.close_block()

    def _read_extra_fields(self, event: UnknownFields) -> None:
        """Two unknown fields tell what this dialect can say: llama.cpp's counts, and vLLM's stop string."""
        timings, stop = event.fields.get("timings"), event.fields.get("stop_reason")
        if event.location is FieldLocation.CHUNK and isinstance(timings, dict):
            self._timings = timings
        if event.location is FieldLocation.CHOICE and isinstance(stop, str) and stop in self._stop_sequences:
            self._upstream_stop_sequence = stop

    def _known_usage(self) -> Usage | None:
        """What is known of the tokens by now."""
        known = self._usage or self._usage_source()
        return usage_from_timings(self._timings) if known is None and self._timings is not None else known


def _json_string_fragment(text: str) -> str:
    """A piece of text as it stands in a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


class MessagesDialect(TranslatedDialect):
    """Answers as /v1/messages gives them. `stops` are the request's stop sequences.

    `shows_thoughts`: who did not ask for thinking looks for the text in the first block.
    """

    REPORTS_PROMPT_TOKENS_FIRST: ClassVar[bool] = True

    def __init__(self, *, stop_sequences: tuple[str, ...] = (), includes_thinking: bool = True) -> None:
        self._stop_sequences = stop_sequences
        self._includes_thinking = includes_thinking

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> MessagesWriter:
        """The writer of a stream."""
        return MessagesWriter(
            envelope, usage_source, stop_sequences=self._stop_sequences, includes_thinking=self._includes_thinking
        )

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        answer = reply.choices.get(0) or CollectedChoice()
        if not self._includes_thinking:
            answer = msgspec.structs.replace(answer, reasoning="")
        told = answer.choice_fields.get("stop_reason")
        stop = answer.stop_string or (told if told in self._stop_sequences else None)
        reason, stop = stop_reason_and_sequence(
            answer.finish_reason, stop, has_tool_use=bool(answer.tool_calls), has_refusal=bool(answer.refusal)
        )
        message = message_object(
            envelope, anthropic_usage_object(reply.usage), content=content_blocks(answer), reason=reason, stop=stop
        )
        return escape_line_breaks(msgspec.json.encode(message))

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Calls have objects; in a stream they are text, which clients read themselves."""
        return msgspec.structs.replace(
            super().restrict(facts, is_stream=is_stream), needs_object_arguments=not is_stream
        )

    def final_error_bytes(self, failure: Failure) -> bytes:
        """An error event; nothing follows it."""
        return encode_error_event(failure)
