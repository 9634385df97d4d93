"""What the writers of chat and completions share: the maker of all chunks, and what rides on them.

The same events always make the same bytes. A text costs one string encode: all else of its chunk is made beforehand.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import msgspec

from welldone.wire import sse
from welldone.wire.automaton import StreamStateMachine, ChoiceTransitions, ChoiceState
from welldone.wire.counts import usage_object
from welldone.wire.dialects.dialect import KEEP_ALIVE
from welldone.wire.events import (
    Event,
    UnknownFields,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    ChoiceStart,
    FieldLocation,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import CHUNK_OBJECT, Endpoint, Envelope

_encode = msgspec.json.Encoder().encode
_PENDING_FIELDS_LIMIT = 256  # unknown fields that wait for the next chunk; more get one of their own
_TEXT_MARKER = "\x00text\x00"
_TEXT_MARKER_BYTES = _encode(_TEXT_MARKER)
# Legal in JSON, but readers that split text into lines take them for line breaks.
_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


ContentEvent: TypeAlias = ChoiceStart | Text | Reasoning | Refusal | ToolCall | ToolArguments
"""Events that say something in a choice."""


class _PendingFields(msgspec.Struct):
    """What goes out with the next chunk of a choice."""

    choice: Json = {}
    delta: Json = {}
    logprobs: Json | None = None


class ChunkWriter(ABC):
    """Bytes of a right stream out of legal events. `usage_is_null`: say `usage: null` on all chunks but the last."""

    ENDPOINT: ClassVar[Endpoint]
    TABLE: ClassVar[ChoiceTransitions]
    IS_ORDERED: ClassVar[bool]

    def __init__(self, envelope: Envelope, *, usage_is_null: bool = False) -> None:
        self._automaton = StreamStateMachine(self.TABLE, is_ordered=self.IS_ORDERED)
        self._envelope: Json = {
            "id": envelope.id,
            "object": CHUNK_OBJECT[self.ENDPOINT],
            "created": envelope.created,
            "model": envelope.model,
        }
        if envelope.fingerprint is not None:
            self._envelope["system_fingerprint"] = envelope.fingerprint
        self._usage_is_null = usage_is_null
        self._text_templates: dict[int, tuple[bytes, bytes]] = {}  # a text chunk of each choice, without its text
        self._pending: dict[int, _PendingFields] = {}
        self._pending_chunk_fields: Json = {}  # what goes out at the top of the next chunk

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it rides on a later chunk.

        Raises:
            OutOfTurnError: it may not come now.
        """
        self._automaton.accept(event)
        if type(event) is Text and not self._pending and not self._pending_chunk_fields:
            before, after = self._text_templates.get(event.index) or self._make_text_template(event.index)
            payload = _encode(event.text)
            return before + (payload if payload.isascii() else escape_line_breaks(payload)) + after
        return self._write_event(event)

    def accepts_text(self, index: int) -> bool:
        """Whether text of this choice may come now, with nothing that waits to ride on it."""
        return not self._pending and not self._pending_chunk_fields and self._automaton.accepts_text(index)

    def end(self) -> bytes:
        """The bytes that end the stream.

        Raises:
            OutOfTurnError: something is still open.
        """
        self._automaton.end()
        return sse.DONE

    @abstractmethod
    def _content_fields(self, event: ContentEvent) -> Json | None:
        """What a choice says, in the dialect's words; None where it needs no chunk."""

    @abstractmethod
    def _choice_fields(self, content: Json, fields: Json) -> Json:
        """The members of a choice that carry what was said; `fields` are unknown ones of the delta."""

    @abstractmethod
    def _finish_reason(self, event: Finish) -> str:
        """Why a choice finished, in the dialect's words."""

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
                said = self._content_fields(event)
                return b"" if said is None else self._choice_chunk(event.index, said)

    def _choice_chunk(self, index: int, content: Json, reason: str | None = None) -> bytes:
        """A chunk of one choice, with what rides on it."""
        riders = self._pending.pop(index, None) or _PendingFields()
        choice = {"index": index, **self._choice_fields(content, riders.delta)}
        choice["logprobs"] = riders.logprobs
        choice["finish_reason"] = reason
        return self._chunk([choice | riders.choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        """The one place where chunks are made."""
        chunk = {**self._envelope, "choices": choices}
        if usage is not None or self._usage_is_null:
            chunk["usage"] = usage
        chunk |= self._pending_chunk_fields
        self._pending_chunk_fields = {}
        return sse.data_frame(escape_line_breaks(_encode(chunk)))

    def _make_text_template(self, index: int) -> tuple[bytes, bytes]:
        said = self._content_fields(Text(index, _TEXT_MARKER))
        before, _, after = self._choice_chunk(index, said or {}).rpartition(_TEXT_MARKER_BYTES)
        self._text_templates[index] = before, after
        return before, after

    def _queue_choice_fields(self, event: UnknownFields | Logprobs) -> bytes:
        """Keep what rides on the choice's next chunk; the bytes of one of its own where it cannot wait."""
        index = event.index
        riders = self._pending.get(index)
        if isinstance(event, UnknownFields) and not event.fields and riders is None and not self._pending_chunk_fields:
            return b""
        flushed = b""
        is_full = riders is not None and len(riders.choice) + len(riders.delta) > _PENDING_FIELDS_LIMIT
        if riders is not None and index in self._automaton.choice_states and (is_full or _collides(riders, event)):
            flushed = self._choice_chunk(index, {})
            riders = None
        if riders is None:
            riders = self._pending[index] = _PendingFields()
        if isinstance(event, Logprobs):
            riders.logprobs = event.value
        elif event.location is FieldLocation.CHOICE:
            riders.choice.update(event.fields)
        else:
            riders.delta.update(event.fields)
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
        """Unknown fields of the delta, on a chunk of their own: a finish chunk has none."""
        riders = self._pending.get(index)
        if riders is None or not riders.delta:
            return b""
        self._pending[index] = _PendingFields(delta=riders.delta)
        flushed = self._choice_chunk(index, {})
        self._pending[index] = _PendingFields(riders.choice, {}, riders.logprobs)
        return flushed

    def _flush_pending(self) -> bytes:
        """What still rides, on chunks of its own."""
        flushed = b"".join(self._choice_chunk(index, {}) for index in sorted(self._pending) if self._is_open(index))
        index = self._open_choice()
        return flushed + (self._choice_chunk(index, {}) if self._pending_chunk_fields and index is not None else b"")

    def _open_choice(self) -> int | None:
        """A choice that may still have a chunk."""
        return next((index for index in self._automaton.choice_states if self._is_open(index)), None)

    def _is_open(self, index: int) -> bool:
        return self._automaton.choice_states.get(index, ChoiceState.FINISHED) is not ChoiceState.FINISHED


def openai_error_object(failure: Failure) -> Json:
    """An error as OpenAI writes it; `error` comes first, since some clients look only there."""
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return {"error": error | failure.extra_fields}


def error_and_done(failure: Failure) -> bytes:
    """An error event, and the end of the stream."""
    return sse.data_frame(escape_line_breaks(_encode(openai_error_object(failure)))) + sse.DONE


def escape_line_breaks(payload: bytes) -> bytes:
    """JSON without the characters that some readers take for line breaks."""
    if not payload.isascii():
        for raw, escaped in _LINE_BREAKS:
            payload = payload.replace(raw, escaped)
    return payload


def _collides(pending: _PendingFields, event: UnknownFields | Logprobs) -> bool:
    if isinstance(event, Logprobs):
        return pending.logprobs is not None
    fields = pending.choice if event.location is FieldLocation.CHOICE else pending.delta
    return not fields.keys().isdisjoint(event.fields)
