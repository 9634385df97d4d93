"""Writer of the Gemini API: events of an answer as server-sent events, as a JSON array, and as one reply.

A function call is sent when it is complete, since a part has the whole arguments. The last element has the finish
reasons and the usage. The others have the prompt tokens, if they are known by then: text comes from a template, which
has no place for a count that grows. Keep-alives are empty lines: google-genai fails on SSE comments.
"""

from typing import ClassVar

import msgspec

from welldone.core import events as ev
from welldone.core import sse
from welldone.core.answer_format import (
    TEXT_MARKER,
    Affixes,
    TranslatedFormat,
    UsageSource,
    arguments_object,
    encode_text,
    escape_line_breaks,
    known_usage,
    split_at_marker,
    tool_calls_with_arguments,
)
from welldone.core.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, TextEvent, Usage
from welldone.core.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.core.state import CHAT_TRANSITIONS, StreamStateMachine
from welldone.dialects.gemini import objects

_encode = msgspec.json.Encoder().encode
_EMPTY_LINE = b"\n"


class GeminiFormat(TranslatedFormat):
    """Answers of streamGenerateContent?alt=sse, and of generateContent.

    Without `includes_thoughts` reasoning is omitted, as in Google's API.
    """

    INITIAL_KEEP_ALIVE: ClassVar[bytes] = _EMPTY_LINE
    BUFFERED_EVENTS: ClassVar[tuple[type[TextEvent], ...]] = (ev.ToolArguments,)
    REPORTS_PROMPT_TOKENS_FIRST: ClassVar[bool] = True
    endpoint: Endpoint = Endpoint.GEMINI

    def __init__(self, *, includes_thoughts: bool = False) -> None:
        self.includes_thoughts = includes_thoughts

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Allow several candidates; a streamed call ends before the next one."""
        return msgspec.structs.replace(facts, ends_calls=is_stream)

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> "GeminiWriter":
        """Return a stream writer."""
        return GeminiWriter(self, envelope, usage_source)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """Encode a non-streamed reply."""
        candidates = [self._candidate(index, answer) for index, answer in sorted(reply.choices.items())]
        return escape_line_breaks(_encode(objects.response_object(envelope, candidates, reply.usage)))

    def final_error_bytes(self, failure: Failure) -> bytes:
        """Encode an error, which ends the stream."""
        return self.encode_element(objects.failure_object(failure)) + self.end_bytes()

    def encode_element(self, value: Json) -> bytes:
        """Encode an element of the stream."""
        before, after = self.next_frame()
        return before + escape_line_breaks(_encode(value)) + after

    def next_frame(self) -> tuple[bytes, bytes]:
        """Return the bytes around the next element."""
        return sse.DATA_PREFIX, sse.FRAME_END

    def end_bytes(self) -> bytes:
        """Return the bytes after the last element. There is no `[DONE]`."""
        return b""

    def _candidate(self, index: int, answer: CollectedChoice) -> Json:
        parts = [objects.text_part(answer.reasoning, is_thought=True)] if self._shows(answer.reasoning) else []
        parts += [objects.text_part(text) for text in (answer.text, answer.refusal) if text]
        parts += objects.signature_parts(answer.delta_fields)
        ending = CandidateEnd(answer.finish_reason)
        for tool_call, arguments in tool_calls_with_arguments(answer):
            parts += ending.call_parts(tool_call, arguments)
        members = ending.members() | objects.logprobs_members(answer.logprobs or {})
        return objects.candidate_object(index, parts or [objects.text_part("")], members)

    def _shows(self, reasoning: str) -> bool:
        return self.includes_thoughts and reasoning != ""


class GeminiArrayFormat(GeminiFormat):
    """Answers of streamGenerateContent without `alt=sse`: the elements are those of one JSON array."""

    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("Content-Type", "application/json; charset=utf-8"),
        *sse.UNBUFFERED_HEADERS,
    )

    def __init__(self, *, includes_thoughts: bool = False) -> None:
        super().__init__(includes_thoughts=includes_thoughts)
        self._has_started = False

    def next_frame(self) -> tuple[bytes, bytes]:
        """Return the bytes around the next element."""
        before = b",\n" if self._has_started else b"["
        self._has_started = True
        return before, b""

    def end_bytes(self) -> bytes:
        """Return the end of the array."""
        return b"\n]" if self._has_started else b"[]"


class CandidateEnd:
    """What is known of the end of a candidate: its finish reason, and whether a call is malformed."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        """OpenAI's finish reason."""
        self._malformed_call = ""

    def call_parts(self, tool_call: ev.ToolCall | CollectedToolCall, arguments: msgspec.Raw | None) -> list[Json]:
        """Return the part of a call; none if its arguments are incomplete or not an object."""
        if arguments is not None:
            return [objects.call_part(tool_call.id, tool_call.name, arguments, tool_call.extra_fields)]
        self._malformed_call = tool_call.name  # unless the answer was truncated
        return []

    def members(self) -> Json:
        """Return the members of the candidate."""
        reason = objects.finish_reason(self.reason)
        if self._malformed_call and reason == objects.STOP:
            message = f"The arguments of the call of {self._malformed_call} are not a JSON object."
            return {"finishReason": objects.MALFORMED_CALL, "finishMessage": message}
        return {"finishReason": reason}


class GeminiWriter:
    """Writes a stream from events in legal order."""

    def __init__(self, dialect: GeminiFormat, envelope: Envelope, usage_source: UsageSource) -> None:
        self._dialect = dialect
        self._envelope = envelope
        self._state_machine = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._ends: dict[int, CandidateEnd] = {}  # by choice, in their order
        self._calls: dict[int, tuple[ev.ToolCall, list[str]]] = {}  # the open call of each choice
        self._logprobs: dict[int, Json] = {}  # for the next element of each choice
        self._text_templates: dict[tuple[int, bool], Affixes] = {}
        self._usage: Usage | None = None
        self._usage_source = usage_source
        self._timings: Json = {}

    def send(self, event: Event) -> bytes:
        """Return the bytes for `event`; empty if it is sent later or not supported.

        Raises:
            EventOrderError: the event is not allowed now.
        """
        self._state_machine.accept(event)
        match event:
            case ev.Text(index=index, text=text) | ev.Refusal(index=index, text=text):
                return self._write_text(index, text)
            case ev.Reasoning(index=index, text=text) if self._dialect.includes_thoughts:
                return self._write_text(index, text, is_thought=True)
            case ev.ChoiceStart(index=index):
                self._ends[index] = CandidateEnd()
            case ev.ToolCall(index=index):
                # A function call without arguments is truncated: the repairer adds `{}` to complete ones.
                written = self._end_call(index, is_cut=not self._has_custom_call(index))
                self._calls[index] = event, []
                return written
            case ev.ToolArguments(index=index, text=text):
                self._calls[index][1].append(text)
            case ev.UnknownFields(index=index, location=ev.FieldLocation.DELTA, fields=fields):
                return b"".join([self._write_part(index, piece) for piece in objects.signature_parts(fields)])
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK, fields={"timings": dict(timings)}):  # llama.cpp
                self._timings = timings
            case ev.Logprobs(index=index, value=value):
                self._add_logprobs(index, objects.logprobs_members(value))
            case ev.Finish(index=index, reason=reason):
                self._ends[index].reason = reason
                return self._end_call(index, is_cut=reason in TRUNCATED_REASONS)
            case Usage():
                self._usage = event
            case Failure():
                return self._dialect.encode_element(objects.failure_object(event))
            case ev.KeepAlive():
                return _EMPTY_LINE
            case _:
                pass  # hidden reasoning; other unknown fields, which have no equivalent
        return b""

    def accepts_text(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether a text or thought is allowed now and would be an element without other members."""
        is_hidden = text_type is ev.Reasoning and not self._dialect.includes_thoughts
        return not is_hidden and index not in self._logprobs and self._state_machine.accepts_text(index)

    def split_text(self, index: int, sent: bytes, text_type: type[ev.TextEvent]) -> Affixes | None:
        """Return the bytes around a further text of a candidate."""
        is_thought = text_type is ev.Reasoning
        return self._text_affixes(index, is_thought=is_thought) if (index, is_thought) in self._text_templates else None

    def end(self) -> bytes:
        """Return the last element, with finish reasons and usage; after a failure only the end."""
        if not self._state_machine.end():
            return self._dialect.end_bytes()
        candidates = [
            objects.candidate_object(index, [objects.text_part("")], ending.members() | self._logprobs.get(index, {}))
            for index, ending in self._ends.items()
        ]
        usage = known_usage(self._usage, self._usage_source, self._timings)
        last = objects.response_object(self._envelope, candidates, usage)
        return self._dialect.encode_element(last) + self._dialect.end_bytes()

    def _write_text(self, index: int, text: str, *, is_thought: bool = False) -> bytes:
        if index in self._logprobs:
            return self._write_part(index, objects.text_part(text, is_thought=is_thought))
        return encode_text(self._text_affixes(index, is_thought=is_thought), text)

    def _text_affixes(self, index: int, *, is_thought: bool) -> Affixes:
        template = self._text_templates.get((index, is_thought))
        if template is None:
            piece = objects.text_part(TEXT_MARKER, is_thought=is_thought)
            template = split_at_marker(escape_line_breaks(_encode(self._element(index, piece))))
            self._text_templates[index, is_thought] = template
        start, end = self._dialect.next_frame()
        return start + template[0], template[1] + end

    def _write_part(self, index: int, piece: Json) -> bytes:
        return self._dialect.encode_element(self._element(index, piece, self._logprobs.pop(index, None)))

    def _element(self, index: int, piece: Json, members: Json | None = None) -> Json:
        element = objects.response_object(self._envelope, [objects.candidate_object(index, [piece], members)])
        known = known_usage(self._usage, self._usage_source, self._timings)
        prompt = known.prompt_tokens if known else 0
        return element | ({"usageMetadata": {"promptTokenCount": prompt, "totalTokenCount": prompt}} if prompt else {})

    def _add_logprobs(self, index: int, members: Json) -> None:
        if index in self._logprobs and members:
            known, new = self._logprobs[index]["logprobsResult"], members["logprobsResult"]
            members = {"logprobsResult": {name: known[name] + new[name] for name in new}}
        if members:
            self._logprobs[index] = members

    def _has_custom_call(self, index: int) -> bool:
        return index in self._calls and self._calls[index][0].is_custom

    def _end_call(self, index: int, *, is_cut: bool) -> bytes:
        if index not in self._calls:
            return b""
        event, texts = self._calls.pop(index)
        arguments = arguments_object("".join(texts), is_custom=event.is_custom, is_cut=is_cut)
        return b"".join([self._write_part(index, piece) for piece in self._ends[index].call_parts(event, arguments)])
