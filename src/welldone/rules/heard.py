"""A trace as the checks see it: its frames, chunks or events, choices and errors, each worked out once."""

from collections.abc import Container
from enum import StrEnum
from functools import cached_property
from typing import Any

from welldone.rules import anthropic, responses
from welldone.rules.anthropic import Turn
from welldone.rules.choices import Choice, Part, as_list, as_object, read_parts, sort_choices
from welldone.rules.messages import FAILURES, Kind, Message, Value, error_kind, read_messages, read_value, skip_space
from welldone.rules.responses import Output
from welldone.rules.trace import Trace
from welldone.wire import sse

_TYPES: dict[str, Container[str]] = {"responses": responses.KNOWN, "messages": anthropic.KNOWN_EVENTS}
"""The types of events, where a stream is not made of chunks."""


class Form(StrEnum):
    """What kind of reply was heard."""

    STREAM = "stream"
    WHOLE = "whole"
    """One JSON value, where no stream was asked for."""
    INSTEAD = "instead"
    """One JSON value, where a stream was asked for."""
    FAILURE = "failure"
    """A status of 400 or more."""


class Heard:
    """What was heard, seen from all the sides that checks look at."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @property
    def is_chat(self) -> bool:
        return self.trace.endpoint == "chat"

    @property
    def is_chunked(self) -> bool:
        """Whether a stream is made of chunks here; else it is made of events, each with a type."""
        return self.trace.endpoint in ("chat", "completions")

    # ---- the reply as one JSON value

    @cached_property
    def text(self) -> str:
        """The body as text."""
        return self.trace.body.removeprefix(sse.BOM).decode("utf-8", "replace")

    @cached_property
    def looks_like_json(self) -> bool:
        return self.trace.body.removeprefix(sse.BOM).lstrip()[:1] in (b"{", b"[")

    @cached_property
    def _first(self) -> tuple[Value, int]:
        return read_value(self.text, skip_space(self.text, 0))

    @property
    def value(self) -> Value:
        """The body's first JSON value."""
        return self._first[0]

    @cached_property
    def tail(self) -> str:
        """What follows that value."""
        return self.text[self._first[1] :].strip()

    @cached_property
    def reply(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one where it is something else."""
        return as_object(self.value.json)

    @property
    def is_broken_off(self) -> bool:
        """Whether it is one JSON value whose connection ended before it did."""
        return self.form is Form.WHOLE and self.trace.complete is False and self.value.kind is Kind.BROKEN

    @cached_property
    def reply_fails(self) -> bool:
        """Whether the body is an error, in whatever shape. A Response that failed is still a Response."""
        is_response = self.trace.endpoint == "responses" and self.reply.get("object") == "response"
        return error_kind(self.value.json) is not None and not is_response

    @cached_property
    def form(self) -> Form:
        trace = self.trace
        if trace.status is not None and trace.status >= 400:
            return Form.FAILURE
        if not self.looks_like_json or self.value.kind is Kind.DONE:
            return Form.STREAM
        if trace.wants_stream is False:
            return Form.WHOLE
        if self._looks_like_chunk() if self.is_chunked else self._looks_like_event():
            return Form.STREAM
        if trace.wants_stream is None:
            return Form.WHOLE if self.value.kind is None or b"\ndata:" not in trace.body else Form.STREAM
        return Form.INSTEAD if self.value.kind is None and not self.tail else Form.STREAM

    def _looks_like_chunk(self) -> bool:
        """Whether the first value is a chunk that lacks only its `data:`."""
        if str(self.reply.get("object")).endswith(".chunk"):
            return True
        return any("delta" in as_object(choice) for choice in as_list(self.reply.get("choices"))[:1])

    def _looks_like_event(self) -> bool:
        """Whether the first value is an event that lacks only its `data:`. Messages and errors have a type as well."""
        return isinstance(self.reply.get("type"), str) and self.reply["type"] not in ("message", "error")

    # ---- the reply as a stream

    @cached_property
    def frames(self) -> list[sse.Frame]:
        if self.form is not Form.STREAM:
            return []
        decoder = sse.Decoder(limit_bytes=len(self.trace.body) + 1)
        return decoder.feed(self.trace.body) + decoder.close()

    @cached_property
    def garbled(self) -> dict[int, str]:
        """The numbers of the frames that are no UTF-8, with the bytes at fault."""
        garbage = ((number, bad_bytes(frame.raw)) for number, frame in enumerate(self.frames, start=1))
        return {number: text for number, text in garbage if text is not None}

    @cached_property
    def messages(self) -> list[Message]:
        return read_messages(self.frames, _TYPES.get(self.trace.endpoint))

    @cached_property
    def chunks(self) -> list[Message]:
        return [message for message in self.messages if message.kind is Kind.CHUNK]

    @cached_property
    def events(self) -> list[Message]:
        return [message for message in self.messages if message.kind is Kind.EVENT]

    @cached_property
    def output(self) -> Output:
        """The stream of /v1/responses."""
        return Output(self.events)

    @cached_property
    def turn(self) -> Turn:
        """The stream of /v1/messages."""
        return Turn([message for message in self.messages if message.kind in (Kind.EVENT, Kind.FOREIGN)])

    @cached_property
    def dones(self) -> list[Message]:
        return [message for message in self.messages if message.kind is Kind.DONE]

    @cached_property
    def failures(self) -> list[Message]:
        """The errors of the stream, in whatever shape."""
        return [message for message in self.messages if message.kind in FAILURES or _is_error_event(message)]

    @cached_property
    def errors(self) -> list[Message]:
        """The errors that came as an error event."""
        return [message for message in self.messages if message.kind is Kind.ERROR]

    @cached_property
    def placeholder(self) -> Message | None:
        """A first chunk that holds no choices and has no id or object yet."""
        if not self.chunks or has_usage(first := self.chunks[0]):
            return None
        is_bare = not first.json.get("id") or not first.json.get("object")
        return first if is_bare and is_without_choices(first) else None

    @cached_property
    def envelopes(self) -> list[Message]:
        """The chunks whose envelope counts: all but the placeholder."""
        return self.chunks[1:] if self.placeholder else self.chunks

    # ---- its choices

    @cached_property
    def by_chunk(self) -> list[tuple[Message, list[Part]]]:
        return [(chunk, read_parts(chunk, is_chat=self.is_chat)) for chunk in self.chunks]

    @cached_property
    def parts(self) -> list[Part]:
        return [part for _, parts in self.by_chunk for part in parts]

    @cached_property
    def choices(self) -> list[Choice]:
        return sort_choices(self.parts)

    @cached_property
    def unfinished(self) -> list[Choice]:
        """The choices without a finish reason of a stream that told of no error."""
        return [] if self.failures else [choice for choice in self.choices if choice.finish is None]

    @cached_property
    def is_whole(self) -> bool:
        """Whether it is a stream of chunks that came to its end and told of no error."""
        return bool(self.chunks) and not self.failures and (bool(self.dones) or not self.unfinished)


def _is_error_event(message: Message) -> bool:
    return message.kind is Kind.EVENT and message.json.get("type") == "error"


def bad_bytes(raw: bytes) -> str | None:
    """The first bytes that are no UTF-8, with what stands around them; None where there are none."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        around = raw[max(0, error.start - 40) : error.end + 40]
        return around.decode("utf-8", "backslashreplace")
    return None


def is_without_choices(chunk: Message) -> bool:
    """Whether its `choices` is [], null or missing."""
    return chunk.json.get("choices") in (None, [])


def has_usage(chunk: Message) -> bool:
    """Whether it holds a usage object."""
    return isinstance(chunk.json.get("usage"), dict)


def is_usage_chunk(chunk: Message) -> bool:
    """Whether it is a usage chunk as it should be: `choices` [] and a usage object."""
    return has_usage(chunk) and chunk.json.get("choices") == []
