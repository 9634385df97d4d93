"""Ollama's dialect: a line of JSON for each event, on /api/chat and on /api/generate."""

from typing import ClassVar

import msgspec

from welldone.wire.asked import CUT_SHORT, Asked
from welldone.wire.automaton import CHAT, Automaton, Stage
from welldone.wire.collect import Reply
from welldone.wire.dialects.arguments import as_object, complete_calls
from welldone.wire.dialects.dialect import Counted, Translated
from welldone.wire.events import Event, Failure, Finish, Json, Reasoning, Refusal, Text, ToolArguments, ToolCall, Usage
from welldone.wire.head import Head

_NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class Ollama(Translated):
    """Answers as Ollama gives them. `is_chat`: as messages, else as bare text. `at`: the time, as Ollama writes it."""

    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = (("Content-Type", _NDJSON), ("Cache-Control", "no-cache"))
    SILENCE: ClassVar[bytes] = b""
    KEEPS: ClassVar[bool] = True  # the arguments of a call

    def __init__(self, *, is_chat: bool, at: str) -> None:
        self._is_chat = is_chat
        self._at = at

    def writer(self, head: Head, counted: Counted) -> "OllamaWriter":
        """The writer of a stream."""
        return OllamaWriter(self, head)

    def whole(self, head: Head, reply: Reply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        answer = reply.answers[0]
        calls = [_call(call.name, arguments) for call, arguments in complete_calls(answer)]
        said = self.said(answer.text + answer.refusal, answer.reasoning, calls)
        return _encode(self.line(head, said) | self.end(answer.reason, reply.usage))

    def limited(self, asked: Asked, *, is_stream: bool) -> Asked:
        """Calls have objects, in a stream too."""
        return msgspec.structs.replace(super().limited(asked, is_stream=is_stream), object_calls=True)

    def last_words(self, failure: Failure) -> bytes:
        """An error is a line of its own."""
        return _encode({"error": failure.message}) + b"\n"

    def said(self, text: str, thinking: str = "", calls: list[Json] | None = None) -> Json:
        """What is said, in the words of the path."""
        thought = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **thought}
        message: Json = {"role": "assistant", "content": text, **thought}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def line(self, head: Head, said: Json) -> Json:
        """One line of the stream, not the last."""
        return {"model": head.model, "created_at": self._at, **said, "done": False}

    def end(self, reason: str, usage: Usage | None) -> Json:
        """What the last line has beside."""
        # Ollama has no word for content_filter; its own "stop" would make a blocked answer look whole.
        done: Json = {"done": True, "done_reason": "stop" if reason == "tool_calls" else reason}
        if usage is not None:
            done |= {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        return done


class OllamaWriter:
    """A right stream of Ollama's, of one choice. A call is said when it is whole."""

    def __init__(self, dialect: Ollama, head: Head) -> None:
        self._dialect = dialect
        self._head = head
        self._automaton = Automaton(CHAT, is_ordered=True)
        self._call: ToolCall | None = None
        self._arguments: list[str] = []
        self._reason = "stop"
        self._usage: Usage | None = None

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later, or cannot be said here."""
        self._automaton.accept(event)
        match event:
            case Text(text=text) | Refusal(text=text):
                return self._line(self._dialect.said(text))
            case Reasoning(text=text):
                return self._line(self._dialect.said("", text))
            case ToolCall():
                # A function without any arguments was cut: others have got a `{}` by now.
                said = self._end_call(is_cut=self._call is not None and not self._call.is_custom)
                self._call = event
                return said
            case ToolArguments(text=text):
                self._arguments.append(text)
            case Finish(reason=reason):
                self._reason = reason
                return self._end_call(is_cut=reason in CUT_SHORT)
            case Usage():
                self._usage = event
            case Failure():
                return self._dialect.last_words(event)
            case _:
                pass  # nothing that Ollama has a word for
        return b""

    def takes_text(self, index: int) -> bool:
        """Whether text may come now."""
        return self._automaton.takes_text(index)

    def end(self) -> bytes:
        """The last line: why it ended, and what was counted."""
        has_failed = self._automaton.stage is Stage.FAILED
        self._automaton.end()
        if has_failed:
            return b""
        said = self._dialect.line(self._head, self._dialect.said(""))
        return _encode(said | self._dialect.end(self._reason, self._usage)) + b"\n"

    def _line(self, said: Json) -> bytes:
        return _encode(self._dialect.line(self._head, said)) + b"\n"

    def _end_call(self, *, is_cut: bool) -> bytes:
        call, pieces = self._call, self._arguments
        self._call, self._arguments = None, []
        arguments = None if call is None else as_object("".join(pieces), is_custom=call.is_custom, is_cut=is_cut)
        if call is None or arguments is None:
            return b""
        return self._line(self._dialect.said("", "", [_call(call.name, arguments)]))


def _call(name: str, arguments: msgspec.Raw) -> Json:
    """A call as Ollama writes it: its arguments are an object."""
    return {"function": {"name": name, "arguments": arguments}}
