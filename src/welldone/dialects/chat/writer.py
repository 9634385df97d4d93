"""Dialects of /v1/chat/completions and /v1/completions: streams and non-streamed replies.

`ChunkWriter` makes all chunks of both. Fields without a chunk of their own (unknown fields, logprobs) are attached to
the next chunk of their choice. Text chunks come from a template: only the text itself is encoded. The same events
always give the same bytes.
"""

from typing import TypeAlias, assert_never

import msgspec

from welldone.core import events as ev
from welldone.core import sse
from welldone.core.answer_format import (
    KEEP_ALIVE,
    TEXT_MARKER,
    Affixes,
    AnswerFormat,
    UsageSource,
    encode_text,
    escape_line_breaks,
    split_at_marker,
)
from welldone.core.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.core.envelope import CHUNK_OBJECT, REPLY_OBJECT, Endpoint, Envelope
from welldone.core.events import CALL_TYPE_AND_ARGUMENTS_FIELD, Event, Failure, Json, Usage
from welldone.core.fields import openai_error_object, usage_object
from welldone.core.request_facts import RequestFacts
from welldone.core.state import CHAT_TRANSITIONS, COMPLETIONS_TRANSITIONS, ChoiceState, StreamStateMachine
from welldone.core.template import split_around_text

_encode = msgspec.json.Encoder().encode
_PENDING_FIELDS_LIMIT = 256  # unknown fields attached to one chunk; more get a chunk of their own

ContentEvent: TypeAlias = ev.ChoiceStart | ev.Text | ev.Reasoning | ev.Refusal | ev.ToolCall | ev.ToolArguments
"""Events that become the content of a choice."""
REASONING_FIELDS = ("reasoning_content",)
"""The field from which most clients read reasoning."""


class ChunkWriter:
    """Writes chunks from events in legal order. The choices of a completion may come in any order."""

    def __init__(self, dialect: "ChunkFormat", envelope: Envelope) -> None:
        self._dialect = dialect
        self._is_chat = dialect.is_chat
        transitions = CHAT_TRANSITIONS if self._is_chat else COMPLETIONS_TRANSITIONS
        self._state_machine = StreamStateMachine(transitions, is_ordered=self._is_chat)
        self._envelope = _envelope_object(envelope, CHUNK_OBJECT[dialect.endpoint])
        if envelope.fingerprint is not None:
            self._envelope["system_fingerprint"] = envelope.fingerprint
        # The bytes around the choices of a chunk without other fields.
        self._before = sse.DATA_PREFIX + escape_line_breaks(_encode(self._envelope))[:-1] + b',"choices":'
        self._after = (b',"usage":null}' if dialect.usage_is_null else b"}") + sse.FRAME_END
        self._text_templates: dict[int, Affixes] = {}  # by choice
        self._pending: dict[int, dict[ev.FieldLocation, Json]] = {}  # fields of the next chunk of a choice
        self._pending_chunk_fields: Json = {}  # top-level fields of the next chunk

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is attached to a later chunk.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        if type(event) is ev.Text and not self._pending and not self._pending_chunk_fields:
            affixes = self._text_templates.get(event.index) or self._make_text_template(event.index)
            return encode_text(affixes, event.text)
        return self._write_event(event)

    def accepts_text(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether text or reasoning of this choice is allowed now and would be a chunk without other fields."""
        return not self._pending and not self._pending_chunk_fields and self._state_machine.accepts_text(index)

    def split_text(self, index: int, sent: bytes, text_type: type[ev.TextEvent]) -> Affixes | None:
        """Return the bytes around the text of `sent`, which may have fields that each such chunk has."""
        return split_chunk(sent, self._dialect.endpoint, text_type)

    def end(self) -> bytes:
        """Return the bytes that end the stream.

        Raises:
            EventOrderError: a choice is unfinished.
        """
        self._state_machine.end()
        return sse.DONE

    def _write_event(self, event: Event) -> bytes:
        match event:
            case ev.KeepAlive(is_chunk=is_chunk):
                index = self._open_choice() if is_chunk else None
                return KEEP_ALIVE if index is None else self._choice_chunk(index, {})
            case Usage():
                return self._chunk([], usage=usage_object(event))
            case Failure():
                return self._flush_pending() + _data_frame(openai_error_object(event))
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK):
                return self._queue_chunk_fields(event)
            case ev.UnknownFields():
                return self._queue_choice_fields(event)
            case ev.Logprobs(index=index, value=value):
                return self._queue_choice_fields(ev.UnknownFields(index, ev.FieldLocation.CHOICE, {"logprobs": value}))
            case ev.Finish(index=index, reason=reason):
                flushed = self._flush_delta_fields(index)
                return flushed + self._choice_chunk(index, {}, self._dialect.finish_reason(reason))
            case _:
                content = self._content_fields(event)
                return b"" if content is None else self._choice_chunk(event.index, content)

    def _content_fields(self, event: ContentEvent) -> Json | None:
        """Return the content members for an event; None if it needs no chunk."""
        match event:
            case ev.ChoiceStart():
                return {"role": "assistant", "content": ""} if self._is_chat else None
            case ev.Text(text=text):
                return {"content" if self._is_chat else "text": text}
            case ev.Reasoning(text=text):
                return dict.fromkeys(self._dialect.reasoning, text) or None
            case ev.Refusal(text=text):
                return {"refusal": text}
            case ev.ToolCall(call_index=n) | ev.ToolArguments(call_index=n) if self._dialect.functions and n:
                return None  # function_call allows one call only
            case ev.ToolCall(name=name) if self._dialect.functions:
                return {"function_call": {"name": name, "arguments": ""}}
            case ev.ToolArguments(text=text) if self._dialect.functions:
                return {"function_call": {"arguments": text}}
            case ev.ToolCall():
                return {"tool_calls": [{"index": event.call_index, **tool_call_object(event)}]}
            case ev.ToolArguments():
                call_type, member = CALL_TYPE_AND_ARGUMENTS_FIELD[event.is_custom]
                inner = {member: event.text, **event.inner_extra_fields}
                return {"tool_calls": [{"index": event.call_index, call_type: inner, **event.extra_fields}]}
            case _:
                assert_never(event)

    def _choice_chunk(self, index: int, content: Json, reason: str | None = None) -> bytes:
        pending = self._pending.pop(index, None) if self._pending else None
        if pending:
            content = content | pending.get(ev.FieldLocation.DELTA, {})
        choice = {"index": index, **({"delta": content} if self._is_chat else {"text": "", **content})}
        choice["logprobs"], choice["finish_reason"] = None, reason
        if pending:
            choice |= pending.get(ev.FieldLocation.CHOICE, {})
        return self._chunk([choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        if usage is None and not self._pending_chunk_fields:
            return self._before + escape_line_breaks(_encode(choices)) + self._after
        chunk = {**self._envelope, "choices": choices}
        if usage is not None or self._dialect.usage_is_null:
            chunk["usage"] = usage
        chunk |= self._pending_chunk_fields
        self._pending_chunk_fields = {}
        return _data_frame(chunk)

    def _make_text_template(self, index: int) -> Affixes:
        content = self._content_fields(ev.Text(index, TEXT_MARKER)) or {}
        affixes = self._text_templates[index] = split_at_marker(self._choice_chunk(index, content))
        return affixes

    def _queue_choice_fields(self, event: ev.UnknownFields) -> bytes:
        """Attach fields to the next chunk of the choice; return a chunk if they conflict with pending ones."""
        index, flushed = event.index, b""
        pending = self._pending.get(index)
        if pending is None and not event.fields and not self._pending_chunk_fields:
            return b""
        if pending is not None and index in self._state_machine.choice_states:
            is_full = sum(map(len, pending.values())) > _PENDING_FIELDS_LIMIT
            if is_full or not pending.get(event.location, {}).keys().isdisjoint(event.fields):
                flushed = self._choice_chunk(index, {})
        self._pending.setdefault(index, {}).setdefault(event.location, {}).update(event.fields)
        return flushed + self._choice_chunk(index, {}) if event.in_own_chunk else flushed

    def _queue_chunk_fields(self, event: ev.UnknownFields) -> bytes:
        index = event.index if self._is_open(event.index) else self._open_choice()
        flushed = b""
        is_full = len(self._pending_chunk_fields) > _PENDING_FIELDS_LIMIT
        if index is not None and (is_full or not self._pending_chunk_fields.keys().isdisjoint(event.fields)):
            flushed = self._choice_chunk(index, {})
        self._pending_chunk_fields.update(event.fields)
        return flushed + self._choice_chunk(index, {}) if event.in_own_chunk and index is not None else flushed

    def _flush_delta_fields(self, index: int) -> bytes:
        """Write pending delta fields before the finish chunk, whose delta is empty."""
        pending = self._pending.get(index, {})
        if not pending.get(ev.FieldLocation.DELTA):
            return b""
        choice_fields = pending.pop(ev.FieldLocation.CHOICE, {})
        flushed = self._choice_chunk(index, {})
        self._pending[index] = {ev.FieldLocation.CHOICE: choice_fields}
        return flushed

    def _flush_pending(self) -> bytes:
        """Write all pending fields on chunks of their own."""
        flushed = b"".join(self._choice_chunk(index, {}) for index in sorted(self._pending) if self._is_open(index))
        index = self._open_choice()
        return flushed + (self._choice_chunk(index, {}) if self._pending_chunk_fields and index is not None else b"")

    def _open_choice(self) -> int | None:
        return next((index for index in self._state_machine.choice_states if self._is_open(index)), None)

    def _is_open(self, index: int) -> bool:
        return self._state_machine.choice_states.get(index, ChoiceState.FINISHED) is not ChoiceState.FINISHED


def error_and_done(failure: Failure) -> bytes:
    """Encode an error event and the end of the stream."""
    return _data_frame(openai_error_object(failure)) + sse.DONE


def _data_frame(value: Json) -> bytes:
    return sse.data_frame(escape_line_breaks(_encode(value)))


def _envelope_object(envelope: Envelope, object_type: str) -> Json:
    return {"id": envelope.id, "object": object_type, "created": envelope.created, "model": envelope.model}


def split_chunk(
    frame: bytes, endpoint: Endpoint = Endpoint.CHAT, text_type: type[ev.TextEvent] = ev.Text
) -> Affixes | None:
    """Return the bytes before and after the text of a chunk; None if it is not one frame with a text to be copied."""
    text_of = _reasoning_text if text_type is ev.Reasoning else _TEXT_OF[endpoint]
    return split_around_text(frame, text_of) if sse.is_single_frame(frame) else None


def _delta_text(chunk: object) -> object:
    match chunk:
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _reasoning_text(chunk: object) -> object:
    """Return the reasoning, if it is in one field."""
    match chunk:
        case {"choices": [{"delta": {"reasoning_content": text, **others}}]} if not others.get("reasoning"):
            return text
        case {"choices": [{"delta": {"reasoning": text, **others}}]} if not others.get("reasoning_content"):
            return text
        case _:
            return None


def _completion_text(chunk: object) -> object:
    match chunk:
        case {"choices": [{"text": text}]}:
            return text
        case _:
            return None


_TEXT_OF = {Endpoint.CHAT: _delta_text, Endpoint.COMPLETIONS: _completion_text}


class ChunkFormat(AnswerFormat):
    """AnswerFormat of /v1/chat/completions or /v1/completions. Reasoning is sent in the `reasoning` fields, if any."""

    def __init__(
        self, facts: RequestFacts, endpoint: Endpoint = Endpoint.CHAT, reasoning: tuple[str, ...] = REASONING_FIELDS
    ) -> None:
        self.is_chat: bool = endpoint is Endpoint.CHAT
        self.endpoint = endpoint
        self.reasoning = reasoning
        self.usage_is_null: bool = facts.include_usage is True
        """Whether all chunks but the last have `usage: null`."""
        self.functions: bool = facts.uses_legacy_functions and self.is_chat
        """Whether a call is sent as `function_call`, for clients of the deprecated request field."""

    def make_writer(self, envelope: Envelope, usage_source: UsageSource = lambda: None) -> ChunkWriter:
        """Return a stream writer."""
        return ChunkWriter(self, envelope)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        choices: list[Json] = []
        for index, answer in sorted(reply.choices.items()):
            content: Json = {"text": answer.text}
            others = answer.delta_fields | answer.choice_fields
            if self.is_chat:
                content, others = {"message": self._message_object(answer) | answer.delta_fields}, answer.choice_fields
            reason = self.finish_reason(answer.finish_reason)
            choices.append({"index": index, **content, "logprobs": answer.logprobs, "finish_reason": reason} | others)
        body = _envelope_object(envelope, REPLY_OBJECT[self.endpoint]) | {"choices": choices}
        if reply.usage is not None:
            body["usage"] = usage_object(reply.usage)
        if envelope.fingerprint is not None:
            body["system_fingerprint"] = envelope.fingerprint
        body |= {name: value for name, value in reply.unknown_fields.items() if name not in body}
        return escape_line_breaks(_encode(body))

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event and the end of the stream."""
        return error_and_done(failure)

    def finish_reason(self, reason: str) -> str:
        """Return the finish reason; `function_call` for clients of `functions`."""
        return "function_call" if self.functions and reason == "tool_calls" else reason

    def _message_object(self, answer: CollectedChoice) -> Json:
        has_content = answer.text != "" or not (answer.tool_calls or answer.refusal)
        content = answer.text if has_content else None
        message: Json = {"role": "assistant", "content": content, "refusal": answer.refusal or None}
        if answer.reasoning:
            message |= dict.fromkeys(self.reasoning, answer.reasoning)
        if answer.tool_calls and self.functions:
            message["function_call"] = {"name": answer.tool_calls[0].name, "arguments": answer.tool_calls[0].arguments}
        elif answer.tool_calls:
            message["tool_calls"] = list(map(tool_call_object, answer.tool_calls))
        return message


def tool_call_object(tool_call: ev.ToolCall | CollectedToolCall) -> Json:
    """Return a tool call in OpenAI's format; the event that starts one has no arguments yet."""
    call_type, member = CALL_TYPE_AND_ARGUMENTS_FIELD[tool_call.is_custom]
    arguments = tool_call.arguments if isinstance(tool_call, CollectedToolCall) else ""
    inner = {"name": tool_call.name, member: arguments, **tool_call.inner_extra_fields}
    return {"id": tool_call.id, "type": call_type, call_type: inner, **tool_call.extra_fields}
