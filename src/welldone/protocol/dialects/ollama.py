"""Ollama's dialect: a line of JSON for each event, on /api/chat and on /api/generate."""

from typing import ClassVar

import msgspec

from welldone.protocol.collect import CollectedReply
from welldone.protocol.dialects.base import TranslatedDialect, UsageSource, arguments_object, complete_tool_calls
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import (
    Event,
    Failure,
    Finish,
    Json,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.protocol.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.protocol.state import CHAT_TRANSITIONS, StreamState, StreamStateMachine

_NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class OllamaDialect(TranslatedDialect):
    """Answers as Ollama gives them. `is_chat`: as messages, else as bare text. `at`: the time, as Ollama writes it."""

    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = (("Content-Type", _NDJSON), ("Cache-Control", "no-cache"))
    INITIAL_KEEP_ALIVE: ClassVar[bytes] = b""
    BUFFERS_OUTPUT: ClassVar[bool] = True  # the arguments of a call

    def __init__(self, *, is_chat: bool, created_at: str) -> None:
        self._is_chat = is_chat
        self._created_at = created_at

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> "OllamaWriter":
        """The writer of a stream."""
        return OllamaWriter(self, envelope)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        answer = reply.choices[0]
        calls = [_tool_call_object(call.name, arguments) for call, arguments in complete_tool_calls(answer)]
        said = self.content_fields(answer.text + answer.refusal, answer.reasoning, calls)
        return _encode(self.line_object(envelope, said) | self.final_fields(answer.finish_reason, reply.usage))

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """Calls have objects, in a stream too."""
        return msgspec.structs.replace(super().restrict(facts, is_stream=is_stream), needs_object_arguments=True)

    def final_error_bytes(self, failure: Failure) -> bytes:
        """An error is a line of its own."""
        return _encode({"error": failure.message}) + b"\n"

    def content_fields(self, text: str, thinking: str = "", calls: list[Json] | None = None) -> Json:
        """What is said, in the words of the path."""
        thought = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **thought}
        message: Json = {"role": "assistant", "content": text, **thought}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def line_object(self, envelope: Envelope, content: Json) -> Json:
        """One line of the stream, not the last."""
        return {"model": envelope.model, "created_at": self._created_at, **content, "done": False}

    def final_fields(self, reason: str, usage: Usage | None) -> Json:
        """What the last line has beside."""
        # Ollama has no word for content_filter; its own "stop" would make a blocked answer look whole.
        done: Json = {"done": True, "done_reason": "stop" if reason == "tool_calls" else reason}
        if usage is not None:
            done |= {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        return done


class OllamaWriter:
    """A right stream of Ollama's, of one choice. A call is said when it is whole."""

    def __init__(self, dialect: OllamaDialect, envelope: Envelope) -> None:
        self._dialect = dialect
        self._envelope = envelope
        self._automaton = StreamStateMachine(CHAT_TRANSITIONS, is_ordered=True)
        self._call: ToolCall | None = None
        self._arguments: list[str] = []
        self._reason = "stop"
        self._usage: Usage | None = None

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later, or cannot be said here."""
        self._automaton.accept(event)
        match event:
            case Text(text=text) | Refusal(text=text):
                return self._encode_line(self._dialect.content_fields(text))
            case Reasoning(text=text):
                return self._encode_line(self._dialect.content_fields("", text))
            case ToolCall():
                # A function without any arguments was cut: others have got a `{}` by now.
                said = self._end_call(is_cut=self._call is not None and not self._call.is_custom)
                self._call = event
                return said
            case ToolArguments(text=text):
                self._arguments.append(text)
            case Finish(reason=reason):
                self._reason = reason
                return self._end_call(is_cut=reason in TRUNCATED_REASONS)
            case Usage():
                self._usage = event
            case Failure():
                return self._dialect.final_error_bytes(event)
            case _:
                pass  # nothing that Ollama has a word for
        return b""

    def accepts_text(self, index: int) -> bool:
        """Whether text may come now."""
        return self._automaton.accepts_text(index)

    def end(self) -> bytes:
        """The last line: why it ended, and what was counted."""
        has_failed = self._automaton.stream_state is StreamState.FAILED
        self._automaton.end()
        if has_failed:
            return b""
        said = self._dialect.line_object(self._envelope, self._dialect.content_fields(""))
        return _encode(said | self._dialect.final_fields(self._reason, self._usage)) + b"\n"

    def _encode_line(self, content: Json) -> bytes:
        return _encode(self._dialect.line_object(self._envelope, content)) + b"\n"

    def _end_call(self, *, is_cut: bool) -> bytes:
        call, pieces = self._call, self._arguments
        self._call, self._arguments = None, []
        arguments = None if call is None else arguments_object("".join(pieces), is_custom=call.is_custom, is_cut=is_cut)
        if call is None or arguments is None:
            return b""
        return self._encode_line(self._dialect.content_fields("", "", [_tool_call_object(call.name, arguments)]))


def _tool_call_object(name: str, arguments: msgspec.Raw) -> Json:
    """A call as Ollama writes it: its arguments are an object."""
    return {"function": {"name": name, "arguments": arguments}}
