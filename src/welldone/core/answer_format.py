"""Interface of a format: how the events of an answer are written for a client, as a stream and as one reply."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from welldone.core import sse
from welldone.core.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, TextEvent, Usage
from welldone.core.fields import usage_from_timings
from welldone.core.lenient_json import normalise_object_text
from welldone.core.request_facts import TRUNCATED_REASONS, RequestFacts

CUSTOM_INPUT_MEMBER = "input"
"""Member for the free text of a custom tool call, in dialects whose calls take an object (Messages, Ollama)."""


def arguments_object(text: str, *, is_custom: bool, is_cut: bool) -> msgspec.Raw | None:
    """Return the arguments as an object; None for an incomplete call, which a client must not run.

    With `is_cut` the answer was truncated, perhaps in this call. The end of a custom call's text is not detectable.
    """
    if is_custom:
        return None if is_cut else msgspec.Raw(msgspec.json.encode({CUSTOM_INPUT_MEMBER: text}))
    if not text.strip():
        return None if is_cut else msgspec.Raw(b"{}")
    return normalise_object_text(text)


def tool_calls_with_arguments(answer: CollectedChoice) -> Iterator[tuple[CollectedToolCall, msgspec.Raw | None]]:
    """Yield the calls of an answer with `arguments_object`. Of custom calls only the last may be truncated."""
    for tool_call in answer.tool_calls:
        may_be_cut = answer.finish_reason in TRUNCATED_REASONS and (
            tool_call is answer.tool_calls[-1] or not tool_call.is_custom
        )
        yield tool_call, arguments_object(tool_call.arguments, is_custom=tool_call.is_custom, is_cut=may_be_cut)


KEEP_ALIVE = sse.comment(b"keep-alive")
"""Comment that clients of all dialects ignore."""

UsageSource: TypeAlias = Callable[[], Usage | None]
"""Returns the usage known so far; some dialects send it before the end of the answer."""


def known_usage(usage: Usage | None, usage_source: UsageSource, timings: Json) -> Usage | None:
    """Return the usage of the end of the stream, else that known so far, else that of llama.cpp's timings."""
    return usage or usage_source() or usage_from_timings(timings)


Affixes: TypeAlias = tuple[bytes, bytes]
"""Bytes before and after the text of a chunk."""
TextEncoder: TypeAlias = Callable[[bytes], bytes]
"""Returns the chunk with a text, which is the content of a JSON string, and records that it was sent."""

# JSON of an event; all that differs from event to event may be its text.

_encode = msgspec.json.Encoder().encode
TEXT_MARKER = "\x00text\x00"
"""Stands for the text in a template of an encoded event."""
_TEXT_MARKER_BYTES = _encode(TEXT_MARKER)[1:-1]
# Legal in JSON, but line readers such as Python's str.splitlines treat them as line breaks.
_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def split_at_marker(encoded: bytes) -> Affixes:
    """Return the bytes around `TEXT_MARKER`."""
    before, _, after = encoded.rpartition(_TEXT_MARKER_BYTES)
    return before, after


def encode_text(affixes: Affixes, text: str) -> bytes:
    """Encode an event whose text is all that differs from its template."""
    payload = _encode(text)[1:-1]
    return affixes[0] + (payload if payload.isascii() else escape_line_breaks(payload)) + affixes[1]


def escape_line_breaks(payload: bytes) -> bytes:
    """Escape the characters in JSON that some readers treat as line breaks."""
    if not payload.isascii():
        for raw, escaped in _LINE_BREAKS:
            payload = payload.replace(raw, escaped)
    return payload


class DialectWriter(Protocol):
    """Writes a stream from events in legal order."""

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`, if any. Raises EventOrderError if it is not allowed now."""

    def accepts_text(self, index: int, text_type: type[TextEvent]) -> bool:
        """Whether text or reasoning of this choice is allowed now and would be a chunk without other fields."""

    def split_text(self, index: int, sent: bytes, text_type: type[TextEvent]) -> Affixes | TextEncoder | None:
        """Return the bytes around the next text of this choice, if it has the form of the last one, which is `sent`.

        A dialect whose chunks differ in more than their text returns an encoder.
        """

    def end(self) -> bytes:
        """Return the bytes that end the stream. Raises EventOrderError if a choice is unfinished."""


class AnswerFormat(ABC):
    """Format of one answer; holds the request options that affect it."""

    BUFFERED_EVENTS: ClassVar[tuple[type[TextEvent], ...]] = ()
    """Content that a stream sends or repeats at its end, and buffers until then: its length must be bounded."""
    REPORTS_PROMPT_TOKENS_FIRST: ClassVar[bool] = False
    """Whether prompt tokens are sent before the answer: the upstream is then asked for continuous usage."""
    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = sse.HEADERS
    """Headers of a stream."""
    INITIAL_KEEP_ALIVE: ClassVar[bytes] = KEEP_ALIVE
    """Keep-alive before the first event of the stream."""
    endpoint: Endpoint = Endpoint.CHAT
    """The endpoint whose answers have this format; chat if no upstream has such an endpoint."""
    final_object: Json | None = None
    """The finished answer, in dialects whose clients can retrieve it later."""

    def envelope(self, upstream: Envelope | None, fallback: Envelope) -> Envelope:
        """Choose the envelope: that of the upstream, if any, or our own."""
        return upstream or fallback

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Restrict the request facts to what the dialect supports."""
        return facts

    @abstractmethod
    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> DialectWriter:
        """Return a stream writer."""

    @abstractmethod
    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""

    @abstractmethod
    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error that ends a stream without using its writer."""


class TranslatedFormat(AnswerFormat):
    """A dialect translated from another one: id and time are ours, only the model is that of the upstream."""

    def envelope(self, upstream: Envelope | None, fallback: Envelope) -> Envelope:
        """Return our own envelope with the model of the upstream."""
        return fallback if upstream is None else msgspec.structs.replace(fallback, model=upstream.model)

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Allow one choice; a streamed call ends before the next one."""
        return msgspec.structs.replace(facts, choice_count=1, ends_calls=is_stream)
