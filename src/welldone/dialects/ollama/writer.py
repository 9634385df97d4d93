"""Dialect of Ollama's /api/chat and /api/generate: one JSON object per line (NDJSON)."""

from collections.abc import Callable
from typing import ClassVar

import msgspec

from welldone.core import events as ev
from welldone.core.answer_format import (
    TEXT_MARKER,
    Affixes,
    TranslatedFormat,
    UsageSource,
    arguments_object,
    split_at_marker,
    tool_calls_with_arguments,
)
from welldone.core.collect import CollectedReply
from welldone.core.envelope import Envelope
from welldone.core.events import Event, Failure, Json, TextEvent, Usage
from welldone.core.lenient_json import as_object
from welldone.core.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.core.sse import UNBUFFERED_HEADERS
from welldone.core.state import CHAT_TRANSITIONS, StreamStateMachine

_NDJSON = "application/x-ndjson"
_DURATIONS = {"prompt_eval_duration": "prompt_ms", "eval_duration": "predicted_ms"}
"""Members of the last line, and the members of llama.cpp's `timings` that they come from."""
_MAX_MS = 1e12  # thirty years
_encode = msgspec.json.Encoder().encode


class OllamaFormat(TranslatedFormat):
    """Answers of /api/chat (`is_chat`) or /api/generate. `created_at` is in Ollama's time format.

    With `duration_ns`, the last line has the total duration; with llama.cpp's timings also those of its parts.
    """

    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = (("Content-Type", _NDJSON), *UNBUFFERED_HEADERS)
    INITIAL_KEEP_ALIVE: ClassVar[bytes] = b""
    BUFFERED_EVENTS: ClassVar[tuple[type[TextEvent], ...]] = (ev.ToolArguments,)

    def __init__(self, *, is_chat: bool, created_at: str, duration_ns: Callable[[], int] | None = None) -> None:
        self._is_chat = is_chat
        self._created_at = created_at
        self._duration_ns = duration_ns

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> "OllamaWriter":
        """Return a stream writer."""
        return OllamaWriter(self, envelope)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        answer = reply.choices[0]
        pairs = tool_calls_with_arguments(answer)
        calls = [_tool_call_object(tool_call.name, args) for tool_call, args in pairs if args is not None]
        content = self.content_fields(answer.text + answer.refusal, answer.reasoning, calls)
        final = self.final_fields(answer.finish_reason, reply.usage, reply.unknown_fields.get("timings"))
        return _encode(self.line_object(envelope, content) | final)

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Allow one choice; tool arguments must be objects."""
        return msgspec.structs.replace(super().restrict(facts, is_stream=is_stream), needs_object_arguments=True)

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error line."""
        return _encode({"error": failure.message}) + b"\n"

    def content_fields(self, text: str, thinking: str = "", calls: list[Json] | None = None) -> Json:
        """Return the content members for the endpoint."""
        reasoning = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **reasoning}
        message: Json = {"role": "assistant", "content": text, **reasoning}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def line_object(self, envelope: Envelope, content: Json) -> Json:
        """Return a line other than the last."""
        return {"model": envelope.model, "created_at": self._created_at, **content, "done": False}

    def final_fields(self, reason: str, usage: Usage | None, timings: object) -> Json:
        """Return the additional members of the last line."""
        # Ollama has no equivalent of content_filter; "stop" would make a blocked answer look complete.
        done: Json = {"done": True, "done_reason": "stop" if reason == "tool_calls" else reason}
        if usage is not None:
            done |= {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        done |= _durations(timings)
        return done if self._duration_ns is None else done | {"total_duration": self._duration_ns()}


class OllamaWriter:
    """Writes a stream of one choice. A tool call is sent when it is complete."""

    def __init__(self, dialect: OllamaFormat, envelope: Envelope) -> None:
        self._dialect = dialect
        self._envelope = envelope
        self._state_machine = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._call: ev.ToolCall | None = None
        self._arguments: list[str] = []
        self._reason = "stop"
        self._usage: Usage | None = None
        self._timings: object = None

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is sent later or not supported."""
        self._state_machine.accept(event)
        match event:
            case ev.Text(text=text) | ev.Refusal(text=text):
                return self._encode_line(self._dialect.content_fields(text))
            case ev.Reasoning(text=text):
                return self._encode_line(self._dialect.content_fields("", text))
            case ev.ToolCall():
                # A function call without arguments is truncated: the repairer adds `{}` to complete ones.
                line = self._end_call(is_cut=self._call is not None and not self._call.is_custom)
                self._call = event
                return line
            case ev.ToolArguments(text=text):
                self._arguments.append(text)
            case ev.Finish(reason=reason):
                self._reason = reason
                return self._end_call(is_cut=reason in TRUNCATED_REASONS)
            case Usage():
                self._usage = event
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK, fields={"timings": timings}):
                self._timings = timings
            case Failure():
                return self._dialect.final_error_bytes(event)
            case _:
                pass  # not supported by Ollama
        return b""

    def accepts_text(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether text or thinking is allowed now."""
        return self._state_machine.accepts_text(index)

    def split_text(self, index: int, sent: bytes, text_type: type[ev.TextEvent]) -> Affixes | None:
        """Return the bytes around a further text."""
        texts = ("", TEXT_MARKER) if text_type is ev.Reasoning else (TEXT_MARKER,)
        return split_at_marker(self._encode_line(self._dialect.content_fields(*texts)))

    def end(self) -> bytes:
        """Return the last line, with finish reason and usage; nothing after a failure."""
        if not self._state_machine.end():
            return b""
        line = self._dialect.line_object(self._envelope, self._dialect.content_fields(""))
        return _encode(line | self._dialect.final_fields(self._reason, self._usage, self._timings)) + b"\n"

    def _encode_line(self, content: Json) -> bytes:
        return _encode(self._dialect.line_object(self._envelope, content)) + b"\n"

    def _end_call(self, *, is_cut: bool) -> bytes:
        tool_call, text = self._call, "".join(self._arguments)
        self._call, self._arguments = None, []
        arguments = None if tool_call is None else arguments_object(text, is_custom=tool_call.is_custom, is_cut=is_cut)
        if tool_call is None or arguments is None:
            return b""
        return self._encode_line(self._dialect.content_fields("", "", [_tool_call_object(tool_call.name, arguments)]))


def _durations(timings: object) -> Json:
    """The durations that llama.cpp reported, in nanoseconds."""
    reported = as_object(timings)
    times = {name: reported.get(source) for name, source in _DURATIONS.items()}
    return {name: round(ms * 1e6) for name, ms in times.items() if isinstance(ms, int | float) and 0 <= ms <= _MAX_MS}


def _tool_call_object(name: str, arguments: msgspec.Raw) -> Json:
    return {"function": {"name": name, "arguments": arguments}}
