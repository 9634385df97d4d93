"""What the writers of chat and completions share: the maker of all chunks, and what rides on them.

The same events always make the same bytes. A text costs one string encode: all else of its chunk is made beforehand.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import msgspec

from welldone.wire import sse
from welldone.wire.automaton import Automaton, ChoiceTable, Phase
from welldone.wire.counts import usage_object
from welldone.wire.dialects.dialect import KEEP_ALIVE
from welldone.wire.events import (
    Event,
    Extra,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import OBJECT, Endpoint, Head

_encode = msgspec.json.Encoder().encode
_FIELDS_LIMIT = 256  # unknown fields that wait for the next chunk; more get one of their own
_MARK = "\x00text\x00"
_MARK_BYTES = _encode(_MARK)
# Legal in JSON, but readers that split text into lines take them for line breaks.
_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


Spoken: TypeAlias = Opening | Text | Reasoning | Refusal | ToolCall | ToolArguments
"""Events that say something in a choice."""


class _Riders(msgspec.Struct):
    """What goes out with the next chunk of a choice."""

    choice: Json = {}
    delta: Json = {}
    logprobs: Json | None = None


class StreamWriter(ABC):
    """Bytes of a right stream out of legal events. `usage_is_null`: say `usage: null` on all chunks but the last."""

    ENDPOINT: ClassVar[Endpoint]
    TABLE: ClassVar[ChoiceTable]
    IS_ORDERED: ClassVar[bool]

    def __init__(self, head: Head, *, usage_is_null: bool = False) -> None:
        self._automaton = Automaton(self.TABLE, is_ordered=self.IS_ORDERED)
        self._envelope: Json = {
            "id": head.id,
            "object": OBJECT[self.ENDPOINT],
            "created": head.created,
            "model": head.model,
        }
        if head.fingerprint is not None:
            self._envelope["system_fingerprint"] = head.fingerprint
        self._usage_is_null = usage_is_null
        self._texts: dict[int, tuple[bytes, bytes]] = {}  # a text chunk of each choice, without its text
        self._riders: dict[int, _Riders] = {}
        self._fields: Json = {}  # what goes out at the top of the next chunk

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it rides on a later chunk.

        Raises:
            OutOfTurnError: it may not come now.
        """
        self._automaton.accept(event)
        if type(event) is Text and not self._riders and not self._fields:
            before, after = self._texts.get(event.index) or self._make_text(event.index)
            payload = _encode(event.text)
            return before + (payload if payload.isascii() else escape(payload)) + after
        return self._send(event)

    def takes_text(self, index: int) -> bool:
        """Whether text of this choice may come now, with nothing that waits to ride on it."""
        return not self._riders and not self._fields and self._automaton.takes_text(index)

    def end(self) -> bytes:
        """The bytes that end the stream.

        Raises:
            OutOfTurnError: something is still open.
        """
        self._automaton.end()
        return sse.DONE

    @abstractmethod
    def _said(self, event: Spoken) -> Json | None:
        """What a choice says, in the dialect's words; None where it needs no chunk."""

    @abstractmethod
    def _choice(self, said: Json, fields: Json) -> Json:
        """The members of a choice that carry what was said; `fields` are unknown ones of the delta."""

    @abstractmethod
    def _reason(self, event: Finish) -> str:
        """Why a choice finished, in the dialect's words."""

    def _send(self, event: Event) -> bytes:
        match event:
            case KeepAlive(is_chunk=is_chunk):
                index = self._carrier() if is_chunk else None
                return KEEP_ALIVE if index is None else self._say(index, {})
            case Usage():
                return self._chunk([], usage=usage_object(event))
            case Failure():
                return self._flush() + sse.frame(escape(_encode(error_object(event))))
            case Extra(place=Place.CHUNK):
                return self._carry_on_top(event)
            case Extra() | Logprobs():
                return self._carry(event)
            case Finish(index=index):
                return self._flush_delta(index) + self._say(index, {}, self._reason(event))
            case _:
                said = self._said(event)
                return b"" if said is None else self._say(event.index, said)

    def _say(self, index: int, said: Json, reason: str | None = None) -> bytes:
        """A chunk of one choice, with what rides on it."""
        riders = self._riders.pop(index, None) or _Riders()
        choice = {"index": index, **self._choice(said, riders.delta)}
        choice["logprobs"] = riders.logprobs
        choice["finish_reason"] = reason
        return self._chunk([choice | riders.choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        """The one place where chunks are made."""
        chunk = {**self._envelope, "choices": choices}
        if usage is not None or self._usage_is_null:
            chunk["usage"] = usage
        chunk |= self._fields
        self._fields = {}
        return sse.frame(escape(_encode(chunk)))

    def _make_text(self, index: int) -> tuple[bytes, bytes]:
        said = self._said(Text(index, _MARK))
        before, _, after = self._say(index, said or {}).rpartition(_MARK_BYTES)
        self._texts[index] = before, after
        return before, after

    def _carry(self, event: Extra | Logprobs) -> bytes:
        """Keep what rides on the choice's next chunk; the bytes of one of its own where it cannot wait."""
        index = event.index
        riders = self._riders.get(index)
        if isinstance(event, Extra) and not event.fields and riders is None and not self._fields:
            return b""
        flushed = b""
        is_full = riders is not None and len(riders.choice) + len(riders.delta) > _FIELDS_LIMIT
        if riders is not None and index in self._automaton.phases and (is_full or _collides(riders, event)):
            flushed = self._say(index, {})
            riders = None
        if riders is None:
            riders = self._riders[index] = _Riders()
        if isinstance(event, Logprobs):
            riders.logprobs = event.value
        elif event.place is Place.CHOICE:
            riders.choice.update(event.fields)
        else:
            riders.delta.update(event.fields)
        if isinstance(event, Extra) and event.alone:
            return flushed + self._say(index, {})
        return flushed

    def _carry_on_top(self, event: Extra) -> bytes:
        index = event.index if self._is_open(event.index) else self._carrier()
        flushed = b""
        is_full = len(self._fields) > _FIELDS_LIMIT
        if index is not None and (is_full or not self._fields.keys().isdisjoint(event.fields)):
            flushed = self._say(index, {})
        self._fields.update(event.fields)
        if event.alone and index is not None:
            return flushed + self._say(index, {})
        return flushed

    def _flush_delta(self, index: int) -> bytes:
        """Unknown fields of the delta, on a chunk of their own: a finish chunk has none."""
        riders = self._riders.get(index)
        if riders is None or not riders.delta:
            return b""
        self._riders[index] = _Riders(delta=riders.delta)
        flushed = self._say(index, {})
        self._riders[index] = _Riders(riders.choice, {}, riders.logprobs)
        return flushed

    def _flush(self) -> bytes:
        """What still rides, on chunks of its own."""
        flushed = b"".join(self._say(index, {}) for index in sorted(self._riders) if self._is_open(index))
        index = self._carrier()
        return flushed + (self._say(index, {}) if self._fields and index is not None else b"")

    def _carrier(self) -> int | None:
        """A choice that may still have a chunk."""
        return next((index for index in self._automaton.phases if self._is_open(index)), None)

    def _is_open(self, index: int) -> bool:
        return self._automaton.phases.get(index, Phase.FINISHED) is not Phase.FINISHED


def error_object(failure: Failure) -> Json:
    """An error as OpenAI writes it; `error` comes first, since some clients look only there."""
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return {"error": error | failure.more}


def error_end(failure: Failure) -> bytes:
    """An error event, and the end of the stream."""
    return sse.frame(escape(_encode(error_object(failure)))) + sse.DONE


def escape(payload: bytes) -> bytes:
    """JSON without the characters that some readers take for line breaks."""
    if not payload.isascii():
        for raw, escaped in _LINE_BREAKS:
            payload = payload.replace(raw, escaped)
    return payload


def _collides(riders: _Riders, event: Extra | Logprobs) -> bool:
    if isinstance(event, Logprobs):
        return riders.logprobs is not None
    fields = riders.choice if event.place is Place.CHOICE else riders.delta
    return not fields.keys().isdisjoint(event.fields)
