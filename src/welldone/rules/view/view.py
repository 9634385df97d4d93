"""A trace as the checks read it: frames, chunks or events, choices and errors, each computed once."""

from collections.abc import Container
from enum import StrEnum
from functools import cached_property
from typing import Any

from welldone.core import sse
from welldone.rules.trace import Trace
from welldone.rules.view import anthropic, gemini, responses, stream
from welldone.rules.view.anthropic import AnthropicStreamView
from welldone.rules.view.choices import ChoiceDelta, ChoiceView, as_list, as_object, group_by_choice, read_choice_deltas
from welldone.rules.view.gemini import GeminiReplyView
from welldone.rules.view.responses import ResponsesStreamView
from welldone.rules.view.stream import MessageKind, StreamMessage

_EVENT_TYPES: dict[str, Container[str]] = {
    "responses": responses.RESPONSES_EVENT_TYPES,
    "messages": anthropic.ANTHROPIC_EVENT_TYPES,
}
"""Event types of the endpoints whose streams consist of typed events."""


class ReplyKind(StrEnum):
    """Classification of a reply."""

    STREAM = "stream"
    ARRAY = "array"
    """A stream of Gemini as one JSON array. Its elements count as frames."""
    WHOLE = "whole"
    """One JSON value; no stream was requested."""
    JSON_INSTEAD_OF_STREAM = "instead"
    """One JSON value although a stream was requested."""
    HTTP_ERROR = "failure"
    """A status of 400 or more."""


STREAM_KINDS = (ReplyKind.STREAM, ReplyKind.ARRAY)
"""Kinds of reply that consist of frames."""


class TraceView:
    """Lazily parsed trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @property
    def is_chat(self) -> bool:
        return self.trace.endpoint == "chat"

    @property
    def is_gemini(self) -> bool:
        return self.trace.endpoint == "gemini"

    @property
    def is_chunked(self) -> bool:
        """Whether streams of the endpoint consist of chunks, not of typed events."""
        return self.trace.endpoint in ("chat", "completions")

    @cached_property
    def body_text(self) -> str:
        return self.trace.body.removeprefix(sse.BOM).decode("utf-8", "replace")

    @cached_property
    def looks_like_json(self) -> bool:
        return self.trace.body.removeprefix(sse.BOM).lstrip()[:1] in (b"{", b"[")

    @cached_property
    def _first_parsed(self) -> tuple[stream.ParsedValue, int]:
        return stream.read_value(self.body_text, stream.skip_space(self.body_text, 0))

    @property
    def first_value(self) -> stream.ParsedValue:
        """First JSON value of the body."""
        return self._first_parsed[0]

    @cached_property
    def text_after_json(self) -> str:
        """Text after the first JSON value."""
        return self.body_text[self._first_parsed[1] :].strip()

    @cached_property
    def reply_object(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is something else."""
        return as_object(self.first_value.json)

    @cached_property
    def is_error_reply(self) -> bool:
        """Whether the body is an error in any shape. A failed Response is still a Response."""
        is_response = self.trace.endpoint == "responses" and self.reply_object.get("object") == "response"
        return stream.error_kind(self.first_value.json) is not None and not is_response

    @cached_property
    def reply_kind(self) -> ReplyKind:
        trace = self.trace
        if trace.status is not None and trace.status >= 400:
            return ReplyKind.HTTP_ERROR
        if not self.looks_like_json or self.first_value.kind is MessageKind.DONE:
            return ReplyKind.STREAM
        if trace.wants_stream is False:
            return ReplyKind.WHOLE
        if self.is_gemini and self.body_text.lstrip().startswith("["):
            return ReplyKind.ARRAY
        if self._looks_like_chunk() if self.is_chunked else self._looks_like_event():
            return ReplyKind.STREAM
        is_json = self.first_value.kind is None
        if trace.wants_stream is None:
            return ReplyKind.WHOLE if is_json or b"\ndata:" not in trace.body else ReplyKind.STREAM
        return ReplyKind.JSON_INSTEAD_OF_STREAM if is_json and not self.text_after_json else ReplyKind.STREAM

    def _looks_like_chunk(self) -> bool:
        """Whether the first value is a chunk without its `data:`."""
        if str(self.reply_object.get("object")).endswith(".chunk"):
            return True
        return any("delta" in as_object(choice) for choice in as_list(self.reply_object.get("choices"))[:1])

    def _looks_like_event(self) -> bool:
        """Whether the first value is an event without its `data:`. Messages and errors have a type too."""
        return isinstance(self.reply_object.get("type"), str) and self.reply_object["type"] not in ("message", "error")

    @cached_property
    def _array(self) -> tuple[list[sse.Frame], bool]:
        return stream.cut_array(self.trace.body)

    @property
    def is_array_closed(self) -> bool:
        """Whether the JSON array has its closing bracket."""
        return self._array[1]

    @cached_property
    def frames(self) -> list[sse.Frame]:
        if self.reply_kind is ReplyKind.ARRAY:
            return self._array[0]
        if self.reply_kind is not ReplyKind.STREAM:
            return []
        decoder = sse.SseDecoder(limit_bytes=len(self.trace.body) + 1)
        return [frame for frame in decoder.feed(self.trace.body) + decoder.close() if not frame.is_overlong]

    @cached_property
    def invalid_utf8_frames(self) -> dict[int, str]:
        """Frames that are not UTF-8: the offending bytes by frame number."""
        invalid = ((number, invalid_utf8(frame.raw)) for number, frame in enumerate(self.frames, start=1))
        return {number: text for number, text in invalid if text is not None}

    @cached_property
    def messages(self) -> list[StreamMessage]:
        keys = gemini.ELEMENT_KEYS if self.is_gemini else stream.CHUNK_KEYS
        is_array = self.reply_kind is ReplyKind.ARRAY
        return stream.read_messages(self.frames, _EVENT_TYPES.get(self.trace.endpoint), keys, is_array=is_array)

    def messages_after(self, message: StreamMessage) -> list[StreamMessage]:
        """Return the messages that follow this one."""
        position = next(index for index, listed in enumerate(self.messages) if listed is message)
        return self.messages[position + 1 :]

    @cached_property
    def chunks(self) -> list[StreamMessage]:
        return [message for message in self.messages if message.kind is MessageKind.CHUNK]

    @cached_property
    def events(self) -> list[StreamMessage]:
        return [message for message in self.messages if message.kind is MessageKind.EVENT]

    @cached_property
    def responses_stream(self) -> ResponsesStreamView:
        return ResponsesStreamView(self.events)

    @cached_property
    def anthropic_stream(self) -> AnthropicStreamView:
        return AnthropicStreamView(
            [message for message in self.messages if message.kind in (MessageKind.EVENT, MessageKind.FOREIGN)]
        )

    @cached_property
    def gemini_reply(self) -> GeminiReplyView:
        if self.reply_kind is ReplyKind.WHOLE:
            return GeminiReplyView([(None, self.reply_object)] if not self.is_error_reply else [])
        return GeminiReplyView((chunk, chunk.json) for chunk in self.chunks)

    @cached_property
    def done_messages(self) -> list[StreamMessage]:
        return [message for message in self.messages if message.kind is MessageKind.DONE]

    @cached_property
    def all_errors(self) -> list[StreamMessage]:
        """Errors of the stream, in any shape."""
        return [message for message in self.messages if message.kind in stream.ERROR_KINDS or _is_error_event(message)]

    @cached_property
    def error_events(self) -> list[StreamMessage]:
        """Errors in the shape of an error event."""
        return [message for message in self.messages if message.kind is MessageKind.ERROR]

    @cached_property
    def placeholder_chunk(self) -> StreamMessage | None:
        """First chunk, if it has no choices and lacks its id or object."""
        if not self.chunks or has_usage(first := self.chunks[0]):
            return None
        is_bare = not first.json.get("id") or not first.json.get("object")
        return first if is_bare and is_without_choices(first) else None

    @cached_property
    def enveloped_chunks(self) -> list[StreamMessage]:
        """Chunks whose envelope is checked: all but the placeholder."""
        return self.chunks[1:] if self.placeholder_chunk else self.chunks

    @cached_property
    def deltas_by_chunk(self) -> list[tuple[StreamMessage, list[ChoiceDelta]]]:
        return [(chunk, read_choice_deltas(chunk, is_chat=self.is_chat)) for chunk in self.chunks]

    @cached_property
    def choice_deltas(self) -> list[ChoiceDelta]:
        return [choice_delta for _, choice_deltas in self.deltas_by_chunk for choice_delta in choice_deltas]

    @cached_property
    def choices(self) -> list[ChoiceView]:
        return group_by_choice(self.choice_deltas)

    @cached_property
    def unfinished_choices(self) -> list[ChoiceView]:
        """Choices without a finish reason, if the stream has no error."""
        return [] if self.all_errors else [choice for choice in self.choices if choice.finish_delta is None]

    @cached_property
    def is_complete_stream(self) -> bool:
        """Whether it is a stream of chunks that reached its end without an error."""
        return bool(self.chunks) and not self.all_errors and (bool(self.done_messages) or not self.unfinished_choices)


def _is_error_event(message: StreamMessage) -> bool:
    return message.kind is MessageKind.EVENT and message.json.get("type") == "error"


def invalid_utf8(raw: bytes) -> str | None:
    """Return the first bytes that are not UTF-8 with their surroundings; None if there are none."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        around = raw[max(0, error.start - 40) : error.end + 40]
        return around.decode("utf-8", "backslashreplace")
    return None


def is_without_choices(chunk: StreamMessage) -> bool:
    """Whether `choices` is [], null or missing."""
    return chunk.json.get("choices") in (None, [])


def has_usage(chunk: StreamMessage) -> bool:
    """Whether a chunk has a usage object."""
    return isinstance(chunk.json.get("usage"), dict)


def is_usage_chunk(chunk: StreamMessage) -> bool:
    """Whether it is a well-formed usage chunk: `choices` [] and a usage object."""
    return has_usage(chunk) and chunk.json.get("choices") == []
