"""Dialects of /v1/chat/completions and /v1/completions: streams and non-streamed replies.

`ChunkWriter` makes all chunks of both. Fields without a chunk of their own (unknown fields, logprobs) are attached to
the next chunk of their choice. Text chunks come from a template: only the text itself is encoded. The same events
always give the same bytes.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias, assert_never

import msgspec

from welldone.protocol import sse, state
from welldone.protocol.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.protocol.dialects.base import KEEP_ALIVE, Dialect, UsageSource
from welldone.protocol.envelope import CHUNK_OBJECT, REPLY_OBJECT, Endpoint, Envelope
from welldone.protocol.events import (
    CALL_TYPE_AND_ARGUMENTS_FIELD,
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
from welldone.protocol.fields import usage_object
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.state import ChoiceState, ChoiceTransitions, StreamStateMachine

_encode = msgspec.json.Encoder().encode
_PENDING_FIELDS_LIMIT = 256  # unknown fields attached to one chunk; more get a chunk of their own
TEXT_MARKER = "\x00text\x00"
"""Stands for the text in a template of an encoded event."""
TEXT_MARKER_BYTES = _encode(TEXT_MARKER)
# Legal in JSON, but line readers such as Python's str.splitlines treat them as line breaks.
_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


ContentEvent: TypeAlias = ChoiceStart | Text | Reasoning | Refusal | ToolCall | ToolArguments
"""Events that become the content of a choice."""


class _PendingFields(msgspec.Struct):
    """Fields to attach to the next chunk of a choice."""

    choice: Json = {}
    delta: Json = {}
    logprobs: Json | None = None


class ChunkWriter(ABC):
    """Writes chunks from events in legal order. With `usage_is_null` all chunks but the last have `usage: null`."""

    ENDPOINT: ClassVar[Endpoint]
    TABLE: ClassVar[ChoiceTransitions]
    IS_ORDERED: ClassVar[bool]

    def __init__(self, envelope: Envelope, *, usage_is_null: bool = False) -> None:
        self._state_machine = StreamStateMachine(self.TABLE, is_ordered=self.IS_ORDERED)
        self._envelope: Json = {
            "id": envelope.id,
            "object": CHUNK_OBJECT[self.ENDPOINT],
            "created": envelope.created,
            "model": envelope.model,
        }
        if envelope.fingerprint is not None:
            self._envelope["system_fingerprint"] = envelope.fingerprint
        self._usage_is_null = usage_is_null
        self._text_templates: dict[int, tuple[bytes, bytes]] = {}  # by choice
        self._pending: dict[int, _PendingFields] = {}
        self._pending_chunk_fields: Json = {}  # top-level fields of the next chunk

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is attached to a later chunk.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        if type(event) is Text and not self._pending and not self._pending_chunk_fields:
            before, after = self._text_templates.get(event.index) or self._make_text_template(event.index)
            payload = _encode(event.text)
            return before + (payload if payload.isascii() else escape_line_breaks(payload)) + after
        return self._write_event(event)

    def accepts_text(self, index: int) -> bool:
        """Whether text of this choice is allowed now and would be a chunk without other fields."""
        return not self._pending and not self._pending_chunk_fields and self._state_machine.accepts_text(index)

    def end(self) -> bytes:
        """Return the bytes that end the stream.

        Raises:
            EventOrderError: a choice is unfinished.
        """
        self._state_machine.end()
        return sse.DONE

    @abstractmethod
    def _content_fields(self, event: ContentEvent) -> Json | None:
        """Return the content members for an event; None if it needs no chunk."""

    @abstractmethod
    def _choice_fields(self, content: Json, fields: Json) -> Json:
        """Place content and unknown delta `fields` in a choice."""

    @abstractmethod
    def _finish_reason(self, event: Finish) -> str:
        """Return the finish reason in the terms of the dialect."""

    def _write_event(self, event: Event) -> bytes:
        match event:
            case KeepAlive(is_chunk=is_chunk):
                index = self._open_choice() if is_chunk else None
                return KEEP_ALIVE if index is None else self._choice_chunk(index, {})
            case Usage():
                return self._chunk([], usage=usage_object(event))
            case Failure():
                return self._flush_pending() + sse.data_frame(escape_line_breaks(_encode(openai_error_object(event))))
            case UnknownFields(location=FieldLocation.CHUNK):
                return self._queue_chunk_fields(event)
            case UnknownFields() | Logprobs():
                return self._queue_choice_fields(event)
            case Finish(index=index):
                return self._flush_delta_fields(index) + self._choice_chunk(index, {}, self._finish_reason(event))
            case _:
                content = self._content_fields(event)
                return b"" if content is None else self._choice_chunk(event.index, content)

    def _choice_chunk(self, index: int, content: Json, reason: str | None = None) -> bytes:
        pending = self._pending.pop(index, None) or _PendingFields()
        choice = {"index": index, **self._choice_fields(content, pending.delta)}
        choice["logprobs"] = pending.logprobs
        choice["finish_reason"] = reason
        return self._chunk([choice | pending.choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        chunk = {**self._envelope, "choices": choices}
        if usage is not None or self._usage_is_null:
            chunk["usage"] = usage
        chunk |= self._pending_chunk_fields
        self._pending_chunk_fields = {}
        return sse.data_frame(escape_line_breaks(_encode(chunk)))

    def _make_text_template(self, index: int) -> tuple[bytes, bytes]:
        content = self._content_fields(Text(index, TEXT_MARKER)) or {}
        before, _, after = self._choice_chunk(index, content).rpartition(TEXT_MARKER_BYTES)
        self._text_templates[index] = before, after
        return before, after

    def _queue_choice_fields(self, event: UnknownFields | Logprobs) -> bytes:
        """Attach fields to the next chunk of the choice; return a chunk if they conflict with pending ones."""
        index = event.index
        pending = self._pending.get(index)
        if isinstance(event, UnknownFields) and not event.fields and pending is None and not self._pending_chunk_fields:
            return b""
        flushed = b""
        is_full = pending is not None and len(pending.choice) + len(pending.delta) > _PENDING_FIELDS_LIMIT
        if (
            pending is not None
            and index in self._state_machine.choice_states
            and (is_full or _collides(pending, event))
        ):
            flushed = self._choice_chunk(index, {})
            pending = None
        if pending is None:
            pending = self._pending[index] = _PendingFields()
        if isinstance(event, Logprobs):
            pending.logprobs = event.value
        elif event.location is FieldLocation.CHOICE:
            pending.choice.update(event.fields)
        else:
            pending.delta.update(event.fields)
        if isinstance(event, UnknownFields) and event.in_own_chunk:
            return flushed + self._choice_chunk(index, {})
        return flushed

    def _queue_chunk_fields(self, event: UnknownFields) -> bytes:
        index = event.index if self._is_open(event.index) else self._open_choice()
        flushed = b""
        is_full = len(self._pending_chunk_fields) > _PENDING_FIELDS_LIMIT
        if index is not None and (is_full or not self._pending_chunk_fields.keys().isdisjoint(event.fields)):
            flushed = self._choice_chunk(index, {})
        self._pending_chunk_fields.update(event.fields)
        if event.in_own_chunk and index is not None:
            return flushed + self._choice_chunk(index, {})
        return flushed

    def _flush_delta_fields(self, index: int) -> bytes:
        """Write pending delta fields before the finish chunk, whose delta is empty."""
        pending = self._pending.get(index)
        if pending is None or not pending.delta:
            return b""
        self._pending[index] = _PendingFields(delta=pending.delta)
        flushed = self._choice_chunk(index, {})
        self._pending[index] = _PendingFields(pending.choice, {}, pending.logprobs)
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


def openai_error_object(failure: Failure) -> Json:
    """Return an error in OpenAI's format. `error` comes first: some clients test the start of the data for it."""
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return {"error": error | failure.extra_fields}


def error_and_done(failure: Failure) -> bytes:
    """Encode an error event and the end of the stream."""
    return sse.data_frame(escape_line_breaks(_encode(openai_error_object(failure)))) + sse.DONE


def escape_line_breaks(payload: bytes) -> bytes:
    """Escape the characters in JSON that some readers treat as line breaks."""
    if not payload.isascii():
        for raw, escaped in _LINE_BREAKS:
            payload = payload.replace(raw, escaped)
    return payload


def _collides(pending: _PendingFields, event: UnknownFields | Logprobs) -> bool:
    if isinstance(event, Logprobs):
        return pending.logprobs is not None
    fields = pending.choice if event.location is FieldLocation.CHOICE else pending.delta
    return not fields.keys().isdisjoint(event.fields)


REASONING_FIELDS = ("reasoning_content",)
"""The field from which most clients read reasoning."""


class ChatWriter(ChunkWriter):
    """Writes a chat stream.

    With `functions`, for clients of the deprecated request field, a call is sent as `function_call`. Reasoning is sent
    in the `reasoning` fields, if any.
    """

    ENDPOINT: ClassVar[Endpoint] = Endpoint.CHAT
    TABLE: ClassVar[ChoiceTransitions] = state.CHAT_TRANSITIONS
    IS_ORDERED: ClassVar[bool] = True

    def __init__(
        self,
        envelope: Envelope,
        *,
        usage_is_null: bool = False,
        functions: bool = False,
        reasoning: tuple[str, ...] = REASONING_FIELDS,
    ) -> None:
        super().__init__(envelope, usage_is_null=usage_is_null)
        self._functions = functions
        self._reasoning = reasoning

    def _content_fields(self, event: ContentEvent) -> Json | None:
        match event:
            case ChoiceStart():
                return {"role": "assistant", "content": ""}
            case Text(text=text):
                return {"content": text}
            case Reasoning(text=text):
                return dict.fromkeys(self._reasoning, text) or None
            case Refusal(text=text):
                return {"refusal": text}
            case ToolCall(call_index=call) | ToolArguments(call_index=call) if self._functions and call > 0:
                return None  # function_call allows one call only
            case ToolCall(name=name) if self._functions:
                return {"function_call": {"name": name, "arguments": ""}}
            case ToolArguments(text=text) if self._functions:
                return {"function_call": {"arguments": text}}
            case ToolCall():
                return {"tool_calls": [{"index": event.call_index, **tool_call_object(event)}]}
            case ToolArguments():
                kind, member = CALL_TYPE_AND_ARGUMENTS_FIELD[event.is_custom]
                return {
                    "tool_calls": [
                        {
                            "index": event.call_index,
                            kind: {member: event.text, **event.inner_extra_fields},
                            **event.extra_fields,
                        }
                    ]
                }
            case _:
                assert_never(event)

    def _choice_fields(self, content: Json, fields: Json) -> Json:
        return {"delta": content | fields}

    def _finish_reason(self, event: Finish) -> str:
        return finish_reason(event.reason, functions=self._functions)


class ChatDialect(Dialect):
    """Dialect of /v1/chat/completions."""

    IS_CHAT: ClassVar[bool] = True

    def __init__(self, facts: RequestFacts, reasoning: tuple[str, ...] = REASONING_FIELDS) -> None:
        self._facts = facts
        self._reasoning = reasoning

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> ChatWriter:
        """Return a stream writer."""
        return ChatWriter(
            envelope,
            usage_is_null=self._facts.include_usage is True,
            functions=self._facts.uses_legacy_functions,
            reasoning=self._reasoning,
        )

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        return encode_chat_reply(
            envelope, reply, functions=self._facts.uses_legacy_functions, reasoning=self._reasoning
        )

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event and the end of the stream."""
        return error_and_done(failure)


def encode_chat_reply(
    envelope: Envelope, reply: CollectedReply, *, functions: bool = False, reasoning: tuple[str, ...] = REASONING_FIELDS
) -> bytes:
    """Encode a non-streamed reply."""
    choices = []
    for index, answer in sorted(reply.choices.items()):
        message = _message_object(answer, functions=functions, reasoning=reasoning)
        choice = {
            "index": index,
            "message": message | answer.delta_fields,
            "logprobs": answer.logprobs,
            "finish_reason": finish_reason(answer.finish_reason, functions=functions),
        }
        choices.append(choice | answer.choice_fields)
    return escape_line_breaks(msgspec.json.encode(completion_object(envelope, Endpoint.CHAT, choices, reply)))


def completion_object(envelope: Envelope, endpoint: Endpoint, choices: list[Json], reply: CollectedReply) -> Json:
    """Return a non-streamed reply with these choices."""
    body: Json = {
        "id": envelope.id,
        "object": REPLY_OBJECT[endpoint],
        "created": envelope.created,
        "model": envelope.model,
        "choices": choices,
    }
    if reply.usage is not None:
        body["usage"] = usage_object(reply.usage)
    if envelope.fingerprint is not None:
        body["system_fingerprint"] = envelope.fingerprint
    return body | {name: value for name, value in reply.unknown_fields.items() if name not in body}


def finish_reason(reason: str, *, functions: bool) -> str:
    """Return the finish reason; `function_call` for clients of `functions`."""
    return "function_call" if functions and reason == "tool_calls" else reason


def tool_call_object(call: ToolCall | CollectedToolCall) -> Json:
    """Return a tool call in OpenAI's format; the event that starts one has no arguments yet."""
    kind, member = CALL_TYPE_AND_ARGUMENTS_FIELD[call.is_custom]
    arguments = call.arguments if isinstance(call, CollectedToolCall) else ""
    return {
        "id": call.id,
        "type": kind,
        kind: {"name": call.name, member: arguments, **call.inner_extra_fields},
        **call.extra_fields,
    }


def _message_object(answer: CollectedChoice, *, functions: bool, reasoning: tuple[str, ...]) -> Json:
    has_content = answer.text != "" or not (answer.tool_calls or answer.refusal)
    message: Json = {
        "role": "assistant",
        "content": answer.text if has_content else None,
        "refusal": answer.refusal or None,
    }
    if answer.reasoning:
        message |= dict.fromkeys(reasoning, answer.reasoning)
    if answer.tool_calls and functions:
        message["function_call"] = {"name": answer.tool_calls[0].name, "arguments": answer.tool_calls[0].arguments}
    elif answer.tool_calls:
        message["tool_calls"] = list(map(tool_call_object, answer.tool_calls))
    return message


class CompletionsWriter(ChunkWriter):
    """Writes a completions stream. The choices of several prompts may come in any order."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.COMPLETIONS
    TABLE: ClassVar[ChoiceTransitions] = state.COMPLETIONS_TRANSITIONS
    IS_ORDERED: ClassVar[bool] = False

    def _content_fields(self, event: ContentEvent) -> Json | None:
        # The state machine of completions accepts no other content.
        return {"text": event.text} if isinstance(event, Text) else None

    def _choice_fields(self, content: Json, fields: Json) -> Json:
        return {"text": content.get("text", ""), **fields}

    def _finish_reason(self, event: Finish) -> str:
        return event.reason


class CompletionsDialect(Dialect):
    """Dialect of /v1/completions."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> CompletionsWriter:
        """Return a stream writer."""
        return CompletionsWriter(envelope, usage_is_null=self._facts.include_usage is True)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        return encode_completions_reply(envelope, reply)

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error event and the end of the stream."""
        return error_and_done(failure)


def encode_completions_reply(envelope: Envelope, reply: CollectedReply) -> bytes:
    """Encode a non-streamed reply."""
    choices = []
    for index, answer in sorted(reply.choices.items()):
        choice = {
            "index": index,
            "text": answer.text,
            "logprobs": answer.logprobs,
            "finish_reason": answer.finish_reason,
        }
        choices.append(choice | answer.delta_fields | answer.choice_fields)
    return escape_line_breaks(msgspec.json.encode(completion_object(envelope, Endpoint.COMPLETIONS, choices, reply)))
